"""Units of RocketMQ's timer log, and which of them a wheel needs (store layout 12.8). Pure.

``timerlog/`` holds one 52-byte unit for each message that was put into the timing wheel. A slot of
the wheel is a second; its messages are a chain, each unit holding the position of the one before.
RocketMQ makes a missing ``timerwheel`` again from the units alone, and goes on in the queue
``rmq_sys_wheel_timer`` behind the message of the last unit. So units of what waits, and of the
queue's last message, are all that it needs to go on exactly.

Before: ``services.broker.delay`` has the messages that wait. After: ``wheel_files`` writes them.
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
"""A smaller file is no log of RocketMQ's."""
NONE_BEFORE: Final = -1
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
ROLL_WINDOW_MS: Final = 172_800 * PRECISION_MS
"""RocketMQ's timerRollWindowSlot: a message that is due later is put back after that time."""
PIECE_SIZE: Final = 8 << 20
"""Bytes that are written at a time."""
_UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_SIZE: Final = _UNIT.size
_BLANK: Final = struct.Struct(">iqi")  # the room left, 0, magic
_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)


class Unit(NamedTuple):
    """One message in the wheel."""

    previous: int
    """Position of the slot's unit before; NONE_BEFORE: there is none."""
    magic: int
    written_ms: int
    slot_ms: int
    """Start of the slot's second."""
    physical_offset: int
    size: int
    """Bytes of the message's record."""
    topic_hash: int = 0
    """Java's hash of the real topic, for RocketMQ's counts; 0: in none of them."""


class Waiting(NamedTuple):
    """A message of the timer's queue."""

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
    """The 52 bytes of a unit; its fields as of ``Unit``, which is not made: there are millions."""
    delay_ms = slot_ms - written_ms
    return _UNIT.pack(
        UNIT_SIZE, previous, magic, written_ms, delay_ms, physical_offset, size, topic_hash, 0
    )


def decode(raw: bytes, at: int = 0) -> Unit | None:
    """The unit at raw[at]; None if there is none: the end of the log, or of a file."""
    if len(raw) - at < UNIT_SIZE:
        return None
    size, previous, magic, written_ms, delay_ms, *rest, _ = _UNIT.unpack_from(raw, at)
    if size != UNIT_SIZE or magic & ~0xF:
        return None
    return Unit(previous, magic, written_ms, written_ms + delay_ms, *rest)


def slot_of(due_ms: int, now_ms: int) -> tuple[int, int]:
    """The slot into which RocketMQ puts a message at now_ms [ms], and the unit's magic.

    due_ms: when it is due. now_ms: a multiple of the precision. What is due behind the window waits
    for one window, or half of one, and is then put into the queue again.
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
    """The log of a wheel that holds what waits, in pieces: position and bytes, each of one file.

    last: the queue's last message. Its unit is the last one, for RocketMQ goes on in the queue
    behind that; its slot lies before start_ms and is never read. now_ms: a multiple of the
    precision. start_ms: slot at which RocketMQ begins to read the wheel, at or before that of each
    message. Memory: one position for each slot, and a piece.
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
