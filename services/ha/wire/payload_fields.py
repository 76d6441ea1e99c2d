"""Encodes and decodes binary fields, with all lengths checked. Pure.

A text is u8 length and UTF-8, an incarnation 16 bytes, an offset i64 ≥ 0; all big-endian. Step
before: a frame, or a value to send. Step after: ``handshake``, ``payloads``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NoReturn, TypeVar

from services.ha.wire.frames import BadFrame

TEXT_SIZE_MAX: Final = 255
INCARNATION_SIZE: Final = 16

U8: Final = struct.Struct(">B")
I64: Final = struct.Struct(">q")

_Kind = TypeVar("_Kind", bound=IntEnum)


class Reader:
    """Reads the fields of a payload, and checks every length before it is used."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self._view = memoryview(data)
        self._what = what
        self._at = 0

    def refuse(self, reason: str) -> NoReturn:
        """Raise BadFrame with the fault and its position."""
        raise BadFrame(f"{self._what}, byte {self._at} of the payload: {reason}")

    def take(self, size: int) -> memoryview:
        """Return the next size bytes."""
        if size > len(self._view) - self._at:
            self.refuse(f"ends {size - len(self._view) + self._at} bytes early")
        self._at += size
        return self._view[self._at - size : self._at]

    def number(self, form: struct.Struct) -> int:
        """Return one unsigned integer."""
        return int(form.unpack(self.take(form.size))[0])

    def offset(self) -> int:
        """Return an offset or an epoch: i64, not negative."""
        value = self.number(I64)
        if value < 0:
            self.refuse(f"{value} is neither an offset nor an epoch")
        return value

    def flag(self) -> bool:
        """Return one byte, 0 or 1, as a boolean."""
        value = self.number(U8)
        if value > 1:
            self.refuse(f"{value} is not a truth value")
        return value == 1

    def one_of(self, kind: type[_Kind]) -> _Kind:
        """Return the member of an enumeration that one byte names."""
        value = self.number(U8)
        try:
            return kind(value)
        except ValueError:
            self.refuse(f"{value} is not a {kind.__name__}")

    def text(self) -> str:
        """Return at most 255 bytes of UTF-8."""
        raw = self.take(self.number(U8))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self.refuse("text that is not UTF-8")

    def hex(self, size: int) -> str:
        """Return size bytes as hexadecimal digits."""
        return self.take(size).hex()

    def rest(self) -> memoryview:
        """Return all remaining bytes."""
        return self.take(len(self._view) - self._at)

    def done(self) -> None:
        """Check that no bytes remain."""
        if self._at != len(self._view):
            self.refuse(f"{len(self._view) - self._at} bytes too many")


def put_text(text: str) -> bytes:
    """Return length and UTF-8. Raises ValueError for more than 255 bytes."""
    raw = text.encode()
    if len(raw) > TEXT_SIZE_MAX:
        raise ValueError(f"a text of {len(raw)} bytes; the most is {TEXT_SIZE_MAX}")
    return U8.pack(len(raw)) + raw


def put_hex(digits: str, size: int) -> bytes:
    """Return hexadecimal digits as size bytes. Raises ValueError for anything else."""
    raw = bytes.fromhex(digits)
    if len(raw) != size:
        raise ValueError(f"{digits!r} is not {2 * size} hexadecimal digits")
    return raw
