"""The telemetry journal: positions of all queues and groups, appended as records of a system topic.

At each multiple of ``telemetry_period_s`` the master takes one snapshot of what it exports about
groups and queues, and appends it (docs/formats.md, "Telemetry records"). Every KEYFRAME_EVERY-th
snapshot is a keyframe, also the first of a term and the one after a dropped one. A snapshot that
cannot be taken or appended is dropped and counted; sends are never refused or delayed for it. Its
records are appended like a send's: with a full disk there are none. Step before: a sample
(``groups.lag_sampler``). Step after: ``analytics.sources.telemetry`` reads the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from services.broker.groups.lag_series import SampleTables
from services.broker.groups.telemetry_rows import TelemetryRows
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.metrics import BrokerMetrics
from shared.runtime.pauses import Pauses
from shared.runtime.rate_limited_logger import RateLimitedLogger
from shared.runtime.time_slicer import TimeSlicer
from tidemark.errors import TidemarkError
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.runs import Run
from tidemark.formats.telemetry import (
    TELEMETRY_QUEUE,
    TELEMETRY_TOPIC,
    Head,
    encode_packed,
)

KEYFRAME_EVERY: Final = 20
PART_SIZE: Final = 256 << 10
"""Bytes of a part before compression: compressing it takes a few milliseconds of a thread."""
WAIT_MAX_S: Final = 1.0
"""The wall clock is read this often, because it may be set."""


class SampleFailed(Exception):
    """The sample of groups and queues failed; ``lag_sampler`` has logged why."""


class TelemetryJournal:
    """The journal of one term of a master. One task runs ``run``."""

    def __init__(self, log_context: LogContext, append: Append, metrics: BrokerMetrics) -> None:
        self._log = log_context
        self._append = append
        self._metrics = metrics
        self._clock = log_context.clock
        self._node = log_context.config.cluster.node
        self._period_ms = round(log_context.config.telemetry_period_s * 1000)
        self._started_ms = self._clock.wall_ms()
        self._rows: TelemetryRows | None = None
        """None: the next snapshot is a keyframe."""
        self._number = 0
        """Of the next snapshot."""
        self._keyframe = 0
        """Number of the last keyframe."""
        self._records = 0
        """Records since the beginning of the last keyframe."""
        self._limited_log = RateLimitedLogger(self._clock.monotonic)

    async def run(self, stop: asyncio.Event) -> None:
        """Take a snapshot at each tick, until stop; a snapshot that is not appended then is given
        up, because a node that stops or hands over must not wait for it."""
        if not self._period_ms:
            await stop.wait()
            return
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self._take_all())
            await stop.wait()
            work.cancel()

    async def _take_all(self) -> None:
        last = self._tick_ms()
        while True:
            tick_ms = self._tick_ms()
            if tick_ms == last:
                left_s = (last + self._period_ms - self._clock.wall_ms()) / 1000
                await asyncio.sleep(min(max(left_s, 0.0), WAIT_MAX_S))
                continue
            last = tick_ms
            await self._take_or_drop(tick_ms)

    def _tick_ms(self) -> int:
        return self._clock.wall_ms() // self._period_ms * self._period_ms

    async def _take_or_drop(self, tick_ms: int) -> None:
        metrics, began_s = self._metrics.telemetry, self._clock.monotonic()
        try:
            size = await self.take(tick_ms)
        except SampleFailed:
            metrics.dropped.labels("sample-failed").inc()
        except TidemarkError as error:
            metrics.dropped.labels(error.code).inc()
        except Exception as error:  # noqa: BLE001 - logged and counted; the broker's work goes on
            metrics.dropped.labels("internal").inc()
            self._limited_log.defect(error, "a snapshot of the telemetry journal failed")
        else:
            metrics.snapshots.inc()
            metrics.size.inc(size)
            metrics.duration.set(self._clock.monotonic() - began_s)

    async def take(self, tick_ms: int) -> int:
        """Take one snapshot and append it; return the bytes of its bodies.

        Raises SampleFailed, and what ``Append.append`` raises."""
        # Until the snapshot is in the log, a failure makes the next one a keyframe.
        rows, self._rows = self._rows, None
        if rows is not None and self._number - self._keyframe >= KEYFRAME_EVERY:
            await rows.release(self._slicer())
            rows = None
        is_keyframe = rows is None
        if rows is None:
            rows = TelemetryRows(self._metrics.groups, self._metrics)
        found = await self._metrics.lag_gauges.sample_into(rows)
        if found is None:
            raise SampleFailed
        facts = await self._metrics.telemetry_facts(found)
        packed = await rows.packed(found.began_ms, self._slicer())
        head = self._head(tick_ms, found, facts, rows=len(rows), is_keyframe=is_keyframe)
        size = await self._append_parts(head, packed)
        rows.written()
        self._rows = rows
        self._metrics.telemetry.rows.set(len(rows))
        return size

    def _slicer(self) -> TimeSlicer:
        return TimeSlicer(self._clock, Pauses(self._metrics.lag_gauges.sampler.is_awaited))

    def _head(
        self,
        tick_ms: int,
        found: SampleTables,
        facts: Mapping[str, int],
        *,
        rows: int,
        is_keyframe: bool,
    ) -> Head:
        """Return the head of the first part, and count the snapshot."""
        number, self._number = self._number, self._number + 1
        if is_keyframe:
            self._keyframe, self._records = number, 0
        return Head(
            self._started_ms,
            self._log.epoch,
            number,
            is_keyframe,
            0,
            1,
            self._records,
            rows,
            tick_ms,
            found.began_ms,
            self._node,
            facts,
        )

    async def _append_parts(self, head: Head, packed: Sequence[bytes]) -> int:
        parts = list(_parts(packed))
        size = 0
        for number, sections in enumerate(parts):
            part = head._replace(part=number, parts=len(parts), back=self._records)
            # Bytes joined and compressed in a thread, which holds the interpreter lock for neither.
            body = await asyncio.to_thread(encode_packed, part, sections)
            await self._append.append([self._run_of(body)])
            self._records += 1
            size += len(body)
        return size

    def _run_of(self, body: bytes) -> Run:
        host = self._log.host
        entries = batch.encode([WireMessage(body)])
        born_ms = self._clock.wall_ms()
        return Run(TELEMETRY_TOPIC, TELEMETRY_QUEUE, entries, 1, host, host, born_ms)


def _parts(packed: Sequence[bytes]) -> list[list[bytes]]:
    """Distribute sections over parts of PART_SIZE; a snapshot without any has one part."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for section in packed:
        if size and size + len(section) > PART_SIZE:
            parts.append([])
            size = 0
        parts[-1].append(section)
        size += len(section)
    return parts
