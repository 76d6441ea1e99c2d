"""Which records a pull gets: walk queue units against a window of the log. Pure.

The rules of docs/formats.md, section 11, as far as they look at one unit after another: when an
answer is full, which tags are wanted, and that a unit's record says that it is this queue's message
of this number. What is taken is told as stretches of the window, records that lie one behind
another in one piece: a batch of 256 messages is one stretch. No CRC is looked at here. The
compiled twin is ``speedups.select``; ``twins`` chooses.

In a record's walk: between (8) reput appended the unit and (9) the broker answers a pull.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.formats.record_layout import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    Buffer,
)
from tidemark.offsets import UNIT_SIZE

_HEAD: Final = struct.Struct(">ii4xi4xqqi")
"""Size, magic, queue id, queue offset, physical offset, sys flag: a record's first 40 bytes."""
_LENGTH_SIZES: Final = {MAGIC_V1: 1, MAGIC_V2: 2}
_TAGS: Final = properties.TAGS.encode()


class Halt(Enum):
    """Why ``select`` looked at no further unit."""

    END = "all units were looked at"
    FULL = "the limits are reached"
    OUTSIDE = "the next unit's record does not lie in the window"
    STRANGER = "the next unit's record is not the one that the unit stands for"


class Limits(NamedTuple):
    """How much one answer holds (11.2). The first message always fits."""

    count_max: int
    bytes_max: int
    count_at_once: int
    bytes_at_once: int

    def are_reached(self, count: int, bytes_total: int, size: int) -> bool:
        """Whether a record of ``size`` bytes is too much behind ``count`` of ``bytes_total``."""
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
    """The tags themselves, compared with the records' own: other tags may have the same hash.
    None: equal hashes are enough, as the reference has it."""


class Selected(NamedTuple):
    """What ``select`` found."""

    looked: int
    """Units looked at, from the first on; the one that Halt speaks of is not among them."""
    stretches: list[tuple[int, int]]
    """[start, end) in the window, in the units' order; each is one or more whole records."""
    message_count: int
    """Messages taken, those of before included."""
    bytes_total: int
    """Their records' bytes."""
    filtered: int
    """Units that the subscription did not take."""
    last_physical_offset: int
    """Of the last unit looked at; 0 if none was."""
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
) -> Selected:
    """Walk the units until the answer is full or one's record cannot be taken from the window.

    units: bytes of queue units, the first with queue offset ``first``; what is behind the last
    whole one is not looked at. window: the log's bytes from physical offset ``window_at`` on,
    nothing in them beyond what may be seen. count, bytes_total: messages that the answer holds
    already. skip_until: units that point below, though not below 0, are passed without a look at
    their records, until one is taken. Numbers are i64. Never raises for what the bytes say.
    """
    stretches: list[tuple[int, int]] = []
    start = end = -1
    looked = filtered = last = 0
    room, halt = len(window), Halt.END
    whole = memoryview(units)[: len(units) // UNIT_SIZE * UNIT_SIZE]
    for number, unit in enumerate(map(Unit._make, UNIT.iter_unpack(whole)), first):
        if limits.are_reached(count, bytes_total, unit.size):
            halt = Halt.FULL
            break
        if not 0 <= unit.physical_offset < skip_until:
            if wanted is None or _low_32(unit.tags_code) in wanted.hashes:
                at = unit.physical_offset - window_at
                if at < 0 or unit.size <= 0 or at + unit.size > room:
                    halt = Halt.OUTSIDE
                    break
                record = memoryview(window)[at : at + unit.size]
                if not names(record, topic, queue, number, unit):
                    halt = Halt.STRANGER
                    break
                tagged = wanted is None or wanted.tags is None or _tags_in(record, wanted.tags)
                if tagged is None:
                    halt = Halt.STRANGER
                    break
                if tagged:
                    if at != end:
                        if end >= 0:
                            stretches.append((start, end))
                        start = at
                    end = at + unit.size
                    count += 1
                    bytes_total += unit.size
                    skip_until = -1
                else:
                    filtered += 1
            else:
                filtered += 1
        looked += 1
        last = unit.physical_offset
    if end >= 0:
        stretches.append((start, end))
    return Selected(looked, stretches, count, bytes_total, filtered, last, halt)


def names(view: memoryview, topic: bytes, queue: int, queue_offset: int, unit: Unit) -> bool:
    """Whether the record in view says it is what the unit was made for.

    view: exactly the bytes the unit points to. Not a validation: no CRC is looked at.
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
    """Where the topic's length begins, going by the body's size; None if that is not in view."""
    body_at = 88 + (12 if sys_flag & BORN_HOST_V6 else 0)
    body_at += 12 if sys_flag & STORE_HOST_V6 else 0
    if body_at > len(view):
        return None
    return body_at + int.from_bytes(view[body_at - 4 : body_at], "big")


def _tags_in(view: memoryview, tags: frozenset[str]) -> bool | None:
    """Whether the named record's TAGS is one of tags; None if its properties do not end it."""
    _, magic, _, _, _, sys_flag = _HEAD.unpack_from(view)
    topic_at = _topic_at(view, sys_flag)
    assert topic_at is not None, "the record was named"
    length_size = _LENGTH_SIZES[magic]
    behind_length = topic_at + length_size
    at = behind_length + int.from_bytes(view[topic_at:behind_length], "big") + 2
    size = int.from_bytes(view[at - 2 : at], "big", signed=True)
    if at > len(view) or size < 0 or at + size != len(view):
        return None
    value = properties.find(bytes(view[at:]), _TAGS)
    return value is not None and properties.text(value) in tags


def _low_32(tags_code: int) -> int:
    """The low 32 bits, signed."""
    low = tags_code & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
