"""Metrics of lag analytics: progress of its jobs and their results. Pure.

Analytics covers the whole cluster, so families about a pair of group and topic have their own
labels ``cluster`` and ``broker``; the scrape must keep these labels (``honor_labels``). A job's
name is in the label ``task``, because Prometheus uses ``job``. ``analytics.export`` limits every
table before it is shown, so nothing is folded. Values that are unknown, or older than five minutes,
have no sample.
"""

from __future__ import annotations

from typing import Final

from shared.metrics.family import Family, Fold, Kind, declared

PAIR: Final = ("cluster", "broker", "group", "topic")
RUN_BUCKETS: Final = (
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
"""From a small micro-batch to a backfill of weeks; ``analytics.runs`` uses the same buckets."""

LAST_SUCCESS_TIMESTAMP_SECONDS: Final = Family(
    "tidemark_analytics_last_success_timestamp_seconds",
    Kind.GAUGE,
    ("task",),
    "s",
    "End of the last successful run or micro-batch of the job",
    title="Last good run",
    alert="`evaluate` older than 5 min",
)
NEWEST_TICK_TIMESTAMP_SECONDS: Final = Family(
    "tidemark_analytics_newest_tick_timestamp_seconds",
    Kind.GAUGE,
    (),
    "s",
    "The newest evaluated instant: all series of groups here are as old",
    title="Evaluated until",
    alert="older than 5 min",
)
RUN_DURATION_SECONDS: Final = Family(
    "tidemark_analytics_run_duration_seconds",
    Kind.HISTOGRAM,
    ("task",),
    "s",
    "Time of a run or micro-batch",
    title="Time of a run",
    buckets=RUN_BUCKETS,
)
ROWS_TOTAL: Final = Family(
    "tidemark_analytics_rows_total",
    Kind.COUNTER,
    ("table",),
    "rows",
    "Rows written to the table",
    title="Rows written",
)
SOURCE_WATERMARK_TIMESTAMP_SECONDS: Final = Family(
    "tidemark_analytics_source_watermark_timestamp_seconds",
    Kind.GAUGE,
    ("source",),
    "s",
    "Newest sample time read from the source",
    title="Newest sample",
)
SOURCE_GAPS_TOTAL: Final = Family(
    "tidemark_analytics_source_gaps_total",
    Kind.COUNTER,
    ("source",),
    "gaps",
    "Times without samples of the source: rows of the table `gaps`",
    title="Gaps",
    alert="any",
)
PAIRS: Final = Family(
    "tidemark_analytics_pairs",
    Kind.GAUGE,
    ("cluster", "status"),
    "pairs",
    "Pairs of group and topic by their status; `unknown` ones are counted, never left out",
    title="Pairs by status",
)
GROUP_STATUS: Final = Family(
    "tidemark_analytics_group_status",
    Kind.GAUGE,
    (*PAIR, "status"),
    "–",
    "1 for a pair's status while it is not ok; at most 10,000 pairs, the worst",
    title="Status over time",
    alert="see the alerts of consumer groups, which do not wait for analytics",
    fold=Fold.NONE,
)
GROUP_AGE_SECONDS: Final = Family(
    "tidemark_analytics_group_age_seconds",
    Kind.GAUGE,
    PAIR,
    "s",
    "Age of a pair's oldest unread message, while its status is not ok",
    title="Age of the oldest unread message",
    fold=Fold.NONE,
)
GROUP_DRAIN_SECONDS: Final = Family(
    "tidemark_analytics_group_drain_seconds",
    Kind.GAUGE,
    PAIR,
    "s",
    "Time until a pair has read all that is unread, at its present pace; +Inf: at this pace never",
    title="Drain time of pairs",
    fold=Fold.NONE,
)
GROUP_PROGRESS_RATIO: Final = Family(
    "tidemark_analytics_group_progress_ratio",
    Kind.GAUGE,
    PAIR,
    "–",
    "Seconds of stored time read per second: 1 keeps pace, 0 stands still",
    title="Progress of pairs",
    alert="below 1: the group falls behind",
    fold=Fold.NONE,
)
GROUP_HIDDEN_LAG_MESSAGES: Final = Family(
    "tidemark_analytics_group_hidden_lag_messages",
    Kind.GAUGE,
    PAIR,
    "messages",
    "Estimate of stored messages that the pair cannot see yet: a lag of 0 does not show them",
    title="Not visible yet",
    fold=Fold.NONE,
)
GROUP_BOTTLENECK: Final = Family(
    "tidemark_analytics_group_bottleneck",
    Kind.GAUGE,
    (*PAIR, "stage"),
    "–",
    "1 for the stage in which most of a pair's delay arises: `append`, `replication`, `dispatch`, "
    "`delivery`, `processing`, `mixed`",
    title="Bottlenecks",
    fold=Fold.NONE,
)
QUEUE_SKEW_RATIO: Final = Family(
    "tidemark_analytics_queue_skew_ratio",
    Kind.GAUGE,
    PAIR,
    "–",
    "Largest lag of a queue over the mean of the others; +Inf: the others have none",
    title="Skew of queues",
    alert="far above 1: a poison message, a slow member or a hot key",
    fold=Fold.NONE,
)
STORE_FULL_SECONDS: Final = Family(
    "tidemark_analytics_store_full_seconds",
    Kind.GAUGE,
    ("subject",),
    "s",
    "Forecast of the time until a volume is full: the lower end of its band; absent if it cannot "
    "be predicted",
    title="Forecast: time until full",
)
ANOMALY_SCORE: Final = Family(
    "tidemark_analytics_anomaly_score",
    Kind.GAUGE,
    ("subject", "signal"),
    "–",
    "Deviation of a value in multiples of its usual spread, from 6 on; the 200 largest of the last "
    "hour",
    title="Anomalies",
    alert="nothing: anomalies only inform",
)

ANALYTICS: Final = declared(globals())
