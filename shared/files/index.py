"""Index reader: key and time range → physical offsets (docs/formats.md, section 5.6).

Looks keys up in the index files, newest file first, and judges each hit by the record it points to.
Writes nothing (the writer is reput's). Invariants:

- A hit counts only if its record ends at or below ``dispatched``.
- Hashes collide: unless asked for the raw hits, a record counts only if it has that key.
- Files are mapped lazily, at most ``MAPPED_MAX`` at a time: each has hundreds of megabytes.
- The directory is looked at again as soon as it may have changed, and not before: a file is made
  when the last one is full, and is replaced only after those behind it were removed.

Step before: reput put the keys and published ``dispatched``. Step after: the broker reads and
answers the records (walk step 9).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from shared.files.disk import MappedRegion
from shared.files.store_dir import StoreDir
from tidemark.errors import DamagedFile
from tidemark.formats import hashing
from tidemark.formats.filenames import parse_index_name
from tidemark.formats.index_file import Header, IndexFile
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

HITS_MAX: Final = 64
"""More are never returned by one query (5.6)."""
MAPPED_MAX: Final = 16
TIME_MAX: Final = 2**63 - 1


class LogRecords(Protocol):
    """What a query needs of the commit log."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """Start of the oldest file."""
        ...

    def find(self, offset: PhysicalOffset, end: PhysicalOffset) -> Record | None:
        """The validated record at offset; None if none begins there below end."""
        ...


class Hits(NamedTuple):
    """Raw answer of one query, as RocketMQ gives it."""

    physical_offsets: list[PhysicalOffset]
    """Ascending; those of other keys with the same hash, and of one record twice, included."""
    last_update_timestamp_ms: int
    """End time of the newest index file; 0 if nothing was hit."""
    last_update_offset: int


class _Asked(NamedTuple):
    """One question."""

    topic: str
    key: str
    key_hash: int
    begin_ms: int
    end_ms: int
    dispatched: int
    unique_id_only: bool


class IndexReader:
    """All index files of a store, read-only. Not for use by two threads at once."""

    def __init__(self, store: StoreDir, log: LogRecords) -> None:
        self._disk = store.disk
        self._directory = store.index_dir
        self._geometry = store.config.index_geometry
        self._log = log
        self._open: OrderedDict[str, tuple[int, MappedRegion, IndexFile]] = OrderedDict()
        self._listed: list[str] = []
        """Names of the files when the directory was last listed, oldest first."""
        self._listed_min = -1
        """Start of the log at that time: files of expired records go with them."""
        self._checked: set[str] = set()
        """Those that were found to be what is mapped, or mapped, since then."""

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        hits_max: int = HITS_MAX,
        dispatched: int,
        collisions: bool = False,
        unique_id_only: bool = False,
    ) -> list[PhysicalOffset]:
        """Physical offsets of the records that ``records`` finds, ascending.

        collisions: return what the hashes say, as RocketMQ does; unique_id_only does not count
        then. Raises DamagedFile.
        """
        if collisions:
            return self.hits(
                topic,
                key,
                begin_ms=begin_ms,
                end_ms=end_ms,
                hits_max=hits_max,
                dispatched=dispatched,
            ).physical_offsets
        found = self.records(
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            hits_max=hits_max,
            dispatched=dispatched,
            unique_id_only=unique_id_only,
        )
        return [each.physical_offset for each in found]

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
        """Records of topic that have key or are called key, checked, in the order of the log.

        The newest hits_max of them (at most 64) with begin_ms ≤ time ≤ end_ms; an index knows whole
        seconds from its file's beginning, so an exact begin_ms may miss: widen it by 1 s.
        unique_id_only: key is a unique id; answers that carry the id of what they answer among
        their keys must not crowd it out. Raises DamagedFile.
        """
        asked = _Asked(
            topic, key, hashing.index_hash(topic, key), begin_ms, end_ms, dispatched, unique_id_only
        )
        found: dict[int, Record] = {}
        wanted = min(hits_max, HITS_MAX)
        for file in self._matching(begin_ms, end_ms):
            if wanted <= len(found):
                break
            self._find_real(file, asked, wanted, found)
        return [found[offset] for offset in sorted(found)]

    def _find_real(
        self, file: IndexFile, asked: _Asked, wanted: int, found: dict[int, Record]
    ) -> None:
        """Add the hits of one file whose record really has the key, newest first, until wanted are
        found; one record may have a key twice, also in two files."""
        looked_at = 0
        limit = wanted
        # The chain may be full of another key's entries: look further until enough are real.
        while True:
            raw = file.lookup(
                asked.key_hash, begin_ms=asked.begin_ms, end_ms=asked.end_ms, hits_max=limit
            )
            for offset in raw[looked_at:]:
                if offset in found:
                    continue
                record = self._real(PhysicalOffset(offset), asked)
                if record is not None:
                    found[offset] = record
                    if len(found) == wanted:
                        return
            if len(raw) < limit:
                return
            looked_at, limit = len(raw), limit * 4

    def _real(self, offset: PhysicalOffset, asked: _Asked) -> Record | None:
        """The record that an entry points to; None if it does not have the key."""
        if offset < self._log.min_offset or offset >= asked.dispatched:
            return None
        record = self._log.find(offset, PhysicalOffset(asked.dispatched))
        if record is None:
            if offset < self._log.min_offset:  # expired between the two looks
                return None
            raise DamagedFile(
                f"an index entry points to physical offset {offset}, where no sound record begins. "
                "Either the index is damaged or the record is; nothing was answered.",
                "Run `tidemark store verify`; if the log is sound, `tidemark store rebuild` makes "
                "the index anew.",
                physical_offset=int(offset),
            )
        if record.topic != asked.topic:
            return None
        if record.unique_id == asked.key or (not asked.unique_id_only and asked.key in record.keys):
            return record
        return None

    def hits(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        hits_max: int = HITS_MAX,
        dispatched: int,
    ) -> Hits:
        """What RocketMQ's query returns: by hash alone, unreadable records left out."""
        key_hash = hashing.index_hash(topic, key)
        wanted = min(hits_max, HITS_MAX)
        raw: list[int] = []
        for file in self._matching(begin_ms, end_ms):
            raw += file.lookup(
                key_hash, begin_ms=begin_ms, end_ms=end_ms, hits_max=wanted - len(raw)
            )
            if len(raw) >= wanted:
                break
        if not raw:
            return Hits([], 0, 0)
        newest = self.last_update()
        readable = [
            PhysicalOffset(offset)
            for offset in sorted(raw)
            if self._log.min_offset <= offset < dispatched
            and self._log.find(PhysicalOffset(offset), PhysicalOffset(dispatched)) is not None
        ]
        return Hits(readable, newest.end_timestamp_ms, newest.end_offset)

    def headers(self) -> list[Header]:
        """Headers of all files, oldest first."""
        files = map(self._file, self._names_now())
        return [file.header for file in files if file is not None]

    def last_update(self) -> Header:
        """Header of the newest file; its end says how far the index is. Zeros without files."""
        for name in reversed(self._names_now()):
            if (file := self._file(name)) is not None:
                return file.header
        return Header()

    def names(self) -> list[str]:
        """Names of all index files, oldest first; strangers are passed over."""
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

    def _matching(self, begin_ms: int, end_ms: int) -> Iterator[IndexFile]:
        """Files whose time range overlaps [begin_ms, end_ms], newest first."""
        for name in reversed(self._names_now()):
            file = self._file(name)
            if file is None:
                continue
            first_ms, last_ms = file.times_ms
            if first_ms <= end_ms and begin_ms <= last_ms:
                yield file
            if first_ms < begin_ms:
                return

    def _names_now(self) -> list[str]:
        """``names``, without listing the directory where it cannot have changed."""
        if not self._is_as_listed():
            self._listed_min = self._log.min_offset
            self._listed = self.names()
            self._checked.clear()
        return self._listed

    def _is_as_listed(self) -> bool:
        """Whether the newest file is still the one that is mapped, and has room left: then there is
        no newer one, and nothing before it was replaced (those before it go last)."""
        if not self._listed or self._log.min_offset != self._listed_min:
            return False
        newest = self._listed[-1]
        opened = self._open.get(newest)
        if opened is None or newest not in self._checked or opened[2].is_full:
            return False
        facts = self._disk.stat(self._directory / newest)
        # No other file can have this number while this one is mapped.
        return facts is not None and facts.inode == opened[0]

    def _file(self, name: str) -> IndexFile | None:
        """The mapped file; None if it has just expired. Raises DamagedFile if it is short."""
        if name in self._checked and (known := self._open.get(name)) is not None:
            self._open.move_to_end(name)
            return known[2]
        path = self._directory / name
        facts = self._disk.stat(path)
        if facts is None:
            return None
        if facts.size < self._geometry.size:
            raise DamagedFile(
                f"index file {path} has {facts.size} bytes, {self._geometry.size} are expected. "
                "Records are not in doubt; queries by key are not answered.",
                "Run `tidemark store rebuild`, which makes the index anew from the log.",
                path=path,
            )
        opened = self._open.get(name)
        self._checked.add(name)
        if opened is not None and opened[0] == facts.inode:
            self._open.move_to_end(name)
            return opened[2]
        if opened is not None:  # rebuilt under the same name
            self._forget(name)
        file = self._disk.open(path, writable=False)
        try:
            region = file.map(writable=False, scattered=True)
        finally:
            file.close()
        mapped = IndexFile(region.view[: self._geometry.size], self._geometry)
        self._open[name] = (facts.inode, region, mapped)
        while len(self._open) > MAPPED_MAX:
            self._forget(next(iter(self._open)))
        return mapped

    def _forget(self, name: str) -> None:
        _, region, file = self._open.pop(name)
        file.close()
        region.close()
