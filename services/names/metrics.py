"""Metrics of a name service. Names, labels and definitions are those of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable

from services.names.config import NamesConfig
from services.names.core.directory import Directory
from services.names.core.table import Table
from shared.metrics.catalogue import names as of_names
from shared.metrics.registry import Registry

REGISTRATIONS = ("whole", "difference", "slave")
REFUSED = (
    "broker-group-conflict", "node-identity-taken", "wrong-cluster", "bad-signature", "clock-skew",
    "names-limit", "too-large", "internal",
)  # fmt: skip


class NamesMetrics:
    """All series of one instance."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.registrations = registry.counter(of_names.NAMES_REGISTRATIONS_TOTAL)
        self.refused = registry.counter(of_names.NAMES_REFUSED_TOTAL)
        self.expired_nodes = registry.counter(of_names.NAMES_EXPIRED_NODES_TOTAL)
        routes = registry.own_counter(of_names.NAMES_ROUTES_TOTAL)
        self.topic_routes, self.group_routes = routes.labels("topic"), routes.labels("groups")
        self.register_duration = registry.own_histogram(
            of_names.NAMES_REGISTER_DURATION_SECONDS
        ).labels()
        for kind in REGISTRATIONS:  # start at 0, so that the first event is an increase
            self.registrations.labels(kind)
        for code in REFUSED:
            self.refused.labels("register", code)

    def show(
        self,
        config: NamesConfig,
        directory: Directory,
        held_polls: Callable[[], int],
        connections: Callable[[], int],
    ) -> None:
        """Register what is read from the table during a scrape."""
        table, completeness = directory.table, directory.completeness
        groups = table.groups
        for family, function in (
            (of_names.NAMES_GROUPS, lambda: len(groups)),
            (
                of_names.NAMES_GROUPS_WITHOUT_MASTER,
                lambda: sum(each.master is None for each in groups.values()),
            ),
            (of_names.NAMES_NODES, lambda: sum(len(each.nodes) for each in groups.values())),
            (of_names.NAMES_TOPICS, lambda: len(table.topics)),
            (of_names.NAMES_ENTRIES, lambda: table.entries),
            (of_names.NAMES_MISSING_GROUPS, lambda: len(completeness.missing)),
            (of_names.NAMES_COMPLETE, lambda: int(completeness.complete)),
            (of_names.NAMES_LONG_POLLS, held_polls),
            (of_names.NAMES_CONNECTIONS, connections),
        ):
            self._registry.read(family, function)
        self._registry.read(
            of_names.NAMES_BOUND_USED_RATIO,
            lambda: bounds_used(config, directory.table, held_polls(), connections()),
        )


def bounds_used(
    config: NamesConfig, table: Table, held_polls: int, connections: int
) -> dict[str, float]:
    """Return the used share of each bound by the name of its setting; none for a bound of 0."""
    groups = table.groups.values()
    used = {
        "groups_max": len(groups),
        "nodes_max": max((len(each.nodes) for each in groups), default=0),
        "topics_max": max((len(each.topics) for each in groups), default=0),
        "entries_max": table.entries,
        "held_polls_max": held_polls,
        "connections_max": connections,
    }
    limits = {name: getattr(config, name) for name in used}
    return {name: count / limits[name] for name, count in used.items() if limits[name]}
