"""Number, encode, write, publish: from checked runs to bytes in the log.

All of a request happens in one step without an await, so the append lock is never held across one
and requests never interleave: numbers are taken, the records are put as one contiguous batch (those
of one queue adjacent), and only after that do the queue offsets move. A request that is refused
leaves no trace. When the next commit log file is not there yet the request waits for it *outside*
that step. Nothing here is done per message: what a request costs does not depend on how many it
holds. Before: ``messages`` and ``queue_offsets`` (walk step 3). After: ``flusher``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from services.broker.files_ahead import FilesAhead
from services.broker.metrics import BrokerMetrics
from services.broker.queue_offsets import Numbered, Queue, QueueOffsets
from shared.files.commit_log_appender import NewFileHook, Placed
from shared.files.mapped_file_queue import MappedFileQueue
from tidemark.clock import Clock
from tidemark.errors import (
    DispatchBehind,
    FileNotReady,
    FlushFailed,
    MessageTooLarge,
    NotServing,
    StoreError,
    WriteFailed,
)
from tidemark.formats import record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

FILE_TRIES: Final = 3
"""A request that waited for a file may find it filled by others; it does not wait for ever."""


class LogAppender(Protocol):
    """What this module needs of the commit log's appender."""

    @property
    def appended(self) -> PhysicalOffset:
        """End of what was appended, written to the file or not."""
        ...

    @property
    def files(self) -> MappedFileQueue:
        """The files, without those made ahead."""
        ...

    on_new_file: NewFileHook | None

    def size_of(self, runs: Sequence[Run]) -> int:
        """Bytes that the runs' records take."""
        ...

    def room(self, total_size: int) -> bool:
        """Whether that many bytes fit into the current file, 8 bytes behind them included."""
        ...

    def open_next(self) -> None:
        """Open the next file, which is made. Raises OutOfResources."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Bytes that can still be appended if no further file can be made."""
        ...

    def append(self, runs: Sequence[Run], firsts: Sequence[int], store_timestamp_ms: int) -> Placed:
        """Put all as one batch; publish it, unless the log is pooled; say where they are."""
        ...

    @property
    def intended(self) -> Placed | None:
        """Where the last append was to put them; None if it wrote nothing of them."""
        ...


class Appended(NamedTuple):
    """Where one request's messages are: adjacent records, in the order of its runs."""

    firsts: list[QueueOffset]
    """Queue offset of each run's first message."""
    start: PhysicalOffset
    """Of the first record."""
    sizes: bytes
    """Bytes of each record: native unsigned 32-bit numbers, one behind the other."""
    store_timestamp_ms: int
    end: PhysicalOffset
    """Behind the last record: what has to be committed, or flushed, before they are promised."""


def store_time(clock_ms: int, last_ms: int, step_max_ms: int) -> tuple[int, bool]:
    """The store time to use, and whether the clock has stepped back too far to hide it.

    Store times never step back because of a clock that is being slewed: they stand still for up to
    step_max_ms. After a larger step they follow the clock, or they would stand still for as long.
    """
    if clock_ms >= last_ms:
        return clock_ms, False
    if last_ms - clock_ms <= step_max_ms:
        return last_ms, False
    return clock_ms, True


class Append:
    """The one who appends on this node."""

    def __init__(
        self,
        appender: LogAppender,
        queue_offsets: QueueOffsets,
        files: FilesAhead,
        clock: Clock,
        metrics: BrokerMetrics,
        *,
        file_size: int,
        reserve: int,
        clock_step_max_ms: int,
        last_store_time_ms: int,
        snapshot: Callable[[], Sequence[Run]],
        undispatched: Callable[[], int],
        dispatch_lag_max: int,
        on_appended: Callable[[Iterable[Queue], PhysicalOffset], None],
        on_clock_step: Callable[[int], None],
        on_fault: Callable[[StoreError], None],
        check_may_append: Callable[[], None] = lambda: None,
    ) -> None:
        """snapshot: the runs that a new file begins with. undispatched: bytes that reput has
        not dispatched. on_appended: called with the queues that got messages and the end of the
        log. on_clock_step: called with the size [ms] of a step back. on_fault: called when writing
        has failed in a way after which nothing more can be appended. check_may_append: raises
        NotServing where this node may not append any more, or not yet.
        """
        self._check_may_append = check_may_append
        self._appender = appender
        self._queue_offsets = queue_offsets
        self._files = files
        self._clock = clock
        self._append_duration = metrics.append_duration
        self._file_size = file_size
        self._reserve = reserve
        self._clock_step_max_ms = clock_step_max_ms
        self._last_store_time_ms = last_store_time_ms
        self._undispatched = undispatched
        self._dispatch_lag_max = dispatch_lag_max
        self._on_appended = on_appended
        self._on_clock_step = on_clock_step
        self._on_fault = on_fault
        self._snapshot = snapshot
        self.records_size_max = file_size - record.BLANK_SIZE
        """Bytes of records that one file of the commit log holds."""
        self._first: tuple[Sequence[Run], Sequence[int]] = ((), ())
        self._closed = False
        self.on_snapshot: Callable[[PhysicalOffset, int], None] | None = None
        """Called when a snapshot opens a file, with its physical offset and its size [bytes]."""
        appender.on_new_file = self._begin_file

    def close(self) -> None:
        """Refuse all further appends: the node stops, or is no master any more."""
        self._closed = True

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        """Store all of the runs' messages or none; wait for a file to be made, if it takes one.

        Raises what ``append_now`` raises; FileNotReady only if the file takes too long.
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
        """Wait, for a while, until the file that ``append_now`` found missing is there."""
        await self._files.wait()

    def append_now(self, runs: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        """Store all of the runs' messages or none: the critical section, which awaits nothing.

        runs: at least one; those of one queue adjacent. own: records of the broker itself (state):
        they go on while sends are refused because the disk is full or dispatch is behind. room:
        bytes that a file must be able to hold beyond the records. Raises
        FileNotReady (``append`` waits for the file), NotServing, DispatchBehind, DiskFull,
        ReadOnlyDisk, OutOfResources, MessageTooLarge; nothing was stored then.
        """
        if self._closed:
            raise NotServing("the node is stopping. Nothing was stored.", "Try again.")
        self._check_may_append()
        total = self._appender.size_of(runs)
        if total + room > self.records_size_max:
            raise self._too_large(total, self.records_size_max - room)
        self._files.check_may_append()
        if not own:
            self._check_room(total)
        started = self._clock.monotonic()
        time_ms = self._store_time()
        numbered, placed = self._write(runs, total, time_ms)
        self._last_store_time_ms = time_ms
        end = self._appender.appended
        self._append_duration.observe(self._clock.monotonic() - started)
        self._files.look()
        self._on_appended(numbered.after, end)
        return Appended(numbered.firsts[-len(runs) :], *placed, time_ms, end)

    def _write(self, runs: Sequence[Run], total: int, time_ms: int) -> tuple[Numbered, Placed]:
        """Put the runs, behind a snapshot if they open a new file; number all of them."""
        first: Sequence[Run] = self._snapshot() if self._opens_file(total) else ()
        while True:
            numbered = self._queue_offsets.number([*first, *runs] if first else runs)
            firsts, count = numbered.firsts, len(first)
            if count:
                self._first, firsts = (first, firsts[:count]), firsts[count:]
            try:
                placed = self._appender.append(runs, firsts, time_ms)
            except MessageTooLarge:
                if not count:
                    raise
                # It fits into a file, but not behind the snapshot: the file goes without one.
                first = ()
                continue
            except (WriteFailed, FlushFailed) as fault:
                self._closed = True
                self._on_fault(fault)
                intended = self._appender.intended
                if intended is None:
                    raise
                mine = WriteFailed(fault.detail, fault.advice, **fault.facts)
                end = PhysicalOffset(intended.start + sum(memoryview(intended.sizes).cast("I")))
                mine.appended = Appended(firsts, *intended, time_ms, end)
                raise mine from fault
            finally:
                if count:
                    self._first = ((), ())
            self._queue_offsets.commit(numbered, self._appender.appended)
            if count and self.on_snapshot is not None:
                size = self._appender.size_of(first)
                self.on_snapshot(PhysicalOffset(placed.start - size), size)
            return numbered, placed

    def _opens_file(self, total: int) -> bool:
        """Whether an append of so many bytes goes to the start of a new file, which is there.

        Raises why it is not there: a snapshot must be asked for only if it goes out now. Otherwise:
        1. the snapshot is taken; 2. the append finds no file and waits for it; 3. the second try
        gets no snapshot, for the first is counted as the one of this file.
        """
        appender = self._appender
        if appender.room(total):
            return False
        end, size, files = appender.appended, self._file_size, appender.files
        if end % size and files.last() != end - end % size:
            return False  # an empty log begins inside its first file
        if not files.next_ready:
            raise files.not_ready(files.next_start)
        appender.open_next()
        return True

    def _begin_file(self, start: PhysicalOffset) -> tuple[Sequence[Run], Sequence[int]]:
        """What the appender asks for when it moves into the file at start."""
        return self._first

    def _too_large(self, total: int, limit: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"the request's records take {total} bytes, {limit} may go into a commit log file. "
            "Nothing was stored.",
            "Send fewer messages per request, or larger commit_log_file_size.",
            limit=limit,
        )

    def _check_room(self, total: int) -> None:
        self._files.check_may_send()
        behind = self._undispatched()
        if behind > self._dispatch_lag_max:
            raise DispatchBehind(
                f"{behind} bytes are not dispatched yet, {self._dispatch_lag_max} are allowed. "
                "Nothing was stored; reading goes on.",
                "See reput's /ready for why it does not go on; then try again.",
                behind=behind,
                limit=self._dispatch_lag_max,
            )
        if self._appender.reserved_bytes < total + self._reserve + self._files.kept_back:
            # Also while it is not known yet whether a file can be made: what is left is kept for
            # the broker's own records.
            self._files.raise_why_not()

    def _store_time(self) -> int:
        clock_ms = self._clock.wall_ms()
        last_ms = self._last_store_time_ms
        if clock_ms >= last_ms:
            return clock_ms
        time_ms, stepped = store_time(clock_ms, last_ms, self._clock_step_max_ms)
        if stepped:
            self._on_clock_step(last_ms - clock_ms)
        return time_ms
