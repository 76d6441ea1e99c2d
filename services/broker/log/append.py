"""Appends the runs of checked requests to the commit log: number, encode, write, publish.

Requests are appended in one step without an await, so they never interleave. The step takes the
queue offsets, writes the records as one contiguous batch, and only then advances the queue offsets.
A refused request therefore leaves no trace. If the next
commit log file does not exist yet, the request waits for it *outside* that step. This module does
no work per message: the cost of a request does not depend on its number of messages. Before
this step ``sender`` picks the queues; after it ``flusher`` syncs the log (write path, steps 4 and
5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from shared.files.commit_log_appender import NO_HEAD
from tidemark.errors import (
    FileNotReady,
    FlushFailed,
    MessageTooLarge,
    NotServing,
    WriteFailed,
)
from tidemark.formats import record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

if TYPE_CHECKING:
    from services.broker.read.long_polls import LongPolls
    from services.broker.state.state_log import StateLog

FILE_TRIES: Final = 3
"""Attempts per request: other requests may fill the new file before this one is resumed."""
DISPATCH_CHECK_S: Final = 0.5
"""Same interval as the readiness check of ``watch``."""


class Appended(msgspec.Struct, frozen=True):
    """Location of the messages of one append, or of one request among several: adjacent records, in
    the order of the runs."""

    firsts: list[QueueOffset]
    """Queue offset of each run's first message."""
    start: PhysicalOffset
    """Physical offset of the first record."""
    sizes: bytes
    """Size of each record [bytes] as an array of native unsigned 32-bit numbers."""
    store_timestamp_ms: int
    end: PhysicalOffset
    """End of the last record: the log must be committed or flushed up to here before the messages
    are acknowledged."""

    def parts(self, requests: Sequence[Sequence[Run]]) -> list[Appended]:
        """Return the location of each request's messages; requests: the runs of each, in order."""
        if len(requests) == 1:
            return [self]
        parts: list[Appended] = []
        sizes = memoryview(self.sizes).cast("I")
        first = number = 0
        start = self.start
        for runs in requests:
            next_first, next_number = first + len(runs), number
            for run in runs:
                next_number += run.record_count
            firsts, own = self.firsts[first:next_first], sizes[number:next_number]
            end = PhysicalOffset(start + sum(own))
            parts.append(Appended(firsts, start, own.tobytes(), self.store_timestamp_ms, end))
            first, number, start = next_first, next_number, end
        return parts


def store_time(clock_ms: int, last_ms: int, step_max_ms: int) -> tuple[int, bool]:
    """Return the store time to use, and whether the clock stepped back by more than step_max_ms.

    If the clock goes back by up to step_max_ms, the store time stays at last_ms. After a larger
    step it follows the clock; otherwise it would not advance for as long as the step was.
    """
    if clock_ms >= last_ms:
        return clock_ms, False
    if last_ms - clock_ms <= step_max_ms:
        return last_ms, False
    return clock_ms, True


class Append:
    """Appends to the commit log; a node has at most one. Belongs to one loop."""

    def __init__(
        self,
        log_context: LogContext,
        queue_offsets: QueueOffsets,
        state_log: StateLog,
        long_polls: LongPolls,
    ) -> None:
        """state_log: supplies the snapshot at the start of each new file. long_polls: notified of
        each append."""
        config = log_context.config
        self._log_context = log_context
        self._appender, self._files, self._clock = (
            log_context.appender,
            log_context.files,
            log_context.clock,
        )
        self._queue_offsets = queue_offsets
        self._state_log = state_log
        self._long_polls = long_polls
        self._append_duration = log_context.metrics.append_duration
        self._file_size = config.store.commit_log_file_size
        self._reserve = config.reserve
        self._dispatch_lag_max = config.dispatch_lag_max
        self._accepts_up_to = -1
        """Largest end of the log that the dispatch lag limit allowed at the last check."""
        self._check_dispatch_at = 0.0
        """Time of the next unconditional check, on the monotonic clock [s]."""
        self._end = PhysicalOffset(0)
        """End of the log after the last append."""
        self._clock_step_max_ms = config.clock_step_max_ms
        self._last_store_time_ms = log_context.store.last_store_timestamp_ms
        self._term = log_context.term
        """None: this node is a slave, or appending has ended."""
        self.records_size_max = self._file_size - record.BLANK_SIZE
        """Bytes of records that fit into one commit log file."""

    def close(self) -> None:
        """Refuse all further appends because the node stops or is no longer the master."""
        self._term = None

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        """Store all of the runs' messages or none; wait for the next file if it is missing.

        Raises what ``append_now`` raises. Raises FileNotReady only if creating the file takes too
        long.
        """
        for tries_left in range(FILE_TRIES, 0, -1):
            try:
                return self.append_now(runs, own=own)
            except FileNotReady:
                if tries_left == 1:
                    raise
                await self._files.wait()
        raise AssertionError("the loop returns or raises")

    async def file_made(self) -> None:
        """Wait until the file that ``append_now`` found missing exists; the wait is bounded."""
        await self._files.wait()

    def append_now(self, runs: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        """Store all of the runs' messages or none. This is the critical section: it has no await.

        runs: at least one, of one request or of several. own: the records are the broker's own
        (state); they are accepted even while sends are refused because the disk is full or dispatch
        is behind. room: bytes that must fit into a file in addition to the records. Raises
        FileNotReady (``append`` waits for the file), NotServing, DispatchBehind, DiskFull,
        ReadOnlyDisk, OutOfResources or MessageTooLarge; nothing is stored in these cases.
        """
        if self._term is None:
            raise NotServing("the node is stopping. Nothing was stored.", "Try again.")
        self._term.check_appends()
        total = self._appender.size_of(runs)
        if total + room > self.records_size_max:
            raise self._too_large(total, self.records_size_max - room)
        self._files.check_may_append()
        started = self._clock.monotonic()
        if not own:
            self._check_room(total, started)
        time_ms = self._store_time()
        appended, after = self._write(runs, total, time_ms)
        self._last_store_time_ms = time_ms
        self._end = end = appended.end
        self._append_duration.observe(self._clock.monotonic() - started)
        if end // self._file_size != self._files.made_in:
            self._files.log_moved_on()
        self._log_context.appended(self._long_polls, after, end)
        return appended

    def _write(
        self, runs: Sequence[Run], total: int, time_ms: int
    ) -> tuple[Appended, Mapping[Queue, QueueOffset]]:
        """Number and write the runs; if they open a new file, write a snapshot before them.

        Returns the location of the runs, and the next queue offset of each queue that got records.
        """
        appender = self._appender
        first: Sequence[Run] = ()
        if not appender.room(total) and self._opens_file():
            first = self._state_log.snapshot()
        while True:
            numbered = self._queue_offsets.number([*first, *runs] if first else runs)
            firsts, count = numbered.firsts, len(first)
            head = NO_HEAD
            if count:
                head, firsts = (first, firsts[:count]), firsts[count:]
            try:
                start, sizes = appender.append(runs, firsts, time_ms, head, total)
            except MessageTooLarge:
                if not count:
                    raise
                # The request fits into a file, but not together with the snapshot: write none.
                first = ()
                continue
            except (WriteFailed, FlushFailed) as fault:
                self._term = None
                self._log_context.flusher.fail(fault)
                intended = appender.intended
                if intended is None:
                    raise
                mine = WriteFailed(fault.detail, fault.advice, **fault.facts)
                end = PhysicalOffset(intended.start + sum(memoryview(intended.sizes).cast("I")))
                mine.appended = Appended(firsts, *intended, time_ms, end)
                raise mine from fault
            end = appender.appended
            self._queue_offsets.commit(numbered, end)
            if count:
                size = appender.size_of(first)
                self._state_log.snapshot_placed(PhysicalOffset(start - size), size)
            return Appended(firsts, start, sizes, time_ms, end), numbered.after

    def _opens_file(self) -> bool:
        """Return whether an append that does not fit into the present file starts a new one, which
        exists in that case.

        Raises the reason if the file does not exist. ``StateLog.snapshot`` may be called only if
        the snapshot is written now. Otherwise: 1. the snapshot is taken; 2. the append finds no
        file and waits for it; 3. the second attempt gets no snapshot, because the first one counts
        as the snapshot of this file.
        """
        appender = self._appender
        end, size, files = appender.appended, self._file_size, appender.files
        if end % size and files.last() != end - end % size:
            return False  # a log without records may begin inside its first file
        if not files.next_ready:
            raise files.not_ready(files.next_start)
        appender.open_next()
        return True

    def _too_large(self, total: int, limit: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"the request's records take {total} bytes, {limit} may go into a commit log file. "
            "Nothing was stored.",
            "Send fewer messages per request, or larger commit_log_file_size.",
            limit=limit,
        )

    def _check_room(self, total: int, now: float) -> None:
        self._files.check_may_send()
        if self._end > self._accepts_up_to or now >= self._check_dispatch_at:
            self._check_dispatch(now)
        if self._appender.reserved_bytes < total + self._reserve + self._files.kept_back:
            # This also holds while it is unknown whether a file can be created: the remaining
            # space is reserved for the broker's own records.
            self._files.raise_why_not()

    def _check_dispatch(self, now: float) -> None:
        """Raise DispatchBehind if the dispatch lag is over its limit; else store the limit offset.

        While the dispatched offset only grows, no other check is needed until the log ends
        ``dispatch_lag_max`` bytes after it. The dispatched offset decreases when reput rebuilds its
        files; therefore a check happens at least every DISPATCH_CHECK_S.
        """
        lag = self._log_context.dispatch_lag()
        if lag.behind > self._dispatch_lag_max:
            raise lag.refusal(self._dispatch_lag_max)
        self._accepts_up_to = lag.dispatched + self._dispatch_lag_max
        self._check_dispatch_at = now + DISPATCH_CHECK_S

    def _store_time(self) -> int:
        clock_ms = self._clock.wall_ms()
        last_ms = self._last_store_time_ms
        if clock_ms >= last_ms:
            return clock_ms
        time_ms, stepped = store_time(clock_ms, last_ms, self._clock_step_max_ms)
        if stepped:
            self._log_context.clock_stepped(last_ms - clock_ms)
        return time_ms
