"""Alerts about disks and about retention. Pure."""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.nodes import BY_NODE
from deploy.prometheus.areas.recording import NODE
from deploy.prometheus.model import Alert, Group, Severity, events

FREE: Final = f"min {BY_NODE} (tidemark_store_free_bytes / tidemark_store_capacity_bytes)"

STORAGE: Final = Group(
    "tidemark-storage",
    (
        Alert(
            "TidemarkStoreNearlyFull",
            f"{FREE} < 0.1 or {FREE} and max {BY_NODE} (tidemark_retention_sends_refused) == 1",
            Severity.PAGE,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} has {{ $value | humanizePercentage }} "
            "of its fullest volume left",
            "Beyond `disk_warning_percent` sends are refused; reads go on.",
            waits="5m",
            keeps="3m",
        ),
        Alert(
            "TidemarkStoreFillsUp",
            f"min {BY_NODE} (predict_linear(tidemark_store_free_bytes[6h], 24 * 3600)) < 0"
            f" and {FREE} < 0.4",
            Severity.TICKET,
            NODE,
            "a volume of {{ $labels.replica }} in {{ $labels.broker }} is full within a day",
            "At the pace of the last six hours. Above 85 % used the oldest log files are deleted "
            "early, above 90 % sends are refused.",
            waits="1h",
        ),
        Alert(
            "TidemarkDiskPressure",
            events('tidemark_log_segments_deleted_total{reason="disk_pressure"}', "1h", NODE),
            Severity.TICKET,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} deleted about {{ $value | humanize }} "
            "log files before their time",
            "The disk is used beyond its limit, so messages are kept for a shorter time than the "
            "configuration says.",
            keeps="1h",
        ),
        Alert(
            "TidemarkSlowDisk",
            "histogram_quantile(0.99, sum by (cluster, broker, replica, le)"
            " (rate(tidemark_log_flush_duration_seconds_bucket[5m]))) > 0.1",
            Severity.TICKET,
            NODE,
            "one of a hundred flushes of {{ $labels.replica }} in {{ $labels.broker }} takes "
            "longer than {{ $value | humanizeDuration }}",
            "Every acknowledged send waits for a flush of every in-sync member.",
            waits="10m",
        ),
    ),
)
