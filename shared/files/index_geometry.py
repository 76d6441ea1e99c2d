"""Determines the number of slots and entries of an index file from its bytes.

The file's length gives only a sum of the two, and the file contains neither (docs/formats.md,
section 5.1). But the newest entry is the last non-zero data of the file, and its slot points to it,
which leaves one solution. This is for stores that RocketMQ created, whose sizes are not recorded;
see ``store_config``.
"""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, File
from shared.files.last_nonzero import last_nonzero_in
from tidemark.formats.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, Geometry

INT: Final = struct.Struct(">i")
COUNT_AT: Final = 36
"""Position of the number of entries plus one in the header."""


def geometry_of(disk: Disk, path: Path) -> Geometry | None:
    """Return slots and entries of the index file at path; None if they cannot be determined."""
    with closing(disk.open(path, writable=False)) as file:
        last = last_nonzero_in(file, HEADER_SIZE)
        head = file.pread(HEADER_SIZE, 0)
        if last is None or len(head) < HEADER_SIZE or (file.size - HEADER_SIZE) % SLOT_SIZE:
            return None
        count: int = INT.unpack_from(head, COUNT_AT)[0]
        # count is the first entry not counted; a kill inside a put leaves one that is not counted.
        for newest in (count - 1, count):
            geometry = _fits(file, newest, last) if newest > 0 else None
            if geometry is not None:
                return geometry
        return None


def _fits(file: File, newest: int, last: int) -> Geometry | None:
    """Return the geometry in which byte last belongs to entry newest and its slot points to it."""
    entry_size, slot_size = ENTRY_SIZE, SLOT_SIZE
    # The entry begins at HEADER_SIZE + 4·slots + 20·newest and contains byte last. That gives five
    # candidates, of which one leaves whole entries in the rest of the file.
    slots_max = (last - HEADER_SIZE - entry_size * newest) // slot_size
    for slots in range(slots_max, slots_max - entry_size // slot_size, -1):
        entries, rest = divmod(file.size - HEADER_SIZE - slot_size * slots, entry_size)
        if slots <= 0 or rest or entries <= newest:
            continue
        # entries > newest and key_hash % slots < slots: both reads are within the file.
        entry_at = HEADER_SIZE + slot_size * slots + entry_size * newest
        key_hash: int = INT.unpack(file.pread(INT.size, entry_at))[0]
        slot_at = HEADER_SIZE + slot_size * (key_hash % slots)
        if INT.unpack(file.pread(INT.size, slot_at))[0] == newest:
            return Geometry(slots=slots, entries=entries)
    return None
