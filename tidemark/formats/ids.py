"""Message ids: the offset id and the client's unique id (docs/formats.md, 2.8, 2.9). Pure.

Both are upper-case hex of 16 or 28 bytes, so they cannot be distinguished by their form. The offset
id is not stored: it is derived from a record's store host and physical offset.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from tidemark.formats import hosts
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset

_OFFSET: Final = struct.Struct(">q")
_TAIL: Final = struct.Struct(">IH")  # ms since the month began, counter
_HEX: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


def offset_id(host: Host, physical_offset: int) -> str:
    """Id of the record at physical_offset stored by ``host``: 32 or 56 hex digits."""
    return (hosts.encode(host) + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Parse an offset id to store host and physical offset; letters may have either case.

    Raises ValueError if it is not 32 or 56 hex digits or the offset is negative. It is not checked
    that a record starts there.
    """
    if not _HEX.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a message id: 32 or 56 hex digits")
    raw = bytes.fromhex(text)
    (offset,) = _OFFSET.unpack_from(raw, len(raw) - 8)
    if offset < 0:
        raise ValueError(f"{text!r} is not a message id: its physical offset is negative")
    return hosts.decode(raw, v6=len(raw) == 28), PhysicalOffset(offset)


class UniqueIdMaker:
    """Generates unique ids for the UNIQ_KEY property. It has no clock, and is for one thread."""

    def __init__(self, address: bytes, pid: int, salt: int) -> None:
        """address: 4 or 16 bytes of this host; salt: random, for processes that share a pid."""
        if len(address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
        fixed = address + struct.pack(">HI", pid & 0xFFFF, salt & 0xFFFFFFFF)
        self._fixed = fixed.hex().upper()
        self.head: Final = self._fixed.encode("ascii")
        """The common prefix of all ids of this generator: 20 or 44 hex digits."""
        self.next_number = 0
        """Number of the next id: its low 16 bits end the id."""

    def take(self, count: int) -> int:
        """Reserve the next count numbers for ids generated elsewhere; return the first of them."""
        first = self.next_number
        self.next_number = first + count
        return first

    def make(self, now_ms_since_month: int) -> str:
        """Return the next id. now_ms_since_month: ms since local 00:00 on the 1st of the month.

        Ids are unique within the process for 65,536 ids per millisecond.
        """
        number = self.take(1) & 0xFFFF
        return self._fixed + _TAIL.pack(now_ms_since_month & 0xFFFFFFFF, number).hex().upper()
