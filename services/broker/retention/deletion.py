"""One log file goes: delayed messages carried on, losses counted, minimum published, name removed.

The order is what keeps every reader right: 1. messages of the file that are still to be delivered
are appended again and durable; 2. in one step of the loop the losses are counted and MIN is
published: from then on nobody finds anything below it; 3. in a thread, MIN is made durable, on the
page and in ``log-start``, and then the name is removed: a start that finds the log to begin above
both knows that a file is missing. A kill between 2 and 3 leaves the name. The next start of a node
that is alone takes that file for the log's first, which is as before. In a group the minimum stays
where the page has it (``recovery`` says why), and ``keeper`` removes the name later. A removal that
fails is tried again with every run. Nothing here needs space but step 1: where that finds none and
the disk's fullness is what takes the file, it goes all the same.

Before: ``keeper`` decided. After: reput sees MIN and shortens queues and index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

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
    """What became of delayed messages."""

    @property
    def carried(self) -> int:
        """Appended again."""
        ...

    @property
    def lost(self) -> int:
        """Could not be read."""
        ...


class Delayed(Protocol):
    """Messages that wait for their time (``delay``)."""

    def pending_below(self, physical_offset: PhysicalOffset) -> bool:
        """Whether a record below is still to be delivered."""
        ...

    async def carry_below(self, physical_offset: PhysicalOffset) -> Carried:
        """Append those again; durable on return."""
        ...


class Deletion:
    """Removes the oldest file. One loop uses it, one file at a time."""

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
        """files: the appender's. reader: the one that serves. ring: wakes reput."""
        self._store = store
        self._files = files
        self._reader = reader
        self._positions = positions
        self._delayed = delayed
        self._expiry = expiry
        self._ring = ring
        self._said_to_stay = -1
        """Start of the file whose staying was named last."""

    async def remove(self, file: LogFile, why: Why, may_go: Callable[[], bool]) -> bool:
        """Let the oldest file go; whether it did.

        may_go: judges again, in the very step in which the minimum moves. Raises OSError or
        StoreError if the name cannot be removed: nothing reads the file by then.
        """
        if not await self._carry(file, why):
            return False
        await self._expiry.look_ahead(log_min=int(self._reader.min_offset), end=file.end)
        await self._expiry.warn(why=why.value, at_ms=None)
        groups = await self._expiry.candidates()
        if not may_go():
            return False
        lost = self._expiry.count(groups)  # and no await before the minimum has moved
        self._positions.publish(Slot.MIN, file.end)
        self._ring()
        log.info(
            "the oldest log file goes",
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
        """Remove the file at start, below the minimum already. Raises OSError, StoreError."""
        await asyncio.to_thread(self._remove_name, start)
        self._reader.files.refresh()  # lets go of its mapping: until then it keeps its blocks
        self._ring()

    def _remove_name(self, start: int) -> None:
        self._positions.sync()
        write_log_start(self._store.disk, self._store.log_start_path, self._positions.get(Slot.MIN))
        self._files.delete_oldest(start)

    async def _carry(self, file: LogFile, why: Why) -> bool:
        """Save what waits in the file; whether the file may go."""
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
        """There is no room to append them. A disk that is too full has nothing else to give up;
        any other reason can wait."""
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
