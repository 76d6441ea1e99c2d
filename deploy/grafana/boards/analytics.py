"""Analytics: whether lag is evaluated in time, its results, and the sources of the report."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
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
)
from deploy.grafana.problems import (
    ALARMS,
    NEEDS,
    STATUSES,
    blamed,
    largest,
    problems,
    status_state,
)
from deploy.grafana.queries import Query, growth, quantile, rate

CLUSTER: Final = 'cluster=~"$cluster"'
"""Selector of the exporter itself, which belongs to no broker set."""
NOT_RUN: Final = "Lag analytics does not run"

FRESH: Final[tuple[Panel, ...]] = (
    Stat(
        title="Evaluated until",
        description=describe(
            "How long ago. Everything on this board is as old.",
            "tidemark_analytics_newest_tick_timestamp_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"time() - max(tidemark_analytics_newest_tick_timestamp_seconds{{{CLUSTER}}})",
                needs=NEEDS,
            ),
        ),
        width=4,
        steps=(Step(ANALYTICS_BEHIND.value, RED),),
        nothing=NOT_RUN,
    ),
    Stat(
        title="Pairs late, by status",
        description=describe("Pairs that need attention.", "tidemark_analytics_pairs"),
        unit=units.COUNT,
        queries=(
            Query(f'sum(tidemark_analytics_pairs{{{CLUSTER}, status=~"{ALARMS}"}})', needs=NEEDS),
        ),
        width=4,
        steps=(Step(1, RED),),
        nothing=NOT_RUN,
    ),
    Lines(
        title="Last good run",
        description=describe(
            "How long ago, by job. At the line the alert waits for `evaluate`; `rollup` and "
            "`forecast` run by the hour.",
            "tidemark_analytics_last_success_timestamp_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                "time() - max by (cluster, task) "
                f"(tidemark_analytics_last_success_timestamp_seconds{{{CLUSTER}}})",
                "{{task}}",
                needs=NEEDS,
            ),
        ),
        width=8,
        steps=(Step(ANALYTICS_STALE.value, RED),),
        log=True,
        nothing=NOT_RUN,
    ),
    Lines(
        title="Newest sample",
        description=describe(
            "How long ago, by source.", "tidemark_analytics_source_watermark_timestamp_seconds"
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                "time() - max by (cluster, source) "
                f"(tidemark_analytics_source_watermark_timestamp_seconds{{{CLUSTER}}})",
                "{{source}}",
                needs=NEEDS,
            ),
        ),
        width=8,
        nothing=NOT_RUN,
    ),
)
WORK: Final = (
    Lines(
        title="Time of a run, p99",
        description=describe(
            "A stream's batches should take less than the time between them.",
            "tidemark_analytics_run_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                quantile(0.99, "tidemark_analytics_run_duration_seconds", "task", CLUSTER),
                "{{task}}",
                needs=NEEDS,
            ),
        ),
        width=8,
        log=True,
        nothing=NOT_RUN,
    ),
    Lines(
        title="Rows written",
        description=describe("By table.", "tidemark_analytics_rows_total"),
        unit=units.EVENTS_RATE,
        queries=(
            Query(
                rate("tidemark_analytics_rows_total", "table", CLUSTER), "{{table}}", needs=NEEDS
            ),
        ),
        width=8,
        log=True,
        nothing=NOT_RUN,
    ),
    Lines(
        title="Gaps",
        description=describe(
            "Around each point, by source. Of these times nothing is known, and nothing is made "
            "up.",
            "tidemark_analytics_source_gaps_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_analytics_source_gaps_total", "cluster, source", CLUSTER),
                "{{source}}",
                needs="a source that did not answer analytics",
            ),
        ),
        width=8,
        bars=True,
        nothing="No gaps",
    ),
)
WHO: Final = (problems(16), blamed(8))
HOW_LONG: Final = (
    Timeline(
        title="Status over time",
        description=describe(
            "Of the pairs that were not in time. A gap: in time, or unknown.",
            "tidemark_analytics_group_status",
        ),
        unit=units.PLAIN,
        queries=(Query(status_state(), "{{group}} / {{topic}}", needs=NEEDS),),
        width=16,
        words=STATUSES,
        nothing="All in time, or lag analytics does not run",
    ),
    Lines(
        title="Pairs by status",
        description=describe("All of them, those in time too.", "tidemark_analytics_pairs"),
        unit=units.COUNT,
        queries=(
            Query(
                f"sum by (status) (tidemark_analytics_pairs{{{CLUSTER}}})",
                "{{status}}",
                needs=NEEDS,
            ),
        ),
        width=8,
        stacked=True,
        nothing=NOT_RUN,
    ),
)
TIMES: Final = (
    Lines(
        title="Age of the oldest unread message",
        description=describe(
            "How old it is; not how long it takes to read it.",
            "tidemark_analytics_group_age_seconds",
        ),
        unit=units.SECONDS,
        queries=(largest("tidemark_analytics_group_age_seconds"),),
        width=8,
        nothing="All in time, or lag analytics does not run",
    ),
    Lines(
        title="Drain time",
        description=describe(
            "How long until all is read; not how old it is. A group that never will has no line.",
            "tidemark_analytics_group_drain_seconds",
        ),
        unit=units.SECONDS,
        queries=(largest("tidemark_analytics_group_drain_seconds"),),
        width=8,
        log=True,
        nothing="Nothing to drain, or lag analytics does not run",
    ),
    Lines(
        title="Progress",
        description=describe(
            "Below 1 a group falls behind.", "tidemark_analytics_group_progress_ratio"
        ),
        unit=units.PLAIN,
        queries=(largest("tidemark_analytics_group_progress_ratio"),),
        width=8,
        nothing="All in time, or lag analytics does not run",
    ),
)
ODD: Final = (
    Lines(
        title="Skew of queues",
        description=describe(
            "Far above 1: one queue is behind, not the group. A poison message, a slow member, or "
            "a hot queue: the report names it.",
            "tidemark_analytics_queue_skew_ratio",
        ),
        unit=units.PLAIN,
        queries=(largest("tidemark_analytics_queue_skew_ratio"),),
        width=12,
        log=True,
        nothing="None, or lag analytics does not run",
    ),
    Lines(
        title="Not visible yet",
        description=describe(
            "A group with a lag of 0 may still wait for dispatch or copies.",
            "tidemark_analytics_group_hidden_lag_messages",
        ),
        unit=units.COUNT,
        queries=(largest("tidemark_analytics_group_hidden_lag_messages"),),
        width=12,
        nothing="None, or lag analytics does not run",
    ),
)
COMING: Final = (
    Lines(
        title="Time until a volume is full, foreseen",
        description=describe(
            "From the slope of days and the profile of the week; the lower end of the band.",
            "tidemark_analytics_store_full_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"min by (subject) (tidemark_analytics_store_full_seconds{{{CLUSTER}}})",
                "{{subject}}",
                needs="hours of lag analytics, and a disk that fills",
            ),
        ),
        width=12,
        log=True,
        nothing="No volume fills up, or nothing was forecast yet",
    ),
    Table(
        title="Anomalies",
        description=describe(
            "Far from the same hour of weeks before. They inform and raise no alert.",
            "tidemark_analytics_anomaly_score",
        ),
        unit=units.PLAIN,
        queries=(
            Query(
                f"max by (subject, signal) (tidemark_analytics_anomaly_score{{{CLUSTER}}})",
                needs="something unusual, and hours of lag analytics",
            ),
        ),
        columns=(
            Column("subject", "What"),
            Column("signal", "Signal"),
            Column("A", "Score", units.PLAIN, width=100),
        ),
        sort="Score",
        width=12,
        nothing="Nothing unusual",
    ),
)

ANALYTICS: Final = Board(
    uid=uids.ANALYTICS,
    title="Tidemark / Analytics",
    description="Is lag judged in time, what is foreseen, what is unusual.",
    rows=(
        Row("Freshness", (FRESH, WORK), (7, 7)),
        Row("Groups", (WHO, HOW_LONG, TIMES, ODD), (8, 8, 7, 7)),
        Row("Forecast and anomalies", (COMING,), (8,)),
    ),
)
