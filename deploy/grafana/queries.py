"""PromQL as text: selectors of panels, and patterns that all boards share. Pure.

Series have the target labels ``cluster``, ``broker`` (the set of replicas) and ``replica`` (the
node). Only a serving node, master or standalone, exports ``tidemark_group_*`` gauges. Every node
exports log positions, so ``serving`` removes those that a slave exports about its own copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from deploy.prometheus.rules import TARGET_LABELS

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
NODES: Final = "broker, replica"
PROCESSES: Final = "broker, replica, service"
JOBS: Final = 'job=~"tidemark-.*"'
WINDOW: Final = "$__rate_interval"
"""At least four scrapes and at least a step, so that no increase between two points is lost."""
ANALYTICS_RUNS: Final = "lag analytics that runs beside the cluster"
NAMES_RUN: Final = "name services"

_SEPARATORS: Final[Mapping[tuple[str, ...], str]] = {
    ("group", "topic"): " / ",
    ("replica", "peer"): " to ",
}


class Query(NamedTuple):
    expr: str
    legend: str = ""
    """A name, or label values as ``{{topic}}``; short, because it is repeated under every graph."""
    given: str = ""
    """The event or state without which there is no data, in words."""

    @property
    def needs(self) -> str:
        """Precondition for data, in words; empty if running is enough."""
        if self.given:
            return self.given
        if "tidemark_analytics_" in self.expr:
            return ANALYTICS_RUNS
        return NAMES_RUN if "tidemark_names_" in self.expr else ""


def legend(by: str, word: str = "") -> str:
    """Return the legend of series with these labels, then word.

    The cluster is left out, and the broker set wherever another label identifies the series.
    """
    labels = [label for label in by.split(", ") if label not in ("", "cluster")]
    if {"replica", "peer", "group", "topic"} & set(labels):
        labels = [label for label in labels if label != "broker"]
    between = _SEPARATORS.get(tuple(labels), " ")
    return f"{between.join(f'{{{{{label}}}}}' for label in labels)} {word}".strip()


def series(expr: str, by: str, word: str = "", *, how: str = "max", given: str = "") -> Query:
    """Return an aggregate of an expression by labels; one series if there are none."""
    return Query(f"{how} by ({by}) ({expr})" if by else f"{how}({expr})", legend(by, word), given)


def gauge(
    name: str, by: str, word: str = "", *, how: str = "max", where: str = NODE, given: str = ""
) -> Query:
    return series(f"{name}{{{where}}}", by, word, how=how, given=given)


def age(name: str, by: str, word: str = "", where: str = NODE) -> Query:
    """Return the time since a timestamp; of several, since the newest for each label set."""
    newest = gauge(name, by, word, where=where)
    return newest._replace(expr=f"time() - {newest.expr}")


def rate(name: str, by: str, word: str = "", *, where: str = NODE, given: str = "") -> Query:
    """Return the sum of a counter's rate per second, by the given labels."""
    return series(f"rate({name}{{{where}}}[{WINDOW}])", by, word, how="sum", given=given)


def events(counter: str, within: str, by: str) -> str:
    """Return an expression for a counter's recent increase, above 0 only, including a first event.

    ``increase`` misses the first event of a label set whose series begins with it, because there is
    no 0 before. So a series counts with its value if it did not exist a minute ago although its
    process was scraped then. A process that was discovered later may have counted long before.
    """
    return (
        f"sum by ({by}) (increase({counter}[{within}]) > 0"
        f" or ({counter} unless {counter} offset 1m) > 0"
        f" and on ({', '.join(TARGET_LABELS)}) up offset 1m == 1)"
    )


def growth(name: str, by: str, word: str = "", *, where: str = NODE, given: str = "") -> Query:
    """Return a counter's increase around each point of the graph; no value where it is 0.

    For rare events: it includes the first event of a label set, which ``increase`` misses.
    """
    return Query(events(f"{name}{{{where}}}", WINDOW, by), legend(by, word), given)


def buckets(name: str, where: str = NODE) -> Query:
    """Return the rate of a histogram's buckets, for a heat map; name without ``_bucket``."""
    return rate(f"{name}_bucket", "le", where=where)


def quantile(share: float, name: str, by: str = "", word: str = "", *, where: str = NODE) -> Query:
    """Return a quantile of a histogram; name without ``_bucket``. NaN without observations."""
    rates = rate(f"{name}_bucket", f"le, {by}" if by else "le", where=where)
    return Query(f"histogram_quantile({share}, {rates.expr})", legend(by, word))


def quantiles(name: str, by: str = "", where: str = NODE) -> tuple[Query, ...]:
    return tuple(
        quantile(share, name, by, label, where=where)
        for share, label in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
    )


def largest(query: Query, count: int = MOST) -> Query:
    return query._replace(expr=f"topk({count}, {query.expr})")


def serving(expr: str) -> str:
    """Remove the series of nodes that report that they are not the master. Standalone nodes keep
    theirs."""
    elsewhere = f'tidemark_ha_role{{{NODE}, role="master"}} == 0'
    return f"({expr}) unless on (cluster, broker, replica) ({elsewhere})"


def at_end(expr: str) -> str:
    """Return the expression as evaluated at the right edge of the graph, to select series by that
    value."""
    return expr.replace("}", "} @ end()")


def or_zero(expr: str, proof: str) -> str:
    """Return 0 where expr has no value, but only while proof has series; else it is unknown."""
    return f"{expr} or 0 * count({proof})"
