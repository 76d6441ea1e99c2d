"""Metrics of a name service. Names, labels and definitions are those of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable

from services.names.core.directory import Directory
from shared.metrics.catalogue import names as of_names
from shared.metrics.registry import Registry

REGISTRATIONS = ("whole", "difference", "slave")
REFUSED = (
    "broker-group-conflict", "node-identity-taken", "bad-signature", "clock-skew", "names-limit",
    "internal",
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
