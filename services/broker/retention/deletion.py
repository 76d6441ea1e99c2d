"""Deletes one log file: delayed messages carried on, losses counted, minimum published, file
removed.

This order protects every reader: 1. messages of the file that are still to be delivered are
appended again and durable; 2. in one step of the loop the losses are counted and MIN is published:
from then on no reader finds anything below it; 3. in a thread, MIN is made durable, on the page and
in ``log-start``, and then the file is removed: a start that finds the log to begin above both knows
that a file is missing. A kill between 2 and 3 leaves the file. If the node is alone, its next start
takes that file for the log's first, as before. In a group the minimum stays where the page has it
(``recovery`` explains why), and ``keeper`` removes the file later. A removal that fails is tried
again in every run. Only step 1 needs disk space: if there is none and the full disk is the reason
for the deletion, the file is deleted all the same.

Step before: ``keeper`` decided. Step after: reput sees MIN and shortens queues and index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from services.broker.retention.expiry import Expiry
from services.broker.retention.retention import LogFile, Why
from shared.files.commit_log import CommitLogReader
from shared.files.log_start import write_log_start
from shared.files.mapped_file_queue import MappedFileQueue
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import (
    DiskFull,
    FileNotReady,
    NotServing,
    OutOfResources,
    ReadOnlyDisk,
    TidemarkError,
)
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)


class Carried(Protocol):
    """The result of carrying delayed messages."""

    @property
    def carried(self) -> int:
        """Messages that were appended again."""
        ...

    @property
    def lost(self) -> int:
        """Messages that could not be read."""
        ...


class Delayed(Protocol):
    """Delayed messages (``delay``), as far as a deletion needs them."""

    def pending_below(self, physical_offset: PhysicalOffset) -> bool:
        """Return whether a record below is still to be delivered."""
        ...

    async def carry_below(self, physical_offset: PhysicalOffset) -> Carried:
        """Append those messages again; durable on return."""
        ...


class Deletion:
    """Deletes the oldest file, one file at a time. Belongs to one loop."""

    def __init__(
        self,
        store: StoreDir,
        files: MappedFileQueue,
        reader: CommitLogReader,
        positions: Positions,
        delayed: Delayed,
        expiry: Expiry,
        *,
        ring: Callable[[], object],
    ) -> None:
        """files: the log files of the appender. reader: the reader of the log that serves pulls.
        ring: wakes reput."""
        self._store = store
        self.files: Final = files
        self._reader = reader
        self._positions = positions
        self._delayed = delayed
        self._expiry = expiry
        self._ring = ring
        self._said_to_stay = -1
        """Start of the last file that was logged as kept."""

    async def remove(self, file: LogFile, why: Why, may_go: Callable[[], bool]) -> bool:
        """Delete the oldest file; return whether it was deleted.
        may_go: repeats the decision in the same step in which the minimum moves. Raises OSError or
        StoreError if the file cannot be removed; by then no reader uses it."""
        if not await self._carry(file, why):
            return False
        await self._expiry.plan(log_min=int(self._reader.min_offset), end=file.end)
        await self._expiry.warn(why=why.value, at_ms=None)
        groups = await self._expiry.candidates()
        if not may_go():
            return False
        lost = self._expiry.count(groups)  # there must be no await before the minimum has moved
        self._positions.publish(Slot.MIN, file.end)
        self._ring()
        log.info(
            "the oldest log file is deleted",
            extra={
                "event": "log-file-deleted",
                "start_offset": file.start,
                "end_offset": file.end,
                "why": why.value,
                "unread_messages": lost,
            },
        )
        await self.remove_name(file.start)
        return True

    async def remove_name(self, start: int) -> None:
        """Remove the file at start, which is below the minimum. Raises OSError, StoreError."""
        await asyncio.to_thread(self._remove_name, start)
        self._reader.files.refresh()  # unmaps it: until then it keeps its blocks
        self._ring()

    def _remove_name(self, start: int) -> None:
        self._positions.sync()
        write_log_start(self._store.disk, self._store.log_start_path, self._positions.get(Slot.MIN))
        self.files.delete_oldest(start)

    async def _carry(self, file: LogFile, why: Why) -> bool:
        """Carry the delayed messages of the file; return whether the file may be deleted."""
        end = PhysicalOffset(file.end)
        if not self._delayed.pending_below(end):
            return True
        try:
            carried = await self._delayed.carry_below(end)
        except (DiskFull, ReadOnlyDisk, OutOfResources, FileNotReady, NotServing) as error:
            return self._goes_uncarried(file, why, error)
        if carried.carried or carried.lost:
            log.info(
                "delayed messages were carried on from the oldest log file",
                extra={
                    "event": "delayed-carried",
                    "start_offset": file.start,
                    "carried": carried.carried,
                    "lost": carried.lost,
                },
            )
        return True

    def _goes_uncarried(self, file: LogFile, why: Why, error: TidemarkError) -> bool:
        """Return whether the file is deleted although there is no space to carry its messages. Only
        if the disk is too full: then nothing else can be freed. Any other reason can wait."""
        goes = why is Why.PRESSURE and isinstance(error, DiskFull)
        if not goes and file.start == self._said_to_stay:
            return False
        self._said_to_stay = file.start
        log.error(
            "delayed messages of the oldest log file are lost: there is no room to carry them on"
            if goes
            else "the oldest log file stays until delayed messages in it can be carried on",
            extra={
                "event": "delayed-lost" if goes else "delayed-not-carried",
                "start_offset": file.start,
                "code": error.code,
                "detail": error.detail,
            },
        )
        return goes
