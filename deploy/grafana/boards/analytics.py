"""Analytics: whether lag is evaluated in time, its results, and the sources of the report."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.limits import ANALYTICS_BEHIND, ANALYTICS_STALE
from deploy.grafana.panels import (
    RED,
    Board,
    Column,
    Lines,
    Panel,
    Row,
    Stat,
    Step,
    Table,
    Timeline,
    rare,
)
from deploy.grafana.problems import ALARMS, STATUSES, blamed, of_pairs, problems, status_state
from deploy.grafana.queries import BY_PAIR, Query, age, gauge, largest, legend, quantile, rate

CLUSTER: Final = 'cluster=~"$cluster"'
"""Selector of the exporter itself, which belongs to no broker set."""
NOT_RUN: Final = "not run"
UNANSWERED: Final = "a source that did not answer analytics"
NEWEST: Final = "tidemark_analytics_newest_tick_timestamp_seconds"
SUCCESS: Final = "tidemark_analytics_last_success_timestamp_seconds"
WATERMARK: Final = "tidemark_analytics_source_watermark_timestamp_seconds"
UNUSUAL: Final = "something unusual, and hours of lag analytics"
FILLING: Final = "hours of lag analytics, and a disk that fills"
FULL: Final = "tidemark_analytics_store_full_seconds"


def pairs(family: str) -> tuple[Query, ...]:
    return (largest(Query(of_pairs(family), legend(BY_PAIR))),)


FRESH: Final[tuple[Panel, ...]] = (
    Stat(age(NEWEST, "", where=CLUSTER), width=4, steps=ANALYTICS_BEHIND.steps, unknown=NOT_RUN),
    Stat(
        gauge("tidemark_analytics_pairs", "", how="sum", where=f'{CLUSTER}, status=~"{ALARMS}"'),
        width=4,
        title="Pairs late, by status",
        text="Pairs that need attention.",
        steps=(Step(1, RED),),
        unknown=NOT_RUN,
    ),
    Lines(
        age(SUCCESS, "cluster, task", where=CLUSTER), width=8, steps=ANALYTICS_STALE.steps, log=True
    ),
    Lines(age(WATERMARK, "cluster, source", where=CLUSTER), width=8),
)
WORK: Final = (
    Lines(
        quantile(0.99, "tidemark_analytics_run_duration_seconds", "task", where=CLUSTER), log=True
    ),
    Lines(rate("tidemark_analytics_rows_total", "table", where=CLUSTER), log=True),
    rare("tidemark_analytics_source_gaps_total", "cluster, source", UNANSWERED, where=CLUSTER),
)
WHO: Final = (problems(16), blamed(8))
HOW_LONG: Final = (
    Timeline(Query(status_state(), legend(BY_PAIR)), width=16, words=STATUSES),
    Lines(
        gauge("tidemark_analytics_pairs", "status", how="sum", where=CLUSTER), width=8, stacked=True
    ),
)
TIMES: Final = (
    Lines(pairs("tidemark_analytics_group_age_seconds")),
    Lines(pairs("tidemark_analytics_group_drain_seconds"), log=True),
    Lines(pairs("tidemark_analytics_group_progress_ratio")),
)
ODD: Final = (
    Lines(pairs("tidemark_analytics_queue_skew_ratio"), log=True),
    Lines(pairs("tidemark_analytics_group_hidden_lag_messages")),
)
COMING: Final = (
    Lines(
        gauge(FULL, "subject", how="min", where=CLUSTER, given=FILLING),
        log=True,
        nothing="No volume fills up, or nothing was forecast yet",
    ),
    Table(
        gauge("tidemark_analytics_anomaly_score", "subject, signal", where=CLUSTER, given=UNUSUAL),
        columns=(
            Column("subject", "What"),
            Column("signal", "Signal"),
            Column("A", "Score", units.PLAIN, width=100),
        ),
        sort="Score",
        nothing="Nothing unusual",
    ),
)

ANALYTICS: Final = Board(
    uid=uids.ANALYTICS,
    title="Tidemark / Analytics",
    description="Is lag evaluated in time, what is forecast, what is unusual?",
    rows=(
        Row("Freshness", (FRESH, WORK), (7, 7)),
        Row("Groups", (WHO, HOW_LONG, TIMES, ODD), (8, 8, 7, 7)),
        Row("Forecast and anomalies", (COMING,), (8,)),
    ),
)
