"""Metrics of ha for Prometheus, computed from the replica's status at each scrape.

People and alarms have one source: the numbers of ``GET /v1/cluster``, and counters of the parts. An
unknown value is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from services.ha.core.replica import Replica
from services.ha.shell.links import Links
from services.ha.wire.peer_clock import Skew
from shared.metrics.catalogue import ha as of_ha
from shared.metrics.family import Family, Reading
from shared.metrics.registry import Registry

ROLES: Final = ("master", "slave", "candidate", "fenced", "halted")
ROLE_OF: Final[Mapping[str, str]] = {
    "master": "master",
    "promoting": "candidate",
    "candidate": "candidate",
    "fenced": "fenced",
    "halted": "halted",
}
"""By state of the replica; every other state is a slave's."""
MS_PER_S: Final = 1000
OF_STATUS: Final = (
    of_ha.HA_ROLE,
    of_ha.HA_EPOCH,
    of_ha.HA_CONFIGURED_REPLICAS,
    of_ha.HA_IN_SYNC_REPLICAS,
    of_ha.HA_MIN_IN_SYNC_REPLICAS,
    of_ha.HA_LEASE_LEFT_SECONDS,
    of_ha.HA_LEASE_AGE_SECONDS,
    of_ha.HA_LOG_END_OFFSET_BYTES,
    of_ha.HA_CONFIRM_OFFSET_BYTES,
    of_ha.HA_UNCONFIRMED_BYTES,
    of_ha.HA_PAUSED,
    of_ha.HA_OPENING_SECONDS,
    of_ha.HA_CONNECTIONS,
    of_ha.HA_REPLICA_CONNECTED,
    of_ha.HA_TRANSFERRED_BYTES_TOTAL,
    of_ha.HA_REPLICA_IN_SYNC,
    of_ha.HA_REPLICA_LAG_BYTES,
    of_ha.HA_REPLICA_LAG_SECONDS,
    of_ha.HA_REPLICA_ACKED_BYTES,
    of_ha.HA_ACCEPTED_CONNECTIONS_TOTAL,
    of_ha.HA_REFUSED_CONNECTIONS_TOTAL,
)
COUNTED: Final = (
    of_ha.HA_TRUNCATIONS_TOTAL,
    of_ha.HA_TRUNCATED_BYTES_TOTAL,
    of_ha.HA_RESYNCS_TOTAL,
    of_ha.HA_FENCED_FRAMES_TOTAL,
    of_ha.HA_REFUSED_FRAMES_TOTAL,
    of_ha.HA_IMPLAUSIBLE_ACKS_TOTAL,
    of_ha.HA_FAILOVERS_TOTAL,
    of_ha.HA_IN_SYNC_CHANGES_TOTAL,
    of_ha.HA_ELECTIONS_WON_TOTAL,
    of_ha.HA_ELECTIONS_LOST_TOTAL,
    of_ha.HA_DEPOSITIONS_TOTAL,
    of_ha.HA_SWITCHOVERS_TOTAL,
    of_ha.HA_LEASE_CONFLICTS_TOTAL,
    of_ha.HA_LEASE_UNKNOWN_TOTAL,
    of_ha.HA_LEASE_WRITES_TOTAL,
    of_ha.HA_LOOP_STALLS_TOTAL,
)
"""Families that ``counted`` returns."""


class AckDuration:
    """Time from sending bytes until a slave has them on disk."""

    def __init__(self, registry: Registry) -> None:
        self._histograms = registry.histogram(of_ha.HA_ACK_DURATION_SECONDS)

    def observe(self, node: str, seconds: float) -> None:
        """Record the time of one ACK of a node."""
        self._histograms.labels(node).observe(seconds)


class HaMetrics:
    """Reads all values again at each scrape, at one instant."""

    def __init__(
        self,
        registry: Registry,
        own: str,
        status: Callable[[], Mapping[str, Any]],
        counters: Callable[[], Mapping[Family, Reading]],
        links: Links,
        skews: Callable[[], Mapping[str, Skew]],
    ) -> None:
        """own: this node's name. status: returns ``GET /v1/cluster``. counters: returns those of
        ``counted``. skews: returns the clock skews of connected peers."""
        self._own, self._status, self._links, self._skews = own, status, links, skews
        registry.read_pass(OF_STATUS, self._read)
        registry.read_pass(COUNTED, counters)
        registry.read(
            of_ha.HA_CLOCK_SKEW_SECONDS,
            lambda: {node: skew.ahead_ms / MS_PER_S for node, skew in self._skews().items()},
        )

    def _read(self) -> Mapping[Family, Reading]:
        status = self._status()
        nodes: list[Mapping[str, Any]] = status["nodes"]
        own: Mapping[str, Any] = next((node for node in nodes if node["node"] == self._own), {})
        peers = [node for node in nodes if node["node"] != self._own]
        found = {**self._of_group(status, nodes, own), **self._of_peers(peers)}
        if own.get("state") == "master":
            found |= _of_slaves(peers)
        return found

    def _of_group(
        self,
        status: Mapping[str, Any],
        nodes: list[Mapping[str, Any]],
        own: Mapping[str, Any],
    ) -> dict[Family, Reading]:
        present = ROLE_OF.get(str(own.get("state")), "slave")
        lease: Mapping[str, Any] = status.get("lease") or {}
        end, confirm = own.get("log_end"), own.get("confirm")
        in_sync = [node["in_sync"] for node in nodes]
        return {
            of_ha.HA_ROLE: {name: int(name == present) for name in ROLES},
            of_ha.HA_EPOCH: status["epoch"],
            of_ha.HA_CONFIGURED_REPLICAS: len(nodes) or None,
            of_ha.HA_IN_SYNC_REPLICAS: None if None in in_sync else sum(in_sync),
            of_ha.HA_MIN_IN_SYNC_REPLICAS: status.get("min_in_sync"),
            of_ha.HA_LEASE_LEFT_SECONDS: _seconds(lease.get("deadline_in_ms")),
            of_ha.HA_LEASE_AGE_SECONDS: _seconds(lease.get("age_ms")),
            of_ha.HA_LOG_END_OFFSET_BYTES: end,
            of_ha.HA_CONFIRM_OFFSET_BYTES: confirm,
            of_ha.HA_UNCONFIRMED_BYTES: (
                None if end is None or confirm is None else max(0, end - confirm)
            ),
            of_ha.HA_PAUSED: _number(status.get("paused")),
            of_ha.HA_OPENING_SECONDS: _seconds(status.get("opening_ms") or 0),
            of_ha.HA_CONNECTIONS: self._links.count,
            of_ha.HA_ACCEPTED_CONNECTIONS_TOTAL: self._links.accepted_count,
            of_ha.HA_REFUSED_CONNECTIONS_TOTAL: self._links.refused_count,
        }

    def _of_peers(self, peers: list[Mapping[str, Any]]) -> dict[Family, Reading]:
        names: list[str] = [peer["node"] for peer in peers]
        return {
            of_ha.HA_REPLICA_CONNECTED: {name: int(self._links.connected(name)) for name in names},
            of_ha.HA_TRANSFERRED_BYTES_TOTAL: {name: self._links.sent_to(name) for name in names},
        }


def _of_slaves(peers: list[Mapping[str, Any]]) -> dict[Family, Reading]:
    """Return what only the master knows; other nodes would export it late, or not at all."""
    return {
        of_ha.HA_REPLICA_IN_SYNC: {peer["node"]: _number(peer["in_sync"]) for peer in peers},
        of_ha.HA_REPLICA_LAG_BYTES: {peer["node"]: peer["lag_bytes"] for peer in peers},
        of_ha.HA_REPLICA_LAG_SECONDS: {peer["node"]: _seconds(peer["lag_ms"]) for peer in peers},
        of_ha.HA_REPLICA_ACKED_BYTES: {peer["node"]: peer["durable_end"] for peer in peers},
    }


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / MS_PER_S


def _number(value: bool | None) -> int | None:
    return None if value is None else int(value)


def counted(replica: Replica, *, loop_stalls: int) -> dict[Family, Reading]:
    """Return all counters; those with a label by its value."""
    count, session = replica.context.count, replica.context.session
    return {
        of_ha.HA_TRUNCATIONS_TOTAL: count.truncations,
        of_ha.HA_TRUNCATED_BYTES_TOTAL: count.truncated_bytes,
        of_ha.HA_RESYNCS_TOTAL: count.resyncs,
        of_ha.HA_FENCED_FRAMES_TOTAL: count.fenced_frames,
        of_ha.HA_REFUSED_FRAMES_TOTAL: count.refused_frames,
        of_ha.HA_IMPLAUSIBLE_ACKS_TOTAL: count.implausible_acks,
        of_ha.HA_FAILOVERS_TOTAL: dict(count.won_by),
        of_ha.HA_IN_SYNC_CHANGES_TOTAL: {
            "join": count.in_sync_joins,
            "leave": count.in_sync_leaves,
        },
        of_ha.HA_ELECTIONS_WON_TOTAL: count.elections_won,
        of_ha.HA_ELECTIONS_LOST_TOTAL: count.elections_lost,
        of_ha.HA_DEPOSITIONS_TOTAL: count.depositions,
        of_ha.HA_SWITCHOVERS_TOTAL: count.switchovers,
        of_ha.HA_LEASE_CONFLICTS_TOTAL: session.conflicts,
        of_ha.HA_LEASE_UNKNOWN_TOTAL: session.unknowns,
        of_ha.HA_LEASE_WRITES_TOTAL: session.writes,
        of_ha.HA_LOOP_STALLS_TOTAL: loop_stalls,
    }


def skews(replica: Replica) -> dict[str, Skew]:
    """Return the clock skews of connected nodes that report their wall clock."""
    own_ahead_ms, peers = replica.context.snapshot.wall_ahead_ms, replica.peers
    found = {
        node: peer.clock.skew(own_ahead_ms)
        for node, peer in peers.by_node.items()
        if peers.fresh(node) is not None
    }
    return {node: skew for node, skew in found.items() if skew is not None}
