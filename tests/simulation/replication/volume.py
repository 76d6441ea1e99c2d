"""A node's disk: the commit log, of which only the synced part is sure, and the files of ha.

A power cut keeps the synced bytes and any part of what follows; a file of ha is its old or its new
self, never a mixture. A killed process takes nothing away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from services.ha.effects import Cut
from tests.simulation.replication import records
from tidemark.formats.epochs import EpochStart


class Files(NamedTuple):
    """What ``ha/`` and the epoch table say."""

    promised: int = 0
    seen_epoch: int = 0
    seen_version: int = 0
    initialised: bool = False
    table: tuple[EpochStart, ...] = ()
    confirm: int = 0
    intent: Cut | None = None


class Volume:
    """One disk; ``incarnation`` is made when it is new."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.incarnation = f"{random.getrandbits(128):032x}"
        self.log = bytearray()
        self.durable = 0
        """The log up to here survives a power cut."""
        self.files = Files()
        self._files_on_disk = self.files
        self._cut_off = b""
        """What was cut, until the cut is synced."""
        self.on_table: Callable[[], None] | None = None
        """Called once, right after the epoch table is written."""

    @property
    def end(self) -> int:
        """Of the log."""
        return len(self.log)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Put whole records at the end of the log."""
        self.log += data

    def synced(self, end: int) -> None:
        """fdatasync of the log is over; it began when end was written."""
        self.durable = max(self.durable, min(end, len(self.log)))

    def write(self, files: Files) -> None:
        """Replace files of ha: seen by all, not yet sure."""
        is_new_table = files.table != self.files.table
        self.files = files
        if is_new_table and self.on_table is not None:
            call, self.on_table = self.on_table, None
            call()

    def files_synced(self) -> None:
        """The directory is synced."""
        self._files_on_disk = self.files

    def cut(self, point: int) -> None:
        """Zero the log from point on; not yet sure."""
        self._cut_off = bytes(self.log[point : self.durable])
        del self.log[point:]
        self.durable = min(self.durable, point)

    def cut_synced(self) -> None:
        """The zeros are on disk."""
        self._cut_off = b""

    def empty(self) -> None:
        """Begin a new incarnation without a log."""
        self.incarnation = f"{self._random.getrandbits(128):032x}"
        self.log.clear()
        self.durable, self._cut_off = 0, b""
        self.files = self._files_on_disk = Files(
            self.files.promised,
            self.files.seen_epoch,
            self.files.seen_version,
            self.files.initialised,
        )

    def power_cut(self) -> None:
        """What was not synced is there or not."""
        random = self._random
        if self._cut_off and random.random() < 0.5:
            del self.log[self.durable :]
            self.log += self._cut_off
            self.durable = len(self.log)
        else:
            del self.log[random.randint(self.durable, len(self.log)) :]
        self._cut_off = b""
        if random.random() < 0.5:
            self.files = self._files_on_disk
        self._files_on_disk = self.files

    def recover(self) -> int:
        """Cut half a record off the end and sync what is there; the log's end."""
        whole = records.whole_size(memoryview(self.log)[self.durable :])
        del self.log[self.durable + whole :]
        self.durable = len(self.log)
        self._cut_off = b""
        return self.durable
