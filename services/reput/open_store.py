"""The store as reput holds it: its lock byte, the positions, the clean end.

Byte 2 of ``lock`` is held from the first moment to the last. Step before: configuration; after:
``service`` or ``once`` builds a dispatcher on it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final

from services.reput.config import ReputConfig
from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogReader
from shared.files.disk import Disk, RecordLock
from shared.files.positions import Positions
from shared.files.store_dir import Role, StoreDir
from shared.runtime.clock import SystemClock, boot_id, utc_offset_s
from tidemark.clock import Clock
from tidemark.errors import DiskFull, ReadOnlyDisk, RestartNeeded, StoreLocked
from tidemark.formats.checkpoint import REGION_MAGIC, Slot

log = logging.getLogger(__name__)

RETRY_WATCHES: Final = 10
"""On a disk that took no writes at start, every so many watches it is looked at again."""


class OpenStore:
    """One store, with reput's byte locked by this process."""

    def __init__(
        self, directory: StoreDir, positions: Positions, lock: RecordLock, clock: Clock
    ) -> None:
        self.directory = directory
        self.positions = positions
        self.boot_id = boot_id()
        self._lock: RecordLock | None = lock
        self._watches = 0
        self.log = CommitLogReader(directory, positions)
        self.dispatcher = Dispatcher(
            directory,
            positions,
            self.log,
            clock=clock,
            boot_id=self.boot_id,
            utc_offset_s=utc_offset_s,
        )

    @classmethod
    def open(cls, config: ReputConfig, disk: Disk, clock: Clock | None = None) -> OpenStore:
        """Lock and open. Blocks. Raises StoreLocked, StoreSizesDiffer, StoreFormatUnknown …"""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        lock = directory.lock(Role.REPUT)
        try:
            directory.open_or_create()
            positions = Positions.open(
                disk, directory.checkpoint_path, fallback=directory.private_positions_path
            )
        except BaseException:
            lock.release()
            raise
        positions.publish(Slot.REPUT_PID, os.getpid())
        return cls(directory, positions, lock, clock if clock is not None else SystemClock())

    @staticmethod
    def is_there(config: ReputConfig, disk: Disk) -> bool:
        """Whether the broker has made or opened the store: reput makes none of its own."""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        paths = (directory.description_path, directory.private_positions_path)
        return any(disk.stat(path) is not None for path in paths)

    @property
    def is_recovered(self) -> bool:
        """The log was recovered in this boot of the machine: its end is known."""
        get = self.positions.get
        return (
            get(Slot.MAGIC_AND_FORMAT) == REGION_MAGIC
            and get(Slot.GENERATION) != 0
            and (get(Slot.BOOT_ID_HIGH), get(Slot.BOOT_ID_LOW)) == self.boot_id
        )

    def mark_running(self) -> None:
        """Make ``abort``, if the disk takes it. After recovery only: the broker looks for it."""
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.directory.mark_running()

    def watch(self) -> None:
        """Twice a second. Raises RestartNeeded once a disk that took no writes takes them."""
        if not self.positions.is_private:
            return
        self._watches += 1
        if self._watches % RETRY_WATCHES:
            return
        try:
            self.directory.mark_running()
        except (DiskFull, ReadOnlyDisk):
            return
        raise RestartNeeded(
            f"the disk of {self.directory.root} takes writes again, and this process was started "
            "without. Nothing is lost.",
            "Start the node's processes again.",
            path=self.directory.root,
        )

    def stopped_clean(self) -> None:
        """Everything is synced: if nobody else uses the store, say so. Blocks.

        Whoever stops last removes ``abort``, and only if the broker stopped in order: it takes its
        process id back then. All locks are needed for it: a process that starts meanwhile would
        make the marker that is removed here.
        """
        get, directory = self.positions.get, self.directory
        self.positions.publish(Slot.REPUT_PID, 0)
        self._release()
        held: list[RecordLock] = []
        try:
            for role in (Role.APPEND, Role.BROKER, Role.REPUT):
                held.append(directory.lock(role))
            same = get(Slot.REPUT_GENERATION) == get(Slot.GENERATION) != 0
            ends = {get(slot) for slot in (Slot.WRITTEN, Slot.FLUSHED, Slot.DISPATCHED_DURABLE)}
            if same and len(ends) == 1 and get(Slot.BROKER_PID) == 0:
                self.positions.sync()
                directory.mark_clean()
                log.info("stopped clean", extra={"event": "clean"})
        except (StoreLocked, DiskFull, ReadOnlyDisk):
            return  # the broker still runs and will do it, or the marker stays: costs time only
        finally:
            for lock in held:
                lock.release()

    def close(self) -> None:
        """Give the lock back and unmap."""
        self.dispatcher.close()
        self.log.close()
        self._release()
        self.positions.close()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
