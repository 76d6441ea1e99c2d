"""The checkpoint page: RocketMQ's head and the regions log, broker, reput and ha.

It has 4096 bytes, in the file ``checkpoint``. Every process of the node maps it to publish its
progress to the others. All values are only hints where to start reading: a missing, short or
damaged page is created anew, which costs time, never a message. Invariants (docs/formats.md,
section 6):

- A slot has one writer at a time (``tidemark.formats.checkpoint``) and any number of readers.
- A slot is read and published by one aligned 8-byte access, never ``struct.pack_into``: that clears
  the bytes before it fills them, and another process then reads offset 0 (measured: 4 to 9 % of
  reads). The head's big-endian fields are byte-swapped first and stored the same way.
- The page's block is reserved before it is mapped for writing, so a store into it cannot fail.
- Order of every publication: bytes, checksum over them, then the slot that makes them visible.
- Every slot has a check, stored before the value. Readers of a running node ignore it; ``proven``
  verifies it, for code that takes a value of an earlier process as evidence.

Step before: the owner of a slot has stored what its position refers to, for example ``log_writer``
the bytes. Step after: the other processes of the node read the positions.
"""

from __future__ import annotations

import struct
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, File, read_whole
from tidemark.errors import DiskFull, ReadOnlyDisk, StoreError
from tidemark.formats import native
from tidemark.formats.checkpoint import (
    REGION_MAGIC,
    SIZE,
    Head,
    Slot,
    check_of,
    check_slot,
    damaged_slots,
    fits,
    proven,
)

PAGE_SIZE: Final = SIZE
HEAD_FIELDS: Final = len(Head._fields)
SWAP_IN: Final = struct.Struct("<Q")
SWAP_OUT: Final = struct.Struct(">q")
OPEN_TRIES: Final = 16
"""Two processes may replace a damaged page at the same time; each try follows one replacement."""


class Positions:
    """The mapped page."""

    def __init__(self, disk: Disk, path: Path, file: File, inode: int, *, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._file = file
        self._inode = inode
        self._region = file.map(writable=writable)
        self._slots = self._region.view.cast("Q")
        self._claimed = (Slot.MAGIC_AND_FORMAT, 0)
        """The slot that this process claimed and its value there; 0 before a claim."""
        self.is_private = False
        """Whether the page is in ``run_dir``, because the store itself cannot hold it."""

    @classmethod
    def open(
        cls, disk: Disk, path: Path, *, writable: bool = True, fallback: Path | None = None
    ) -> Positions:
        """Map the page at path; it is created anew if it is missing, short or damaged.

        writable: False for tools that only read; raises FileNotFoundError if there is no usable
        page. fallback: path of a substitute page if path cannot be written (full or read-only
        disk). The substitute starts as a copy of the page at path. Without fallback this raises
        DiskFull or ReadOnlyDisk.
        """
        if sys.byteorder != "little":
            raise StoreError(
                "this machine is big-endian; the regions of the checkpoint page are not.",
                "Run Tidemark on x86-64 or arm64.",
            )
        if not writable:
            if not _is_sound(read_whole(disk, path) or b""):
                raise FileNotFoundError(path)
            return cls._map(disk, path, writable=False)
        try:
            return cls._open_or_make(disk, path, bytes(PAGE_SIZE))
        except (DiskFull, ReadOnlyDisk):
            if fallback is None:
                raise
        seed = read_whole(disk, path) or b""
        if not _is_sound(seed):
            seed = bytes(PAGE_SIZE)
        disk.make_directory(fallback.parent)
        # The second half stores the page that this one was copied from. A substitute from an
        # earlier period of refused writes describes another state of the store.
        present = read_whole(disk, fallback)
        if present is not None and present[PAGE_SIZE:] != seed:
            disk.unlink(fallback)
        positions = cls._open_or_make(disk, fallback, seed + seed)
        positions.is_private = True
        return positions

    @classmethod
    def _open_or_make(cls, disk: Disk, path: Path, content: bytes) -> Positions:
        """Map the page at path; replace it by one with content if it is not sound."""
        for _ in range(OPEN_TRIES):
            present = read_whole(disk, path)
            if present is not None and len(present) == len(content) and _is_sound(present):
                try:
                    return cls._map(disk, path, writable=True)
                except FileNotFoundError:  # replaced since it was read
                    continue
            try:
                if present is not None:
                    disk.unlink(path)
                _make(disk, path, content)
            except (FileExistsError, FileNotFoundError):
                continue  # another process does the same; try again
        raise StoreError(
            f"{path} keeps being replaced by another process. Nothing was changed.",
            "Stop what writes to this store directory.",
            path=path,
        )

    @classmethod
    def _map(cls, disk: Disk, path: Path, *, writable: bool) -> Positions:
        before = disk.stat(path)
        file = disk.open(path, writable=writable)
        try:
            after = disk.stat(path)
            if before is None or after is None or before.inode != after.inode:
                raise FileNotFoundError(path)
            if writable:
                file.reserve(0, PAGE_SIZE)  # a store into a hole of a full disk raises SIGBUS
            return cls(disk, path, file, after.inode, writable=writable)
        except BaseException:
            file.close()
            raise

    # -- slots ----------------------------------------------------------------------------------

    def get(self, slot: Slot) -> int:
        """Return the value that the slot's owner published last; 0 before the first."""
        return self._slots[slot]

    def proven(self, slot: Slot) -> int:
        """Return the slot's value; 0 if its check shows that it was not published like this."""
        return proven(slot, self._slots.__getitem__)

    def is_checked(self, slot: Slot) -> bool:
        """Whether the slot has a check that matches its value."""
        check = self._slots[check_slot(slot)]
        return check != 0 and fits(slot, self._slots[slot], check)

    def seal(self) -> None:
        """Add checks to a page of an earlier version, before other processes continue. For the
        process that recovers; a page that has checks is not changed."""
        slots = self._slots
        if not slots[check_slot(Slot.MAGIC_AND_FORMAT)]:
            for slot in Slot:
                slots[check_slot(slot)] = check_of(slot, slots[slot], slots[slot])

    def resumed_dispatch(self) -> tuple[int, int] | None:
        """Return the start of reput that prepared the queue files, and its generation.

        None while the present start of reput has not prepared them. Files may be missing until
        then, and a reader that opens a queue now would consider it shorter from then on.
        """
        started, resumed = self.get(Slot.REPUT_PID), self.get(Slot.RESUMED_BY)
        if started and resumed and started != resumed:
            return None
        return started, self.get(Slot.REPUT_GENERATION)

    def damaged(self) -> list[Slot]:
        """Return the slots whose value differs from the one that their owner published."""
        return damaged_slots(self._slots.__getitem__)

    def publish(self, slot: Slot, value: int) -> None:
        """Make value visible to other processes; the data it refers to must be in place already."""
        native.publish(self._slots, slot, value)

    def head(self) -> Head:
        """Return RocketMQ's five fields."""
        # Not the codec on the view: struct reads big-endian numbers byte by byte, not atomically.
        return Head._make(
            SWAP_OUT.unpack(SWAP_IN.pack(self._slots[field]))[0] for field in range(HEAD_FIELDS)
        )

    def put_head(self, **fields: int) -> None:
        """Store the named fields of RocketMQ's head, each atomically."""
        for name, value in fields.items():
            swapped: int = SWAP_IN.unpack(SWAP_OUT.pack(value))[0]
            self._slots[Head._fields.index(name)] = swapped  # field n is the n-th 8 bytes

    def sync(self) -> None:
        """Make the page durable (fdatasync). Blocks: call it in a thread."""
        self._file.sync()

    def claim(self, slot: Slot, start: int) -> None:
        """Publish this process's start id in slot; ``is_current`` checks that it is still there."""
        self._claimed = slot, start
        self.publish(slot, start)

    def is_current(self) -> bool:
        """Whether the mapped page is still the file at its path, and holds the claimed value. If
        not, this process must end. The reason:

        1. An older copy of the page is written over it. 2. Its generation belongs to a recovery
        that no running process has seen. 3. reput waits for that recovery forever, while the node
        reports that it is ready.
        """
        facts = self._disk.stat(self.path)
        if facts is None or facts.inode != self._inode:
            return False
        slot, start = self._claimed
        return start == 0 or self._slots[slot] == start

    def close(self) -> None:
        """Unmap and close. Slots must not be used afterwards."""
        self._slots.release()
        self._region.close()
        self._file.close()


def _is_sound(page: bytes) -> bool:
    """Whether the page is usable: complete, and its regions are ours or were never written."""
    if len(page) < PAGE_SIZE:
        return False
    start = Slot.MAGIC_AND_FORMAT * 8
    mark = int.from_bytes(page[start : start + 8], "little")
    return mark in (0, REGION_MAGIC)


def _make(disk: Disk, path: Path, content: bytes) -> None:
    """Create a new durable page. Raises FileExistsError, DiskFull, ReadOnlyDisk."""
    with closing(disk.create(path, len(content), reserve=True)) as file:
        # A page of zeros is valid as soon as it has its name. Another process may have mapped it
        # and published values, which writing zeros now would erase.
        if any(content):
            file.pwrite(content, 0)
        file.sync()
    disk.sync_directory(path.parent)
