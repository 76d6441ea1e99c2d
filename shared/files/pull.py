"""Pull: selects the messages for an answer from the units of one queue (docs/formats.md, 11).

It implements the rules of RocketMQ's getMessage, without HTTP: status, next offset and units of an
answer. The answer borrows the records' bytes as stored. Invariants:

- No record that ends above ``dispatched`` is returned, and none with another topic, queue or queue
  offset: a unit that points to another record is reported as damage, never served.
- The next offset never passes a message that was not examined.

Step before: a request, or a waiting pull that a doorbell woke. Step after: the broker encodes the
answer (read path, step 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.queue_math import is_filler
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.formats import native, record
from tidemark.formats.queue_unit import UNIT, Unit, batch_range
from tidemark.formats.record import Kind
from tidemark.formats.record_layout import LONG
from tidemark.formats.select import Halt, Limits, Wanted, names
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE, PhysicalOffset, QueueOffset

MESSAGES_MAX: Final = 32
"""Messages in one answer (11.2)."""
BYTES_MAX: Final = 262_144
"""Record bytes in one answer (11.2)."""
SCAN_BYTES_MAX: Final = 16_000
"""Unit bytes examined for one answer: 800 units (11.1)."""
TOTAL_BYTES_MAX: Final = 134_217_728
"""Limit, and default, of the bytes that a caller may request (11)."""
TOTAL_BYTES_MIN: Final = 100
NEIGHBOURS_MAX: Final = 1024
"""Damaged units that are skipped to find out whether a unit after them has expired."""

_QUEUE_OFFSET_AT: Final = 20
_NO_WINDOW: Final = memoryview(b"")


class PullStatus(Enum):
    """Outcome of a pull; names and meaning are RocketMQ's (section 11)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """Units were examined, and the filter matched none: pull again from next_offset at once."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The records of the units are gone: pull again from next_offset at once."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The offset is the end of the queue: wait for the next message."""
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class PullResult(NamedTuple):
    """One answer: records as stored, and the next offset."""

    status: PullStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    stretches: list[memoryview]
    """The records in queue order, one or more in each view. The views are borrowed from the log's
    mapping and valid while they are referenced."""
    message_count: int
    """Number of messages from the pull's offset on; the first batch may begin before it."""
    bytes_total: int
    """Bytes in all views of ``stretches``."""
    filtered: int
    """Examined units that the subscription did not match."""
    looked_from: QueueOffset
    """Queue offset of the pull. The first examined unit has this message."""
    units: bytes
    """A copy of the units from there on, possibly including some that were not examined."""
    unit_size: int = UNIT_SIZE
    """BATCH_UNIT_SIZE for a batch queue, otherwise UNIT_SIZE."""
    poll_after_ms: int | None = None
    """Time after which to pull again, if the call asked to wait and there was no free place; None
    if it waited or did not ask to."""

    def records(self) -> Iterator[tuple[QueueOffset, Unit, memoryview]]:
        """Yield every record with the queue offset of its first message and its unit.

        In a batch queue a record is an inner batch, which may begin before the pull's offset.
        Raises DamagedFile if the log's bytes have changed since they were selected.
        """
        places = self._places()
        for stretch in self.stretches:
            at = 0
            while at < len(stretch):
                number, unit = self._unit_of(stretch, at, places)
                yield number, unit, stretch[at : at + unit.size]
                at += unit.size

    def _places(self) -> dict[int, int] | None:
        """Return where the unit of each batch is in ``units``; None for an ordinary queue."""
        if self.unit_size == UNIT_SIZE:
            return None
        return {
            batch_range(self.units, place)[0]: place
            for place in range(0, len(self.units), self.unit_size)
        }

    def _unit_of(
        self, stretch: memoryview, at: int, places: dict[int, int] | None
    ) -> tuple[QueueOffset, Unit]:
        room = len(stretch) - at
        if room >= record.RECORD_SIZE_MIN:
            (number,) = LONG.unpack_from(stretch, at + _QUEUE_OFFSET_AT)
            place = (number - self.looked_from) * UNIT_SIZE
            if places is not None:
                place = places.get(number, -1)
            if 0 <= place <= len(self.units) - self.unit_size:
                unit = Unit._make(UNIT.unpack_from(self.units, place))
                if 0 < unit.size <= room:
                    return QueueOffset(number), unit
        raise DamagedFile(
            "the commit log changed while a pull read it: where a record was, there is none now. "
            "Nothing was served from there.",
            "Run `tidemark store verify`; nothing but the broker may write to the log.",
        )


def get_message(
    queue: ConsumeQueueReader,
    log: CommitLogReader,
    *,
    offset: int,
    dispatched: int,
    count_max: int = MESSAGES_MAX,
    bytes_max: int | None = None,
    wanted: Wanted | None = None,
    bulk: bool = False,
) -> PullResult:
    """Select the answer to a pull from queue offset ``offset``.

    dispatched: physical end of the visible records. count_max, bytes_max: limits of the caller, in
    addition to the store's own; bytes_max None means no limit of the caller. wanted: filter; None
    accepts every message. bulk: only the caller's limits apply (for our raw pulls; RocketMQ has no
    such pulls).
    Raises DamagedFile if the first unit points to another message's record; damage further on ends
    the answer before it.
    """
    # The minimum is read first. In the other order, retention between the two reads could put it
    # above a maximum that a concurrent dispatch has long passed.
    first = queue.min_offset(log.min_offset)
    end = queue.max_offset(dispatched)
    if queue.has_shrunk:
        raise _lost_units(queue)
    scan = _Scan(queue, log, dispatched, wanted)
    if (early := _outside(offset, first, end)) is not None:
        status, next_offset = early
        return scan.result(status, next_offset, first, end)
    count_max = max(count_max, 0)
    scan_count = -(-max(SCAN_BYTES_MAX, count_max * UNIT_SIZE) // UNIT_SIZE)
    view = queue.view(offset, scan_count, dispatched)
    if view is None or queue.begins_after(offset, view):
        # Retention may have removed the file since the minimum was read. If not, a file with
        # visible units is missing, and continuing after it would skip its messages.
        if (now := queue.min_offset(log.min_offset)) > offset:
            return scan.result(PullStatus.OFFSET_TOO_SMALL, now, now, max(now, end))
        if view is None:
            raise _lost_units(queue)
    wished = TOTAL_BYTES_MAX if bytes_max is None else bytes_max
    bytes_max = min(max(wished, TOTAL_BYTES_MIN), TOTAL_BYTES_MAX)
    if bulk:
        limits = Limits(count_max, bytes_max, count_at_once=count_max, bytes_at_once=bytes_max)
    else:
        limits = Limits(count_max, bytes_max, count_at_once=MESSAGES_MAX, bytes_at_once=BYTES_MAX)
    scan.run(view, offset, limits)
    return scan.result(scan.status, scan.offset_at(scan.looked), first, end)


def _lost_units(queue: ConsumeQueueReader) -> DamagedFile:
    return DamagedFile(
        f"queue {queue.queue} of topic {queue.topic!r} lacks units that were there: one of its "
        "files was removed or cut while this node was running. No message depends on it.",
        "Restart reput unless it has already restarted; its start rebuilds the queue.",
        topic=queue.topic,
        queue=queue.queue,
    )


def _outside(offset: int, first: int, end: int) -> tuple[PullStatus, int] | None:
    """Return the answer to an offset outside [first, end); None inside (rows 2 to 5 of 11)."""
    if end == 0:
        return PullStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < first:
        return PullStatus.OFFSET_TOO_SMALL, first
    if offset == end:
        return PullStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > end:
        return PullStatus.OFFSET_OVERFLOW_BADLY, end
    return None


class _Scan:
    """The scan of units of section 11.1, with its results."""

    __slots__ = (
        "bytes_total", "dispatched", "filtered", "log", "looked",
        "looked_from", "message_count", "queue", "skip_until", "status", "stretches", "units",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        queue: ConsumeQueueReader,
        log: CommitLogReader,
        dispatched: int,
        wanted: Wanted | None,
    ) -> None:
        self.queue = queue
        self.log = log
        self.dispatched = PhysicalOffset(dispatched)
        self.wanted = wanted
        self.status = PullStatus.NO_MATCHED_MESSAGE
        self.looked_from = 0
        self.units = b""
        self.looked = 0
        self.skip_until = -1
        self.message_count = 0
        self.bytes_total = 0
        self.filtered = 0
        self.stretches: list[memoryview] = []

    def run(self, view: memoryview, offset: int, limits: Limits) -> None:
        """Examine the units in view; the first has queue offset ``offset``."""
        self.looked_from = offset
        self.units = units = bytes(view)  # a copy, so that a second check sees the same bytes
        topic, queue, unit_size = self.queue.topic.encode(), self.queue.queue, self.queue.unit_size
        rest = memoryview(units)
        window, window_at = _NO_WINDOW, 0
        judged_again = -1
        while True:
            found = native.select(
                rest[self.looked * unit_size :],
                self.offset_at(self.looked),
                window,
                window_at,
                topic=topic,
                queue=queue,
                limits=limits,
                wanted=self.wanted,
                count=self.message_count,
                bytes_total=self.bytes_total,
                skip_until=self.skip_until,
                is_batch=unit_size != UNIT_SIZE,
            )
            if found.looked:
                self.looked += found.looked
                self.filtered += found.filtered
                if found.stretches:
                    self.stretches += [window[start:end] for start, end in found.stretches]
                    self.message_count = found.message_count
                    self.bytes_total = found.bytes_total
                    self.status = PullStatus.FOUND
                    self.skip_until = -1
                elif found.filtered and not self.message_count:
                    self.status = PullStatus.NO_MATCHED_MESSAGE
            if found.halt is Halt.END or found.halt is Halt.FULL:
                return
            unit = Unit._make(UNIT.unpack_from(units, self.looked * unit_size))
            number = self._first_at(self.looked)
            window_at = unit.physical_offset
            if found.halt is Halt.OUTSIDE:
                if not self._is_there(unit):
                    if not self._is_gone(number, unit):
                        if self.looked:
                            return
                        raise self._stranger(number, unit)
                    self._pass_lost(unit)
                    window, window_at = _NO_WINDOW, 0
                    continue
            elif judged_again == self.looked:
                if self.looked:
                    return  # units before it are sound; the pull that starts at it raises
                raise self._stranger(number, unit)
            else:
                # Checked twice: if stores of another process arrive out of order, a unit below the
                # published end may be visible before the record it points to.
                judged_again = self.looked
            window = self.log.window(PhysicalOffset(window_at), self.dispatched)

    def offset_at(self, index: int) -> QueueOffset:
        """Return the queue offset from which the unit with this index is read."""
        if self.queue.unit_size == UNIT_SIZE or not index:
            return QueueOffset(self.looked_from + index)
        return QueueOffset(batch_range(self.units, (index - 1) * BATCH_UNIT_SIZE)[1])

    def _first_at(self, index: int) -> QueueOffset:
        """Return the queue offset of the first message of the unit with this index."""
        if self.queue.unit_size == UNIT_SIZE:
            return QueueOffset(self.looked_from + index)
        return QueueOffset(batch_range(self.units, index * BATCH_UNIT_SIZE)[0])

    def _is_there(self, unit: Unit) -> bool:
        """Whether the record's bytes can be read."""
        if is_filler(unit.physical_offset, unit.size):
            return False
        offset = PhysicalOffset(unit.physical_offset)
        return self.log.read(offset, unit.size, self.dispatched) is not None

    def _is_gone(self, number: int, unit: Unit) -> bool:
        """Whether a record that cannot be read may have existed: it expired with its file, possibly
        during this pull, or the unit is pre-blank. A unit that points where no record can be is
        damaged; units after it may still be valid."""
        offset, size = PhysicalOffset(unit.physical_offset), unit.size
        if is_filler(offset, size):
            return True
        if 0 <= offset < self.log.min_offset:
            return not self._follows_kept(number)
        room = min(self.dispatched, self.log.next_file(offset)) - offset
        if offset < 0 or not 0 < size <= room:
            return False
        self.log.window(offset, self.dispatched)  # raises if the file is missing: never skipped
        return True

    def _follows_kept(self, number: int) -> bool:
        """Whether an earlier record of the queue still exists, so that this one cannot have
        expired: a queue's records are in the same order in the log.

        An earlier unit that does not point to its record is damaged; then the unit before it is
        checked. The result is true even if all of NEIGHBOURS_MAX units are damaged.
        """
        topic, queue = self.queue.topic.encode(), self.queue.queue
        for _ in range(NEIGHBOURS_MAX):
            before = self.queue.located_unit(number - 1)
            if before is None or is_filler(*before[1][:2]):
                return False
            number, unit = before
            if 0 <= unit.physical_offset < self.log.min_offset:
                return False
            if unit.physical_offset >= 0 and 0 < unit.size <= self.dispatched:
                offset = PhysicalOffset(unit.physical_offset)
                data = self.log.read(offset, unit.size, self.dispatched)
                if data is not None and names(data, topic, queue, number, unit):
                    return True
        return True

    def _pass_lost(self, unit: Unit) -> None:
        """Skip a unit whose record is gone, and all other units with records in the same file."""
        if not self.message_count:
            self.status = PullStatus.MESSAGE_WAS_REMOVING
        self.looked += 1
        self.skip_until = self.log.next_file(PhysicalOffset(unit.physical_offset))

    def _stranger(self, number: int, unit: Unit) -> CorruptRecord | DamagedFile:
        """Return the error for the first unit, which does not point to its own record.

        The error names the queue offset that was asked for: by it reput finds the unit, even if the
        damage is in the queue offset that a batch queue's unit stores.
        """
        offset = PhysicalOffset(unit.physical_offset)
        data = self.log.window(offset, self.dispatched)[: max(0, unit.size)]
        outcome = record.validate(data, 0, at=offset, checks=record.Checks())
        is_record = outcome.kind is Kind.VALID
        topic, queue = self.queue.topic, self.queue.queue
        if not is_record and names(data, topic.encode(), queue, number, unit):
            return CorruptRecord(offset, outcome.reason)
        return DamagedFile(
            f"queue {queue} of topic {topic!r}: the unit at queue offset "
            f"{self.looked_from} points to physical offset {offset}, {unit.size} bytes, "
            + (
                "which is another message. Nothing was served from there; the log itself is not "
                "in doubt."
                if is_record
                else "which is not a message: either the unit or the commit log is damaged there. "
                "Nothing was served from there."
            ),
            "Run `tidemark store rebuild`, which rebuilds the queue from the log."
            if is_record
            else "Run `tidemark store verify`, which distinguishes the two; if it is the queue, "
            "`tidemark store rebuild` rebuilds it.",
            topic=topic,
            queue=queue,
            queue_offset=int(self.looked_from),
            physical_offset=int(offset),
        )

    def result(self, status: PullStatus, next_offset: int, first: int, end: int) -> PullResult:
        return PullResult(
            status,
            QueueOffset(next_offset),
            QueueOffset(first),
            QueueOffset(end),
            self.stretches,
            self.message_count,
            self.bytes_total,
            self.filtered,
            QueueOffset(self.looked_from),
            self.units,
            self.queue.unit_size,
        )
