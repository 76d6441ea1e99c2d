"""A store of a few kilobytes, written record by record, with its queues and index beside it.

For tests of what reads a store: the log is made by the real appender, units and entries are put
where the test wants them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.files.commit_log import CommitLogAppender
from shared.files.disk import Disk
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.queue_math import place
from shared.files.recovery import recover
from shared.files.store_dir import QueueDirectory, StoreConfig, StoreDir
from tests.support.index_rows import packed
from tests.support.runs import runs_of
from tidemark.formats import batch, inner_batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot, resume_check
from tidemark.formats.filenames import offset_name
from tidemark.formats.hashing import tags_code
from tidemark.formats.hosts import Host
from tidemark.formats.index_file import IndexFile
from tidemark.formats.properties import encode
from tidemark.formats.queue_unit import Unit, encode_batch
from tidemark.formats.queue_unit import encode as encode_unit
from tidemark.formats.record import Message
from tidemark.formats.runs import Run
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE, PhysicalOffset, QueueOffset

CONFIG = StoreConfig(
    commit_log_file_size=4096,
    consume_queue_file_size=200,
    index_slots=20,
    index_entries=30,
)
HOST = Host(bytes([10, 9, 8, 7]), 10911)
FIRST_MS = 1_700_000_000_000
BOOT = (7, 9)


class SmallStore:
    """A store and what was put into it. ``close`` it."""

    def __init__(
        self, root: Path, config: StoreConfig = CONFIG, *, disk: Disk | None = None
    ) -> None:
        self.store = StoreDir(disk or OsDisk(), root, config)
        self.store.open_or_create()
        self.positions = Positions.open(self.store.disk, self.store.checkpoint_path)
        self.appender = CommitLogAppender(self.store, self.positions, ahead=1)
        self.recovered = recover(self.store, self.positions, boot_id=BOOT)
        self.appender.start_at(self.recovered.end)
        self.with_it = ExitStack()
        """Closed before the store is."""
        self.now_ms = FIRST_MS
        self.units: list[tuple[str, int, QueueOffset, Unit]] = []
        """(topic, queue, queue offset, unit) of every record that a queue should point to."""
        self._next: dict[tuple[str, int], int] = dict(self.recovered.next_queue_offsets)
        self._batches: Counter[tuple[str, int]] = Counter()
        """Units of each batch queue."""

    @property
    def end(self) -> PhysicalOffset:
        """End of the log."""
        return self.appender.written

    def put(
        self,
        topic: str = "orders",
        queue: int = 0,
        *,
        body: bytes = b"body",
        tags: str | None = None,
        keys: str | None = None,
        unique_id: str | None = None,
        at_ms: int | None = None,
        sys_flag: int = 0,
        queue_offset: int | None = None,
    ) -> Unit:
        """Append one record; store times rise by 1 ms unless given."""
        self.now_ms = self.now_ms + 1 if at_ms is None else at_ms
        number = self._next.get((topic, queue), 0) if queue_offset is None else queue_offset
        named = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": unique_id}
        pairs = {name: value for name, value in named.items() if value is not None}
        message = Message(
            topic, queue, body, HOST, HOST, properties=encode(pairs), sys_flag=sys_flag
        )
        self.appender.prepare_next()
        at, sizes = self.appender.append(runs_of([message]), [number], self.now_ms)
        (size,) = memoryview(sizes).cast("I")
        unit = Unit(at, size, tags_code(tags))
        if sys_flag & 0xC not in (0x4, 0xC):
            self._next[topic, queue] = number + 1
            self.units.append((topic, queue, QueueOffset(number), unit))
        return unit

    def put_batch(
        self,
        messages: Sequence[bytes | WireMessage],
        topic: str = "batches",
        queue: int = 0,
        *,
        tags: str | None = None,
        keys: str | None = None,
        unique_id: str = "BATCH",
        dispatched: bool = True,
    ) -> Unit:
        """Append one inner batch; if dispatched, write its unit. Bytes are a body without
        properties."""
        self.now_ms += 1
        base = self._next.get((topic, queue), 0)
        entries = batch.encode(
            WireMessage(each) if isinstance(each, bytes) else each for each in messages
        )
        raw = inner_batch.encode_properties(
            unique_id,
            len(messages),
            tags=None if tags is None else tags.encode(),
            keys=None if keys is None else keys.encode(),
        )
        run = Run(topic, queue, entries, len(messages), HOST, HOST, batch_properties=raw)
        self.appender.prepare_next()
        at, sizes = self.appender.append([run], [base], self.now_ms)
        (size,) = memoryview(sizes).cast("I")
        unit = Unit(at, size, tags_code(tags))
        self._next[topic, queue] = base + len(messages)
        if dispatched:
            number = self._batches[topic, queue]
            self._batches[topic, queue] += 1
            made = encode_batch(unit, self.now_ms, base, len(messages))
            self.put_batch_unit(topic, queue, number, made)
        return unit

    def flush(self) -> None:
        """Make everything appended durable and publish it."""
        self.appender.flush()

    def dispatch(self, *, durable: bool = False, flush: bool = True) -> None:
        """Flush, write the units of everything appended, publish how far that is."""
        if flush:
            self.flush()
        for topic, queue, number, unit in self.units:
            self.put_unit(topic, queue, number, unit)
        self.positions.publish(Slot.DISPATCHED, self.end)
        if durable:
            self.positions.publish(Slot.DISPATCHED_DURABLE, self.end)
            self.publish_totals(sum((self._next | self._batches).values()))
        self.positions.publish(Slot.REPUT_GENERATION, self.positions.get(Slot.GENERATION))

    def publish_totals(self, units: int, index_entries: int = 0) -> None:
        """Publish what dispatch found complete at DISPATCHED_DURABLE."""
        durable = self.positions.get(Slot.DISPATCHED_DURABLE)
        self.positions.publish(Slot.RESUME_UNITS, units)
        self.positions.publish(Slot.RESUME_INDEX_ENTRIES, index_entries)
        self.positions.publish(Slot.RESUME_CHECK, resume_check(durable, units, index_entries))

    def put_unit(self, topic: str, queue: int, number: int, unit: Unit | bytes) -> None:
        """Store one unit, making its file if need be."""
        raw = unit if isinstance(unit, bytes) else encode_unit(unit)
        self._put_at(self.store.queue_directory(topic, queue, UNIT_SIZE), number, raw)

    def put_batch_unit(self, topic: str, queue: int, number: int, raw: bytes) -> None:
        """Store one unit of a batch queue, making its file if need be."""
        self._put_at(self.store.queue_directory(topic, queue, BATCH_UNIT_SIZE), number, raw)

    def _put_at(self, directory: QueueDirectory, number: int, raw: bytes) -> None:
        start, position = place(number, directory.file_size, directory.unit_size)
        path = directory.path / offset_name(start)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(directory.file_size))
        with path.open("r+b") as file:
            file.seek(position)
            file.write(raw)

    def queue_file(self, topic: str, queue: int, start: int) -> Path:
        """Path of a queue's file."""
        return self.store.queue_directory(topic, queue).path / offset_name(start)

    def log_file(self, start: int = 0) -> Path:
        """Path of a commit log file."""
        return self.store.commit_log_dir / offset_name(start)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Store bytes at a physical offset, past the appender."""
        size = self.store.config.commit_log_file_size
        with self.log_file(offset - offset % size).open("r+b") as file:
            file.seek(offset % size)
            file.write(data)

    def log_bytes(self) -> dict[str, bytes]:
        """Every commit log file's bytes."""
        return {path.name: path.read_bytes() for path in self.store.commit_log_dir.iterdir()}

    def index_file(self, name: str, rows: Sequence[tuple[int, int, int]]) -> None:
        """Make an index file of (key hash, physical offset, store time) rows."""
        geometry = self.store.config.index_geometry
        data = bytearray(geometry.size)
        file = IndexFile(memoryview(data), geometry)
        assert file.put_rows(packed(rows)) == len(rows)
        (self.store.index_dir / name).write_bytes(data)

    def close(self, *, clean: bool = False) -> None:
        """Give files and mappings back; not clean: as a killed process leaves them."""
        self.with_it.close()
        self.appender.close(clean=clean)
        self.positions.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store")
    yield store
    store.close()
