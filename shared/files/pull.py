"""Pull: units of one queue → the messages to hand out (docs/formats.md, section 11).

The rules of RocketMQ's getMessage, pure of HTTP: which status, which offset next, which units. What
is handed out borrows the record's bytes as stored. Invariants:

- Nothing that ends above ``dispatched`` is handed out, and no record that does not name this
  topic, queue and queue offset: a unit that points elsewhere is damage, named, never served.
- The next offset never passes a message that was not looked at.

Step before: a request, or a held pull that a doorbell woke. Step after: the broker encodes the
answer (walk step 11).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from shared.files.consume_queue import ConsumeQueueReader
from shared.files.queue_math import is_filler
from tidemark.errors import DamagedFile
from tidemark.formats import record
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.formats.record import Kind, Record
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

MESSAGES_MAX: Final = 32
"""Messages in one answer while they are in memory (11.2)."""
MESSAGES_MAX_ON_DISK: Final = 8
BYTES_MAX: Final = 262_144
"""Record bytes in one answer while they are in memory (11.2)."""
BYTES_MAX_ON_DISK: Final = 65_536
SCAN_BYTES_MAX: Final = 16_000
"""Unit bytes looked at for one answer: 800 units (11.1)."""
TOTAL_BYTES_MAX: Final = 134_217_728
"""Cap, and default, of what a caller may ask for in bytes (11)."""
TOTAL_BYTES_MIN: Final = 100
RESIDENT_PERCENT: Final = 40
"""Records within this share of the machine's memory from the log's end count as in memory."""

_HEAD: Final = struct.Struct(">ii4xi4xqqi")
"""Size, magic, queue id, queue offset, physical offset, sys flag: a record's first 40 bytes."""


class PullStatus(Enum):
    """What became of a pull; names and meaning are RocketMQ's (section 11)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """Units were looked at, the filter took none: ask again from next_offset at once."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The records behind the units are gone: ask again from next_offset at once."""
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    """In range, but that queue file is gone: go on with the next one."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The very end: wait for the next message."""
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class PullResult(NamedTuple):
    """One answer. units, records: same length, same order."""

    status: PullStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    units: list[tuple[QueueOffset, Unit]]
    records: list[memoryview]
    """The records' bytes as stored; borrowed from the log's mapping."""
    bytes_total: int
    filtered: int
    """Messages that were read and that the filter on the record did not take."""
    last_physical_offset: PhysicalOffset
    """Of the last unit looked at; 0 if none was."""


class LogBytes(Protocol):
    """What a pull needs of the commit log."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """Start of the oldest file."""
        ...

    def read(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> memoryview | None:
        """The bytes [offset, offset + size), None if they are not all there below end."""
        ...

    def next_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Start of the file behind the one that holds offset."""
        ...


def suggests_slave(log_end: int, result: PullResult, memory_bytes: int) -> bool:
    """Whether what was looked at lies so far back that a replica had better serve it (11.3)."""
    return log_end - result.last_physical_offset > memory_bytes * RESIDENT_PERCENT // 100


def names(view: memoryview, topic: bytes, queue: int, queue_offset: int, unit: Unit) -> bool:
    """Whether the record in view says it is what the unit was made for.

    view: exactly the bytes the unit points to. Not a validation: no CRC is looked at.
    """
    if len(view) < record.RECORD_SIZE_MIN:
        return False
    size, magic, queue_id, number, physical_offset, sys_flag = _HEAD.unpack_from(view)
    if (size, queue_id, number, physical_offset) != (
        len(view),
        queue,
        queue_offset,
        unit.physical_offset,
    ):
        return False
    body_at = 88 + (12 if sys_flag & record.BORN_HOST_V6 else 0)
    body_at += 12 if sys_flag & record.STORE_HOST_V6 else 0
    if body_at > len(view):
        return False
    body_size = int.from_bytes(view[body_at - 4 : body_at], "big")
    if magic == record.MAGIC_V1:
        length_size = 1
    elif magic == record.MAGIC_V2:
        length_size = 2
    else:
        return False
    topic_at = body_at + body_size
    named = len(topic).to_bytes(length_size, "big") + topic
    return view[topic_at : topic_at + len(named)] == named


def get_message(
    queue: ConsumeQueueReader,
    log: LogBytes,
    *,
    offset: int,
    dispatched: int,
    count_max: int = MESSAGES_MAX,
    bytes_max: int | None = None,
    tag_hashes: frozenset[int] | None = None,
    in_memory: bool = True,
    matches: Callable[[Record], bool] | None = None,
    bulk: bool = False,
) -> PullResult:
    """Find what a pull from queue offset ``offset`` gets.

    dispatched: physical end of what may be seen. bytes_max: None for no wish of the caller; both
    limits are caps on top of the store's own. tag_hashes: 32-bit hashes of the subscribed tags;
    None takes every message; equal hashes of other tags pass, clients compare again. in_memory:
    False halves and more what one answer reads. matches: a filter on the whole record. bulk: the
    caller's limits alone bound the answer (our raw pulls; the reference has none such).
    Raises DamagedFile if a unit points to another message's record.
    """
    # The minimum first: read the other way round, retention between the two could put it above
    # a maximum that a concurrent dispatch has long passed.
    first = queue.min_offset(log.min_offset)
    end = queue.max_offset(dispatched)
    scan = _Scan(queue, log, dispatched, tag_hashes, matches)
    if (early := _outside(offset, first, end)) is not None:
        status, next_offset = early
        return scan.result(status, next_offset, first, end)
    count_max = max(count_max, 0)
    scan_count = -(-max(SCAN_BYTES_MAX, count_max * UNIT_SIZE) // UNIT_SIZE)
    view = queue.view(offset, scan_count, dispatched)
    if view is None:
        return scan.result(PullStatus.OFFSET_FOUND_NULL, queue.roll_next(offset), first, end)
    wished = TOTAL_BYTES_MAX if bytes_max is None else bytes_max
    bytes_max = min(max(wished, TOTAL_BYTES_MIN), TOTAL_BYTES_MAX)
    if bulk:
        limits = _Limits(count_max, bytes_max, count_at_once=count_max, bytes_at_once=bytes_max)
    else:
        limits = _Limits(
            count_max,
            bytes_max,
            count_at_once=MESSAGES_MAX if in_memory else MESSAGES_MAX_ON_DISK,
            bytes_at_once=BYTES_MAX if in_memory else BYTES_MAX_ON_DISK,
        )
    scan.run(view, offset, limits)
    return scan.result(scan.status, scan.next_offset, first, end)


def _outside(offset: int, first: int, end: int) -> tuple[PullStatus, int] | None:
    """The answer to an offset outside of [first, end); None inside (rows 2 to 5 of section 11)."""
    if end == 0:
        return PullStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < first:
        return PullStatus.OFFSET_TOO_SMALL, first
    if offset == end:
        return PullStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > end:
        return PullStatus.OFFSET_OVERFLOW_BADLY, end
    return None


class _Limits(NamedTuple):
    count_max: int
    bytes_max: int
    count_at_once: int
    bytes_at_once: int

    def are_reached(self, count: int, bytes_total: int, size: int) -> bool:
        """Batch full (11.2): never for the first message."""
        if not bytes_total or not count:
            return False
        return (
            count + 1 > self.count_max
            or bytes_total + size > self.bytes_max
            or bytes_total + size > self.bytes_at_once
            or count >= self.count_at_once
        )


class _Scan:
    """The walk over units of section 11.1, with what it has collected."""

    __slots__ = (
        "bytes_total", "dispatched", "filtered", "last_physical_offset", "log", "matches",
        "next_offset", "queue", "records", "status", "tag_hashes", "topic", "units",
    )  # fmt: skip

    def __init__(
        self,
        queue: ConsumeQueueReader,
        log: LogBytes,
        dispatched: int,
        tag_hashes: frozenset[int] | None,
        matches: Callable[[Record], bool] | None,
    ) -> None:
        self.queue = queue
        self.log = log
        self.dispatched = PhysicalOffset(dispatched)
        self.tag_hashes = tag_hashes
        self.matches = matches
        self.topic = queue.topic.encode()
        self.status = PullStatus.NO_MATCHED_MESSAGE
        self.next_offset = 0
        self.last_physical_offset = 0
        self.bytes_total = 0
        self.filtered = 0
        self.units: list[tuple[QueueOffset, Unit]] = []
        self.records: list[memoryview] = []

    def run(self, view: memoryview, offset: int, limits: _Limits) -> None:
        """Walk the units in view; the first has queue offset ``offset``."""
        self.next_offset = offset
        skip_until = -1
        whole = view[: len(view) // UNIT_SIZE * UNIT_SIZE]
        for number, fields in enumerate(UNIT.iter_unpack(whole), start=offset):
            unit = Unit._make(fields)
            if limits.are_reached(len(self.units), self.bytes_total, unit.size):
                return
            if self.bytes_total >= limits.bytes_max:
                return
            self.next_offset = number + 1
            self.last_physical_offset = unit.physical_offset
            if unit.physical_offset < skip_until:
                continue
            if self.tag_hashes is not None and not _tag_matches(unit.tags_code, self.tag_hashes):
                if not self.units:
                    self.status = PullStatus.NO_MATCHED_MESSAGE
                continue
            data = self._read(number, unit)
            if data is None:
                if not self.units:
                    self.status = PullStatus.MESSAGE_WAS_REMOVING
                skip_until = self.log.next_file(PhysicalOffset(unit.physical_offset))
                continue
            if self.matches is not None and not self.matches(record.decode(data)):
                self.filtered += 1
                if not self.units:
                    self.status = PullStatus.NO_MATCHED_MESSAGE
                continue
            self._take(number, unit, data)
            skip_until = -1

    def _take(self, number: int, unit: Unit, data: memoryview) -> None:
        self.units.append((QueueOffset(number), unit))
        self.records.append(data)
        self.bytes_total += unit.size
        self.status = PullStatus.FOUND

    def _read(self, number: int, unit: Unit) -> memoryview | None:
        """The record's bytes; None if they are gone. Raises DamagedFile if it is another one."""
        if is_filler(unit.physical_offset, unit.size):
            return None
        offset = PhysicalOffset(unit.physical_offset)
        data = self.log.read(offset, unit.size, self.dispatched)
        if data is None:
            return None
        # Twice: where stores of another process arrive out of order, a unit below the published
        # end may be seen before the record it points to.
        for _ in range(2):
            if names(data, self.topic, self.queue.queue, number, unit):
                return data
        is_record = record.validate(data, 0, at=offset, checks=record.Checks()).kind is Kind.VALID
        raise DamagedFile(
            f"queue {self.queue.queue} of topic {self.queue.topic!r}: the unit at queue offset "
            f"{number} points to physical offset {offset}, {unit.size} bytes, "
            + (
                "which is another message. Nothing was served from there; the log itself is not "
                "in doubt."
                if is_record
                else "which is no message: either the unit or the commit log is damaged there. "
                "Nothing was served from there."
            ),
            "Run `tidemark store rebuild`, which makes the queue anew from the log."
            if is_record
            else "Run `tidemark store verify`, which tells the two apart; if it is the queue, "
            "`tidemark store rebuild` makes it anew.",
            topic=self.queue.topic,
            queue=self.queue.queue,
            queue_offset=number,
            physical_offset=int(offset),
        )

    def result(self, status: PullStatus, next_offset: int, first: int, end: int) -> PullResult:
        return PullResult(
            status,
            QueueOffset(next_offset),
            QueueOffset(first),
            QueueOffset(end),
            self.units,
            self.records,
            self.bytes_total,
            self.filtered,
            PhysicalOffset(self.last_physical_offset),
        )


def _tag_matches(tags_code: int, tag_hashes: frozenset[int]) -> bool:
    """Whether the low 32 bits, signed, are subscribed (11.4)."""
    low = tags_code & 0xFFFFFFFF
    return (low - (1 << 32) if low >> 31 else low) in tag_hashes
