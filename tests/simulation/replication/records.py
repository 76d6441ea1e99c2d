"""Records of the simulated log: just enough to be found, told apart and cut in half.

The record format itself is not simulated; ``tests/simulation`` runs it on a simulated disk.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PREFIX: Final = struct.Struct(">HII")
"""Size [bytes], epoch, serial number."""
MESSAGE: Final = 0
SIZE_MAX: Final = 48


class Record(NamedTuple):
    """One record where it lies."""

    start: int
    epoch: int
    serial: int
    raw: bytes

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.start + len(self.raw)


def encode(epoch: int, serial: int, size: int) -> bytes:
    """A record; serial is never used twice, so no two records are equal."""
    return PREFIX.pack(size, epoch, serial).ljust(size, bytes([serial & 0xFF]))


def walk(log: bytes | bytearray | memoryview, start: int, end: int) -> list[Record]:
    """The whole records of log in [start, end); stops at one that is not whole."""
    found = []
    view = memoryview(log)
    while start + PREFIX.size <= end:
        size, epoch, serial = PREFIX.unpack_from(view, start)
        if size < PREFIX.size or start + size > end:
            break
        found.append(Record(start, epoch, serial, bytes(view[start : start + size])))
        start += size
    return found


def whole_size(data: bytes | bytearray | memoryview) -> int:
    """How many leading bytes of data are whole records."""
    at = 0
    while at + PREFIX.size <= len(data):
        size = (data[at] << 8) | data[at + 1]
        if size < PREFIX.size or at + size > len(data):
            break
        at += size
    return at
