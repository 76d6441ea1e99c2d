"""The log of an open store, and what moves with it: appender, flusher, committer, queues, bells.

Made before the state is known, because a start needs it to read the state. Before: ``open_store``.
After: ``building`` makes what serves on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Final

from services.broker.committer import Committer
from services.broker.config import BrokerConfig
from services.broker.files_ahead import FilesAhead
from services.broker.flusher import Flusher, Pace
from services.broker.metrics import BrokerMetrics
from services.broker.open_store import OpenStore
from services.broker.paced_bell import PacedBell
from services.broker.pull import Puller
from services.broker.queue_offsets import Queue
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.write_pool import CommitPace
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

REPUT: Final = "reput"
PAGE_SIZE: Final = 4096


class Ground:
    """The log of one store, and what moves with it."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metrics: BrokerMetrics,
        health: Health,
        store: OpenStore,
        doorbell: Doorbell,
        port: int,
    ) -> None:
        """port: of the API, as records carry it."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.health = health
        self.store = store
        self.doorbell = doorbell
        self.host = config.store_host(port)
        self.positions = store.positions
        self.reader = CommitLogReader(store.directory, store.positions)
        self.queues = ConsumeQueues(store.directory, self.reader)
        self.appender = CommitLogAppender(
            store.directory,
            store.positions,
            pool_size=config.write_buffer_pool_size,
            warm_up=config.warm_up_files,
            lock_memory=config.lock_files_memory,
        )
        self.files = FilesAhead(
            self._prepare,
            lambda: self.appender.appended,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=self._writes_changed,
        )
        self._bell = PacedBell(doorbell, REPUT, clock)
        self._shows_written = config.store.visible_after == "written"
        self.flusher = Flusher(
            self.appender, self._pace(), clock, metrics, on_flushed=self._flushed
        )
        self.committer = self._make_committer() if self.appender.pooled else None

    def _pace(self) -> Pace:
        config = self.config
        if config.store.visible_after != "written":
            return Pace(config.flush_interval_ms / 1000)
        return Pace(
            config.interval_flush_ms / 1000,
            config.interval_flush_pages * PAGE_SIZE,
            config.interval_flush_thorough_ms / 1000,
        )

    def _make_committer(self) -> Committer:
        config = self.config
        pace = CommitPace(
            config.commit_interval_ms / 1000,
            config.commit_least_pages * PAGE_SIZE,
            config.commit_thorough_ms / 1000,
        )
        return Committer(self.appender, pace, self.clock, on_committed=self._written)

    def _prepare(self) -> None:
        """All that appending needs. Blocks, in the thread of FilesAhead."""
        # The marker first: it tells whether the disk takes writes at all, and before it is there
        # nothing may be appended.
        self.store.directory.mark_running()
        if self.store.needs_restart:
            raise self.store.restart_needed()
        if self.store.recover_again():
            self.appender.start_at(self.store.recovered.end)
        self.appender.prepare_next()

    def _writes_changed(self, failure: StoreError | None) -> None:
        if failure is None:
            for code in ("disk-full", "read-only-disk"):
                self.health.clear_reason(code)
        else:
            self.health.add_reason(failure.code, f"{failure.detail} {failure.advice}")

    def _flushed(self) -> None:
        if self.committer is not None:
            self.committer.flushed()
        if self.committer is not None or not self._shows_written:
            self._bell.ring()

    def _written(self) -> None:
        """More of the log is in its file."""
        if self._shows_written:
            self._bell.ring()

    # -- how far it is ---------------------------------------------------------------------------

    def dispatched(self) -> PhysicalOffset:
        """End of what queues and index cover and may be seen."""
        return self.store.dispatched

    def confirmed(self) -> PhysicalOffset:
        """End of what consumers may see."""
        return PhysicalOffset(self.positions.get(self.store.confirm_slot))

    def flushed(self) -> PhysicalOffset:
        """End of what is on disk."""
        return self.appender.flushed

    # -- the life --------------------------------------------------------------------------------

    def start_appender(self) -> None:
        """Go on where recovery found the end. Blocks."""
        self.appender.start_at(self.store.recovered.end)

    def committer_part(
        self, stop: asyncio.Event
    ) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """The committer, if there is one, as a part to run."""
        committer = self.committer
        return {} if committer is None else {"committer": lambda: committer.run(stop)}

    def ring_reput(self) -> None:
        """Wake reput."""
        self.doorbell.ring(REPUT)

    def appended(self, puller: Puller, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        """These queues got messages, which are in the log up to end."""
        self.flusher.appended()
        if puller.held.appended(queues, end):
            self.doorbell.wake()  # to poll often until it is dispatched
        if self.committer is not None:
            self.committer.appended()
        else:
            self._written()

    def clock_stepped(self, step_ms: int) -> None:
        """The wall clock went back so far that store times follow it."""
        self.metrics.clock_steps.inc()
        log.warning(
            "the wall clock stepped back; store times follow it, look-ups by time may be inexact",
            extra={"event": "clock-step", "step_ms": step_ms, "pid": os.getpid()},
        )

    def close_clean(self) -> None:
        """Everything is flushed: close, and say that the stop was clean. Blocks."""
        self.appender.close(clean=True)
        self.store.stopped_clean()

    def abandon(self) -> None:
        """Close as a crash does: the next start recovers. Blocks."""
        self.appender.close(clean=False)
