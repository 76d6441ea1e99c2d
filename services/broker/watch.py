"""Publishes the heartbeat and checks the store's files, twice a second.

The log's files are checked less often. While this process appends, a changed file ends it. On a
slave the ha process owns them, and is asked to check the log where a file is missing. The watch is
started before recovery, so that other processes see the heartbeat from the beginning.
"""

from __future__ import annotations

import asyncio
import logging

from services.broker.log.dispatch_lag import DispatchLag
from services.broker.log.open_store import OpenStore
from shared.files.consume_queue import ConsumeQueues
from shared.files.log_watch import LogWatch
from shared.runtime.health import Health
from tidemark.errors import DamagedFile, ReplacedPositions
from tidemark.formats.checkpoint import NodeRole, Slot

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
LOG_WATCH_BEATS = 4
"""Heartbeats between two checks of the log's files."""


class Watch:
    """Publishes the heartbeat, and fails if the files of the running node were replaced."""

    def __init__(
        self, store: OpenStore, health: Health, stop: asyncio.Event, dispatch_lag_max: int
    ) -> None:
        self._dispatch_lag_max = dispatch_lag_max
        self._store = store
        self._health = health
        self._stop = stop
        self._clock = health.clock
        self._queues: ConsumeQueues | None = None
        """Readers whose cached data is dropped when reput was restarted."""
        self._reput: tuple[int, int] | None = None
        self._log_watch = LogWatch(store.directory, store.positions)
        self._beats = 0

    def follow(self, queues: ConsumeQueues) -> None:
        """Drop the cached data of these readers when reput was restarted."""
        self._queues = queues

    async def run(self) -> None:
        """Run until stop. Raises ReplacedPositions, LogFileReplaced."""
        positions = self._store.positions
        while not self._stop.is_set():
            positions.publish(Slot.BROKER_HEARTBEAT_MS, self._clock.boot_ms())
            if not positions.is_current():
                raise ReplacedPositions(
                    f"{positions.path} was replaced or overwritten. What was "
                    "acknowledged at disk is safe.",
                    "Start the node's processes again; do not replace files of a running node.",
                    path=positions.path,
                )
            self._judge_dispatch()
            await self._watch_log()
            reput = positions.resumed_dispatch()
            if reput is not None and self._reput != reput:
                self._reput = reput
                if self._queues is not None:
                    self._queues.forget()  # the queue files may have been rebuilt
                # Reput repairs damaged queues at start. If one is still damaged, the next read sets
                # the reason again.
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
        if self._beats % LOG_WATCH_BEATS:
            return
        if epoch == 0:
            if get(Slot.ROLE) == NodeRole.FOLLOWER:
                await self._watch_copied_log()
            return
        fault = await asyncio.to_thread(self._log_watch.fault, epoch)
        if fault is not None and get(Slot.SERVING_EPOCH) == epoch:
            raise fault

    async def _watch_copied_log(self) -> None:
        """Let ha check the log where a file is missing. ha reads the whole log only once a day, and
        the node would be found unusable no sooner than as a master."""
        missing = await asyncio.to_thread(self._log_watch.missing)
        positions = self._store.positions
        if missing is not None and positions.get(Slot.DAMAGED_AT) != missing + 1:
            positions.publish(Slot.DAMAGED_AT, missing + 1)

    def _judge_dispatch(self) -> None:
        """Set the readiness reason while sends are refused because of the dispatch lag."""
        if self._health.state != "serving":
            return
        store, get = self._store, self._store.positions.get
        lag = DispatchLag(get(Slot.FLUSHED), get(store.confirm_slot), store.dispatched)
        if lag.behind > self._dispatch_lag_max:
            self._health.add_reason(
                "dispatch-behind",
                f"{lag.detail}; {self._dispatch_lag_max} are allowed; see {lag.see}",
            )
        else:
            self._health.clear_reason("dispatch-behind")
