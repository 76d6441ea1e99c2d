"""``config/timercheck``: the progress of RocketMQ's timer (docs/formats.md, 12). Pure.

The file has 4096 bytes, of which RocketMQ uses seven big-endian i64: the time up to which the wheel
was read [ms], the flushed position of the timer's log, the queue offset of ``rmq_sys_wheel_timer``
up to which messages are in the wheel, the master's such offset, and a version (state, time,
counter).

A file written by Tidemark repeats the first four after these, following a signature. RocketMQ maps
the file and never writes there, so RocketMQ has changed nothing if both copies are equal.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">7q")
_OURS: Final = struct.Struct(">8s4q")
_SIGN: Final = b"tidemark"


class TimerCheck(NamedTuple):
    """The contents of the file."""

    read_to_ms: int
    """Messages with an earlier rounded ``TIMER_OUT_MS`` are delivered."""
    log_position: int
    """Flushed end of ``timerlog/`` [bytes]."""
    queue_offset: int
    """Messages of the timer's queue from here on are not in the wheel yet: none is delivered."""
    master_queue_offset: int
    """The same of the master, if a slave wrote the file."""


def decode(raw: bytes) -> TimerCheck | None:
    """Decode the file; None if it is truncated or invalid."""
    if len(raw) < _FIELDS.size:
        return None
    found = TimerCheck._make(_FIELDS.unpack_from(raw)[:4])
    return found if min(found) >= 0 and found.read_to_ms else None


def encode(check: TimerCheck, now_ms: int) -> bytes:
    """Encode the file as Tidemark writes it. now_ms: the time of its version."""
    fields = _FIELDS.pack(*check, 0, now_ms, 1)
    return (fields + _OURS.pack(_SIGN, *check)).ljust(SIZE, b"\0")


def is_untouched(raw: bytes) -> bool:
    """Whether Tidemark wrote the file and RocketMQ's timer has not advanced since."""
    return is_signed(raw) and (
        _OURS.unpack_from(raw, _FIELDS.size)[1:] == _FIELDS.unpack_from(raw)[:4]
    )


def is_signed(raw: bytes) -> bool:
    """Whether Tidemark wrote the file, even if RocketMQ has changed it since."""
    return len(raw) >= _FIELDS.size + _OURS.size and raw.startswith(_SIGN, _FIELDS.size)
