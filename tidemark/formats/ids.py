"""Message ids: the offset id and the client's unique id (docs/formats.md, 2.8, 2.9). Pure.

Both are upper-case hex of 16 or 28 bytes, told apart from each other by nothing but where they
stand. The offset id is not stored: it follows from a record's store host and physical offset.
"""

from __future__ import annotations

import re
import struct
import threading
from typing import Final

from tidemark.formats import hosts
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset

_OFFSET: Final = struct.Struct(">q")
_TAIL: Final = struct.Struct(">IH")  # ms since the month began, counter
_HEX: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


def offset_id(host: Host, physical_offset: int) -> str:
    """Id of the record at physical_offset that ``host`` stored: 32 or 56 hex digits."""
    return (hosts.encode(host) + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Store host and physical offset of an offset id, in either case of letters.

    Raises ValueError if it is not 32 or 56 hex digits or the offset is negative. Nothing says that
    a record starts there.
    """
    if not _HEX.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a message id: 32 or 56 hex digits")
    raw = bytes.fromhex(text)
    (offset,) = _OFFSET.unpack_from(raw, len(raw) - 8)
    if offset < 0:
        raise ValueError(f"{text!r} is not a message id: its physical offset is negative")
    return hosts.decode(raw, v6=len(raw) == 28), PhysicalOffset(offset)


class UniqueIdMaker:
    """Makes the ids that clients put into UNIQ_KEY. Holds no clock; safe to share by threads."""

    def __init__(self, address: bytes, pid: int, salt: int) -> None:
        """address: 4 or 16 bytes of this host; salt: random, for processes that share a pid."""
        if len(address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
        fixed = address + struct.pack(">HI", pid & 0xFFFF, salt & 0xFFFFFFFF)
        self._fixed = fixed.hex().upper()
        self.head: Final = self._fixed.encode("ascii")
        """First 20 or 44 hex digits of all ids of this maker."""
        self.next_number = 0
        """Number of the next id: its low 16 bits end the id."""
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """Reserve the next count numbers for ids that are made elsewhere; return the first."""
        with self._lock:
            first = self.next_number
            self.next_number += count
        return first

    def make(self, now_ms_since_month: int) -> str:
        """Next id. now_ms_since_month: ms since local 00:00 on the 1st of the current month.

        Unique within the process for 65,536 ids per millisecond.
        """
        number = self.take(1) & 0xFFFF
        return self._fixed + _TAIL.pack(now_ms_since_month & 0xFFFFFFFF, number).hex().upper()
