"""Stores that benchmarks write and dispatch in this process, with the code of broker and reput."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import recover
from shared.files.store_config import StoreConfig
from shared.files.store_dir import StoreDir
from shared.runtime.clock import SystemClock
from tidemark.formats import batch, native, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import parse
from tidemark.formats.runs import Run

HOST: Final = parse("127.0.0.1:10911")
BOOT: Final = (1, 1)
STORED_MS: Final = 1_700_000_000_000
"""Store time of the first message."""
IMPLEMENTATION: Final = "native" if native.COMPILED else "pure"


def key_of(number: int) -> str:
    return f"order-{number}"


def unique_id_of(number: int) -> str:
    return f"7F0000010001{number:020X}"


def message(number: int, body: bytes, names: Iterable[str]) -> WireMessage:
    """Return a message. names: those of TAGS, KEYS and UNIQ_KEY that it has."""
    values = {"TAGS": "new", "KEYS": key_of(number), "UNIQ_KEY": unique_id_of(number)}
    return WireMessage(body, properties.encode({name: values[name] for name in names}))


def run_of(messages: Iterable[WireMessage], topic: str = "orders", queue: int = 0) -> Run:
    listed = list(messages)
    return Run(topic, queue, batch.encode(listed), len(listed), HOST, HOST)


def drop_cache(path: Path) -> None:
    """Drop a file's pages from the page cache, as the kernel does when memory is short."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class OpenStore:
    """A new store, open for appends."""

    def __init__(self, root: Path, config: StoreConfig, **files: Any) -> None:
        """files: how the appender makes log files."""
        self.dir = StoreDir(OsDisk(), root, config)
        self.dir.open_or_create()
        self.positions = Positions.open(self.dir.disk, self.dir.checkpoint_path)
        self.appender = CommitLogAppender(self.dir, self.positions, **files)
        self.appender.start_at(recover(self.dir, self.positions, boot_id=BOOT).end)
        self.appender.prepare_next()

    def reader(self) -> CommitLogReader:
        return CommitLogReader(self.dir, self.positions)

    def dispatcher(self, log: CommitLogReader) -> Dispatcher:
        """Return reput's dispatcher at the position that the store has."""
        made = Dispatcher(self.dir, self.positions, log, clock=SystemClock(), boot_id=BOOT)
        made.resume()
        return made
