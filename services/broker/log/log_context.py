"""The log of an open store and its components: appender, flusher, committer, queues, doorbells.

It is built before the state is known, because the state is read from it at start. ``open_store``
comes before this step; after it ``building`` builds the serving components on it. In a group each
role of this process has its own instance, one after another, on the same readers. A slave appends
nothing; there the ha process publishes the end of the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from services.broker.context import BrokerContext
from services.broker.log.committer import Committer
from services.broker.log.dispatch_lag import DispatchLag
from services.broker.log.durability_barrier import DurabilityBarrier
from services.broker.log.flusher import Flusher, FlushIntervals
from services.broker.log.log_sampler import LogSampler, newest_on_disk
from services.broker.log.open_store import OpenStore
from services.broker.log.preallocator import Preallocator
from services.broker.log.term import Term
from services.broker.log.throttled_doorbell import ThrottledDoorbell
from services.broker.log.unit_checks import UnitChecks
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.log_writer import Mark
from shared.files.write_pool import CommitPace
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset, Queue

if TYPE_CHECKING:
    from services.broker.read.long_polls import LongPolls

log = logging.getLogger(__name__)

REPUT: Final = "reput"
HA: Final = "ha"
PAGE_SIZE: Final = 4096


class Readers(NamedTuple):
    """Readers of the log and its consume queues, used in every role."""

    log: CommitLogReader
    queues: ConsumeQueues

    @classmethod
    def of(cls, store: OpenStore) -> Readers:
        """Create the readers of an open store."""
        log = CommitLogReader(store.directory, store.positions)
        return cls(log, ConsumeQueues(store.directory, log))


class LogContext:
    """The log of one store and its components."""

    def __init__(
        self,
        broker: BrokerContext,
        store: OpenStore,
        *,
        readers: Readers | None = None,
        term: Term | None = None,
        master_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """readers: readers that several roles share; None: new ones. term: the node's term as
        master; None: it is a slave. master_from: returns the start of the master's log on a slave;
        None: not known.
        """
        self.master_from = master_from
        self.term = term
        self.appends = term is not None
        """Whether this process appends to the log."""
        self.epoch = 0 if term is None else term.epoch
        """Epoch of the records that are appended; 0 on a standalone node and on a slave."""
        config, clock, metrics, health, doorbell, port = broker
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.health = health
        self.store = store
        self.doorbell = doorbell
        self.host = config.store_host(port)
        self.positions = store.positions
        self.reader, self.queues = Readers.of(store) if readers is None else readers
        self.unit_checks = UnitChecks(
            store.positions, health, ask=self.ring_reput, mended=self.queues.forget
        )
        self.appender = CommitLogAppender(
            store.directory,
            store.positions,
            pool_size=config.write_buffer_pool_size,
            warm_up=config.warm_up_files,
            lock_memory=config.lock_files_memory,
        )
        self.files = Preallocator(
            self._prepare,
            self.appender,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=self._writes_changed,
        )
        self._visible_after = config.store.visible_after
        # In a group ha wakes reput once the bytes are confirmed.
        next_service = HA if self._visible_after == "confirmed" else REPUT
        self._bell = ThrottledDoorbell(doorbell, next_service, clock)
        self.flusher = Flusher(
            self.appender, self._flush_intervals(), clock, metrics, on_flushed=self._flushed
        )
        self.committer = self._make_committer() if self.appender.pooled else None
        self.durability: DurabilityBarrier = (
            self.flusher if term is None else term.barrier(self.flusher, clock)
        )
        """Waits until a physical offset is durable: on this disk, or in the in-sync set."""

    def _flush_intervals(self) -> FlushIntervals:
        config = self.config
        if config.store.visible_after != "written":
            return FlushIntervals(config.flush_interval_ms / 1000)
        return FlushIntervals(
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
        """Prepare everything that an append needs. Blocks; runs in the thread of Preallocator."""
        # The abort marker comes first: it shows whether the disk accepts writes at all, and nothing
        # may be appended before it exists.
        self.store.directory.mark_running()
        if self.store.needs_restart:
            raise self.store.restart_needed()
        if self.store.recover_again():
            self.appender.start_at(self.store.recovered.end)
        self.appender.prepare_next()

    def _writes_changed(self, failure: StoreError | None) -> None:
        if failure is None:
            for code in ("disk-full", "read-only-disk", "out-of-resources"):
                self.health.clear_reason(code)
        else:
            self.health.add_reason(failure.code, f"{failure.detail} {failure.advice}")

    def _flushed(self) -> None:
        if self.committer is not None:
            self.committer.flushed()
        if self.committer is not None or self._visible_after != "written":
            self._bell.ring()

    def _written(self) -> None:
        """Ring the doorbells after bytes were written to the file."""
        if self._visible_after != "flushed":
            self._bell.ring()

    # -- how far it is ---------------------------------------------------------------------------

    def dispatched(self) -> PhysicalOffset:
        """Return the offset up to which queues and index cover the log and may be read."""
        return self.store.dispatched

    def confirmed(self) -> PhysicalOffset:
        """Return the offset up to which consumers may read."""
        return PhysicalOffset(self.positions.get(self.store.confirm_slot))

    def flushed(self) -> PhysicalOffset:
        """Return the offset up to which the log is on disk."""
        if not self.appends:
            return PhysicalOffset(self.positions.get(Slot.FLUSHED))
        return self.appender.flushed

    def dispatch_lag(self) -> DispatchLag:
        """Return how far dispatch is behind the flushed log of this node."""
        return DispatchLag(self.appender.flushed, self.confirmed(), self.store.dispatched)

    def durable_end(self) -> PhysicalOffset:
        """Return the offset up to which no crash and, in a group, no failover loses records."""
        if self._visible_after == "confirmed":
            return self.confirmed()
        return self.appender.flushed

    def end(self) -> PhysicalOffset:
        """Return the end of the log."""
        if not self.appends:
            return PhysicalOffset(self.positions.get(Slot.WRITTEN))
        return self.appender.appended

    def newest(self) -> Mark:
        """Return the end of the log and the store time of its last record; 0: time not known.

        On a slave this is the flushed part of the log. Bytes in the write buffer pool do not count,
        because they are in no file yet.
        """
        if not self.appends:
            return newest_on_disk(self.positions)
        mark = self.appender.newest
        if mark.store_timestamp_ms > 0:
            return mark
        return Mark(mark.end, self.store.last_store_timestamp_ms)

    def log_sampler(self) -> LogSampler:
        """Return the sampler of the ages of the log's stages."""
        return LogSampler(
            self.reader,
            newest=self.newest,
            confirmed=self.confirmed,
            dispatched=self.dispatched,
        )

    def readable_end(self) -> PhysicalOffset:
        """Commit the write buffer pool to the files and return the end of the log.

        Raises WriteFailed, FlushFailed.
        """
        return self.appender.commit() if self.appends else self.end()

    def index_is_whole(self) -> bool:
        """Return False while reput rebuilds a part of the index."""
        return not self.positions.get(Slot.INDEX_BEHIND)

    # -- the life --------------------------------------------------------------------------------

    def start_appender(self) -> None:
        """Start the appender at the end that recovery found. Blocks."""
        self.appender.start_at(self.store.recovered.end)
        is_written = self.store.recovered.read_only is None and not self.store.needs_restart
        if is_written and self.appender.settled:
            # The records that begin a term need not wait for the files ahead.
            self.files.start_prepared_log()

    def committer_part(
        self, stop: asyncio.Event
    ) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """Return the committer as a component to run; empty if there is none."""
        committer = self.committer
        return {} if committer is None else {"committer": lambda: committer.run(stop)}

    def ring_reput(self) -> None:
        """Wake reput."""
        self.doorbell.ring(REPUT)

    def appended(self, long_polls: LongPolls, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        """Schedule flush and commit, and note for long polls that these queues got messages up to
        end. The doorbell of reput or ha rings once the bytes are written or flushed."""
        self.flusher.appended()
        if long_polls.appended(queues, end):
            self.doorbell.wake()  # poll often until the messages are dispatched
        if self.committer is not None:
            self.committer.appended()
        else:
            self._written()

    def clock_stepped(self, step_ms: int) -> None:
        """Count and log that the wall clock stepped back too far for store times to stay."""
        self.metrics.clock_steps.inc()
        log.warning(
            "the wall clock stepped back; store times follow it, look-ups by time may be inexact",
            extra={"event": "clock-step", "step_ms": step_ms, "pid": os.getpid()},
        )

    def abandon(self) -> None:
        """Close without marking the stop as clean, so that the next start recovers. Blocks."""
        self.appender.close(clean=False)
