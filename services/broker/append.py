"""Number, encode, write, publish: from checked drafts to bytes in the log.

All of a request happens in one step without an await, so the append lock is never held across one
and requests never interleave: numbers are taken, the records are put as one contiguous batch (those
of one queue adjacent), and only after that do the queue offsets move. A request that is refused
leaves no trace. When the next commit log file is not there yet the request waits for it *outside*
that step. Before: ``messages`` and ``queue_offsets`` (walk step 3). After: ``flusher``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from services.broker.files_ahead import FilesAhead
from services.broker.metrics import BrokerMetrics
from services.broker.queue_offsets import Numbered, Queue, QueueOffsets
from shared.files.commit_log_appender import NewFileHook
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
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset, QueueOffset

FILE_TRIES: Final = 3
"""A request that waited for a file may find it filled by others; it does not wait for ever."""


class LogAppender(Protocol):
    """What this module needs of the commit log's appender."""

    @property
    def written(self) -> PhysicalOffset:
        """End of what was appended."""
        ...

    @property
    def files(self) -> MappedFileQueue:
        """The files, without those made ahead."""
        ...

    on_new_file: NewFileHook | None

    def room(self, total_size: int) -> bool:
        """Whether that many bytes fit into the current file, 8 bytes behind them included."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Bytes that can still be appended if no further file can be made."""
        ...

    def append(
        self,
        messages: Sequence[Message],
        queue_offsets: Sequence[int],
        store_timestamp_ms: int,
    ) -> Sequence[tuple[PhysicalOffset, int]]:
        """Put all as one batch; publish ``written``; (physical offset, size) of each."""
        ...


class Place(NamedTuple):
    """Where one message is."""

    queue: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int


class Appended(NamedTuple):
    """One request's messages, in the request's order."""

    places: list[Place]
    store_timestamp_ms: int
    end: PhysicalOffset


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


def contiguous(queues: Sequence[Queue]) -> list[int] | None:
    """Indexes of a request's messages so that those of one queue are adjacent, else in order.

    None if they are already: the common case, one queue.
    """
    first: dict[Queue, int] = {}
    for queue in queues:
        first.setdefault(queue, len(first))
    if len(first) == 1:
        return None
    return sorted(range(len(queues)), key=lambda index: first[queues[index]])


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
        record_crc: bool,
        reserve: int,
        clock_step_max_ms: int,
        last_store_time_ms: int,
        snapshot: Callable[[], list[Message]],
        undispatched: Callable[[], int],
        dispatch_lag_max: int,
        on_appended: Callable[[Sequence[Queue], PhysicalOffset], None],
        on_clock_step: Callable[[int], None],
        on_fault: Callable[[StoreError], None],
    ) -> None:
        """snapshot: the messages that a new file begins with. undispatched: bytes that reput has
        not dispatched. on_appended: called with the queues that got messages and the end of the
        log. on_clock_step: called with the size [ms] of a step back. on_fault: called when writing
        has failed in a way after which nothing more can be appended.
        """
        self._appender = appender
        self._queue_offsets = queue_offsets
        self._files = files
        self._clock = clock
        self._metrics = metrics
        self._file_size = file_size
        self._record_crc = record_crc
        self._reserve = reserve
        self._clock_step_max_ms = clock_step_max_ms
        self._last_store_time_ms = last_store_time_ms
        self._undispatched = undispatched
        self._dispatch_lag_max = dispatch_lag_max
        self._on_appended = on_appended
        self._on_clock_step = on_clock_step
        self._on_fault = on_fault
        self._snapshot = snapshot
        self._first: tuple[Sequence[Message], Sequence[int]] = ((), ())
        self._closed = False
        appender.on_new_file = self._begin_file

    def close(self) -> None:
        """Refuse all further appends: the node stops, or is no master any more."""
        self._closed = True

    async def append(self, messages: Sequence[Message], *, own: bool = False) -> Appended:
        """Store all of messages or none.

        own: a record of the broker itself (state): goes on while sends are refused because the
        disk is full or dispatch is behind. Raises NotServing, DispatchBehind, DiskFull,
        ReadOnlyDisk, FileNotReady, MessageTooLarge; nothing was stored then.
        """
        total = self._total_size(messages)
        for tries_left in range(FILE_TRIES, 0, -1):
            try:
                return self._append_now(messages, total, own=own)
            except FileNotReady:
                if tries_left == 1:
                    raise
                await self._files.wait()
        raise AssertionError("the loop returns or raises")

    def _append_now(self, messages: Sequence[Message], total: int, *, own: bool) -> Appended:
        """The critical section: no await from numbering to the advance of the queue offsets."""
        if self._closed:
            raise NotServing("the node is stopping. Nothing was stored.", "Try again.")
        self._check_room(total, own=own)
        started = self._clock.monotonic()
        order = contiguous([(message.topic, message.queue_id) for message in messages])
        if order is not None:
            messages = [messages[index] for index in order]
        time_ms = self._store_time()
        numbered, written = self._write(messages, total, time_ms)
        self._last_store_time_ms = time_ms
        places = [
            Place(message.queue_id, number, offset, size)
            for message, number, (offset, size) in zip(
                messages, numbered.queue_offsets[-len(messages) :], written, strict=True
            )
        ]
        end = self._appender.written
        self._metrics.append_duration.observe(self._clock.monotonic() - started)
        self._files.look()
        self._on_appended(list(numbered.after), end)
        if order is not None:
            in_order: list[Place] = [places[0]] * len(places)
            for place, index in zip(places, order, strict=True):
                in_order[index] = place
            places = in_order
        return Appended(places, time_ms, end)

    def _write(
        self, messages: Sequence[Message], total: int, time_ms: int
    ) -> tuple[Numbered, Sequence[tuple[PhysicalOffset, int]]]:
        """Put the messages, behind a snapshot if they open a new file; number all of them."""
        first = self._snapshot() if self._opens_file(total) else []
        while True:
            numbered = self._queue_offsets.number(
                (message.topic, message.queue_id) for message in (*first, *messages)
            )
            count = len(first)
            self._first = (first, numbered.queue_offsets[:count])
            try:
                written = self._appender.append(messages, numbered.queue_offsets[count:], time_ms)
            except MessageTooLarge:
                if not first:
                    raise
                # It fits into a file, but not behind the snapshot: the file goes without one.
                first = []
                continue
            except (WriteFailed, FlushFailed) as fault:
                self._closed = True
                self._on_fault(fault)
                raise
            finally:
                self._first = ((), ())
            self._queue_offsets.commit(numbered)
            return numbered, written

    def _opens_file(self, total: int) -> bool:
        """Whether an append of so many bytes goes to the start of a new file."""
        if self._appender.room(total):
            return False
        written, size = self._appender.written, self._file_size
        last = self._appender.files.last()
        return written % size == 0 or last == written - written % size

    def _begin_file(self, start: PhysicalOffset) -> tuple[Sequence[Message], Sequence[int]]:
        """What the appender asks for when it moves into the file at start."""
        return self._first

    def _total_size(self, messages: Sequence[Message]) -> int:
        record_crc = self._record_crc
        total = sum(record.encoded_size(message, record_crc=record_crc) for message in messages)
        limit = self._file_size - record.BLANK_SIZE
        if total > limit:
            raise MessageTooLarge(
                f"the request's records take {total} bytes, {limit} fit into a commit log file. "
                "Nothing was stored.",
                "Send fewer messages per request, or larger commit_log_file_size.",
                limit=limit,
            )
        return total

    def _check_room(self, total: int, *, own: bool) -> None:
        self._files.check_may_append()
        if own:
            return
        behind = self._undispatched()
        if behind > self._dispatch_lag_max:
            raise DispatchBehind(
                f"{behind} bytes are not dispatched yet, {self._dispatch_lag_max} are allowed. "
                "Nothing was stored; reading goes on.",
                "See reput's /ready for why it does not go on; then try again.",
                behind=behind,
                limit=self._dispatch_lag_max,
            )
        if self._appender.reserved_bytes < total + self._reserve:
            # Also while it is not known yet whether a file can be made: what is left is kept for
            # the broker's own records.
            self._files.raise_why_not()

    def _store_time(self) -> int:
        clock_ms = self._clock.wall_ms()
        time_ms, stepped = store_time(clock_ms, self._last_store_time_ms, self._clock_step_max_ms)
        if stepped:
            self._on_clock_step(self._last_store_time_ms - clock_ms)
        return time_ms
