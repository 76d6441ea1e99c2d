"""A commit log in small files on a disk that can be made to fail, with an appender and a reader."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.commit_log_appender import Placed
from shared.files.os_disk import OsDisk, OsFile
from shared.files.positions import Positions
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.runs import runs_of
from tidemark.errors import DiskFull, FileNotReady, ReadOnlyDisk
from tidemark.formats import record
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message, Record
from tidemark.offsets import PhysicalOffset

FILE_SIZE = 8192
HOST = Host(bytes([127, 0, 0, 1]), 10911)
END = PhysicalOffset(1 << 60)


class FailingDisk(OsDisk):
    """A disk whose creations, openings and syncs can be made to fail."""

    def __init__(self) -> None:
        self.refuse_create: Exception | None = None
        self.refuse_writing: Exception | None = None
        self.trace: list[str] = []

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        if self.refuse_create is not None:
            raise self.refuse_create
        self.trace.append(f"create {path.name}")
        return super().create(path, size, reserve=reserve)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable and self.refuse_writing is not None:
            raise self.refuse_writing
        return super().open(path, writable=writable)

    def sync_directory(self, path: Path) -> None:
        self.trace.append(f"sync {path.name}/")
        super().sync_directory(path)


class Log:
    """A small store with an appender and a reader; ``put`` commits what it appended."""

    def __init__(
        self,
        root: Path,
        *,
        record_crc: bool = False,
        pool_size: int = 0,
        file_size: int = FILE_SIZE,
    ) -> None:
        config = StoreConfig(commit_log_file_size=file_size, record_crc=record_crc)
        self.disk = FailingDisk()
        self.store = StoreDir(self.disk, root, config)
        self.store.open_or_create()
        self.positions = Positions.open(self.disk, self.store.checkpoint_path)
        self.appender = CommitLogAppender(self.store, self.positions, pool_size=pool_size)
        self.reader = CommitLogReader(self.store, self.positions)

    def start(self, end: int = 0) -> Log:
        self.appender.start_at(PhysicalOffset(end))
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.appender.prepare_next()
        return self

    def names(self) -> list[int]:
        return [int(path.name) for path in sorted(self.store.commit_log_dir.iterdir())]

    def path(self, start: int = 0) -> Path:
        """The file that begins at a physical offset."""
        return self.store.commit_log_dir / f"{start:020}"

    def close(self) -> None:
        self.appender.close(clean=True)
        self.reader.close()
        self.positions.close()

    def put(self, *bodies: bytes, first: int = 0) -> list[tuple[PhysicalOffset, int]]:
        found = self.pool(*bodies, first=first)
        self.appender.commit()
        return found

    def pool(self, *bodies: bytes, first: int = 0) -> list[tuple[PhysicalOffset, int]]:
        """Append; with a pool the records may stay in it."""
        runs = runs_of([message(body) for body in bodies])
        for _ in range(2):
            try:
                return places(self.appender.append(runs, [first], 1000))
            except FileNotReady:
                self.appender.prepare_next()
        raise AssertionError("prepared and still not ready")

    def record(self, offset: int) -> Record:
        """The record that begins there, which is written."""
        found = self.reader.record(PhysicalOffset(offset), self.appender.written)
        assert found is not None
        return found


@pytest.fixture(params=[0, 1, FILE_SIZE], ids=["no pool", "small pool", "large pool"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(tmp_path, pool_size=request.param).start()
    yield made
    made.close()


@pytest.fixture(params=[4096, FILE_SIZE], ids=["small", "large"])
def pooled(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(tmp_path, pool_size=request.param).start()
    yield made
    made.close()


def message(body: bytes, topic: str = "TopicA") -> Message:
    return Message(topic, 1, body, HOST, HOST)


def watch_writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position, size) of each write into a commit log file from now on."""
    writes: list[tuple[int, int]] = []
    real = OsFile.pwrite

    def pwrite(self: OsFile, data: bytes, offset: int) -> None:
        if self.path.parent.name == "commitlog":
            writes.append((offset, len(data)))
        real(self, data, offset)

    monkeypatch.setattr(OsFile, "pwrite", pwrite)
    return writes


def break_file(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Have the disk fail in this method of a file from now on."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OsFile, method, fail)


@contextlib.contextmanager
def busy(*works: Callable[[], None]) -> Iterator[None]:
    """Repeat each piece of work in a thread of its own for as long as the block lasts.

    Raises what one of them has raised.
    """
    stop = threading.Event()

    def repeat(work: Callable[[], None]) -> None:
        while not stop.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            stop.set()
        for each in running:
            each.result()


def places(placed: Placed) -> list[tuple[PhysicalOffset, int]]:
    """Physical offset and size of each record."""
    at, found = placed.start, []
    for size in memoryview(placed.sizes).cast("I"):
        found.append((at, size))
        at = PhysicalOffset(at + size)
    return found


def body_of_record(size: int) -> bytes:
    """A body whose record has that size."""
    return b"x" * (size - record.encoded_size(message(b""), record_crc=False))
