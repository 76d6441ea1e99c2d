"""What reput measures. Names, labels and definitions are those of docs/metrics.md.

Counts are kept by the dispatcher as plain integers and read when Prometheus asks: nothing here
costs anything per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.runtime.metrics import SECONDS_BUCKETS


class Counts(NamedTuple):
    """What was done since the start of the process."""

    bytes: int = 0
    records: int = 0
    units: int = 0
    index_entries: int = 0
    repaired_units: int = 0


class _CountsCollector(Collector):
    """Shows a Counts as counters."""

    def __init__(self, read: Callable[[], Counts]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the counts."""
        counts = self._read()
        for name, definition, value in (
            ("bytes", "Bytes of log dispatched, fillers included.", counts.bytes),
            ("records", "Records dispatched.", counts.records),
            ("messages", "Records that got a consume queue unit.", counts.units),
            ("index_entries", "Keys put into the index.", counts.index_entries),
            (
                "repaired_units",
                "Units that said something else than the log and were replaced.",
                counts.repaired_units,
            ),
        ):
            yield CounterMetricFamily(f"tidemark_dispatch_{name}", definition, value=value)


class ReputMetrics:
    """All series of one reput, in a registry given by the service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.errors = Counter(
            "tidemark_dispatch_errors_total",
            "Times dispatch could not go on, by the error's code; a full disk counts every try.",
            ["reason"],
            registry=registry,
        )
        self.step_duration = Histogram(
            "tidemark_dispatch_step_duration_seconds",
            "Time to read, plan and store one step of the log, of those that found something.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.sync_duration = Histogram(
            "tidemark_dispatch_sync_duration_seconds",
            "Time to sync all queue and index files that were touched.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )

    def read(self, name: str, definition: str, function: Callable[[], float]) -> None:
        """Add a gauge whose value is read when Prometheus asks."""
        Gauge(name, definition, registry=self._registry).set_function(function)

    def read_counts(self, function: Callable[[], Counts]) -> None:
        """Add the counters, read when Prometheus asks."""
        self._registry.register(_CountsCollector(function))
