"""Selects the records of a pull: compares queue units with a window of the log. Pure.

It implements the rules of docs/formats.md, section 11, that apply to one unit after another: when
an answer is full, which tags are wanted, and that a unit's record belongs to this queue and offset.
The result is a list of ranges of the window, in which adjacent records are merged: a batch of 256
messages is one range. CRCs are not checked here. The native implementation is ``speedups.select``;
``native`` chooses.

Read path, step 2: ``consume_queue`` has found the units; afterwards ``pull`` decides the status.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.inner_batch import INNER_BATCH, message_count
from tidemark.formats.queue_unit import UNIT, Unit, batch_range
from tidemark.formats.record_layout import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    Buffer,
)
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

_HEAD: Final = struct.Struct(">ii4xi4xqqi")
"""Size, magic, queue id, queue offset, physical offset, sys flag: a record's first 40 bytes."""
_LENGTH_SIZES: Final = {MAGIC_V1: 1, MAGIC_V2: 2}
_TAGS: Final = properties.TAGS.encode()


class Halt(Enum):
    """Why ``select`` stopped."""

    END = "all units were processed"
    FULL = "the limits are reached"
    OUTSIDE = "the next unit's record is not in the window"
    STRANGER = "the next unit's record belongs to another queue or offset"


class Limits(NamedTuple):
    """Limits of one answer (11.2). The first message always fits."""

    count_max: int
    bytes_max: int
    count_at_once: int
    bytes_at_once: int

    def are_reached(self, count: int, bytes_total: int, size: int) -> bool:
        """Whether a record of ``size`` bytes exceeds the limits after ``count`` messages."""
        if bytes_total >= self.bytes_max:
            return True
        if not bytes_total or not count:
            return False
        return (
            count + 1 > self.count_max
            or bytes_total + size > self.bytes_max
            or bytes_total + size > self.bytes_at_once
            or count >= self.count_at_once
        )


class Wanted(NamedTuple):
    """A subscription to some tags."""

    hashes: frozenset[int]
    """Signed 32-bit hashes, compared with the units' tags codes (11.4)."""
    tags: frozenset[str] | None = None
    """The tags, compared with the records' own, because other tags may have the same hash. None:
    equal hashes are enough, as in the reference implementation."""


class Selected(NamedTuple):
    """The result of ``select``."""

    looked: int
    """Number of units processed, not counting the one at which it stopped."""
    stretches: list[tuple[int, int]]
    """Ranges [start, end) in the window, in the units' order; each is one or more whole records."""
    message_count: int
    """Number of messages selected, including the given ``count``."""
    bytes_total: int
    """Size of their records in bytes."""
    filtered: int
    """Number of units, or of messages in a batch queue, that did not match the subscription."""
    halt: Halt


def select(
    units: Buffer,
    first: int,
    window: Buffer,
    window_at: int,
    *,
    topic: bytes,
    queue: int,
    limits: Limits,
    wanted: Wanted | None = None,
    count: int = 0,
    bytes_total: int = 0,
    skip_until: int = -1,
    is_batch: bool = False,
) -> Selected:
    """Select units until the answer is full or a record cannot be taken from the window.

    units: bytes of queue units; an incomplete last one is ignored. first: queue offset of the first
    unit. window: the log's bytes from physical offset ``window_at`` on, only as far as they are
    visible. count, bytes_total: what the answer already contains. skip_until: units that point
    below it, but not below 0, are skipped without reading their records, until one is selected.
    is_batch: the units are those of a batch queue, and are selected as whole batches. Then the
    first unit's batch has the message ``first``; messages before it do not count. A batch without a
    tag of its own may have any tags, so it is selected. Numbers are i64. Never raises for any
    bytes.
    """
    stretches: list[tuple[int, int]] = []
    start = end = -1
    looked = filtered = 0
    room, halt = len(window), Halt.END
    unit_size = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
    offset = first
    for place in range(0, len(units) // unit_size * unit_size, unit_size):
        unit = Unit._make(UNIT.unpack_from(units, place))
        begin, after = batch_range(units, place) if is_batch else (offset, offset + 1)
        if not begin <= offset < after:  # batches follow each other without a gap
            halt = Halt.STRANGER
            break
        if limits.are_reached(count, bytes_total, unit.size):
            halt = Halt.FULL
            break
        if not 0 <= unit.physical_offset < skip_until:
            may_have_any = is_batch and not unit.tags_code
            if wanted is None or may_have_any or _low_32(unit.tags_code) in wanted.hashes:
                at = unit.physical_offset - window_at
                if at < 0 or unit.size <= 0 or at + unit.size > room:
                    halt = Halt.OUTSIDE
                    break
                record = memoryview(window)[at : at + unit.size]
                if not names(record, topic, queue, begin, unit):
                    halt = Halt.STRANGER
                    break
                if is_batch:
                    tagged = True if _holds(record, begin, after) else None
                else:
                    tags = None if wanted is None else wanted.tags
                    tagged = tags is None or _tags_in(record, tags)
                if tagged is None:
                    halt = Halt.STRANGER
                    break
                if tagged:
                    if at != end:
                        if end >= 0:
                            stretches.append((start, end))
                        start = at
                    end = at + unit.size
                    count += after - offset
                    bytes_total += unit.size
                    skip_until = -1
                else:
                    filtered += 1
            else:
                filtered += after - offset
        looked += 1
        offset = after
    if end >= 0:
        stretches.append((start, end))
    return Selected(looked, stretches, count, bytes_total, filtered, halt)


def _holds(view: memoryview, first: int, after: int) -> bool:
    """Whether the record in view has the messages with the queue offsets [first, after)."""
    *_, sys_flag = _HEAD.unpack_from(view)
    if not sys_flag & INNER_BATCH:
        return after - first == 1
    raw = _properties_of(view)
    return raw is not None and after - first == (message_count(sys_flag, raw, first) or 1)


def names(view: memoryview, topic: bytes, queue: int, queue_offset: int, unit: Unit) -> bool:
    """Whether the record in view belongs to the unit's queue and offset.

    view: exactly the bytes to which the unit points. This is not a validation: CRCs are not
    checked.
    """
    if len(view) < RECORD_SIZE_MIN:
        return False
    size, magic, queue_id, number, physical_offset, sys_flag = _HEAD.unpack_from(view)
    if (size, queue_id, number, physical_offset) != (
        len(view),
        queue,
        queue_offset,
        unit.physical_offset,
    ):
        return False
    length_size = _LENGTH_SIZES.get(magic)
    if length_size is None or len(topic) >> 8 * length_size:
        return False
    topic_at = _topic_at(view, sys_flag)
    named = len(topic).to_bytes(length_size, "big") + topic
    return topic_at is not None and view[topic_at : topic_at + len(named)] == named


def _topic_at(view: memoryview, sys_flag: int) -> int | None:
    """Position of the topic's length, computed from the body's size; None if not in view."""
    body_at = 88 + (12 if sys_flag & BORN_HOST_V6 else 0)
    body_at += 12 if sys_flag & STORE_HOST_V6 else 0
    if body_at > len(view):
        return None
    return body_at + int.from_bytes(view[body_at - 4 : body_at], "big")


def _tags_in(view: memoryview, tags: frozenset[str]) -> bool | None:
    """Whether the record's TAGS is one of tags; None if its properties do not end the record."""
    raw = _properties_of(view)
    if raw is None:
        return None
    value = properties.find(raw, _TAGS)
    return value is not None and properties.text(value) in tags


def _properties_of(view: memoryview) -> bytes | None:
    """Return the properties of a named record; None if they do not end it."""
    _, magic, _, _, _, sys_flag = _HEAD.unpack_from(view)
    topic_at = _topic_at(view, sys_flag)
    assert topic_at is not None, "the record was named"
    length_size = _LENGTH_SIZES[magic]
    behind_length = topic_at + length_size
    at = behind_length + int.from_bytes(view[topic_at:behind_length], "big") + 2
    size = int.from_bytes(view[at - 2 : at], "big", signed=True)
    if at > len(view) or size < 0 or at + size != len(view):
        return None
    return bytes(view[at:])


def _low_32(tags_code: int) -> int:
    """The low 32 bits as a signed number."""
    low = tags_code & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
