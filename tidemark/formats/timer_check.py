"""``config/timercheck``: how far RocketMQ's timer has come (store layout 12.8). Pure.

4096 bytes, of which RocketMQ uses seven big-endian i64: the time up to which the wheel was read
[ms], the flushed position of the timer's log, the queue offset of ``rmq_sys_wheel_timer`` up to
which messages are in the wheel, the master's such offset, and a version (state, time, counter).

A file of ours repeats the first four behind these, after a signature. RocketMQ maps the file and
never writes there, so RocketMQ has changed nothing in a file in which both agree.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">7q")
_OURS: Final = struct.Struct(">8s4q")
_SIGN: Final = b"tidemark"


class TimerCheck(NamedTuple):
    """What the file holds."""

    read_to_ms: int
    """What RocketMQ rounded to an earlier ``TIMER_OUT_MS`` is delivered."""
    log_position: int
    """Flushed end of ``timerlog/`` [bytes]."""
    queue_offset: int
    """Messages of the timer's queue from here on are not in the wheel yet: none is delivered."""
    master_queue_offset: int
    """The same of the master, where a slave wrote the file."""


def decode(raw: bytes) -> TimerCheck | None:
    """The file's content; None if it is cut short, or says nothing that can be."""
    if len(raw) < _FIELDS.size:
        return None
    found = TimerCheck._make(_FIELDS.unpack_from(raw)[:4])
    return found if min(found) >= 0 and found.read_to_ms else None


def encode(check: TimerCheck, now_ms: int) -> bytes:
    """The file as we write it; now_ms: the time of its version."""
    fields = _FIELDS.pack(*check, 0, now_ms, 1)
    return (fields + _OURS.pack(_SIGN, *check)).ljust(SIZE, b"\0")


def is_untouched(raw: bytes) -> bool:
    """Whether we wrote the file and RocketMQ's timer has not moved since."""
    return is_signed(raw) and (
        _OURS.unpack_from(raw, _FIELDS.size)[1:] == _FIELDS.unpack_from(raw)[:4]
    )


def is_signed(raw: bytes) -> bool:
    """Whether we wrote the file, whatever RocketMQ has done since."""
    return len(raw) >= _FIELDS.size + _OURS.size and raw.startswith(_SIGN, _FIELDS.size)
