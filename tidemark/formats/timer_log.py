"""Units of RocketMQ's timer log, and which of them a wheel needs (docs/formats.md, 12). Pure.

``timerlog/`` has one 52-byte unit per message that was put into the timing wheel. A slot of the
wheel is a second; its messages form a chain in which each unit has the position of the previous.
RocketMQ recreates a missing ``timerwheel`` from the units alone, and continues the queue
``rmq_sys_wheel_timer`` after the message of the last unit. Therefore the units of the waiting
messages and of the queue's last message are all that it needs.

Step before: ``services.broker.delay`` has the waiting messages. Step after: ``wheel_files`` writes
the units.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from tidemark.formats import delay
from tidemark.formats.delay import PRECISION_MS

FILE_SIZE: Final = 104_857_600
"""RocketMQ's mappedFileSizeTimerLog. RocketMQ does not load a file of any other size."""
FILE_SIZE_MIN: Final = 4096
"""A smaller file is not a log of RocketMQ."""
NONE_BEFORE: Final = -1
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
ROLL_WINDOW_MS: Final = 172_800 * PRECISION_MS
"""RocketMQ's timerRollWindowSlot: a message that is due later is stored again after that time."""
PIECE_SIZE: Final = 8 << 20
"""Number of bytes written at a time."""
_UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_SIZE: Final = _UNIT.size
_BLANK: Final = struct.Struct(">iqi")  # remaining space, 0, magic
_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)


class Unit(NamedTuple):
    """One message in the wheel."""

    previous: int
    """Position of the slot's previous unit; NONE_BEFORE if there is none."""
    magic: int
    written_ms: int
    slot_ms: int
    """Start of the slot's second."""
    physical_offset: int
    size: int
    """Size of the message's record in bytes."""
    topic_hash: int = 0
    """Java's hash of the original topic, for RocketMQ's counts; 0: not counted."""


class Waiting(NamedTuple):
    """A waiting message of the timer's queue."""

    due_ms: int
    physical_offset: int
    size: int


def encode(
    previous: int,
    magic: int,
    written_ms: int,
    slot_ms: int,
    physical_offset: int,
    size: int,
    topic_hash: int = 0,
) -> bytes:
    """Encode the 52 bytes of a unit from the fields of ``Unit``, without creating that object."""
    delay_ms = slot_ms - written_ms
    return _UNIT.pack(
        UNIT_SIZE, previous, magic, written_ms, delay_ms, physical_offset, size, topic_hash, 0
    )


def decode(raw: bytes, at: int = 0) -> Unit | None:
    """Decode the unit at raw[at]; None at the end of the log or of a file."""
    if len(raw) - at < UNIT_SIZE:
        return None
    size, previous, magic, written_ms, delay_ms, *rest, _ = _UNIT.unpack_from(raw, at)
    if size != UNIT_SIZE or magic & ~0xF:
        return None
    return Unit(previous, magic, written_ms, written_ms + delay_ms, *rest)


def slot_of(due_ms: int, now_ms: int) -> tuple[int, int]:
    """Return the slot into which RocketMQ puts a message at now_ms [ms], and the unit's magic.

    due_ms: when it is due. now_ms: a multiple of the precision. A message that is due after the
    window waits for one window, or half of one, and is then put into the queue again.
    """
    slot_ms = delay.slot_ms(due_ms)
    behind_ms = slot_ms - now_ms - ROLL_WINDOW_MS
    if behind_ms < 0:
        return slot_ms, MAGIC_DEFAULT
    window_ms = ROLL_WINDOW_MS // (2 if behind_ms < ROLL_WINDOW_MS // 3 else 1)
    return now_ms + window_ms, MAGIC_DEFAULT | MAGIC_ROLL


def written(
    waiting: Iterable[Waiting],
    last: Waiting,
    *,
    now_ms: int,
    start_ms: int,
    file_size: int,
) -> Iterator[tuple[int, bytearray]]:
    """Yield the log of a wheel with the waiting messages, in pieces: position and bytes of each.

    last: the queue's last message. Its unit is written last, because RocketMQ continues the queue
    after it; its slot is before start_ms and is never read. now_ms: a multiple of the precision.
    start_ms: slot at which RocketMQ starts to read the wheel, at or before that of each message.
    Memory: one position per slot, and one piece.
    """
    ends: dict[int, int] = {}
    piece, start = bytearray(), 0
    slotted = ((*slot_of(each.due_ms, now_ms), each) for each in waiting)
    passed = (start_ms - PRECISION_MS, MAGIC_DEFAULT, last)
    for slot_ms, magic, message in chain(slotted, (passed,)):
        position = start + len(piece)
        room = file_size - position % file_size
        if room < UNIT_SIZE + _BLANK.size:
            yield start, piece + _BLANK.pack(room, 0, _BLANK_MAGIC)
            piece, start = bytearray(), position + room
        elif len(piece) >= PIECE_SIZE:
            yield start, piece
            piece, start = bytearray(), position
        position = start + len(piece)
        previous = ends.get(slot_ms, NONE_BEFORE)
        _, physical_offset, size = message
        piece += encode(previous, magic, now_ms, slot_ms, physical_offset, size)
        ends[slot_ms] = position
    yield start, piece
