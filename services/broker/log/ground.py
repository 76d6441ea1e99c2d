"""The log of an open store, and what moves with it: appender, flusher, committer, queues, bells.

Made before the state is known, because a start needs it to read the state. Before: ``open_store``.
After: ``building`` makes what serves on it. In a group there is one for each role that this
process has, one after another, on the same readers: as a slave nothing is appended, and where the
log ends is what ha says.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from services.broker.config import BrokerConfig
from services.broker.log.committer import Committer
from services.broker.log.files_ahead import FilesAhead
from services.broker.log.flusher import Flusher, Pace
from services.broker.log.lasting import Lasting
from services.broker.log.log_look import LogLook, newest_on_disk
from services.broker.log.open_store import OpenStore
from services.broker.log.paced_bell import PacedBell
from services.broker.log.queue_offsets import Queue
from services.broker.log.unit_checks import UnitChecks
from services.broker.metrics import BrokerMetrics
from services.broker.replication.confirmer import Confirmer
from services.broker.replication.term import Term
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.log_writer import Mark
from shared.files.write_pool import CommitPace
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

if TYPE_CHECKING:
    from services.broker.read.held_pulls import HeldPulls

log = logging.getLogger(__name__)

REPUT: Final = "reput"
HA: Final = "ha"
PAGE_SIZE: Final = 4096


class Readers(NamedTuple):
    """The log and its queues, as they are read in every role."""

    log: CommitLogReader
    queues: ConsumeQueues

    @classmethod
    def of(cls, store: OpenStore) -> Readers:
        """Of an open store."""
        log = CommitLogReader(store.directory, store.positions)
        return cls(log, ConsumeQueues(store.directory, log))


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
        *,
        readers: Readers | None = None,
        term: Term | None = None,
        master_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """port: of the API, as records carry it. readers: those of a node of a group; None: the
        node is alone. term: that this node is master for; None: it is alone, or a slave.
        master_from: where the log of a slave's master begins; None: not known.
        """
        self.master_from = master_from
        self.term = term
        self.grouped = readers is not None
        self.appends = term is not None or not self.grouped
        """Whether this process is the one that appends."""
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
        self.files = FilesAhead(
            self._prepare,
            self.appender,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=self._writes_changed,
        )
        self._bell = PacedBell(doorbell, REPUT, clock)
        self._ha_bell = PacedBell(doorbell, HA, clock) if term is not None else None
        self._shows_written = config.store.visible_after == "written"
        self.flusher = Flusher(
            self.appender, self._pace(), clock, metrics, on_flushed=self._flushed
        )
        self.committer = self._make_committer() if self.appender.pooled else None
        self.confirmer = None if term is None else Confirmer(term, self.flusher, clock)
        self.lasting: Lasting = self.flusher if self.confirmer is None else self.confirmer
        """Whom to wait for until something lasts."""

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
            for code in ("disk-full", "read-only-disk", "out-of-resources"):
                self.health.clear_reason(code)
        else:
            self.health.add_reason(failure.code, f"{failure.detail} {failure.advice}")

    def _flushed(self) -> None:
        if self.committer is not None:
            self.committer.flushed()
        if self._ha_bell is not None:
            self._ha_bell.ring()  # reput hears of it from ha, once it is confirmed
        elif self.committer is not None or not self._shows_written:
            self._bell.ring()

    def _written(self) -> None:
        """More of the log is in its file."""
        if self._ha_bell is not None:
            self._ha_bell.ring()
        elif self._shows_written:
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
        if not self.appends:
            return PhysicalOffset(self.positions.get(Slot.FLUSHED))
        return self.appender.flushed

    def undispatched(self) -> int:
        """Bytes that are on disk, and that reput has not dispatched."""
        return self.appender.flushed - self.store.dispatched

    def lasts_to(self) -> PhysicalOffset:
        """End of what no crash takes back, and in a group no failover."""
        return self.confirmed() if self.grouped else self.appender.flushed

    def end(self) -> PhysicalOffset:
        """End of the log."""
        if not self.appends:
            return PhysicalOffset(self.positions.get(Slot.WRITTEN))
        return self.appender.appended

    def newest(self) -> Mark:
        """End of the log and the store time of its last record; of a slave's, of what is on disk.

        What waits in the pool is not counted: it is in no file yet. Store time 0: not known.
        """
        if not self.appends:
            return newest_on_disk(self.positions)
        mark = self.appender.newest
        if mark.store_timestamp_ms > 0:
            return mark
        return Mark(mark.end, self.store.last_store_timestamp_ms)

    def log_look(self) -> LogLook:
        """What looks at how old the log's stages are."""
        return LogLook(
            self.reader,
            newest=self.newest,
            confirmed=self.confirmed,
            dispatched=self.dispatched,
        )

    def readable_end(self) -> PhysicalOffset:
        """End of the log, all of it in its files: what waits in the pool is put there now.

        Raises WriteFailed, FlushFailed.
        """
        return self.appender.commit() if self.appends else self.end()

    def index_is_whole(self) -> bool:
        """False while reput makes some of the index again."""
        return not self.positions.get(Slot.INDEX_BEHIND)

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

    def epoch_recorded(self, end: PhysicalOffset) -> None:
        """The record that opens the epoch is in the log and ends there: ha waits for it."""
        self.positions.publish(Slot.EPOCH_RECORD_END, end)
        self.flusher.hurry()
        self.ring_ha()

    def ring_ha(self) -> None:
        """Wake ha."""
        self.doorbell.ring(HA)

    def appended(self, held: HeldPulls, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        """Note that these queues got messages, which are in the log up to end."""
        self.flusher.appended()
        if held.appended(queues, end):
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
