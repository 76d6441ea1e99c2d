"""Twice a second: heartbeat, and what must not be true of a running broker. No rule of messages.

The log's files are looked at more rarely, and only while this process appends: else they are ha's.

Started before recovery, so that others see from the first moment that this process lives.
"""

from __future__ import annotations

import asyncio
import logging

from services.broker.log.open_store import OpenStore
from shared.files.consume_queue import ConsumeQueues
from shared.files.log_watch import LogWatch
from shared.runtime.health import Health
from tidemark.errors import DamagedFile, ReplacedPositions
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
LOG_WATCH_BEATS = 4
"""Heartbeats between two looks at the log's files."""


class Watch:
    """Twice a second: heartbeat, and what must not be true of a running node."""

    def __init__(
        self, store: OpenStore, health: Health, stop: asyncio.Event, dispatch_lag_max: int
    ) -> None:
        self._dispatch_lag_max = dispatch_lag_max
        self._store = store
        self._health = health
        self._stop = stop
        self._clock = health.clock
        self.queues: ConsumeQueues | None = None
        """Told to look anew when reput has begun anew."""
        self._reput: tuple[int, int] | None = None
        self._log_watch = LogWatch(store.directory, store.positions)
        self._beats = 0

    async def run(self) -> None:
        """Until stop. Raises ReplacedPositions, LogFileReplaced."""
        positions = self._store.positions
        while not self._stop.is_set():
            positions.publish(Slot.BROKER_HEARTBEAT_MS, self._clock.boot_ms())
            if not positions.is_current():
                raise ReplacedPositions(
                    f"{positions.path} was replaced or written over. What "
                    "was acknowledged is on disk.",
                    "Start the node's processes again; do not replace files of a running node.",
                    path=positions.path,
                )
            self._judge_dispatch()
            await self._watch_log()
            reput = positions.resumed_dispatch()
            if reput is not None and self._reput != reput:
                self._reput = reput
                if self.queues is not None:
                    self.queues.forget()  # its files may have been made anew
                # Queues that were damaged were: one that still is says so at the next read.
                self._health.clear_reason(DamagedFile.code)
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _watch_log(self) -> None:
        self._beats += 1
        get = self._store.positions.get
        epoch = get(Slot.SERVING_EPOCH)
        if epoch == 0 or self._beats % LOG_WATCH_BEATS:
            return
        fault = await asyncio.to_thread(self._log_watch.fault, epoch)
        if fault is not None and get(Slot.SERVING_EPOCH) == epoch:
            raise fault

    def _judge_dispatch(self) -> None:
        """Be unready while sends are refused because dispatch is too far behind."""
        if self._health.state != "serving":
            return
        behind = self._store.positions.get(Slot.FLUSHED) - self._store.dispatched
        if behind > self._dispatch_lag_max:
            self._health.add_reason(
                "dispatch-behind",
                f"{behind} bytes are not dispatched, {self._dispatch_lag_max} are allowed; see "
                "reput's /ready",
            )
        else:
            self._health.clear_reason("dispatch-behind")
