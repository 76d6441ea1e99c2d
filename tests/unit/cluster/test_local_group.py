"""Settings of a group whose nodes share a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.cluster.local_group import Addresses, cluster_table, member_settings

NODES = {
    "n0": Addresses("127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"),
    "n1": Addresses("127.0.0.1:4", "http://127.0.0.1:5", "http://127.0.0.1:6"),
}


def test_a_second_start_finds_the_secret_of_the_first(tmp_path: Path) -> None:
    first = cluster_table(tmp_path, NODES)
    secret = Path(str(first["secret_file"]))
    text = secret.read_text()
    assert len(text) == 64
    assert secret.stat().st_mode & 0o077 == 0
    assert cluster_table(tmp_path, NODES) == first
    assert secret.read_text() == text
    assert first["api"] == ["n0=http://127.0.0.1:2", "n1=http://127.0.0.1:5"]


def test_the_lease_is_in_a_directory_or_in_etcd(tmp_path: Path) -> None:
    in_etcd = cluster_table(tmp_path, NODES, ["http://127.0.0.1:7"])
    assert (in_etcd["lease"], in_etcd["etcd_endpoints"]) == ("etcd", ["http://127.0.0.1:7"])
    assert "lease_dir" not in in_etcd
    assert not (tmp_path / "lease").exists()
    in_directory = cluster_table(tmp_path, NODES)
    assert (in_directory["lease"], in_directory["lease_dir"]) == (
        "directory",
        str(tmp_path / "lease"),
    )
    assert "etcd_endpoints" not in in_directory


@pytest.mark.parametrize(
    ("service", "names"),
    [
        ("broker", {"store", "cluster"}),
        ("reput", {"store"}),
        ("ha", {"store", "cluster", "commands"}),
    ],
)
def test_each_service_gets_what_it_needs_in_a_group(service: str, names: set[str]) -> None:
    settings = member_settings(service, {"node": "n0"})
    assert set(settings) == names
    assert settings["store"] == {"visible_after": "confirmed"}
