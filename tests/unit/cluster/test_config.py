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


NUMBERED: dict[str, Any] = {
    "nodes": ("g0-{n}=g0-{n}.nodes:8084",),
    "api": ("g0-{n}=http://g0-{n}.nodes:8080",),
    "admin": ("g0-{n}=http://g0-{n}.nodes:8083",),
    "secret_file": FILE,
    "lease_dir": FILE,
}


@pytest.mark.parametrize(("count", "in_sync"), [(2, 1), (3, 2), (5, 2)])
def test_numbered_nodes_are_as_many_as_their_count(count: int, in_sync: int) -> None:
    config = ClusterConfig(node="g0-1", node_count=count, **NUMBERED)
    assert [each.name for each in config.replicas] == [f"g0-{n}" for n in range(count)]
    own = config.own
    assert (own.host, own.port) == ("g0-1.nodes", 8084)
    assert (own.api, own.admin) == ("http://g0-1.nodes:8080", "http://g0-1.nodes:8083")
    assert config.least_in_sync == in_sync


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"node": "g0-2", "node_count": 2}, "cluster.node is 'g0-2'"),
        ({"node": "g0-0", "node_count": 1}, "needs 2 to 9 different names"),
        ({"node": "g0-0"}, "has ['g0-{n}']"),
        ({"node": "b", "node_count": 2, "nodes": ("b=b:1",)}, "'b=b:1' is not a new name=value"),
    ],
)
def test_numbered_nodes_without_a_number_or_beyond_the_count_are_refused(
    settings: dict[str, object], named: str
) -> None:
    with pytest.raises(BrokenRules) as caught:
        ClusterConfig(**NUMBERED | settings)
    assert named in caught.value.rules[0]
