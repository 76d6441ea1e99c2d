"""The checkpoint page: RocketMQ's head and the regions log, broker, reput and ha, one writer each.

4096 bytes at ``checkpoint``, mapped by every process of the node: how they tell each other how far
things are. Everything here is a hint about where to start looking; a missing, short or damaged
page is made anew and costs time, never a message. Invariants (docs/formats.md, section 6):

- A slot is read and published by one aligned 8-byte store, never ``struct.pack_into``: that clears
  the bytes before it fills them, and another process then reads offset 0 (measured: 4 to 9 % of
  reads). The head's big-endian fields are byte-swapped first and stored the same way.
- The page's block is reserved before it is mapped for writing: a store into it cannot fail.
- Order of every publication: bytes, checksum over them, then the slot that makes them visible.
- Every slot has a check, stored before the value. Readers of a running node do not look at it;
  ``proven`` does, for whoever takes a value of an earlier process as evidence.

Step before: ``commit_log`` put the bytes. Step after: flusher, reput and ha read how far.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, File, read_whole
from tidemark.errors import DiskFull, ReadOnlyDisk, StoreError
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
"""Two processes may replace a damaged page at once; each try follows one replacement."""


class Positions:
    """The mapped page. Each slot has one writer; everybody may read."""

    def __init__(self, disk: Disk, path: Path, file: File, inode: int, *, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._file = file
        self._inode = inode
        self._region = file.map(writable=writable)
        self._slots = self._region.view.cast("Q")
        self._claimed = (Slot.MAGIC_AND_FORMAT, 0)
        """This process's slot and the value in it; 0: it has none."""
        self.is_private = False
        """The store itself cannot hold the page; it stands in ``run_dir`` instead."""

    @classmethod
    def open(
        cls, disk: Disk, path: Path, *, writable: bool = True, fallback: Path | None = None
    ) -> Positions:
        """Map the page at path, made anew if it is missing, short or damaged.

        writable: False for tools that only look; raises FileNotFoundError if there is no page that
        can be used.
        fallback: where a page may stand in when path cannot be written (full or read-only disk);
        it starts as a copy of what path holds. Raises DiskFull or ReadOnlyDisk without one.
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
        # The second half remembers what the page was copied from. A page left by an earlier time
        # in which the disk refused writes would otherwise speak of another state of the store.
        present = read_whole(disk, fallback)
        if present is not None and present[PAGE_SIZE:] != seed:
            disk.unlink(fallback)
        positions = cls._open_or_make(disk, fallback, seed + seed)
        positions.is_private = True
        return positions

    @classmethod
    def _open_or_make(cls, disk: Disk, path: Path, content: bytes) -> Positions:
        """Map the page at path; if it is not sound, one with content instead."""
        for _ in range(OPEN_TRIES):
            present = read_whole(disk, path)
            if present is not None and len(present) == len(content) and _is_sound(present):
                try:
                    return cls._map(disk, path, writable=True)
                except FileNotFoundError:  # replaced between the two looks
                    continue
            try:
                if present is not None:
                    disk.unlink(path)
                _make(disk, path, content)
            except (FileExistsError, FileNotFoundError):
                continue  # another process does the same; look again
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
                file.reserve(0, PAGE_SIZE)  # a hole would be a SIGBUS at the first store
            return cls(disk, path, file, after.inode, writable=writable)
        except BaseException:
            file.close()
            raise

    # -- slots ----------------------------------------------------------------------------------

    def get(self, slot: Slot) -> int:
        """What the slot's owner published last; 0 if nothing yet."""
        return self._slots[slot]

    def proven(self, slot: Slot) -> int:
        """The slot's value as evidence: 0 if a check says that it was not published so."""
        return proven(slot, self._slots.__getitem__)

    def is_checked(self, slot: Slot) -> bool:
        """Whether the slot has a check, and its value fits."""
        check = self._slots[check_slot(slot)]
        return check != 0 and fits(slot, self._slots[slot], check)

    def seal(self) -> None:
        """Give the values of a page of an earlier version their checks, before anybody else goes
        on. For the process that recovers; a page that has checks stays as it is."""
        slots = self._slots
        if not slots[check_slot(Slot.MAGIC_AND_FORMAT)]:
            for slot in Slot:
                slots[check_slot(slot)] = check_of(slot, slots[slot], slots[slot])

    def resumed_dispatch(self) -> tuple[int, int] | None:
        """Which start of reput made the queue files what they are, and under which generation.

        None while a start of reput has not looked at them: files may be missing until it has, and
        whoever opens a queue anew then would take it for a shorter one, for good.
        """
        started, resumed = self.get(Slot.REPUT_PID), self.get(Slot.RESUMED_BY)
        if started and resumed and started != resumed:
            return None
        return started, self.get(Slot.REPUT_GENERATION)

    def damaged(self) -> list[Slot]:
        """The slots whose value is not the one that their owner published."""
        return damaged_slots(self._slots.__getitem__)

    def publish(self, slot: Slot, value: int) -> None:
        """Let other processes see value; what it speaks of must be in place already."""
        slots = self._slots
        slots[check_slot(slot)] = check_of(slot, value, slots[slot])
        slots[slot] = value

    def head(self) -> Head:
        """RocketMQ's five fields."""
        # Not the codec on the view: struct reads big-endian numbers byte by byte, torn.
        return Head._make(
            SWAP_OUT.unpack(SWAP_IN.pack(self._slots[field]))[0] for field in range(HEAD_FIELDS)
        )

    def put_head(self, **fields: int) -> None:
        """Store the named fields of RocketMQ's head, each in one piece."""
        for name, value in fields.items():
            swapped: int = SWAP_IN.unpack(SWAP_OUT.pack(value))[0]
            self._slots[Head._fields.index(name)] = swapped  # field n is the n-th 8 bytes

    def sync(self) -> None:
        """Make the page durable (fdatasync). Blocks: call it in a thread."""
        self._file.sync()

    def claim(self, slot: Slot, start: int) -> None:
        """Publish which start of which process this is; ``is_current`` looks whether it stands."""
        self._claimed = slot, start
        self.publish(slot, start)

    def is_current(self) -> bool:
        """Whether the mapped page is still the file at its path, and holds what this process
        claimed; if not, this process must end.

        1. An older copy of the page is written over it; 2. its generation is one that nobody who is
        up recovered; 3. reput waited for that recovery for ever, and the node said it was ready.
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
    """Whether the page can be used: whole, and its regions ours or never written."""
    if len(page) < PAGE_SIZE:
        return False
    start = Slot.MAGIC_AND_FORMAT * 8
    mark = int.from_bytes(page[start : start + 8], "little")
    return mark in (0, REGION_MAGIC)


def _make(disk: Disk, path: Path, content: bytes) -> None:
    """A new durable page. Raises FileExistsError, DiskFull, ReadOnlyDisk."""
    file = disk.create(path, len(content), reserve=True)
    try:
        # A page of zeros is one as soon as it has its name: another process may have mapped it, and
        # published what zeros written now would take away.
        if any(content):
            file.pwrite(content, 0)
        file.sync()
    finally:
        file.close()
    disk.sync_directory(path.parent)
