"""Alerts about lag analytics itself. They never page; alerts about groups do not need it. Pure."""

from __future__ import annotations

from typing import Final

from deploy.prometheus.model import TARGET_LABELS, Alert, Group, Severity, events

JOB: Final = "tidemark-analytics"
STALE_S: Final = 300
BY_PROCESS: Final = f"max by ({', '.join(TARGET_LABELS)})"

ANALYTICS: Final = Group(
    "tidemark-analytics",
    (
        Alert(
            "TidemarkAnalyticsDown",
            f'{BY_PROCESS} (up{{job="{JOB}"}}) == 0'
            f' or {BY_PROCESS} (tidemark_ready{{service="analytics"}}) == 0',
            Severity.TICKET,
            TARGET_LABELS,
            "the exporter of lag analytics of {{ $labels.cluster }} does not answer, or cannot "
            "read its tables",
            "Statuses, causes and forecasts are missing on dashboards. Alerts about consumer "
            "groups come from brokers and go on.",
            waits="5m",
        ),
        Alert(
            "TidemarkAnalyticsStale",
            f"time() - {BY_PROCESS} "
            f'(tidemark_analytics_last_success_timestamp_seconds{{task="evaluate"}}) > {STALE_S}',
            Severity.TICKET,
            TARGET_LABELS,
            "lag of {{ $labels.cluster }} was last evaluated {{ $value | humanizeDuration }} ago",
            "The job `evaluate` does not run, or fails. When it runs again, it evaluates the "
            "missed time too.",
            waits="5m",
        ),
        Alert(
            "TidemarkAnalyticsBehind",
            f"time() - {BY_PROCESS} "
            f"(tidemark_analytics_newest_tick_timestamp_seconds) > {STALE_S}"
            f" unless on ({', '.join(TARGET_LABELS)})"
            f" time() - {BY_PROCESS}"
            f' (tidemark_analytics_last_success_timestamp_seconds{{task="evaluate"}}) > {STALE_S}',
            Severity.TICKET,
            TARGET_LABELS,
            "the newest lag of {{ $labels.cluster }} is {{ $value | humanizeDuration }} old",
            "The job `evaluate` runs and finds nothing new, so `collect` does not run or gets no "
            "samples, or both are slower than time goes by.",
            waits="5m",
        ),
        Alert(
            "TidemarkSourceGap",
            events("tidemark_analytics_source_gaps_total", "1h", (*TARGET_LABELS, "source")),
            Severity.INFO,
            (*TARGET_LABELS, "source"),
            "samples of {{ $labels.source }} in {{ $labels.cluster }} are missing about "
            "{{ $value | humanize }} times",
            "The state of the groups in these times is unknown and is not estimated. The table "
            "`gaps` and the report name each with its cause.",
            keeps="1h",
        ),
    ),
)
