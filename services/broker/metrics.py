"""The broker's metrics. Names, labels and definitions are in docs/metrics.md.

``traffic_metrics`` has the counters that change with every request. Offsets are read from the
positions page during a scrape, so that they cost nothing per message. ``shared.metrics.bounds``
decides which topics, groups and group–topic pairs have their own series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from services.broker.groups.counters import GroupCounters
from services.broker.groups.lag_series import SampleTables
from services.broker.groups.metrics import LagGauges
from services.broker.log.volumes import Volumes
from services.broker.request_classes import RequestClasses
from services.broker.retention.metrics import RetentionMetrics
from services.broker.traffic_metrics import TrafficMetrics
from shared.files.positions import Positions
from shared.metrics.catalogue import every
from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.family import Family
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import Recovery
from tidemark.clock import Clock
from tidemark.formats.checkpoint import Slot

QUEUE_SERIES_MAX: Final = 20_000
"""Default limit of series by queue."""
FACTS: Final[Mapping[str, tuple[Family, str, int]]] = {
    "min_physical_offset": (of_log.LOG_MIN_OFFSET_BYTES, "", 1),
    "max_physical_offset": (of_log.LOG_MAX_OFFSET_BYTES, "", 1),
    "flushed_physical_offset": (of_log.LOG_FLUSHED_OFFSET_BYTES, "", 1),
    "confirm_physical_offset": (of_log.LOG_CONFIRM_OFFSET_BYTES, "", 1),
    "dispatched_physical_offset": (of_log.LOG_DISPATCHED_OFFSET_BYTES, "", 1),
    "t_min_ms": (of_log.LOG_OLDEST_MESSAGE_TIMESTAMP_SECONDS, "", 1000),
    "free_bytes": (of_log.STORE_FREE_BYTES, "log", 1),
    "capacity_bytes": (of_log.STORE_CAPACITY_BYTES, "log", 1),
    "pulls_queued": (of_requests.BROKER_REQUESTS_QUEUED, "pull", 1),
    "put_wait_us": (of_requests.BROKER_OLDEST_QUEUED_REQUEST_SECONDS, "put", 1_000_000),
    "up_since_us": (every.UP_SINCE_TIMESTAMP_SECONDS, "", 1_000_000),
}
"""Facts about the node in a telemetry snapshot: family, label value, and factor of its unit."""


class TelemetryMetrics:
    """The metrics of the telemetry journal."""

    def __init__(self, registry: Registry) -> None:
        self.snapshots = registry.counter(of_log.TELEMETRY_SNAPSHOTS_TOTAL)
        self.dropped = registry.counter(of_log.TELEMETRY_SNAPSHOTS_DROPPED_TOTAL)
        self.size = registry.counter(of_log.TELEMETRY_JOURNAL_BYTES_TOTAL)
        self.rows = registry.gauge(of_log.TELEMETRY_SNAPSHOT_ROWS)
        self.duration = registry.gauge(of_log.TELEMETRY_SNAPSHOT_DURATION_SECONDS)
        for reason in ("sample-failed", "disk-full", "internal"):
            self.dropped.labels(reason)  # start at 0, so that the first event is an increase


class Delayed(Protocol):
    """The delayed messages (implemented by ``delay.delayed.DelayedMessages``)."""

    @property
    def pending(self) -> int | None:
        """Number of delayed messages not delivered yet; None while it is not known."""
        ...

    @property
    def overdue_s(self) -> float | None:
        """Time [s] since the delivery time of the most overdue message; None: not known."""
        ...


class BrokerMetrics(TrafficMetrics):
    """All series of one broker, in a registry supplied by ``service``."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock | None = None,
        *,
        group_delays: bool = True,
        queue_series_max: int = QUEUE_SERIES_MAX,
    ) -> None:
        """clock: None: the system clock. group_delays: whether groups have delay histograms.
        queue_series_max: limit of series by queue, over all families; 0: none.
        """
        super().__init__(registry)
        self.groups = GroupCounters(registry, delays=group_delays)
        self.lag_gauges = LagGauges(registry, clock or SystemClock(), queue_series_max)
        self.retention = RetentionMetrics(registry)
        self.telemetry = TelemetryMetrics(registry)
        self.names_refused = registry.counter(of_requests.BROKER_NAMES_REFUSED_TOTAL)
        self._volumes: Volumes | None = None

    def show_names(self, configured: int, registered: Callable[[], int]) -> None:
        """Register the metrics of the registrations with name services."""
        self.registry.read(of_requests.BROKER_NAMES_CONFIGURED, lambda: configured)
        self.registry.read(of_requests.BROKER_NAMES_REGISTERED, registered)

    def show_store(
        self,
        positions: Positions,
        confirm_slot: Slot,
        recovery: Recovery,
        volumes: Volumes,
    ) -> None:
        """Register the metrics of an open store. volumes: its file systems."""
        read = self.registry.read
        for family, slot in (
            (of_log.LOG_MIN_OFFSET_BYTES, Slot.MIN),
            (of_log.LOG_MAX_OFFSET_BYTES, Slot.WRITTEN),
            (of_log.LOG_FLUSHED_OFFSET_BYTES, Slot.FLUSHED),
            (of_log.LOG_CONFIRM_OFFSET_BYTES, confirm_slot),
            (of_log.LOG_DISPATCHED_OFFSET_BYTES, Slot.DISPATCHED),
        ):
            read(family, lambda slot=slot: positions.get(slot))  # type: ignore[misc]
        read(of_log.RECOVERY_DONE_BYTES, lambda: recovery.done_bytes)
        read(of_log.RECOVERY_TOTAL_BYTES, lambda: recovery.total_bytes)
        read(of_log.RECOVERY_ETA_SECONDS, recovery.eta_seconds)
        self.registry.read(of_log.STORE_FREE_BYTES, volumes.free)
        self.registry.read(of_log.STORE_CAPACITY_BYTES, volumes.capacity)
        self._volumes = volumes

    async def refresh(self) -> None:
        """Update the expensive values before a scrape."""
        if self._volumes is None:
            await self.lag_gauges.refresh()
        else:
            await asyncio.gather(self.lag_gauges.refresh(), self._volumes.refresh())

    async def telemetry_facts(self, found: SampleTables) -> dict[str, int]:
        """Return the facts about this node for a telemetry snapshot; unknown ones are missing.

        found: the sample of the snapshot."""
        if self._volumes is not None:
            await self._volumes.refresh()
        facts: dict[str, int] = {}
        for name, (family, label, factor) in FACTS.items():
            reading = self.registry.reading(family)
            value = reading.get(label) if isinstance(reading, Mapping) else reading
            if value is not None:
                facts[name] = round(value * factor)
        if found.times is not None:
            names = ("t_max_ms", "t_confirm_ms", "t_dispatched_ms")
            facts.update(zip(names, found.times, strict=True))
        (held,) = self.long_polls.collect()
        facts["long_polls"] = round(held.samples[0].value)
        return facts

    def pause_while(self, is_awaited: Callable[[], bool]) -> None:
        """Set the condition under which long measurements pause: a request is in progress or has
        just arrived."""
        self.lag_gauges.sampler.pause_while(is_awaited)

    def show_requests(
        self, requests: RequestClasses, connections: Callable[[], Mapping[str, int]]
    ) -> None:
        """Register the metrics of the requests in progress, and of the connections by role."""
        families = (
            of_requests.BROKER_REQUESTS_QUEUED,
            of_requests.BROKER_OLDEST_QUEUED_REQUEST_SECONDS,
            of_requests.BROKER_CONNECTIONS,
        )
        self.registry.read_pass(
            families,
            lambda: dict(
                zip(
                    families,
                    (requests.queued(), requests.oldest_s(), connections()),
                    strict=True,
                )
            ),
        )

    def show_delayed(self, delayed: Callable[[], Delayed | None]) -> None:
        """Register the metrics of delayed messages. delayed: returns None while not known."""

        def pending() -> int | None:
            known = delayed()
            return None if known is None else known.pending

        def overdue_s() -> float | None:
            known = delayed()
            return None if known is None else known.overdue_s

        self.registry.read(of_log.TIMER_PENDING_MESSAGES, pending)
        self.registry.read(of_log.TIMER_OVERDUE_SECONDS, overdue_s)
