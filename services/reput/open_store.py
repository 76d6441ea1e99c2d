"""The store as opened by reput: its lock byte, the positions page, the clean shutdown.

Byte 2 of ``lock`` is held for the whole time. The step before is the configuration; afterwards
``service`` or ``once`` uses the dispatcher.
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
from shared.files.store_dir import LockByte, StoreDir, new_start_id
from shared.runtime.clock import SystemClock, boot_id, utc_offset_s
from tidemark.clock import Clock
from tidemark.errors import DiskFull, ReadOnlyDisk, RestartNeeded
from tidemark.formats.checkpoint import REGION_MAGIC, NodeRole, Slot

log = logging.getLogger(__name__)

RETRY_WATCHES: Final = 10
"""On a disk that rejected writes at start, every n-th call of ``watch`` tries to write again."""


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
        """Lock and open the store. This call blocks. Raises StoreLocked, StoreSizesDiffer,
        StoreFormatUnknown …"""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        lock = directory.lock(LockByte.REPUT)
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
        """Return whether the broker, in a group ha, has created or opened the store; reput never
        creates one."""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        paths = (directory.description_path, directory.private_positions_path)
        return any(disk.stat(path) is not None for path in paths)

    @property
    def is_grouped(self) -> bool:
        """Whether this node belongs to a replicated group."""
        return self.directory.config.visible_after == "confirmed"

    @property
    def is_recovered(self) -> bool:
        """Whether a running process has recovered the log since its own start.

        Then the log's end is known, and in a group the confirm offset too. Values published by an
        earlier start do not count: 1. the node stops, and an older copy of the page is restored; 2.
        reput starts first, trusts the page, and overwrites the units after its DISPATCHED with
        zeros; 3. recovery lacks the units that prove what was flushed, and truncates acked messages
        as a torn tail.
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
        """Return whether the process in that slot ran since this one started, and recovered the
        log.

        Every start publishes its own number first, its heartbeat next and RECOVERED_BY last, so the
        heartbeat is read first.
        """
        get = self.positions.get
        return get(heartbeat) >= self._began_ms and get(Slot.RECOVERED_BY) == get(start) != 0

    def mark_running(self) -> None:
        """Create ``abort``, if the disk is writable. Call it only after recovery, which checks the
        file."""
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.directory.mark_running()

    def watch(self) -> None:
        """Check for a needed restart; called twice a second. Raises RestartNeeded when a disk that
        rejected writes accepts them again, and when the store is about to be emptied."""
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
        """Record a clean shutdown after the last sync, if no other process uses the store. Blocks.

        This requires that the others stopped cleanly too, in which case they cleared their process
        ids.
        """
        self.positions.claim(Slot.REPUT_PID, 0)
        self._release()
        others = (Slot.BROKER_PID, Slot.HA_PID) if self.is_grouped else (Slot.BROKER_PID,)
        mark_clean_if_last(self.directory, self.positions, must_have_stopped=others)

    def close(self) -> None:
        """Release the lock and unmap."""
        self.dispatcher.close()
        self.log.close()
        self._release()
        self.positions.close()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
