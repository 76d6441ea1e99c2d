"""What retention measures. Names and definitions are those of docs/metrics.md.

Everything is read when Prometheus asks. Messages that groups lost are counted by
``groups.counters``, where the other reasons for skipped messages are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.broker.retention.keeper import Retention
from services.broker.retention.retention import Why
from shared.files.commit_log import CommitLogReader
from tidemark.formats.record import RECORD_SIZE_MIN, peek_store_timestamp
from tidemark.offsets import PhysicalOffset

UNKNOWN: Final = float("nan")


class RetentionMetrics(Collector):
    """Shows a retention's figures; before there is one, none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.show: tuple[Retention, CommitLogReader, Callable[[], PhysicalOffset]] | None = None
        """The retention, the log it shortens, and the end of what may be seen; set once the store
        is open."""
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Names and kinds, also before the store is open."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """Read the figures."""
        families = self._families()
        if self.show is None:
            return families
        retention, reader, confirmed = self.show
        fullness = retention.fullness
        deleted, oldest, capacity, used, full, refused, expiring = families
        for why in Why:
            deleted.add_metric([why.value], retention.deleted[why])
        at_ms = oldest_ms(reader, confirmed())
        oldest.add_metric([], UNKNOWN if at_ms is None else at_ms / 1000)
        capacity.add_metric([], _or_nan(fullness.capacity_bytes))
        percent = fullness.used_percent
        used.add_metric([], UNKNOWN if percent is None else percent / 100)
        full.add_metric([], _or_nan(fullness.forecast.full_in_s))
        refused.add_metric([], int(fullness.sends_refused))
        expiring.add_metric([], retention.expiring_groups)
        return families

    def _families(self) -> tuple[CounterMetricFamily | GaugeMetricFamily, ...]:
        return (
            CounterMetricFamily(
                "tidemark_log_segments_deleted",
                "Commit log files that retention removed, by what took them: age, size, "
                "disk_pressure, master (a slave lets go what its master has let go).",
                labels=["reason"],
            ),
            *(
                GaugeMetricFamily(name, definition, labels=[])
                for name, definition in (
                    (
                        "tidemark_log_oldest_message_timestamp_seconds",
                        "Store time of the oldest record in the log; NaN while there is none.",
                    ),
                    (
                        "tidemark_store_capacity_bytes",
                        "What an ordinary user can use of the log's file system; NaN if unknown.",
                    ),
                    (
                        "tidemark_store_used_ratio",
                        "Used share of it in whole percent rounded up, as retention judges it; "
                        "NaN if unknown.",
                    ),
                    (
                        "tidemark_store_full_seconds",
                        "Time until sends are refused at the present pace; NaN if that is not to "
                        "be foreseen.",
                    ),
                    (
                        "tidemark_retention_sends_refused",
                        "1 while sends are refused because the disk is too full.",
                    ),
                    (
                        "tidemark_retention_expiring_groups",
                        "Groups with unread messages in a log file that is about to go.",
                    ),
                )
            ),
        )


def oldest_ms(reader: CommitLogReader, end: PhysicalOffset) -> int | None:
    """Store time of the log's first record below end; None if there is none."""
    view = reader.read(reader.min_offset, RECORD_SIZE_MIN, end)
    return None if view is None else peek_store_timestamp(view, 0)


def _or_nan(value: float | None) -> float:
    return UNKNOWN if value is None else value
