"""PromQL as text: selectors of panels, and patterns that all boards share. Pure.

Series have the target labels ``cluster``, ``broker`` (the set of replicas) and ``replica`` (the
node). Only a serving node, master or standalone, exports ``tidemark_group_*`` gauges. Every node
exports log positions, so ``serving`` removes those that a slave exports about its own copy.
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
"""Labels of a pair; ``broker`` is included because a broker set holds the queues."""
AGE: Final = f'max by ({BY_PAIR}) (tidemark_group_lag_seconds{{{PAIR}, kind="main"}})'
OBJECTIVE: Final = f"max by ({BY_GROUP}) (tidemark_group_lag_objective_seconds{{{GROUP}}})"
MEMBERS: Final = f"sum by ({BY_GROUP}) (tidemark_group_members{{{GROUP}}})"
STUCK: Final = f"sum by ({BY_PAIR}) (tidemark_group_stuck_queues{{{PAIR}}})"
TO_OBJECTIVE: Final = f"{AGE} / on ({BY_GROUP}) group_left () {OBJECTIVE}"
MOST: Final = 20
"""Largest number of series in a graph by pair; the largest values are shown."""
JOBS: Final = 'job=~"tidemark-.*"'
WINDOW: Final = "$__rate_interval"
"""At least four scrapes and at least a step, so that no increase between two points is lost."""


class Query(NamedTuple):
    """One expression of a panel."""

    expr: str
    legend: str = ""
    """A name, or label values as ``{{topic}}``; short, because it is repeated under every graph."""
    needs: str = ""
    """Precondition for data, in words; empty if running is enough."""


def rate(name: str, by: str, where: str = NODE) -> str:
    """Return the sum of a counter's rate per second, by the given labels."""
    return f"sum by ({by}) (rate({name}{{{where}}}[{WINDOW}]))"


def growth(name: str, by: str, where: str = NODE) -> str:
    """Return a counter's increase around each point of the graph; no value where it is 0.

    For rare events: it includes the first event of a label set, which ``increase`` misses.
    """
    return events(f"{name}{{{where}}}", WINDOW, tuple(by.split(", ")))


def quantile(share: float, name: str, by: str = "", where: str = NODE) -> str:
    """Return a quantile of a histogram; name without ``_bucket``. NaN without observations."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, where)})"


def quantiles(name: str, where: str = NODE) -> tuple[Query, ...]:
    """Return the queries of median, 99 % and 99.9 % quantile over everything selected."""
    return tuple(
        Query(quantile(share, name, where=where), label)
        for share, label in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
    )


def serving(expr: str) -> str:
    """Remove series of nodes that report not to be master; a standalone node's series stay."""
    elsewhere = f'tidemark_ha_role{{{NODE}, role="master"}} == 0'
    return f"({expr}) unless on (cluster, broker, replica) ({elsewhere})"


def at_end(expr: str) -> str:
    """Return the value at the right edge of the graph at every point, to select series by it."""
    return expr.replace("}", "} @ end()")


def or_zero(expr: str, proof: str) -> str:
    """Return 0 where expr has no value, but only while proof has series; else it is unknown."""
    return f"{expr} or 0 * count({proof})"
