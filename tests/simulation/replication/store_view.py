"""Everything that a judge reads from a node's store: page, marks of ha, epoch table and log.

Each value exists twice: as processes see it now, and as it will be after a power cut (durable).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from shared.files.store_config import StoreConfig
from tests.support.sim_disk import SimDisk
from tests.support.sim_files import Directory, Inode
from tidemark.formats import epochs
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart, EpochsUnreadable
from tidemark.formats.filenames import offset_name, parse_offset_name

ROOT: Final = Path("/store")
FILE_SIZE: Final = 1 << 13
STORE: Final = StoreConfig(
    commit_log_file_size=FILE_SIZE,
    consume_queue_file_size=20_000,
    index_enabled=False,
    visible_after="confirmed",
)
LOG: Final = ROOT / "commitlog"
QUEUES: Final = ROOT / "consumequeue"
TABLE: Final = ROOT / "epochFileCheckpoint"
PAGE: Final = ROOT / "checkpoint"
PROMISE: Final = ROOT / "ha" / "promise"
IDENTITY: Final = ROOT / "ha" / "identity"
INTENT: Final = ROOT / "ha" / "intent"
CONFIRM: Final = ROOT / "ha" / "confirm"
DAMAGE: Final = ROOT / "ha" / "damage"
TABLE_BACKUP: Final = TABLE.with_name(TABLE.name + ".bak")
CUT: Final = ROOT / "cut"
_SLOT: Final = struct.Struct("<Q")
_name_of: Final = lru_cache(maxsize=1024)(offset_name)


class StoreView:
    """The store of a node, read without effects."""

    disk: SimDisk
    boot: tuple[int, int]
    is_on: bool

    def slot(self, slot: Slot) -> int:
        """Current value of a slot of the page."""
        page = self.disk._find(PAGE)
        if not isinstance(page, Inode) or len(page.cache) <= slot * 8:
            return 0
        value: int = _SLOT.unpack_from(page.cache, slot * 8)[0]
        return value

    def durable_slot(self, slot: Slot) -> int:
        """Value of a slot after a power cut."""
        raw = self._durable_file(PAGE)[slot * 8 : slot * 8 + 8]
        return int.from_bytes(raw, "little")

    @property
    def has_noted_damage(self) -> bool:
        """Whether ``ha/damage`` exists, now or after a power cut."""
        return self._inode(DAMAGE) is not None or bool(self._durable_file(DAMAGE))

    @property
    def flushed(self) -> int:
        """Flushed offset of the page, whichever boot wrote it."""
        return self.slot(Slot.FLUSHED)

    @property
    def is_clean(self) -> bool:
        """Whether the store is marked as cleanly stopped."""
        return self._inode(ROOT / "abort") is None

    @property
    def incarnation(self) -> str:
        """Incarnation in ``ha/identity``; empty without one."""
        stored = self._facts_in(IDENTITY).get("incarnation")
        return stored if isinstance(stored, str) else ""

    @property
    def noted_confirm(self) -> int:
        """Confirm offset in ``ha/confirm``."""
        stored = self._facts_in(CONFIRM).get("confirm")
        return stored if isinstance(stored, int) else 0

    @property
    def noted_damage(self) -> int | None:
        """Offset of the damage in ``ha/damage``; None without one."""
        stored = self._facts_in(DAMAGE).get("at")
        return stored if isinstance(stored, int) else None

    @property
    def has_durable_damage(self) -> bool:
        """Whether ``ha/damage`` survives a power cut."""
        return bool(self._durable_file(DAMAGE))

    @property
    def promised(self) -> int:
        """Epoch in ``ha/promise``."""
        stored = self._facts_in(PROMISE).get("promised")
        return stored if isinstance(stored, int) else 0

    @property
    def seen(self) -> tuple[int, int]:
        """The newest (epoch, version of the in-sync set) of the lease in ``ha/promise``."""
        stored = self._facts_in(PROMISE)
        epoch, version = stored.get("seen_epoch"), stored.get("seen_version")
        if isinstance(epoch, int) and isinstance(version, int):
            return epoch, version
        return 0, 0

    @property
    def durably_promised(self) -> int:
        """Epoch in ``ha/promise`` after a power cut."""
        stored = _facts(self._durable_file(PROMISE)).get("promised", 0)
        return stored if isinstance(stored, int) else 0

    @property
    def durably_seen(self) -> tuple[int, int]:
        """The newest (epoch, version of the in-sync set) in ``ha/promise`` after a power cut."""
        stored = _facts(self._durable_file(PROMISE))
        epoch, version = stored.get("seen_epoch", 0), stored.get("seen_version", 0)
        assert isinstance(epoch, int), "ha writes numbers"
        assert isinstance(version, int), "ha writes numbers"
        return epoch, version

    @property
    def durable_table(self) -> tuple[EpochStart, ...]:
        """The epoch table after a power cut."""
        return _entries(self._durable_file(TABLE)) or _entries(self._durable_file(TABLE_BACKUP))

    @property
    def durable_incarnation(self) -> str:
        """Incarnation in ``ha/identity`` after a power cut."""
        stored = _facts(self._durable_file(IDENTITY)).get("incarnation", "")
        return stored if isinstance(stored, str) else ""

    @property
    def has_durable_intent(self) -> bool:
        """Whether the intent of a cut or a resync survives a power cut."""
        return bool(self._durable_file(INTENT))

    def _durable_file(self, path: Path) -> bytes:
        directory = self.disk._find(path.parent)
        inode = directory.durable.get(path.name) if isinstance(directory, Directory) else None
        return bytes(inode.durable[: inode.lengths[0]]) if isinstance(inode, Inode) else b""

    @property
    def intent(self) -> dict[str, object]:
        """Content of ``ha/intent``; empty without one."""
        return self._facts_in(INTENT)

    def kept(self, start: int) -> list[bytes]:
        """Files in ``cut/`` of cuts at that offset."""
        names = self.disk._find(CUT)
        if not isinstance(names, Directory):
            return []
        return [
            bytes(child.durable[: child.lengths[0]])
            for name, child in names.durable.items()
            if isinstance(child, Inode) and name.startswith(offset_name(start))
        ]

    @property
    def has_intent(self) -> bool:
        """Whether a cut or a resync has begun and not ended."""
        return self._inode(INTENT) is not None

    @property
    def table(self) -> tuple[EpochStart, ...]:
        """The epoch table."""
        return _entries(self.disk.peek(TABLE) or b"") or _entries(
            self.disk.peek(TABLE_BACKUP) or b""
        )

    @property
    def has_table_backup(self) -> bool:
        """Whether the epoch table and its backup are equal."""
        return self.disk.peek(TABLE) == self.disk.peek(TABLE_BACKUP)

    def page(self) -> bytes:
        """The page as processes see it."""
        return self.disk.peek(PAGE) or b""

    @property
    def begins_at(self) -> int:
        """Start of the log: MIN of the page, or the first file until the log is recovered."""
        if self.is_on and self.slot(Slot.RECOVERED_BY) and self._is_of_this_boot:
            return self.slot(Slot.MIN)
        return self.first_file()

    def files(self) -> list[int]:
        """Starts of the log files, including those that return after a power cut."""
        directory = self._directory()
        names = {} if directory is None else {**directory.names, **directory.durable}
        starts = (parse_offset_name(name) for name in names)
        return sorted(start for start in starts if start is not None)

    def first_file(self, *, durable: bool = False) -> int:
        """Start of the first log file; 0 without files. durable: as after a power cut."""
        directory = self._directory()
        if directory is None:
            return 0
        names = directory.durable if durable else directory.names
        starts = (parse_offset_name(name) for name in names)
        return min((start for start in starts if start is not None), default=0)

    @property
    def _is_of_this_boot(self) -> bool:
        return (self.slot(Slot.BOOT_ID_HIGH), self.slot(Slot.BOOT_ID_LOW)) == self.boot

    @property
    def end(self) -> int:
        """End of the log; 0 until it is recovered in this boot."""
        return self.slot(Slot.WRITTEN) if self.is_on and self._is_of_this_boot else 0

    def log(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the log as processes see them, up to the first missing byte."""
        return self._bytes(start, end, durable=False)

    def durable_log(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the log that survive a power cut, up to the first missing byte."""
        return self._bytes(start, end, durable=True)

    def has(self, log: bytearray, start: int, end: int, *, durable: bool = False) -> bool:
        """Whether this log and `log` have equal bytes [start, end). durable: whether they would
        after a power cut."""
        at, directory = start, self._directory()
        names = {} if directory is None else directory.durable if durable else directory.names
        wanted = memoryview(log)[:end]
        while at < end:
            within = at % FILE_SIZE
            inode = names.get(_name_of(at - within))
            if not isinstance(inode, Inode):
                return False
            piece = wanted[at : at - within + FILE_SIZE]
            at += len(piece)
            if durable and inode.lengths[0] < within + len(piece):
                return False
            source = inode.durable if durable else inode.cache
            if not piece or not source.startswith(piece, within):
                return False
        return True

    def unsynced(self) -> Iterator[Path]:
        """Log files, and their offset files, of which a power cut would lose something."""
        for path, names in ((LOG, None), (ROOT, TABLE.name), (IDENTITY.parent, IDENTITY.name)):
            node = self.disk._find(path)
            if not isinstance(node, Directory):
                continue
            for name, child in node.names.items():
                if names in (None, name) and isinstance(child, Inode):
                    durable = bytes(child.durable[: child.lengths[0]])
                    if node.durable.get(name) is not child or durable != bytes(child.cache):
                        yield path / name

    def _bytes(self, start: int, end: int, *, durable: bool) -> bytes:
        directory = self._directory()
        if directory is None:
            return b""
        names = directory.durable if durable else directory.names
        found = []
        while start < end:
            first = start - start % FILE_SIZE
            inode = names.get(_name_of(first))
            if not isinstance(inode, Inode):
                break
            size = min(end, first + FILE_SIZE) - start
            at = start - first
            if durable:
                piece = inode.durable[at : min(at + size, inode.lengths[0])]
            else:
                piece = inode.cache[at : at + size]
            found.append(piece)
            if len(piece) < size:
                break
            start += size
        return b"".join(found)

    def _directory(self) -> Directory | None:
        node = self.disk._find(LOG)
        return node if isinstance(node, Directory) else None

    def _inode(self, path: Path) -> Inode | None:
        node = self.disk._find(path)
        return node if isinstance(node, Inode) else None

    @property
    def leftovers(self) -> list[str]:
        """Files of the previous log that an emptied store would still have after a power cut."""
        log = self._directory()
        files = [] if log is None else list(log.durable)
        below = [self.disk._find(path) for path in (QUEUES, ROOT / "config")]
        names = [name for each in below if isinstance(each, Directory) for name in each.durable]
        return [*names, *files[1:]]

    @property
    def is_being_emptied(self) -> bool:
        """Whether a resync has begun and the identity has not changed yet."""
        return self._facts_in(INTENT).get("what") == "resync"

    def _facts_in(self, path: Path) -> dict[str, object]:
        return _facts(self.disk.peek(path) or b"")


@lru_cache(maxsize=1024)
def _facts(raw: bytes) -> dict[str, object]:
    """Parse a file of ha, cached since the judge reads often. Empty if the file was corrupted."""
    try:
        stored = json.loads(raw.partition(b"\n")[0] or b"{}")
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}


@lru_cache(maxsize=1024)
def _entries(raw: bytes) -> tuple[EpochStart, ...]:
    try:
        return tuple(epochs.decode(raw)) if raw else ()
    except EpochsUnreadable:
        return ()  # The file was corrupted on purpose.
