"""The timer topic's queue: read once, sorted by ``pending_times``, delivered by due time.

Messages with any due time are stored in the order of their sends. Messages that are read from the
queue, except delivered ones, go into the sorted file, from which due messages are taken. A carried
copy names the message that it replaces, which leaves the file when its copy enters it.

If the file is lost, the queue is read again, and nothing is delivered meanwhile, because a message
might be found before its carried copy. On a nearly full disk there may be space to open the file
but not to store the messages in it. Blocks; called in the delay thread. Step before: dispatch wrote
the units. Step after: ``slices``.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from services.broker.delay.pending_times import Pending, PendingTimes, remove
from services.broker.delay.progress import Progress, Time
from services.broker.delay.slices import Entry
from services.broker.delay.timer_messages import UNITS_AT_ONCE, TimerMessages, entry_of
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from shared.files.queue_math import is_filler
from shared.runtime.clock import BootId
from tidemark.clock import Clock
from tidemark.errors import DiskFull, FileNotReady, StoreError
from tidemark.formats.delay import (
    TIMER_LEVEL,
    TIMER_QUEUE,
    TIMER_TOPIC,
)
from tidemark.formats.timer_log import Waiting
from tidemark.offsets import PhysicalOffset, QueueOffset

log = logging.getLogger(__name__)

TAKE_IN_MAX: Final = 16_384
"""Messages read at a time: some tenths of a second."""
REOPEN_AFTER_S: Final = 1.0
STANDS_STILL_AFTER_S: Final = 5.0
"""A fault is reported after the file was missing for this long and a recent attempt failed."""
CANCELLED_KEPT_MS: Final = 24 * 3600 * 1000
"""How long a cancellation is kept after its slot, in case the clock steps backwards."""
_I64_MAX: Final = (1 << 63) - 1
_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
"""SQLite's codes of a full disk. The second says that its shared-memory file cannot grow, for any
reason (os_unix.c, unixShmMap)."""


class TimerQueue:
    """The queue and its sorted file. One thread uses it."""

    def __init__(
        self,
        path: Path,
        boot_id: BootId,
        log_reader: CommitLogReader,
        queues: ConsumeQueues,
        clock: Clock,
    ) -> None:
        """path: path of the sorted file."""
        self._path = path
        self._boot_id = boot_id
        self._log = log_reader
        self._queues = queues
        self._clock = clock
        self._times: PendingTimes | None = None
        self._reopen_at = 0.0
        self._whole_from = 0
        self._cannot: StoreError | None = None
        self._loss: StoreError | None = None
        """Last error since the file was lost; None: the file is in use."""
        self._lost_at = 0.0

    # -- the file --------------------------------------------------------------------------------

    def open(self, progress: Progress, readable: PhysicalOffset) -> None:
        """Open the file and apply the progress to it; do nothing if there never was a timed
        message.

        readable: end of the part of the log that may be read and is on disk. Does nothing for a
        while after the file was lost, and while carried copies cannot be read yet.
        """
        queue = self._queue()
        end = int(queue.max_offset(readable))
        if not end or self._clock.monotonic() < self._reopen_at:
            return
        # Otherwise: 1. Messages are carried. 2. The file is lost in the commit. 3. The queue is
        # read again before reput has dispatched their copies, and they are carried a second time.
        if readable < progress.carried_to:
            return
        with self._loses(filling=True):
            times = PendingTimes(self._path, self._boot_id)
            if not _is_of_this_log(times, queue, readable):
                times.discard()
                times = PendingTimes(self._path, self._boot_id)
            self._times = times
            # This also applies to an existing file. Otherwise: 1. Messages are carried. 2. The disk
            # is full at the commit of this file, but the progress is recorded. 3. The process is
            # killed. 4. The file still has the messages, and their copies are too far ahead to be
            # read in the same step: both could be delivered.
            self._whole_from = end
            times.remove_through(*progress.timer)
            cancelled = (at for level, at in progress.cancelled if level == TIMER_LEVEL)
            for queue_offset in (*progress.done, *cancelled):
                times.remove_at(queue_offset)
            times.commit()

    @property
    def cannot(self) -> StoreError | None:
        """Return why the lost file could not be opened or filled at the last attempt."""
        return self._cannot

    @property
    def stands_still(self) -> StoreError | None:
        """Return the lasting reason why the queue is not delivered; None if it is, or soon will
        be."""
        now = self._clock.monotonic()
        lasts = now - self._lost_at >= STANDS_STILL_AFTER_S
        # Reading a long queue again is not a fault.
        is_refused = now - self._reopen_at < STANDS_STILL_AFTER_S
        return self._loss if lasts and is_refused else None

    @contextmanager
    def _loses(self, *, filling: bool = False) -> Iterator[None]:
        """Close the file for a while if SQLite or the disk fails, and raise nothing.

        Committed changes stay valid, because the log has all of them. A damaged file is removed.
        filling: the file is being opened, or read into.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if self._loss is None:
                self._lost_at = self._clock.monotonic()
                log.warning(
                    "the file of pending times cannot be used; messages with arbitrary delivery "
                    "times keep waiting until it can: %s",
                    error,
                    extra={"event": "timer-file-lost", "path": str(self._path)},
                )
            if self._times is not None:
                self._times.close()
                self._times = None
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.OperationalError
            ):
                with suppress(OSError):
                    remove(self._path)
            self._reopen_at = self._clock.monotonic() + REOPEN_AFTER_S
            self._loss = _refusal(error, self._path)
            if filling:
                # Opening the file is not enough. Otherwise: 1. The disk is nearly full, and the
                # file opens. 2. There is no space for the messages. 3. Retention, which would make
                # space by deleting a log file, waits forever. A file that can be filled and fails
                # only at commits makes progress once a second.
                self._cannot = self._loss

    def _note_read(self) -> None:
        """Note that the queue was read without an error."""
        self._cannot = None
        if self._loss is not None and self.is_whole:
            self._loss = None
            log.info("the file of pending times is used again", extra={"event": "timer-file-back"})

    # -- reading ---------------------------------------------------------------------------------

    def first_is_foreign(self, readable: PhysicalOffset) -> bool:
        """Return whether RocketMQ wrote the oldest message of the queue."""
        queue = self._queue()
        first = queue.min_offset(self._log.min_offset)
        unit = queue.unit(first) if first < queue.max_offset(readable) else None
        return unit is not None and not self._log.checks_at(unit.physical_offset).record_crc

    def end(self, readable: PhysicalOffset) -> int:
        """Return the queue offset up to which the queue can be read."""
        return int(self._queue().max_offset(readable))

    @property
    def read_to(self) -> int:
        """End of the part of the queue that was read, as a queue offset; 0 without a file."""
        return 0 if self._times is None else self._times.read_to

    def take_in(self, progress: Progress, readable: PhysicalOffset) -> bool:
        """Read new messages; return whether there are more. Raises CorruptRecord, DamagedFile."""
        if self._times is None:
            self.open(progress, readable)
        times = self._times
        if times is None:
            return False
        queue = self._queue()
        end = int(queue.max_offset(readable))
        at = start = max(times.read_to, int(queue.min_offset(self._log.min_offset)))
        found = TimerMessages(self._log)
        may_be_cancelled = times.cancelled_count > 0
        log_end = times.log_end
        while at < end and at - start < TAKE_IN_MAX:
            units = queue.units(at, min(UNITS_AT_ONCE, end - at), readable)
            for number, unit in enumerate(units, at):
                if not is_filler(unit.physical_offset, unit.size):
                    log_end = unit.end
                    found.add(number, unit, readable, progress, may_be_cancelled=may_be_cancelled)
            at = at + len(units) if units else min(end, int(queue.roll_next(at)))
        if found.undated:
            log.warning(
                "messages of the timer's queue do not say when they are due; they are passed over",
                extra={
                    "event": "delayed-without-time",
                    "count": len(found.undated),
                    "first_queue_offset": found.undated[0],
                },
            )
        if at > times.read_to:
            with self._loses(filling=True):
                times.take_in(found.rows, read_to=at, log_end=log_end)
                for queue_offset in found.replaced:
                    times.remove_at(queue_offset)
                try:
                    found.apply_rocketmqs(times, readable)
                except StoreError:
                    # Nothing of this step was committed; the whole step is repeated.
                    times.close()
                    self._times = None
                    raise
                if at >= end and times.cancelled_count:
                    times.forget_cancelled(self._clock.wall_ms() - CANCELLED_KEPT_MS)
        if self._times is not None:
            self._note_read()
        return at < end

    def last(self, readable: PhysicalOffset) -> Waiting | None:
        """Return the last message read from the queue; None if its record is gone."""
        unit = self._queue().unit(QueueOffset(self.read_to - 1)) if self.read_to else None
        if unit is None or is_filler(unit.physical_offset, unit.size) or unit.end > readable:
            return None
        return Waiting(0, unit.physical_offset, unit.size)

    def lowest(self) -> int | None:
        """Return the queue offset below which nothing waits; None while it is unknown."""
        if self._times is None or not self.is_whole:
            return None
        with self._loses():
            lowest = self._times.lowest_queue_offset()
            return self.read_to if lowest is None else lowest
        return None

    def all(self) -> Iterator[Pending]:
        """Return all waiting messages by due time. Raises sqlite3.Error."""
        after: Time = (-1, -1)
        while self._times is not None and (rows := self._times.after(*after, UNITS_AT_ONCE)):
            yield from rows
            after = rows[-1][:2]

    # -- delivering ------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether the file reflects every carried message."""
        return self._times is not None and self._times.read_to >= self._whole_from

    def due(self, now_ms: int, count_max: int) -> list[Entry]:
        """Return the first count_max due messages, by due time."""
        if self._times is None or not self.is_whole:
            return []
        with self._loses():
            return [entry_of(row) for row in self._times.due(now_ms, count_max)]
        return []

    def after(self, time: Time, count_max: int) -> list[Entry]:
        """Return the first count_max messages after a time, by due time."""
        if self._times is None:
            return []
        with self._loses():
            return [entry_of(row) for row in self._times.after(*time, count_max)]
        return []

    def first(self) -> Time | None:
        """Return the time of the next message; None if none waits, or there is no file."""
        found = self.after((-1, -1), 1)
        return (found[0].due_ms, found[0].queue_offset) if found else None

    def below(self, physical_offset: int, count_max: int) -> list[Entry]:
        """Return the oldest count_max messages below physical_offset."""
        if self._times is None:
            return []
        with self._loses():
            return [entry_of(row) for row in self._times.below(physical_offset, count_max)]
        return []

    def oldest(self, readable: PhysicalOffset) -> PhysicalOffset | None:
        """Return a lower bound of the waiting records; None: none waits, or there is no file.

        Unread messages count as waiting. Otherwise: 1. After a reboot the queue is read again, and
        begins with delivered messages. 2. No waiting message has been read yet, and retention
        deletes the oldest log file. 3. The waiting messages in it are lost.
        """
        found = self.below(_I64_MAX, 1)
        if found:
            return PhysicalOffset(found[0].physical_offset)
        queue = self._queue()
        end = int(queue.max_offset(readable))
        at = max(self.read_to, int(queue.min_offset(self._log.min_offset)))
        unit = queue.unit(QueueOffset(at)) if self._times is not None and at < end else None
        # A filler has offset 0. Any message may then be below, so the carry reads further.
        return None if unit is None else PhysicalOffset(unit.physical_offset)

    def find(self, queue_offset: int) -> Entry | None:
        """Return the message with that queue offset, if it waits."""
        if self._times is None:
            return None
        with self._loses():
            row = self._times.find(queue_offset)
            return None if row is None else entry_of(row)
        return None

    @property
    def count(self) -> int | None:
        """Return the number of waiting messages; None without a file."""
        return None if self._times is None else self._times.count

    def remove(self, rows: Sequence[Pending]) -> None:
        """Remove messages that wait no longer."""
        if self._times is not None and rows:
            with self._loses():
                self._times.remove(rows)

    def put_back(self, rows: Sequence[Pending]) -> None:
        """Add messages that keep waiting."""
        if self._times is not None and rows:
            with self._loses():
                self._times.put_back(rows)

    def commit(self) -> None:
        """Commit the changes; the log records that they depend on are flushed."""
        if self._times is not None:
            with self._loses():
                self._times.commit()

    def close(self) -> None:
        """Close the file."""
        if self._times is not None:
            self._times.close()
            self._times = None

    def _queue(self) -> ConsumeQueueReader:
        return self._queues.get(TIMER_TOPIC, TIMER_QUEUE)


def _is_of_this_log(
    times: PendingTimes, queue: ConsumeQueueReader, readable: PhysicalOffset
) -> bool:
    """Return whether the last message that was read is still at its position."""
    if times.read_to == 0:
        return True
    if times.log_end > readable or times.read_to > queue.max_offset(readable):
        return False
    unit = queue.unit(QueueOffset(times.read_to - 1))
    return unit is None or is_filler(unit.physical_offset, unit.size) or unit.end == times.log_end


def _refusal(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """Convert an error of SQLite or the disk to the error for callers."""
    if isinstance(error, OSError):
        is_full = error.errno == errno.ENOSPC
    else:
        is_full = getattr(error, "sqlite_errorcode", None) in _FULL
    kind = DiskFull if is_full else FileNotReady
    return kind(
        f"the file of pending times cannot be used: {error}. What waits for any time waits on.",
        "Make room on the disk." if is_full else "See the path's permissions and the disk.",
        path=path,
    )
