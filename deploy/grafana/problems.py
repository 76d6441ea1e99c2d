"""Status of pairs according to lag analytics: queries that two boards share. Pure.

A pair is a group and a topic. There are series only for pairs whose status is not ok, with their
own labels for cluster and broker set. While analytics does not run there are none: the panels are
then empty, never 0.
"""

from __future__ import annotations

from typing import Final

from analytics.statuses import TABLE, URGENT, Status
from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
from deploy.grafana.panels import GREY, Column, Lines, Table, Word
from deploy.grafana.queries import BY_PAIR, MOST, PAIR, Query

NEEDS: Final = "lag analytics that runs beside the cluster"
STATUSES: Final = tuple(
    Word(number, status.lower().replace("_", " "), row.dark or GREY)
    for number, (status, row) in enumerate(TABLE.items())
    if status is not Status.OK
)
"""Ascending severity. The colours are those of the report; they also differ on a dark ground."""
ALARMS: Final = "|".join(status.lower() for status, row in TABLE.items() if row.level in URGENT)
"""Regular expression for the statuses that need a person."""
STATUS: Final = "tidemark_analytics_group_status"
WITH_STATUS: Final = (
    f"on ({BY_PAIR}) group_left (status) max by ({BY_PAIR}, status) ({STATUS}{{{PAIR}}})"
)


def of_pairs(family: str) -> str:
    """Return an expression for a gauge of analytics by pair."""
    return f"max by ({BY_PAIR}) ({family}{{{PAIR}}})"


def largest(family: str) -> Query:
    """Return a query for the largest values of a gauge of analytics by pair."""
    return Query(f"topk({MOST}, {of_pairs(family)})", "{{group}} / {{topic}}", needs=NEEDS)


def status_state() -> str:
    """Return an expression by broker set, group and topic, with numbers of ``STATUSES``."""
    return f"max by ({BY_PAIR}) ({{}})".format(
        " or ".join(
            f'{word.value:g} * ({STATUS}{{{PAIR}, status="{word.text.replace(" ", "_")}"}} == 1)'
            for word in STATUSES
        )
    )


def problems(width: int, count: int = MOST) -> Table:
    """Return a table of pairs with status, age and drain time."""
    age = of_pairs("tidemark_analytics_group_age_seconds")
    drain = of_pairs("tidemark_analytics_group_drain_seconds")
    hidden = of_pairs("tidemark_analytics_group_hidden_lag_messages")
    worst = f"topk({count}, {age} * {WITH_STATUS})"
    return Table(
        title="Pairs not in time",
        description=describe(
            "As lag analytics judges them, the oldest first. Age is how old the oldest unread "
            "message is; drain time how long until all is read. The report has the cause.",
            "tidemark_analytics_group_status",
            "tidemark_analytics_group_drain_seconds",
            "tidemark_analytics_group_hidden_lag_messages",
        ),
        unit=units.COUNT,
        queries=(
            Query(worst, needs=NEEDS),
            Query(f"{drain} * {WITH_STATUS}", needs=NEEDS),
            Query(f"{hidden} * {WITH_STATUS}", needs=NEEDS),
        ),
        columns=(
            Column("status", "Status", width=130),
            Column("group", "Group", links=(uids.TO_PAIR,)),
            Column("topic", "Topic", links=(uids.TO_PAIR,)),
            Column("broker", "Broker set", width=100),
            Column("A", "Age", units.SECONDS, width=100),
            Column("B", "Drain time", units.SECONDS, width=110),
            Column("C", "Not visible yet", units.COUNT, width=130),
        ),
        sort="Age",
        width=width,
        nothing="None, or lag analytics does not run",
    )


def blamed(width: int) -> Lines:
    """Return a graph of the number of pairs by the stage that delays them."""
    return Lines(
        title="Blamed stages",
        description=describe(
            "In which stage the pairs that are not in time lose it, as lag analytics judges.",
            "tidemark_analytics_group_bottleneck",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"count by (stage) (max by ({BY_PAIR}, stage) "
                f"(tidemark_analytics_group_bottleneck{{{PAIR}}}))",
                "{{stage}}",
                needs=NEEDS,
            ),
        ),
        width=width,
        stacked=True,
        nothing="None, or lag analytics does not run",
    )
