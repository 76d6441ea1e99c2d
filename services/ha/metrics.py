"""What ha measures, for Prometheus: read from the replica's own answer when asked.

One source for people and alarms: the numbers of ``GET /v1/cluster``, and counters that the parts
keep anyway. A value that is not known is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.runtime.metrics import SECONDS_BUCKETS

ROLES: Final = ("master", "slave", "candidate", "fenced", "halted")
ROLE_OF: Final[Mapping[str, str]] = {
    "master": "master",
    "promoting": "candidate",
    "candidate": "candidate",
    "fenced": "fenced",
    "halted": "halted",
}
"""By state of the replica; every other one is a slave's."""
MS_PER_S: Final = 1000


class SentBytes(Protocol):
    """The links, as far as metrics read them."""

    accepted_count: int
    refused_count: int

    def sent_to(self, node: str) -> int:
        """Bytes sent to a node."""
        ...

    def connected(self, node: str) -> bool:
        """Whether a proved link is there."""
        ...

    @property
    def count(self) -> int:
        """Connections."""
        ...


class AckDuration:
    """How long slaves take to have on disk what is sent to them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histogram = Histogram(
            "tidemark_ha_ack_duration_seconds",
            "From sending bytes to the peer until it said that they are on its disk; once per ACK, "
            "of its oldest bytes.",
            ["peer"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )

        self._of: dict[str, Histogram] = {}

    def observe(self, node: str, seconds: float) -> None:
        """It took a node so long; called for each of its ACKs."""
        histogram = self._of.get(node)
        if histogram is None:
            histogram = self._of[node] = self._histogram.labels(node)
        histogram.observe(seconds)


class HaMetrics(Collector):
    """Reads everything anew at each scrape."""

    def __init__(
        self,
        registry: CollectorRegistry,
        own: str,
        status: Callable[[], Mapping[str, Any]],
        counters: Callable[[], Mapping[str, float]],
        links: SentBytes,
        kinds: Callable[[], Mapping[str, Mapping[str, float]]],
    ) -> None:
        """own: this node's name. status: as ``GET /v1/cluster``. counters: by name without
        ``tidemark_ha_`` and ``_total``. kinds: counters by name, then by the value of their one
        label."""
        self._own, self._status, self._counters, self._links = own, status, counters, links
        self._kinds = kinds
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        status = self._status()
        nodes: list[Mapping[str, Any]] = status["nodes"]
        own: Mapping[str, Any] = next((node for node in nodes if node["node"] == self._own), {})
        yield from self._of_group(status, nodes, own)
        peers = [node for node in nodes if node["node"] != self._own]
        yield from self._of_peers(peers)
        if own.get("state") == "master":
            yield from self._of_slaves(peers)
        yield from self._counted()

    def _of_group(
        self,
        status: Mapping[str, Any],
        nodes: list[Mapping[str, Any]],
        own: Mapping[str, Any],
    ) -> Iterator[Metric]:
        role = GaugeMetricFamily(
            "tidemark_ha_role", "1 for the role that this node has now.", labels=["role"]
        )
        present = ROLE_OF.get(str(own.get("state")), "slave")
        for name in ROLES:
            role.add_metric([name], name == present)
        yield role
        lease: Mapping[str, Any] = status.get("lease") or {}
        end, confirm = own.get("log_end"), own.get("confirm")
        in_sync = [node["in_sync"] for node in nodes]
        yield from _gauges(
            (
                ("epoch", "Epoch of the group's master known here.", status["epoch"]),
                (
                    "configured_replicas",
                    "Nodes in the configuration, the master included.",
                    len(nodes) or None,
                ),
                (
                    "in_sync_replicas",
                    "Members of the published in-sync set, the master included.",
                    None if None in in_sync else sum(in_sync),
                ),
                (
                    "min_in_sync_replicas",
                    "Fewer members than this may not acknowledge.",
                    status.get("min_in_sync"),
                ),
                (
                    "lease_left_seconds",
                    "Until this node must stop to answer as master; negative once it is over.",
                    _seconds(lease.get("deadline_in_ms")),
                ),
                (
                    "lease_age_seconds",
                    "Since the lease was last seen to change.",
                    _seconds(lease.get("age_ms")),
                ),
                ("log_end_offset_bytes", "Physical offset behind the own log's last byte.", end),
                (
                    "confirm_offset_bytes",
                    "Physical offset up to which every member of the set has everything on disk, "
                    "as known here.",
                    confirm,
                ),
                (
                    "unconfirmed_bytes",
                    "Own log's end minus the confirm offset.",
                    None if end is None or confirm is None else max(0, end - confirm),
                ),
                ("paused", "1 while nobody takes over by itself.", _number(status.get("paused"))),
                ("connections", "Connections on the replication port.", self._links.count),
            )
        )

    def _of_peers(self, peers: list[Mapping[str, Any]]) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "tidemark_ha_replica_connected", "1 while a link to the peer is there.", labels=["peer"]
        )
        sent = CounterMetricFamily(
            "tidemark_ha_transferred_bytes", "Bytes sent to the peer.", labels=["peer"]
        )
        for peer in peers:
            node = peer["node"]
            connected.add_metric([node], int(self._links.connected(node)))
            sent.add_metric([node], self._links.sent_to(node))
        yield from (connected, sent)

    def _of_slaves(self, peers: list[Mapping[str, Any]]) -> Iterator[Metric]:
        """What only the master knows: another node would tell it late, or not at all."""
        families = (
            (
                "replica_in_sync",
                "1 while the peer is a member of the published in-sync set.",
                lambda peer: _number(peer["in_sync"]),
            ),
            (
                "replica_lag_bytes",
                "Own log's end minus what the peer acknowledged as on disk.",
                lambda peer: peer["lag_bytes"],
            ),
            (
                "replica_lag_seconds",
                "Since the peer last had on disk all that the master had then; 0 when it has all.",
                lambda peer: _seconds(peer["lag_ms"]),
            ),
            (
                "replica_acked_bytes",
                "Physical offset up to which the peer has the log on disk, as far as known here.",
                lambda peer: peer["durable_end"],
            ),
        )
        for name, definition, read in families:
            family = GaugeMetricFamily(f"tidemark_ha_{name}", definition, labels=["peer"])
            for peer in peers:
                value = read(peer)
                if value is not None:
                    family.add_metric([peer["node"]], value)
            yield family

    def _counted(self) -> Iterator[Metric]:
        for name, by_kind in self._kinds().items():
            label, definition = KINDS[name]
            family = CounterMetricFamily(f"tidemark_ha_{name}", definition, labels=[label])
            for kind, count in by_kind.items():
                family.add_metric([kind], count)
            yield family
        counted = {
            **self._counters(),
            "accepted_connections": self._links.accepted_count,
            "refused_connections": self._links.refused_count,
        }
        for name, value in counted.items():
            yield CounterMetricFamily(f"tidemark_ha_{name}", DEFINITIONS[name], value=value)


KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "failovers": (
        "reason",
        "Times that this process became master: lost_peer, manual (an order or a switch), startup.",
    ),
    "in_sync_changes": ("change", "Changes of the published in-sync set: join, leave."),
}
"""Label and definition by name."""
DEFINITIONS: Final[Mapping[str, str]] = {
    "accepted_connections": "Connections accepted on the replication port.",
    "refused_connections": "Connections closed before their peer had proved anything, or for what "
    "it sent.",
    "truncations": "Cuts of the own log at the point where it parts from the master's.",
    "truncated_bytes": "Bytes cut from a log that had diverged.",
    "resyncs": "Times that the own log was emptied and copied anew.",
    "fenced_frames": "Answers that a higher epoch has been promised.",
    "refused_frames": "Frames of an epoch below the promised one.",
    "implausible_acks": "Acknowledgements that could not be true; each closed a link.",
    "elections_won": "Times that this process took the lease.",
    "elections_lost": "Times that another was first.",
    "depositions": "Terms of this process that ended before it wanted.",
    "switchovers": "Planned switches away from this process.",
    "lease_conflicts": "Writes to the lease that another write had overtaken.",
    "lease_unknown": "Requests to the lease without an outcome: time-outs and errors.",
    "lease_writes": "Writes to the lease that were applied.",
    "loop_stalls": "Times that the process stood still for longer than two seconds.",
}


def _gauges(values: tuple[tuple[str, str, float | None], ...]) -> Iterator[Metric]:
    """One family each; without a sample where the value is not known."""
    for name, definition, value in values:
        family = GaugeMetricFamily(f"tidemark_ha_{name}", definition)
        if value is not None:
            family.add_metric([], value)
        yield family


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / MS_PER_S


def _number(value: bool | None) -> int | None:
    return None if value is None else int(value)
