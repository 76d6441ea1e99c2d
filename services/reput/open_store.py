"""The store as reput holds it: its lock byte, the positions, the clean end.

Byte 2 of ``lock`` is held from the first moment to the last. Step before: configuration; after:
``service`` or ``once`` builds a dispatcher on it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from services.reput.config import ReputConfig
from services.reput.dispatcher import Dispatcher
from shared.files.clean_stop import mark_clean_if_last
from shared.files.commit_log import CommitLogReader
from shared.files.disk import Disk, RecordLock
from shared.files.positions import Positions
from shared.files.store_dir import Role, StoreDir, new_start_id
from shared.runtime.clock import SystemClock, boot_id, utc_offset_s
from tidemark.clock import Clock
from tidemark.errors import DiskFull, ReadOnlyDisk, RestartNeeded
from tidemark.formats.checkpoint import REGION_MAGIC, NodeRole, Slot

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
        self._began_ms = clock.boot_ms()
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
        positions.claim(Slot.REPUT_PID, new_start_id())
        return cls(directory, positions, lock, clock if clock is not None else SystemClock())

    @staticmethod
    def is_there(config: ReputConfig, disk: Disk) -> bool:
        """Whether the broker has made or opened the store: reput makes none of its own."""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        paths = (directory.description_path, directory.private_positions_path)
        return any(disk.stat(path) is not None for path in paths)

    @property
    def is_grouped(self) -> bool:
        """Whether this node is one of a group."""
        return self.directory.config.visible_after == "confirmed"

    @property
    def is_recovered(self) -> bool:
        """A process that is up now has recovered the log in this start of its: the log's end is
        known; in a group, what of it is confirmed as well.

        What an earlier start published is no evidence:
        1. the node stops, and an older copy of the page is put back; 2. reput starts first and
        believes it, and overwrites the units behind its DISPATCHED with zeros; 3. recovery lacks
        the units that prove what had been flushed, and cuts acknowledged messages as a torn tail.
        """
        get = self.positions.get
        if (
            get(Slot.MAGIC_AND_FORMAT) != REGION_MAGIC
            or get(Slot.GENERATION) == 0
            or (get(Slot.BOOT_ID_HIGH), get(Slot.BOOT_ID_LOW)) != self.boot_id
        ):
            return False
        if not self.is_grouped:
            return self._has_recovered(Slot.BROKER_PID, Slot.BROKER_HEARTBEAT_MS)
        return (get(Slot.HA_BOOT_ID_HIGH), get(Slot.HA_BOOT_ID_LOW)) == self.boot_id and (
            self._has_recovered(Slot.HA_PID, Slot.HA_HEARTBEAT_MS)
            or self._has_recovered(Slot.BROKER_PID, Slot.BROKER_HEARTBEAT_MS)
        )

    def _has_recovered(self, start: Slot, heartbeat: Slot) -> bool:
        """Whether the process in that slot was up since this one began, and recovered the log.

        Every start publishes its own number first, its heartbeat next and RECOVERED_BY last; hence
        the heartbeat is read first.
        """
        get = self.positions.get
        return get(heartbeat) >= self._began_ms and get(Slot.RECOVERED_BY) == get(start) != 0

    def mark_running(self) -> None:
        """Make ``abort``, if the disk takes it. After recovery only: the broker looks for it."""
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.directory.mark_running()

    def watch(self) -> None:
        """Twice a second. Raises RestartNeeded once a disk that took no writes takes them, and when
        the store is about to be emptied."""
        if self.is_grouped and self.positions.get(Slot.ROLE) == NodeRole.RESYNC:
            raise RestartNeeded(
                f"the store {self.directory.root} is emptied and copied anew from the master.",
                "Start this process again; it waits until the copy can be read.",
                path=self.directory.root,
            )
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

        Only if the others stopped in order: they take their process ids back then.
        """
        self.positions.claim(Slot.REPUT_PID, 0)
        self._release()
        others = (Slot.BROKER_PID, Slot.HA_PID) if self.is_grouped else (Slot.BROKER_PID,)
        mark_clean_if_last(self.directory, self.positions, must_have_stopped=others)

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
