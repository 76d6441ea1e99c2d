"""Evaluate NetworkPolicies between two pods, and translate them to nft rules. Pure.

A pod that no policy selects for a direction is unrestricted in it. For a selected pod, only
connections that a rule permits are allowed. A connection must be allowed at both ends; replies are
always allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final

from drills.pods.objects import BadManifest, Manifest, namespace_of, selects

INGRESS: Final = "Ingress"
EGRESS: Final = "Egress"
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection: a pod, or an address outside of all namespaces."""

    address: str
    namespace: str | None = None
    """Namespace of the pod; None if the end is not a pod."""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Container ports by name."""


def is_allowed(
    policies: Sequence[Manifest], source: End, target: End, port: int, protocol: str = "TCP"
) -> bool:
    """Return whether source may connect to a port of target."""
    return _passes(policies, EGRESS, source, target, (target, port, protocol)) and _passes(
        policies, INGRESS, target, source, (target, port, protocol)
    )


def is_isolated(policies: Sequence[Manifest], direction: str, pod: End) -> bool:
    """Return whether any policy selects the pod for a direction."""
    return any(True for _ in _selecting(policies, direction, pod))


def nft_rules(
    policies: Sequence[Manifest], pods: Sequence[End], others: Sequence[End]
) -> Iterator[str]:
    """Yield rules for the first packet of connections between pods and to other addresses.

    Between two ends, either everything is dropped except for some ports, or everything is accepted
    except for some ports.
    """
    for source in pods:
        for target in (*pods, *others):
            if target is not source:
                yield from _pair(policies, source, target)


def _pair(policies: Sequence[Manifest], source: End, target: End) -> Iterator[str]:
    for protocol in ("TCP", "UDP"):
        ports = sorted({*_ports_named(policies), *target.ports.values()})
        unnamed = next(port for port in range(1, PORT_MAX) if port not in ports)
        usually = is_allowed(policies, source, target, unnamed, protocol)
        excepted = [
            port
            for port in ports
            if is_allowed(policies, source, target, port, protocol) != usually
        ]
        ends = f"ip saddr {source.address} ip daddr {target.address}"
        verdict, opposite = ("accept", "drop") if usually else ("drop", "accept")
        if excepted:
            listed = ", ".join(map(str, excepted))
            yield f"{ends} {protocol.lower()} dport {{ {listed} }} {opposite}"
        if not usually:
            yield f"{ends} meta l4proto {protocol.lower()} {verdict}"


def _ports_named(policies: Iterable[Manifest]) -> Iterator[int]:
    for policy in policies:
        for direction in ("ingress", "egress"):
            for rule in policy["spec"].get(direction) or ():
                for entry in rule.get("ports") or ():
                    if "endPort" in entry:
                        raise BadManifest("endPort of a NetworkPolicy is not done here")
                    if isinstance(entry.get("port"), int):
                        yield entry["port"]


def _passes(
    policies: Sequence[Manifest], direction: str, pod: End, other: End, to: tuple[End, int, str]
) -> bool:
    selecting = list(_selecting(policies, direction, pod))
    if not selecting:
        return True
    peers = "from" if direction == INGRESS else "to"
    return any(
        _peer_matches(rule.get(peers), other, namespace_of(policy)) and _port_matches(rule, *to)
        for policy in selecting
        for rule in policy["spec"].get(direction.lower()) or ()
    )


def _selecting(policies: Sequence[Manifest], direction: str, pod: End) -> Iterator[Manifest]:
    for policy in policies:
        spec = policy["spec"]
        types = spec.get("policyTypes") or ((INGRESS, EGRESS) if "egress" in spec else (INGRESS,))
        if (
            direction in types
            and namespace_of(policy) == pod.namespace
            and selects(spec.get("podSelector") or {}, pod.labels)
        ):
            yield policy


def _peer_matches(peers: Sequence[Manifest] | None, other: End, namespace: str) -> bool:
    if not peers:
        return True
    for peer in peers:
        if "ipBlock" in peer:
            block = peer["ipBlock"]
            address = ip_address(other.address)
            if address in ip_network(block["cidr"]) and not any(
                address in ip_network(hole) for hole in block.get("except") or ()
            ):
                return True
            continue
        if other.namespace is None:
            continue
        if "namespaceSelector" in peer:
            if not selects(peer["namespaceSelector"] or {}, other.namespace_labels):
                continue
        elif other.namespace != namespace:
            continue
        if selects(peer.get("podSelector") or {}, other.labels):
            return True
    return False


def _port_matches(rule: Manifest, target: End, port: int, protocol: str) -> bool:
    entries = rule.get("ports")
    if not entries:
        return True
    for entry in entries:
        if entry.get("protocol", "TCP") != protocol:
            continue
        wanted = entry.get("port")
        if wanted is None:
            return True
        first = target.ports.get(wanted) if isinstance(wanted, str) else wanted
        if first is not None and first <= port <= entry.get("endPort", first):
            return True
    return False
