"""Settings of ha and what is built from them."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from services.ha.config import HaConfig, LocalHaConfig
from services.ha.startup import secret_files, setup_from, status_before, tls_of
from shared.cluster.config import ClusterConfig
from shared.cluster.group_secret import SECRET_SIZE_MAX
from shared.files.store_config import LocalStoreConfig, StoreConfig
from shared.runtime.config import load
from tidemark.errors import BadConfig

NODES = ("n0=10.0.0.1:9000", "n1=10.0.0.2:9000")
API = ("n0=http://a:1", "n1=http://b:1")


def cluster(tmp_path: Path) -> ClusterConfig:
    return ClusterConfig(
        node="n1",
        nodes=NODES,
        api=API,
        admin=API,
        secret_file=tmp_path / "secret",
        lease_dir=tmp_path,
        profile="local",
    )


def config(tmp_path: Path) -> HaConfig:
    store = LocalStoreConfig(visible_after="confirmed")
    return LocalHaConfig(store=store, cluster=cluster(tmp_path))


def test_the_replica_gets_its_identity(tmp_path: Path) -> None:
    setup, other = setup_from(config(tmp_path)), setup_from(config(tmp_path))
    assert (setup.own.name, setup.min_in_sync) == ("n1", 1)
    assert [each.name for each in setup.nodes] == ["n0", "n1"]
    assert setup.times.lease_ms == 3000
    assert len(setup.process) == 16
    assert setup.process != other.process


def test_before_recovery_the_status_has_the_same_fields_and_a_reason(tmp_path: Path) -> None:
    said = status_before(setup_from(config(tmp_path)), "recovering")
    assert said["master"] is None
    assert said["reason"] == "n1 is recovering"
    first = said["nodes"][0]
    assert (first["node"], first["api"], first["in_sync"]) == ("n0", "http://a:1", None)
    assert set(first) == {
        *("node", "role", "state", "incarnation", "in_sync", "api", "admin", "log_end"),
        *("durable_end", "confirm", "lag_bytes", "lag_ms", "reason", "seen_ms_ago"),
    }


def test_a_node_alone_needs_no_ha() -> None:
    with pytest.raises(ValueError, match="only on a node of a group"):
        HaConfig()


def test_a_group_shows_only_what_is_confirmed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='visible_after is "flushed"'):
        HaConfig(store=StoreConfig(), cluster=cluster(tmp_path))


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ha.toml"
    path.write_text(
        f"""
        admin_port = 9
        [store]
        visible_after = "confirmed"
        [cluster]
        node = "n0"
        nodes = {list(NODES)}
        api = {list(API)}
        admin = {list(API)}
        secret_file = "{tmp_path}/secret"
        lease_dir = "{tmp_path}"
        """
    )
    found = load(LocalHaConfig, path, "TIDEMARK_HA_", environment={})
    assert found.cluster.own.host == "10.0.0.1"


@pytest.mark.parametrize("size", [0, 15, SECRET_SIZE_MAX + 1])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "secret").write_bytes(b"x" * size + b"\n")
    with pytest.raises(BadConfig, match="secret_file"):
        secret_files(config(tmp_path)).read()


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        secret_files(config(tmp_path)).read()


def test_a_secret_is_read_without_its_line_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcdef\n")
    path.chmod(0o600)
    assert secret_files(config(tmp_path)).read().accepted == (b"0123456789abcdef",)
    assert not caplog.records
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        secret_files(config(tmp_path)).read()
    assert "others than the owner" in caplog.text


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert tls_of(config(tmp_path)) is None
    path = tmp_path / "no.pem"
    secured = dataclasses.replace(
        cluster(tmp_path), tls_cert_file=path, tls_key_file=path, tls_ca_file=path
    )
    with_tls = dataclasses.replace(config(tmp_path), cluster=secured)
    with pytest.raises(BadConfig, match="tls_cert_file"):
        tls_of(with_tls)
