"""The rules of the table [cluster] about the place of the lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.cluster.config import ClusterConfig
from shared.runtime.config import BrokenRules

GROUP: dict[str, Any] = {
    "node": "a",
    "nodes": ("a=127.0.0.1:1", "b=127.0.0.1:2"),
    "api": ("a=http://a", "b=http://b"),
    "admin": ("a=http://a", "b=http://b"),
    "secret_file": Path("/secret"),
}
ETCD: dict[str, Any] = {
    "lease": "etcd",
    "etcd_endpoints": ("https://e0:2379", "https://[fd00::1]:2379"),
}
FILE = Path("/file")


def broken(**settings: object) -> tuple[str, ...]:
    with pytest.raises(BrokenRules) as caught:
        ClusterConfig(**GROUP, **settings)  # type: ignore[arg-type]
    return caught.value.rules


def test_a_lease_on_etcd_takes_endpoints_a_user_and_certificates() -> None:
    config = ClusterConfig(
        **GROUP,
        **ETCD,
        etcd_user="ha",
        etcd_password_file=FILE,
        etcd_tls_ca_file=FILE,
        etcd_tls_cert_file=FILE,
        etcd_tls_key_file=FILE,
    )
    assert config.etcd_prefix + config.lease_name == "/tidemark/tidemark-g0"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lease": "etcd"}, "etcd_endpoints belongs to"),
        ({"lease_dir": FILE, "etcd_endpoints": ("http://e0:1",)}, "etcd_endpoints belongs to"),
        (ETCD | {"lease_dir": FILE}, "lease_dir belongs to"),
        (ETCD | {"etcd_user": "ha"}, "etcd_user and etcd_password_file"),
        (ETCD | {"etcd_password_file": FILE}, "etcd_user and etcd_password_file"),
        (ETCD | {"etcd_tls_cert_file": FILE}, "etcd_tls_cert_file and etcd_tls_key_file"),
        (ETCD | {"etcd_tls_key_file": FILE}, "etcd_tls_cert_file and etcd_tls_key_file"),
        (ETCD | {"etcd_endpoints": ("http://e0:1", "https://e1:1")}, "all are http, or all https"),
        (
            ETCD | {"etcd_endpoints": ("http://e0:1",), "etcd_tls_ca_file": FILE},
            "only with https endpoints",
        ),
    ],
)
def test_settings_of_etcd_that_contradict_each_other_are_refused(
    settings: dict[str, object], named: str
) -> None:
    (rule,) = broken(**settings)
    assert named in rule


@pytest.mark.parametrize(
    "endpoint",
    ["e0:2379", "http://e0", "http://e0:2379/", "ftp://e0:1", "http://user:word@e0:2379", ""],
)
def test_an_endpoint_is_a_scheme_a_host_and_a_port(endpoint: str) -> None:
    (rule,) = broken(lease="etcd", etcd_endpoints=(endpoint,))
    assert rule == f"cluster.etcd_endpoints: {endpoint} is not http(s)://host:port"
