"""Index reader: finds physical offsets by key and time range (docs/formats.md, section 5.6).

It searches the index files for a key, newest file first, and checks each hit by its record. It
writes nothing (reput is the writer). Invariants:

- A hit counts only if its record ends at or below ``dispatched``.
- Hashes collide: a record counts only if it has the key.
- Files are mapped lazily, at most ``MAPPED_MAX`` at a time: each has hundreds of megabytes.
- A lookup consists of short steps and processes no more than its ``Budget`` allows, because keys of
  equal hash and long chains can be created on purpose.
- The directory is listed again only if it may have changed: a file is created when the last one is
  full, and is replaced only after the files after it were removed.

Step before: reput added the keys and published ``dispatched``. Step after: the broker reads the
records and answers (read path, step 2).
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from shared.files.commit_log import CommitLogReader
from shared.files.disk import MappedRegion
from shared.files.store_dir import StoreDir
from tidemark.errors import DamagedFile
from tidemark.formats import hashing
from tidemark.formats.filenames import parse_index_name
from tidemark.formats.index_file import IndexFile
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

HITS_MAX: Final = 64
"""Largest number of hits of one query (5.6)."""
MAPPED_MAX: Final = 16
HITS_AT_ONCE: Final = 64
ENTRIES_AT_ONCE: Final = 1024
"""Entries that one step processes: about 50 µs if none of them is in a CPU cache."""
USUAL_CHAIN: Final = 32
"""Entries of a chain in one file that do not count for a budget; a slot has four on average."""
ENTRIES_LOOKED_AT_MAX: Final = 1 << 16
RECORDS_JUDGED_MAX: Final = 1024
BYTES_JUDGED_MAX: Final = 16 << 20
"""Limits of one call, after which it returns the place to continue."""
TIME_MAX: Final = 2**63 - 1


class Asked(NamedTuple):
    """Parameters of one query."""

    topic: str
    key: str
    dispatched: int
    begin_ms: int = 0
    end_ms: int = TIME_MAX
    unique_id_only: bool = False
    """The key is a unique id; equal keys of other messages do not match."""
    floor: int = 0
    """Physical offset: records that begin below it are not searched."""


class IndexPlace(NamedTuple):
    """The place where a lookup continues; everything newer has been processed."""

    file: str
    number: int
    """Number of the next entry of the chain."""
    below: int
    """Physical offset of the last record that was checked; older ones follow."""

    def __str__(self) -> str:
        return f"{self.file}-{self.number}-{self.below}"

    @classmethod
    def parse(cls, text: str) -> IndexPlace:
        """Parse a place. Raises ValueError."""
        file, *numbers = text.split("-")
        if not text.isascii() or parse_index_name(file) is None or len(numbers) != 2:
            raise ValueError(f"{text[:80]!r} is no place of a look-up")
        number, below = (int(each) if each.isdigit() else -1 for each in numbers)
        if not (0 <= number < 1 << 31 and 0 <= below <= TIME_MAX):
            raise ValueError(f"{text[:80]!r} is no place of a look-up")
        return cls(file, number, below)


class Budget:
    """Work that one call may do, for one or more lookups."""

    __slots__ = ("bytes", "entries", "records")

    def __init__(
        self,
        entries: int = ENTRIES_LOOKED_AT_MAX,
        records: int = RECORDS_JUDGED_MAX,
        size: int = BYTES_JUDGED_MAX,
    ) -> None:
        """size: limit on the total size of the records [bytes]."""
        self.entries, self.records, self.bytes = entries, records, size

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return self.entries <= 0 or self.records <= 0 or self.bytes <= 0


class Search:
    """One lookup, newest file and newest entry first, in steps. Each step checks at most one record
    or reads at most ENTRIES_AT_ONCE entries. Others may use the reader between two steps."""

    def __init__(
        self,
        reader: IndexReader,
        asked: Asked,
        wanted: int,
        budget: Budget | None,
        at: IndexPlace | None = None,
    ) -> None:
        """budget: None means unlimited. at: where an earlier lookup stopped."""
        self._reader, self._asked, self._wanted, self._budget = reader, asked, wanted, budget
        self._key_hash = hashing.index_hash(asked.topic, asked.key)
        self._names: Sequence[str] | None = None
        """The files at the start of the lookup, oldest first."""
        self._name: str | None = None
        """The file being searched; None before the first and after the last one."""
        self._number, self._next, self._below = 0, 0, asked.dispatched
        if at is not None:
            self._name, self._number, self._below = at.file, at.number, min(at.below, self._below)
        self._hits: list[int] = []
        """Hits of the entries from _number to _next that are not checked yet, oldest first."""
        self.has_ended = False
        """Whether everything was searched."""
        self._found: dict[int, Record] = {}
        self.found_size = 0
        """Total bytes of the records found."""

    @property
    def found(self) -> list[Record]:
        """The records found, in log order."""
        return [self._found[offset] for offset in sorted(self._found)]

    @property
    def place(self) -> IndexPlace | None:
        """The place to continue; None if everything was searched."""
        if self.has_ended:
            return None
        assert self._name is not None, "nothing was looked at yet"
        return IndexPlace(self._name, self._number, self._below)

    @property
    def is_over(self) -> bool:
        """Whether the lookup has ended, or has reached a limit."""
        return (
            self.has_ended
            or len(self._found) >= self._wanted
            or (self._budget is not None and self._budget.is_spent)
        )

    def place_after(self, offset: int) -> IndexPlace:
        """Return the place to continue without the record at offset, which is damaged."""
        assert self._name is not None, "nothing was looked at yet"
        return IndexPlace(self._name, self._number, offset)

    def steps(self) -> Iterator[None]:
        """Run all steps. Raises DamagedFile; ``place`` is then where it would be raised again."""
        while not self.is_over:
            self._step()
            yield

    def _step(self) -> None:
        if self._hits:
            self._judge(PhysicalOffset(self._hits.pop()))
            if not self._hits:
                self._go_on()
            return
        file = self._file()
        if file is None:
            self.has_ended = True
            return
        hits, self._next, seen = file.look_up_some(
            self._key_hash,
            begin_ms=self._asked.begin_ms,
            end_ms=self._asked.end_ms,
            hits_max=HITS_AT_ONCE,
            first=self._number,
            entries_max=ENTRIES_AT_ONCE,
        )
        if self._budget is not None:
            self._budget.entries -= max(0, seen - USUAL_CHAIN)
        # A record with several keys of this hash has adjacent entries, one for each. It is checked
        # once, whether it has the key or not.
        self._hits = sorted({offset for offset in hits if offset < self._below})
        if self._hits and self._hits[0] < self._asked.floor:
            self._hits = [offset for offset in self._hits if offset >= self._asked.floor]
            self._next = 0
        if not self._hits:
            self._go_on()

    def _go_on(self) -> None:
        """Move to the entries after those that were read, or to the next older file."""
        self._number = self._next
        if not self._number:
            self._leave_file()

    def _judge(self, offset: PhysicalOffset) -> None:
        record = self._reader.judge(offset, self._asked)
        self._below = int(offset)
        if self._budget is not None:
            self._budget.records -= 1
            self._budget.bytes -= 0 if record is None else record[1]
        if record is not None and record[0] is not None:
            self._found[int(offset)] = record[0]
            self.found_size += record[1]

    def _file(self) -> IndexFile | None:
        """Return the file to search now; None if there is no other."""
        if self._names is None:
            self._names = self._reader.names_now()
            if self._name is None and self._names:
                self._name = self._names[-1]
        while self._name is not None:
            file = self._reader.file(self._name)
            if file is not None:
                first_ms, last_ms = file.times_ms
                if self._number or (
                    first_ms <= self._asked.end_ms and self._asked.begin_ms <= last_ms
                ):
                    return file
            self._leave_file()
        return None

    def _leave_file(self) -> None:
        """Move to the next older file, unless it cannot contain matching records."""
        assert self._name is not None
        assert self._names is not None
        file = self._reader.file(self._name)
        older_count = bisect.bisect_left(self._names, self._name)
        if file is not None and (
            file.times_ms[0] < self._asked.begin_ms or file.begin_offset < self._asked.floor
        ):
            older_count = 0
        self._number = 0
        self._name = self._names[older_count - 1] if older_count else None
        self.has_ended = self._name is None


class IndexReader:
    """All index files of a store, read-only. Not thread-safe."""

    def __init__(self, store: StoreDir, log: CommitLogReader) -> None:
        self._disk = store.disk
        self._directory = store.index_dir
        self._geometry = store.config.index_geometry
        self._log = log
        self._open: OrderedDict[str, tuple[int, MappedRegion, IndexFile]] = OrderedDict()
        self._listed: list[str] = []
        """Names of the files when the directory was last listed, oldest first."""
        self._listed_min = -1
        """Start of the log at that time: files of expired records are removed with the records."""
        self._checked: set[str] = set()
        """Files that were mapped, or found identical to their mapping, since that time."""

    def records(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        hits_max: int = HITS_MAX,
        dispatched: int,
        unique_id_only: bool = False,
    ) -> list[Record]:
        """Return records of topic whose keys or unique id match key, checked, in log order.

        The result is the newest hits_max of them (at most 64) with begin_ms ≤ time ≤ end_ms. An
        index stores whole seconds from its file's beginning, so an exact begin_ms may miss records:
        lower it by 1 s. unique_id_only: key is a unique id; replies that have the id of their
        request among their keys are then not returned. Raises DamagedFile.
        """
        search = self.search(
            Asked(topic, key, dispatched, begin_ms, end_ms, unique_id_only), hits_max=hits_max
        )
        for _ in search.steps():
            pass
        return search.found

    def search(
        self,
        asked: Asked,
        *,
        hits_max: int = HITS_MAX,
        budget: Budget | None = None,
        at: IndexPlace | None = None,
    ) -> Search:
        """Create a lookup of the newest hits_max records (at most 64), to be run in steps.
        budget: None means unlimited. at: the place where an earlier lookup stopped."""
        return Search(self, asked, min(hits_max, HITS_MAX), budget, at)

    def judge(self, offset: PhysicalOffset, asked: Asked) -> tuple[Record | None, int] | None:
        """Return the record of an entry (None if it does not have the key) and its size [bytes];
        None if it has expired or is not dispatched yet. Raises DamagedFile."""
        if offset < self._log.min_offset or offset >= asked.dispatched:
            return None
        record = self._log.find(offset, PhysicalOffset(asked.dispatched))
        if record is None:
            if offset < self._log.min_offset:  # expired since the first check
                return None
            raise DamagedFile(
                f"an index entry points to physical offset {offset}, where no sound record begins. "
                "Either the index is damaged or the record is; nothing was answered.",
                "Run `tidemark store verify`; if the log is sound, `tidemark store rebuild` makes "
                "the index anew.",
                physical_offset=int(offset),
            )
        has_key = record.topic == asked.topic and (
            record.unique_id == asked.key or (not asked.unique_id_only and asked.key in record.keys)
        )
        return (record if has_key else None), record.size

    def has_record(self, offset: PhysicalOffset) -> bool:
        """Whether a record that begins at offset was indexed. Raises DamagedFile."""

        def begin(name: str) -> PhysicalOffset:
            opened = self.file(name)
            return PhysicalOffset(0 if opened is None else opened.begin_offset)

        names = self.names_now()
        count = bisect.bisect_right(names, offset, key=begin)
        # A new file begins with the last record of the one before, which may have all its entries.
        for name in names[max(0, count - 2) : count]:
            file = self.file(name)
            number = 0 if file is None else file.first_at(offset)
            if (
                file is not None
                and number <= file.entry_count
                and file.entry(number).physical_offset == offset
            ):
                return True
        return False

    def names(self) -> list[str]:
        """Return the names of all index files, oldest first; other files are ignored."""
        return [
            entry.name
            for entry in self._disk.list_directory(self._directory)
            if not entry.is_directory and parse_index_name(entry.name) is not None
        ]

    def close(self) -> None:
        """Unmap everything."""
        while self._open:
            _, region, file = self._open.popitem()[1]
            file.close()
            region.close()

    def names_now(self) -> list[str]:
        """Return ``names``; the directory is listed only if it may have changed."""
        if not self._is_as_listed():
            self._listed_min = self._log.min_offset
            self._listed = self.names()
            self._checked.clear()
        return self._listed

    def _is_as_listed(self) -> bool:
        """Whether the newest file is still the one that is mapped, and is not full. Then there is
        no newer file, and no older one was replaced, because the newest would be removed first."""
        if not self._listed or self._log.min_offset != self._listed_min:
            return False
        newest = self._listed[-1]
        opened = self._open.get(newest)
        if opened is None or newest not in self._checked or opened[2].is_full:
            return False
        facts = self._disk.stat(self._directory / newest)
        # No other file can have this inode number while this one is mapped.
        return facts is not None and facts.inode == opened[0]

    def file(self, name: str) -> IndexFile | None:
        """Return the mapped file; None if it just expired. Raises DamagedFile if it is short."""
        if name in self._checked and (known := self._open.get(name)) is not None:
            self._open.move_to_end(name)
            return known[2]
        path = self._directory / name
        facts = self._disk.stat(path)
        if facts is None:
            return None
        if facts.size < self._geometry.size:
            raise DamagedFile(
                f"index file {path} has {facts.size} bytes instead of {self._geometry.size}. "
                "Records are not affected; queries by key are not answered.",
                "Run `tidemark store rebuild`, which rebuilds the index from the log.",
                path=path,
            )
        opened = self._open.get(name)
        self._checked.add(name)
        if opened is not None and opened[0] == facts.inode:
            self._open.move_to_end(name)
            return opened[2]
        if opened is not None:  # rebuilt under the same name
            self._forget(name)
        with closing(self._disk.open(path, writable=False)) as file:
            region = file.map(writable=False, scattered=True)
        mapped = IndexFile(region.view[: self._geometry.size], self._geometry)
        self._open[name] = (facts.inode, region, mapped)
        while len(self._open) > MAPPED_MAX:
            self._forget(next(iter(self._open)))
        return mapped

    def _forget(self, name: str) -> None:
        _, region, file = self._open.pop(name)
        file.close()
        region.close()
