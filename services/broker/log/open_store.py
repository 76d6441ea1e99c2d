"""The store as this process has opened it: locks, positions, recovery result and clean stop.

The process holds the locks on bytes 0 (append) and 1 (broker) of ``lock`` for its whole life. If
the disk does not accept writes, the store is opened for reading, and ``preallocator`` retries until
writes succeed. The configuration is read before this step; ``service`` builds the components on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from services.broker.config import BrokerConfig
from shared.files.clean_stop import mark_clean_if_last
from shared.files.disk import Disk, RecordLock
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import LockByte, StoreDir, new_start_id
from shared.runtime.clock import boot_id
from tidemark.clock import Clock
from tidemark.errors import DiskFull, ReadOnlyDisk, RestartNeeded, StoreError
from tidemark.formats.checkpoint import BrokerPhase, Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Recovery was interrupted because the process stops; repeating it costs only time."""


class OpenStore:
    """One store that this process has locked."""

    def __init__(
        self,
        directory: StoreDir,
        positions: Positions,
        locks: list[RecordLock],
    ) -> None:
        self.directory = directory
        self.positions = positions
        self._locks = locks
        self._recovered: Recovered | None = None
        self._unmarked: StoreError | None = None

    @classmethod
    def open(cls, config: BrokerConfig, disk: Disk, clock: Clock) -> OpenStore:
        """Lock and open the store. Blocks. Raises StoreLocked, StoreSizesDiffer and others."""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        disk.make_directory(config.store_dir)  # synced by name: it contains all acked bytes
        locks: list[RecordLock] = []
        try:
            # Locked before anything is read: another process might still be changing the files.
            for role in (LockByte.APPEND, LockByte.BROKER):
                locks.append(directory.lock(role))
            directory.open_or_create()
            directory.describe_delay_levels()
            for what in directory.unsupported():
                log.warning(
                    "kept untouched and not served", extra={"event": "unsupported", "what": what}
                )
            positions = Positions.open(
                disk, directory.checkpoint_path, fallback=directory.private_positions_path
            )
        except BaseException:
            for lock in locks:
                lock.release()
            raise
        positions.publish(Slot.BROKER_STATE, BrokerPhase.STARTING)
        positions.publish(Slot.SERVING_EPOCH, 0)
        positions.claim(Slot.BROKER_PID, new_start_id())
        positions.publish(Slot.BROKER_HEARTBEAT_MS, clock.boot_ms())
        return cls(directory, positions, locks)

    @property
    def confirm_slot(self) -> Slot:
        """Slot of the position up to which consumers may read."""
        return self.directory.config.confirm_slot

    # -- recovery -------------------------------------------------------------------------------

    @property
    def recovered(self) -> Recovered:
        """Result of recovery."""
        assert self._recovered is not None, "recover comes first"
        return self._recovered

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record that recovery read; 0 if there was none."""
        return self.recovered.last_store_timestamp_ms

    async def recover(self, progress: Callable[[int, int], None], stop: asyncio.Event) -> None:
        """Find the end of the log, in a thread. Raises CorruptRecord. Returns early on stop."""

        def report(done: int, total: int) -> None:
            progress(done, total)
            if stop.is_set():
                raise _Stopped

        # The file abort exists while a process may write. If the disk refuses to create it, it
        # refuses every write; creating it is tried again before the first append.
        try:
            await asyncio.to_thread(self.directory.mark_running)
        except (DiskFull, ReadOnlyDisk) as error:
            self._unmarked = error
        with contextlib.suppress(_Stopped):
            self._recovered = await asyncio.to_thread(self._recover, report)

    def _recover(self, progress: Callable[[int, int], None]) -> Recovered:
        return recover(
            self.directory,
            self.positions,
            boot_id=boot_id(),
            progress=progress,
            recovered_by=self.positions.get(Slot.BROKER_PID),
        )

    def recover_again(self) -> bool:
        """Repeat a recovery whose truncation the disk refused; return whether it was needed.

        Blocks. Raises the disk's error if the disk still refuses to write.
        """
        if self.recovered.read_only is None:
            return False
        again = self._recover(lambda done, total: None)
        if again.read_only is not None:
            raise again.read_only
        self._recovered = again
        return True

    @property
    def unwritable(self) -> StoreError | None:
        """Reason why this start could not write; None if it could."""
        return self._unmarked or self.directory.read_only or self.recovered.read_only

    @property
    def dispatched(self) -> PhysicalOffset:
        """Offset up to which queues and index cover the log and may be read.

        Reput publishes it once it works in the generation of this start. If reput cannot do so,
        because the disk refuses its writes too, the durable offset of the previous run is used.
        """
        positions = self.positions
        if positions.get(Slot.REPUT_GENERATION) == positions.get(Slot.GENERATION):
            return PhysicalOffset(positions.get(Slot.DISPATCHED))
        recovered = self._recovered
        if recovered is None or self.unwritable is None or not recovered.dispatched_trusted:
            return PhysicalOffset(0)
        return PhysicalOffset(min(positions.get(Slot.DISPATCHED_DURABLE), recovered.end))

    @property
    def needs_restart(self) -> bool:
        """Whether the positions are in a private substitute file, unseen by other processes."""
        return self.positions.is_private

    def restart_needed(self) -> StoreError:
        """Return the error that ends the process: the disk was read-only and is now writable."""
        return RestartNeeded(
            f"the disk of {self.directory.root} takes writes again, and this process was started "
            "without. Nothing is lost.",
            "Start the node's processes again.",
            path=self.directory.root,
        )

    # -- end ------------------------------------------------------------------------------------

    def stopped_clean(self) -> None:
        """Mark the store as cleanly stopped if no other process uses it and all is dispatched.

        Call it when everything is flushed. The process that stops last removes ``abort``. If the
        disk refuses the removal, the next start only takes longer.
        """
        if self.recovered.read_only is not None:
            # A truncation that the disk refused is still due: if the stop counted as clean, the
            # next start would report the bytes as damage.
            self._release()
            return
        # A PID of 0 shows reput, if it stops last, that this process did not crash.
        self.positions.claim(Slot.BROKER_PID, 0)
        self._release()
        mark_clean_if_last(self.directory, self.positions)

    def close(self) -> None:
        """Release the locks and unmap the positions."""
        self._release()
        self.positions.close()

    def _release(self) -> None:
        while self._locks:
            self._locks.pop().release()
