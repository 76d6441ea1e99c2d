from __future__ import annotations

from typing import Any

import pytest

from drills.pods.policies import End, is_allowed, nft_rules


def pod(address: str, app: str = "mark", *, namespace: str = "shop", **labels: str) -> End:
    own = {"kubernetes.io/metadata.name": namespace}
    return End(address, namespace, {"app": app, **labels}, own, {"api": 8080, "admin": 8081})


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "mark"}}, **spec},
    }


NODE, OTHER = pod("10.0.0.1"), pod("10.0.0.2")
CLIENT = pod("10.0.0.3", "client")
MONITOR = pod("10.0.0.4", "prometheus", namespace="monitoring")
OUTSIDE = End("192.0.2.9")
DENY = policy(policyTypes=["Ingress", "Egress"])


def test_without_policies_everything_is_reached() -> None:
    assert is_allowed([], CLIENT, NODE, 1)


def test_a_selected_pod_is_closed_in_the_directions_of_its_policy() -> None:
    assert not is_allowed([DENY], CLIENT, NODE, 8080)
    assert not is_allowed([DENY], NODE, CLIENT, 8080)
    assert is_allowed([DENY], CLIENT, MONITOR, 8080)
    only_in = policy(policyTypes=["Ingress"])
    assert is_allowed([only_in], NODE, CLIENT, 8080)


def test_both_ends_have_to_agree() -> None:
    into = policy("in", ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "mark"}}}]}])
    assert not is_allowed([DENY, into], NODE, OTHER, 8080)
    out = policy(
        "out",
        policyTypes=["Egress"],
        egress=[{"to": [{"podSelector": {"matchLabels": {"app": "mark"}}}]}],
    )
    assert is_allowed([DENY, into, out], NODE, OTHER, 8080)


def test_a_rule_names_ports_by_number_and_by_name() -> None:
    into = policy(ingress=[{"ports": [{"port": "api"}, {"port": 9, "protocol": "UDP"}]}])
    assert is_allowed([into], CLIENT, NODE, 8080)
    assert not is_allowed([into], CLIENT, NODE, 8081)
    assert not is_allowed([into], CLIENT, NODE, 9)
    assert is_allowed([into], CLIENT, NODE, 9, "UDP")


@pytest.mark.parametrize(
    ("peer", "client", "monitor", "outside"),
    [
        ({"podSelector": {}}, True, False, False),
        ({"podSelector": {"matchLabels": {"app": "client"}}}, True, False, False),
        ({"namespaceSelector": {}}, True, True, False),
        (
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
            False,
            True,
            False,
        ),
        (
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}},
            False,
            True,
            False,
        ),
        ({"ipBlock": {"cidr": "192.0.2.0/24"}}, False, False, True),
        ({"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.8/30"]}}, False, False, False),
    ],
)
def test_peers_are_chosen_by_pod_namespace_and_address(
    peer: dict[str, Any], client: bool, monitor: bool, outside: bool
) -> None:
    into = policy(ingress=[{"from": [peer]}])
    found = [is_allowed([into], source, NODE, 8080) for source in (CLIENT, MONITOR, OUTSIDE)]
    assert found == [client, monitor, outside]


def test_an_open_rule_lets_everybody_in() -> None:
    assert is_allowed([DENY, policy(ingress=[{}])], OUTSIDE, NODE, 1)


def test_rules_of_nft_say_the_same() -> None:
    into = policy(ingress=[{"ports": [{"port": "api"}]}], policyTypes=["Ingress"])
    rules = list(nft_rules([into], [CLIENT, NODE], [OUTSIDE]))
    assert rules == [
        "ip saddr 10.0.0.3 ip daddr 10.0.0.1 tcp dport { 8080 } accept",
        "ip saddr 10.0.0.3 ip daddr 10.0.0.1 meta l4proto tcp drop",
        "ip saddr 10.0.0.3 ip daddr 10.0.0.1 meta l4proto udp drop",
    ]
