"""Metrics of reput. Names, labels and definitions are those of docs/metrics.md.

The dispatcher keeps counts as plain integers, which are read at a scrape, so there is no cost per
record.
"""

from __future__ import annotations

from services.reput.dispatcher import Dispatcher, Took
from shared.metrics.catalogue import dispatch as of_dispatch
from shared.metrics.registry import Registry
from tidemark.clock import Clock


class ReputMetrics:
    """All series of one reput process, in a registry given by the service."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.errors = registry.counter(of_dispatch.DISPATCH_ERRORS_TOTAL)
        histograms = registry.own_histogram
        self.step_duration = histograms(of_dispatch.DISPATCH_STEP_DURATION_SECONDS).labels()
        self.sync_duration = histograms(of_dispatch.DISPATCH_SYNC_DURATION_SECONDS).labels()
        targets = histograms(of_dispatch.DISPATCH_DURATION_SECONDS)
        self._queues, self._index = targets.labels("queue"), targets.labels("index")
        self.notify = targets.labels("notify")
        self._visible_delay = histograms(of_dispatch.DISPATCH_VISIBLE_DELAY_SECONDS).labels()

    def stepped(self, took: Took, wall_ms: int) -> None:
        """Record a completed step whose records became visible at wall_ms or earlier."""
        self._queues.observe(took.queues_s)
        if took.index_s:
            self._index.observe(took.index_s)
        if took.oldest_ms is not None:
            self._visible_delay.observe(max(0, wall_ms - took.oldest_ms) / 1000)

    def show(self, dispatcher: Dispatcher, clock: Clock) -> None:
        """Register the series that need an open store."""

        def lag_seconds() -> float:
            oldest_ms = dispatcher.oldest_waiting_ms()
            return 0.0 if oldest_ms is None else max(0.0, (clock.wall_ms() - oldest_ms) / 1000)

        for family, function in (
            (of_dispatch.DISPATCH_OFFSET_BYTES, lambda: dispatcher.dispatched),
            (of_dispatch.DISPATCH_DURABLE_OFFSET_BYTES, lambda: dispatcher.dispatched_mark.offset),
            (
                of_dispatch.DISPATCH_LAG_BYTES,
                lambda: max(0, dispatcher.end - dispatcher.dispatched),
            ),
            (of_dispatch.DISPATCH_LAG_SECONDS, lag_seconds),
            (of_dispatch.DISPATCH_BYTES_TOTAL, lambda: dispatcher.bytes_count),
            (of_dispatch.DISPATCH_RECORDS_TOTAL, lambda: dispatcher.records_count),
            (of_dispatch.DISPATCH_MESSAGES_TOTAL, lambda: dispatcher.units_count),
            (of_dispatch.DISPATCH_INDEX_ENTRIES_TOTAL, lambda: dispatcher.index_entries_count),
            (of_dispatch.DISPATCH_REPAIRED_UNITS_TOTAL, lambda: dispatcher.repaired_count),
        ):
            self._registry.read(family, function)
