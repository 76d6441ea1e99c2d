"""Compares index files with records for ``store verify`` (docs/formats.md, section 5). Read-only.

Entries and records have the same order, so one pass over both is enough: each record consumes the
entries with its physical offset. Chains are checked in the order in which they were built: every
entry must point to the previous entry of its slot, and the slot table to the last one.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from shared.files.disk import MappedRegion
from shared.files.store_config import existing_sizes
from tidemark.cli.offline import OfflineStore
from tidemark.formats import hashing, properties, record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import parse_index_name
from tidemark.formats.index_file import (
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_SIZE,
    Geometry,
    IndexFile,
)
from tidemark.formats.scan import Entry

SEARCHED_SIZE_MAX: Final = 64 << 20
"""The geometry of larger index files is not searched for: too many candidates could fit."""

DamageNoted = Callable[[str, int | None, str], None]


class _Put(NamedTuple):
    """One entry of an index file."""

    name: str
    number: int
    at: int
    """Byte offset in the file."""
    key_hash: int
    physical_offset: int


class IndexCheck:
    """Takes the log's records in order and reports missing and superfluous index entries."""

    def __init__(
        self,
        offline: OfflineStore,
        damage: DamageNoted,
        remark: Callable[[str], None],
        *,
        slots: int | None,
    ) -> None:
        self._offline = offline
        self._damage = damage
        self._remark = remark
        self._geometry = offline.config.index_geometry
        self._slots = slots
        self.files = 0
        self.entries = 0
        self.lost_records = False
        self._missing = 0
        self._first_missing: int | None = None
        # RocketMQ removes index files when it starts after a crash and does not rebuild all of
        # them. Our services do.
        self._durable = 0 if offline.rocketmq_wrote else offline.slot(Slot.DISPATCHED_DURABLE)
        self._puts = self._all()
        self._next = next(self._puts, None)

    def record(self, entry: Entry) -> None:
        """Compare a record's keys with the entries that point to it."""
        self._pass_over(entry.physical_offset)
        expected = Counter(_hashes(entry))
        found: Counter[int] = Counter()
        while self._next is not None and self._next.physical_offset == entry.physical_offset:
            put = self._next
            found[put.key_hash] += 1
            # Duplicate entries are not damage: RocketMQ indexes a record again after a crash.
            if put.key_hash not in expected and put.key_hash != self._hash_of_tags(entry):
                self._damage(
                    f"index/{put.name}",
                    put.at,
                    f"entry {put.number}: the record at physical offset {put.physical_offset} has "
                    f"no key with hash {put.key_hash}",
                )
            self._next = next(self._puts, None)
        if expected - found and self.files:
            self._note_missing(entry)

    def _hash_of_tags(self, entry: Entry) -> int | None:
        """Key hash of the record's tags, which RocketMQ indexes from 5.4 on; None without tags."""
        file_start = self._offline.files.start_of(entry.physical_offset)
        view, at = self._offline.files.view(file_start), entry.physical_offset - file_start
        tags = record.decode(view[: at + entry.size], at).property_map.get(properties.TAGS)
        return hashing.index_hash(entry.topic, f"T#{tags}") if tags else None

    def finish(self, log_end: int) -> None:
        """Report the entries after the last record, and records without entries."""
        behind = 0
        while self._next is not None:
            if self._next.physical_offset < log_end:
                self._pass_over(log_end)
            else:
                behind += 1
                self._next = next(self._puts, None)
        if behind and not self._offline.in_use:
            self._remark(
                f"{behind} index entries point beyond the log's end; the next start removes them"
            )
        if self._missing:
            self._remark(
                f"{self._missing} records, the first at physical offset {self._first_missing}, are "
                "not in the index (not dispatched yet, or dispatched while the index was off)"
            )

    def _note_missing(self, entry: Entry) -> None:
        if entry.physical_offset + entry.size <= self._durable:
            self._damage(
                "index", None, f"the keys of the record at {entry.physical_offset} are missing"
            )
            return
        self._missing += 1
        if self._first_missing is None:
            self._first_missing = entry.physical_offset

    def _pass_over(self, physical_offset: int) -> None:
        """Consume and report entries that point before physical_offset; there should be none."""
        while self._next is not None and self._next.physical_offset < physical_offset:
            put = self._next
            self._next = next(self._puts, None)
            if put.physical_offset >= self._offline.min_offset and not self.lost_records:
                self._damage(
                    f"index/{put.name}",
                    put.at,
                    f"entry {put.number} points to physical offset {put.physical_offset}, where "
                    "no record starts",
                )

    # -- the files ------------------------------------------------------------------------------

    def _all(self) -> Iterator[_Put]:
        """Yield all entries of all files, oldest first, after checking each file's structure."""
        directory = self._offline.store.index_dir
        for listed in self._offline.disk.list_directory(directory):
            if listed.is_directory or parse_index_name(listed.name) is None:
                continue
            try:
                file = self._offline.disk.open(directory / listed.name, writable=False)
            except FileNotFoundError:
                continue  # it expired meanwhile
            try:
                region = file.map(writable=False)
            finally:
                file.close()
            try:
                yield from self._file(listed.name, region)
            finally:
                region.close()

    def _file(self, name: str, region: MappedRegion) -> Iterator[_Put]:
        self.files += 1
        geometry = self._geometry_of(region.view)
        if geometry is None:
            self._remark(
                f"index/{name}: its number of slots is not known; give --index-slots to check it"
            )
            return
        if len(region.view) < geometry.size:
            self._damage(
                f"index/{name}", None, f"{len(region.view)} bytes, {geometry.size} are expected"
            )
            return
        with closing(IndexFile(region.view[: geometry.size], geometry)) as index:
            if (problem := index.problem()) is not None:
                self._damage(f"index/{name}", 0, problem)
                return
            yield from self._entries(name, index, slot_table(region.view, geometry))

    def _entries(self, name: str, index: IndexFile, table: array[int]) -> Iterator[_Put]:
        geometry, count = index.geometry, index.entry_count
        newest = array("i", bytes(SLOT_SIZE * geometry.slots))
        for number in range(1, count + 1):
            entry = index.entry(number)
            at = geometry.entry_offset(number)
            slot = entry.key_hash % geometry.slots
            if entry.key_hash < 0 or entry.previous != newest[slot]:
                self._damage(
                    f"index/{name}",
                    at,
                    f"entry {number} follows entry {entry.previous}, not {newest[slot]}",
                )
            newest[slot] = number
            self.entries += 1
            yield _Put(name, number, at, entry.key_hash, entry.physical_offset)
        if table == newest:
            return
        for slot, expected in enumerate(newest):
            found = table[slot] if 0 < table[slot] <= count else 0
            # A slot above the count is empty for readers, or is just being written.
            if found != expected and (found or table[slot] == 0):
                self._damage(
                    f"index/{name}",
                    geometry.slot_offset(slot),
                    f"slot {slot} holds entry {found}, not {expected}",
                )

    def _geometry_of(self, view: memoryview) -> Geometry | None:
        """Infer the slots and entries of a file, of which only the size is known."""
        if self._slots is not None:
            return Geometry(
                self._slots, (len(view) - HEADER_SIZE - SLOT_SIZE * self._slots) // ENTRY_SIZE
            )
        if len(view) == self._geometry.size or not self._offline.is_foreign:
            return self._geometry
        if len(view) > SEARCHED_SIZE_MAX:
            return None
        found = fitting_geometry(view)
        if found is not None:
            self._geometry = found
        return found


def geometry_of_store(offline: OfflineStore, slots: int | None) -> Geometry | None:
    """Return the geometry of a store's index files; None if it cannot be determined.

    slots: given by the user. Without index files, or with tidemark.json: as configured.
    """
    configured = offline.config.index_geometry
    size = existing_sizes(offline.disk, offline.store.root).get("index_file_size")
    if not offline.is_foreign or size is None or size == configured.size:
        return configured
    if slots is not None:
        return Geometry(slots, (size - HEADER_SIZE - SLOT_SIZE * slots) // ENTRY_SIZE)
    if size > SEARCHED_SIZE_MAX:
        return None
    for listed in offline.disk.list_directory(offline.store.index_dir):
        with closing(
            offline.disk.open(offline.store.index_dir / listed.name, writable=False)
        ) as file:
            found = fitting_geometry(memoryview(file.pread(size, 0)))
        if found is not None:
            return found
    return None


def fitting_geometry(view: memoryview) -> Geometry | None:
    """Search for the geometry with which a file's parts are consistent; None if there is none."""
    room = len(view) - HEADER_SIZE
    for slots in range(1, room // SLOT_SIZE):
        entries, rest = divmod(room - SLOT_SIZE * slots, ENTRY_SIZE)
        if rest or entries < 2:
            continue
        geometry = Geometry(slots, entries)
        with closing(IndexFile(view, geometry)) as index:
            if index.entry_count and index.problem() is None and _slots_fit(index, view):
                return geometry
    return None


def slot_table(view: memoryview, geometry: Geometry) -> array[int]:
    """Return all slots of the file."""
    table = array("i")
    table.frombytes(view[HEADER_SIZE : geometry.slot_offset(geometry.slots)])
    if sys.byteorder == "little":
        table.byteswap()
    return table


def _slots_fit(index: IndexFile, view: memoryview) -> bool:
    """Whether the slot table agrees with the header, and each slot's entry belongs to the slot."""
    used = 0
    for slot, number in enumerate(slot_table(view, index.geometry)):
        if number == 0:
            continue
        if not 0 < number <= index.entry_count:
            return False
        if index.entry(number).key_hash % index.geometry.slots != slot:
            return False
        used += 1
    return used == index.header.slots_used


def _hashes(entry: Entry) -> Iterator[int]:
    """Key hashes under which a record is indexed (section 5.4)."""
    if entry.sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK:
        return
    if entry.unique_id is not None:
        yield hashing.index_hash(entry.topic, entry.unique_id)
    for key in entry.keys.split(" "):
        if key:
            yield hashing.index_hash(entry.topic, key)
