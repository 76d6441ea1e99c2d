"""Stored hashes: tags code, index key hash, body CRC (docs/formats.md, 2.5, 3, 5.2). Pure.

The string hash is computed over UTF-16 code units, so a character outside the basic plane counts
twice. The tags code keeps the hash's sign; the index stores the absolute value.
"""

from __future__ import annotations

import functools
import operator
import struct
import zlib
from collections.abc import Sequence
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"

_MASK: Final = 0xFFFFFFFF
_BLOCK: Final = 256
# _POWERS[-n:] are 31^(n-1) … 31^0, for one sum of products in C instead of a loop in Python.
_POWERS: Final = tuple(pow(31, _BLOCK - 1 - index, 1 << 32) for index in range(_BLOCK))
_BLOCK_POWER: Final = pow(31, _BLOCK, 1 << 32)


def _units_hash(units: Sequence[int]) -> int:
    """Unsigned 32-bit hash of UTF-16 code units."""
    count = len(units)
    if count <= _BLOCK:
        total: int = sum(map(operator.mul, units, _POWERS[_BLOCK - count :]))
        return total & _MASK
    value = 0
    first = count % _BLOCK
    if first:
        value = _units_hash(units[:first])
    for start in range(first, count, _BLOCK):
        value = (value * _BLOCK_POWER + _units_hash(units[start : start + _BLOCK])) & _MASK
    return value


def _unsigned_hash(text: str) -> int:
    if text.isascii():
        return _units_hash(text.encode("ascii"))
    units = text.encode("utf-16-be", "surrogatepass")
    return _units_hash(struct.unpack(f">{len(units) // 2}H", units))


def string_hash(text: str) -> int:
    """Signed 32-bit hash ``h = 31·h + unit`` over the UTF-16 code units; 0 for the empty text."""
    value = _unsigned_hash(text)
    return value - (1 << 32) if value & 0x80000000 else value


@functools.lru_cache(maxsize=8192)
def tags_code(tags: str | None) -> int:
    """The tags code in a queue unit: the signed hash of the tags; 0 without tags."""
    return string_hash(tags) if tags else 0


@functools.lru_cache(maxsize=4096)
def topic_hash(topic: str) -> int:
    """Unsigned hash of ``topic#``, the common prefix of all index hashes of a topic."""
    return _unsigned_hash(topic + "#")


def index_hash(topic: str, key: str) -> int:
    """Hash of ``topic#key`` as the index stores it: absolute value, and 0 for −2^31 (5.2)."""
    if key.isascii() and (count := len(key)) <= _BLOCK:
        units_hash: int = sum(map(operator.mul, key.encode("ascii"), _POWERS[_BLOCK - count :]))
        value = (topic_hash(topic) * pow(31, count, 1 << 32) + units_hash) & _MASK
    else:
        value = _unsigned_hash(f"{topic}#{key}")
    if value < 0x80000000:
        return value
    return (1 << 32) - value if value > 0x80000000 else 0


def delivery_time_code(
    delay: str | None, store_timestamp_ms: int, delay_levels_ms: Sequence[int]
) -> int | None:
    """Tags code of a record under SCHEDULE_TOPIC: the time at which it is due, in ms.

    delay: its DELAY property. delay_levels_ms: [0] is the delay of level 1. A level above the
    highest counts as the highest. Returns None if there is no level above 0; the tags code is then
    the tags' hash. A DELAY that is not a number counts as none (the reference implementation
    rejects the whole record). The sum wraps at 64 bits.
    """
    if delay is None:
        return None
    digits = delay[1:] if delay[:1] in ("+", "-") else delay
    if not digits.isdecimal() or len(digits) > 10 or delay[0] == "-":
        return None
    level = min(int(digits), len(delay_levels_ms))
    if level == 0:
        return None
    due = store_timestamp_ms + delay_levels_ms[level - 1]
    return (due + (1 << 63)) % (1 << 64) - (1 << 63)  # like Java's long, the size in a unit


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 with the top bit cleared, so that it fits a positive i32; 0 for no bytes."""
    return zlib.crc32(body) & 0x7FFFFFFF
