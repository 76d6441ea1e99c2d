"""Content of a store directory and its readable end, determined when a read is planned.

Nothing is locked or written. The readable end is the confirm offset of the checkpoint page if our
broker published one. Copies without the page and stores of RocketMQ are read to the end of their
records. Step before: a path. Step after: ``log_parts``, ``unit_parts`` and ``consumer_offsets`` cut
it up.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Final, NamedTuple

from shared.files.consume_queue import ConsumeQueueReader
from shared.files.disk import Disk, read_whole
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_config import GROUP_MARKER, StoreConfig, config_of
from shared.files.store_dir import QueueDirectory, StoreDir
from tidemark.errors import StoreMissing
from tidemark.formats.checkpoint import REGION_MAGIC, Slot
from tidemark.formats.filenames import offset_name, parse_offset_name
from tidemark.formats.record_layout import BLANK_SIZE
from tidemark.offsets import PhysicalOffset

PAGE_TRIES: Final = 8
"""Attempts to read a page that is being replaced."""


class Published(NamedTuple):
    """Offsets of the checkpoint page."""

    confirm: int
    """Records that end at or below it may be read."""
    foreign: tuple[int, int]
    """RocketMQ wrote the records that begin in [first, second). Their record CRC property may be
    that of another record."""


class NoTimes(NamedTuple):
    """Stands for the log in a queue reader that needs no times."""

    min_offset: PhysicalOffset

    def store_timestamp(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> int | None:
        """Return None: the time is not known."""
        return None


class StoreFiles:
    """A store directory at one instant. Raises StoreMissing, and what ``config_of`` raises."""

    def __init__(self, root: Path) -> None:
        self.disk: Disk = OsDisk()
        self.root = root
        if self.disk.stat(root / "commitlog") is None:
            raise StoreMissing(
                f"{root} holds no store: there is no commitlog/ in it. Nothing was made.",
                "Give the directory that holds commitlog/.",
                path=root,
            )
        self.config = config_of(self.disk, root, StoreConfig())
        self.directory = StoreDir(self.disk, root, self.config)
        self.is_foreign = self.disk.stat(self.directory.description_path) is None
        # The page is read first, because its offsets were published after the bytes.
        self.published = self._published()
        self.log_sizes = self._log_sizes()
        """Start of each file of the log and its length in bytes, ascending."""

    @property
    def file_size(self) -> int:
        """Size of a whole commit log file."""
        return self.config.commit_log_file_size

    @property
    def broker(self) -> str:
        """The broker set that the volume belongs to; "" for a standalone node."""
        raw = read_whole(self.disk, self.root / GROUP_MARKER)
        try:
            facts = json.loads(raw) if raw else {}
        except ValueError:
            return ""
        name = facts.get("group") if isinstance(facts, dict) else None
        return name if isinstance(name, str) else ""

    def log_path(self, start: int) -> Path:
        """Path of the log file with that start."""
        return self.directory.commit_log_dir / offset_name(start)

    @functools.cached_property
    def end(self) -> int:
        """Expected end of the readable bytes."""
        if self.published is not None:
            return self.published.confirm
        last = max(self.log_sizes, default=0)
        return max(last + self.log_sizes.get(last, 0), self.proven)

    @functools.cached_property
    def proven(self) -> int:
        """End of the bytes that must have records: the confirm offset. Without our page: what queue
        units point to, and the start of the last file with data."""
        if self.published is not None:
            return self.published.confirm
        ends = (self._last_end(topic, queue) for topic, queue in self.directory.queues())
        return max(self._last_begun(), max(ends, default=0))

    def queue_files(self, topic: str, queue: int) -> tuple[QueueDirectory, list[int]]:
        """Directory of a queue, and the starts of its files in bytes, ascending."""
        directory = self.directory.queue_directory(topic, queue)
        entries = self.disk.list_directory(directory.path)
        found = [parse_offset_name(entry.name) for entry in entries if not entry.is_directory]
        return directory, sorted(start for start in found if start is not None)

    def _published(self) -> Published | None:
        """Read the checkpoint page; None if there is none of ours."""
        path = self.directory.checkpoint_path
        for _ in range(PAGE_TRIES):
            facts = self.disk.stat(path)
            if facts is None:
                return None
            try:
                page = Positions.open(self.disk, path, writable=False)
            except FileNotFoundError:
                continue  # damaged, or replaced between two reads
            try:
                if page.get(Slot.MAGIC_AND_FORMAT) != REGION_MAGIC:
                    return None
                return Published(
                    page.get(self.config.confirm_slot),
                    (page.get(Slot.FOREIGN_FROM), page.get(Slot.FOREIGN_UNTIL)),
                )
            finally:
                page.close()
        return None

    def _last_end(self, topic: str, queue: int) -> int:
        reader = ConsumeQueueReader(self.directory, topic, queue, NoTimes(PhysicalOffset(0)))
        try:
            return reader.last_record_end() or 0
        finally:
            reader.close()

    def _last_begun(self) -> int:
        """Return the start of the last file with data; the next file is created ahead."""
        for start in reversed(self.log_sizes):
            file = self.disk.open(self.log_path(start), writable=False)
            try:
                if any(file.pread(BLANK_SIZE, 0)):
                    return start
            finally:
                file.close()
        return 0

    def _log_sizes(self) -> dict[int, int]:
        sizes = {}
        for entry in self.disk.list_directory(self.directory.commit_log_dir):
            start = parse_offset_name(entry.name)
            if entry.is_directory or start is None:
                continue
            facts = self.disk.stat(self.directory.commit_log_dir / entry.name)
            if facts is not None and facts.size:
                sizes[start] = facts.size
        return dict(sorted(sizes.items()))
