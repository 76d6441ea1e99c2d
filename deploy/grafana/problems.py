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
from deploy.grafana.panels import GREY, Column, Lines, Table, Word
from deploy.grafana.queries import BY_PAIR, MOST, PAIR, Query, series

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
        tuple(
            Query(each) for each in (worst, f"{drain} * {WITH_STATUS}", f"{hidden} * {WITH_STATUS}")
        ),
        width=width,
        title="Pairs not in time",
        text="As lag analytics evaluates them, the oldest first. Age is how old the oldest unread "
        "message is; drain time is how long reading all takes. The report has the cause.",
        unit=units.COUNT,
        columns=(
            Column("status", "Status", width=130),
            *uids.PAIR_COLUMNS,
            Column("broker", "Broker set", width=100),
            Column("A", "Age", units.SECONDS, width=100),
            Column("B", "Drain time", units.SECONDS, width=110),
            Column("C", "Not visible yet", units.COUNT, width=130),
        ),
        sort="Age",
    )


def blamed(width: int) -> Lines:
    """Return a graph of the number of pairs by the stage that delays them."""
    pairs = f"max by ({BY_PAIR}, stage) (tidemark_analytics_group_bottleneck{{{PAIR}}})"
    return Lines(series(pairs, "stage", how="count"), width=width, unit=units.COUNT, stacked=True)
