"""Metrics of lag analytics: progress of its jobs and their results. Pure.

Analytics covers the whole cluster, so families about a pair of group and topic have their own
labels ``cluster`` and ``broker``; the scrape must keep these labels (``honor_labels``). A job's
name is in the label ``task``, because Prometheus uses ``job``. ``analytics.export`` limits every
table before it is shown, so nothing is folded. Values that are unknown, or older than five minutes,
have no sample.
"""

from __future__ import annotations

from typing import Final

from shared.metrics.family import Fold, counter, declared, gauge, histogram

RUN_BUCKETS: Final = (
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
"""From a small micro-batch to a backfill of weeks; ``analytics.runs`` uses the same buckets."""

# One family is one row of a table.
# fmt: off
LAST_SUCCESS_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_analytics_last_success_timestamp_seconds{task}", "s",
    "End of the last successful run or micro-batch of the job",
    title="Last good run", alert="`evaluate` older than 5 min")
NEWEST_TICK_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_analytics_newest_tick_timestamp_seconds", "s",
    "The newest evaluated instant: all series of groups here are as old",
    title="Evaluated until", alert="older than 5 min")
RUN_DURATION_SECONDS: Final = histogram("tidemark_analytics_run_duration_seconds{task}", "s",
    "Time of a run or micro-batch",
    title="Time of a run", buckets=RUN_BUCKETS)
ROWS_TOTAL: Final = counter("tidemark_analytics_rows_total{table}", "rows",
    "Rows written to the table",
    title="Rows written")
SOURCE_WATERMARK_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_analytics_source_watermark_timestamp_seconds{source}", "s",
    "Newest sample time read from the source",
    title="Newest sample")
SOURCE_GAPS_TOTAL: Final = counter("tidemark_analytics_source_gaps_total{source}", "gaps",
    "Times without samples of the source: rows of the table `gaps`",
    title="Gaps", alert="any")
PAIRS: Final = gauge("tidemark_analytics_pairs{cluster,status}", "pairs",
    "Pairs of group and topic by their status; `unknown` ones are counted, never left out",
    title="Pairs by status")
GROUP_STATUS: Final = gauge(
    "tidemark_analytics_group_status{cluster,broker,group,topic,status}", "–",
    "1 for a pair's status while it is not ok; at most 10,000 pairs, the worst",
    title="Status over time", fold=Fold.NONE,
    alert="see the alerts of consumer groups, which do not wait for analytics")
GROUP_AGE_SECONDS: Final = gauge(
    "tidemark_analytics_group_age_seconds{cluster,broker,group,topic}", "s",
    "Age of a pair's oldest unread message, while its status is not ok",
    title="Age of the oldest unread message", fold=Fold.NONE)
GROUP_DRAIN_SECONDS: Final = gauge(
    "tidemark_analytics_group_drain_seconds{cluster,broker,group,topic}", "s",
    "Time until a pair has read all that is unread, at its present pace; +Inf: at this pace never",
    title="Drain time of pairs", fold=Fold.NONE)
GROUP_PROGRESS_RATIO: Final = gauge(
    "tidemark_analytics_group_progress_ratio{cluster,broker,group,topic}", "–",
    "Seconds of stored time read per second: 1 keeps pace, 0 stands still",
    title="Progress of pairs", fold=Fold.NONE, alert="below 1: the group falls behind")
GROUP_HIDDEN_LAG_MESSAGES: Final = gauge(
    "tidemark_analytics_group_hidden_lag_messages{cluster,broker,group,topic}", "messages",
    "Estimate of stored messages that the pair cannot see yet: a lag of 0 does not show them",
    title="Not visible yet", fold=Fold.NONE)
GROUP_BOTTLENECK: Final = gauge(
    "tidemark_analytics_group_bottleneck{cluster,broker,group,topic,stage}", "–",
    "1 for the stage in which most of a pair's delay arises: `append`, `replication`, "
    "`dispatch`, `delivery`, `processing`, `mixed`",
    title="Bottlenecks", fold=Fold.NONE)
QUEUE_SKEW_RATIO: Final = gauge(
    "tidemark_analytics_queue_skew_ratio{cluster,broker,group,topic}", "–",
    "Largest lag of a queue over the mean of the others; +Inf: the others have none",
    title="Skew of queues", fold=Fold.NONE,
    alert="far above 1: a poison message, a slow member or a hot key")
STORE_FULL_SECONDS: Final = gauge("tidemark_analytics_store_full_seconds{subject}", "s",
    "Forecast of the time until a volume is full: the lower end of its band; absent if it cannot "
    "be predicted",
    title="Forecast: time until full")
ANOMALY_SCORE: Final = gauge("tidemark_analytics_anomaly_score{subject,signal}", "–",
    "Deviation of a value in multiples of its usual spread, from 6 on; the 200 largest of the "
    "last hour",
    title="Anomalies", alert="nothing: anomalies only inform")
# fmt: on

ANALYTICS: Final = declared(globals())
