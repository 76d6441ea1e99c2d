"""PromQL as text: which series a panel asks for, and the few shapes that all boards share. Pure.

Series carry the target labels ``cluster``, ``broker`` (the set of replicas) and ``replica`` (the
node). Only a serving node, master or alone, exports ``tidemark_group_*`` gauges; log positions are
exported by every node, so ``serving`` drops what a slave says about its own copy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from deploy.prometheus.model import events

NODE: Final = 'cluster=~"$cluster", broker=~"$broker"'
TOPIC: Final = f'{NODE}, topic=~"$topic"'
GROUP: Final = f'{NODE}, group=~"$group"'
PAIR: Final = f'{GROUP}, topic=~"$topic"'
BY_GROUP: Final = "cluster, broker, group"
BY_PAIR: Final = "cluster, broker, group, topic"
"""What a group is late on is a broker set: it holds the queues."""
AGE: Final = f'max by ({BY_PAIR}) (tidemark_group_lag_seconds{{{PAIR}, kind="main"}})'
OBJECTIVE: Final = f"max by ({BY_GROUP}) (tidemark_group_lag_objective_seconds{{{GROUP}}})"
MEMBERS: Final = f"sum by ({BY_GROUP}) (tidemark_group_members{{{GROUP}}})"
STUCK: Final = f"sum by ({BY_PAIR}) (tidemark_group_stuck_queues{{{PAIR}}})"
TO_OBJECTIVE: Final = f"{AGE} / on ({BY_GROUP}) group_left () {OBJECTIVE}"
MOST: Final = 20
"""No more series than this in a graph by pair, however many are chosen: the largest."""
JOBS: Final = 'job=~"tidemark-.*"'
WINDOW: Final = "$__rate_interval"
"""At least four scrapes, at least a step: no rate between two points of the graph is lost."""


class Query(NamedTuple):
    """One expression of a panel."""

    expr: str
    legend: str = ""
    """A name, or label values as ``{{topic}}``; short, since it is repeated under every graph."""
    needs: str = ""
    """What must have happened before there is anything to show; empty if running is enough."""


def rate(name: str, by: str, where: str = NODE) -> str:
    """Sum of a counter's per-second growth, by labels as they stand in ``by ()``."""
    return f"sum by ({by}) (rate({name}{{{where}}}[{WINDOW}]))"


def growth(name: str, by: str, where: str = NODE) -> str:
    """How much a counter grew around each point of the graph; nothing where it did not.

    For events that are rare: with the first one of a label set, which ``increase`` cannot see.
    """
    return events(f"{name}{{{where}}}", WINDOW, tuple(by.split(", ")))


def quantile(share: float, name: str, by: str = "", where: str = NODE) -> str:
    """A quantile of a histogram; name without ``_bucket``. NaN where nothing was observed."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, where)})"


def quantiles(name: str, where: str = NODE) -> tuple[Query, ...]:
    """The median and the two that hurt, over everything that is chosen."""
    return tuple(
        Query(quantile(share, name, where=where), label)
        for share, label in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
    )


def serving(expr: str) -> str:
    """Without the nodes that say themselves that they are no master; a node alone stays."""
    elsewhere = f'tidemark_ha_role{{{NODE}, role="master"}} == 0'
    return f"({expr}) unless on (cluster, broker, replica) ({elsewhere})"


def at_end(expr: str) -> str:
    """The value at the right edge of the graph, at every point of it: for choosing series."""
    return expr.replace("}", "} @ end()")


def or_zero(expr: str, proof: str) -> str:
    """0 where expr finds nothing, but only while proof has series: else it is unknown, no 0."""
    return f"{expr} or 0 * count({proof})"
