"""The store as this process holds it: locks, positions, what recovery found, the clean end.

Bytes 0 (append) and 1 (broker) of ``lock`` are held from the first moment to the last. On a disk
that takes no writes everything is opened for reading and the attempt is repeated by ``files_ahead``
until writing works. Before: configuration. After: ``service`` builds the parts on it.
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
from shared.files.store_dir import Role, StoreDir, new_start_id
from shared.runtime.clock import boot_id
from tidemark.clock import Clock
from tidemark.errors import DiskFull, ReadOnlyDisk, RestartNeeded, StoreError
from tidemark.formats.checkpoint import BrokerState, Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Recovery was interrupted because the process is to end; repeating it costs only time."""


class OpenStore:
    """One store, locked by this process."""

    def __init__(
        self,
        directory: StoreDir,
        positions: Positions,
        locks: list[RecordLock],
        clock: Clock,
    ) -> None:
        self.directory = directory
        self.positions = positions
        self._locks = locks
        self._clock = clock
        self._recovered: Recovered | None = None
        self._unmarked: StoreError | None = None

    @classmethod
    def open(cls, config: BrokerConfig, disk: Disk, clock: Clock) -> OpenStore:
        """Lock and open. Blocks. Raises StoreLocked, StoreSizesDiffer, StoreFormatUnknown …"""
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        disk.make_directory(config.store_dir)  # its name is synced: all acked bytes are below it
        locks: list[RecordLock] = []
        try:
            # Before anything else is looked at: what another process is changing means nothing.
            for role in (Role.APPEND, Role.BROKER):
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
        positions.publish(Slot.BROKER_STATE, BrokerState.STARTING)
        positions.publish(Slot.SERVING_EPOCH, 0)
        positions.claim(Slot.BROKER_PID, new_start_id())
        positions.publish(Slot.BROKER_HEARTBEAT_MS, clock.boot_ms())
        return cls(directory, positions, locks, clock)

    @property
    def confirm_slot(self) -> Slot:
        """The position up to which consumers may see."""
        return self.directory.config.confirm_slot

    # -- recovery -------------------------------------------------------------------------------

    @property
    def recovered(self) -> Recovered:
        """What recovery found."""
        assert self._recovered is not None, "recover comes first"
        return self._recovered

    @property
    def last_store_timestamp_ms(self) -> int:
        """Of the newest record that recovery looked at; 0 if there was none."""
        return self.recovered.last_store_timestamp_ms

    async def recover(self, progress: Callable[[int, int], None], stop: asyncio.Event) -> None:
        """Find the end of the log, in a thread. Raises CorruptRecord. Ends early if stop is set."""

        def report(done: int, total: int) -> None:
            progress(done, total)
            if stop.is_set():
                raise _Stopped

        # While a process may write, abort is there. A disk that does not take it takes nothing:
        # it is tried again before the first append.
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
            now=self._clock.wall_ms(),
            progress=progress,
            recovered_by=self.positions.get(Slot.BROKER_PID),
        )

    def recover_again(self) -> bool:
        """Repeat a recovery that the disk kept from cutting; whether it was done now. Blocks.

        Raises why the disk still does not take it.
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
        """Why this start could not write, if it could not."""
        return self._unmarked or self.directory.read_only or self.recovered.read_only

    @property
    def dispatched(self) -> PhysicalOffset:
        """End of what queues and index cover and may be seen.

        Reput says so once it has taken up this start's generation. Where it cannot, because the
        disk takes no writes from it either, what was on disk before counts.
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
        """Whether the positions are a stand-in that other processes will not look for."""
        return self.positions.is_private

    def restart_needed(self) -> StoreError:
        """What ends the process once a disk that was read-only at start takes writes again."""
        return RestartNeeded(
            f"the disk of {self.directory.root} takes writes again, and this process was started "
            "without. Nothing is lost.",
            "Start the node's processes again.",
            path=self.directory.root,
        )

    # -- end ------------------------------------------------------------------------------------

    def stopped_clean(self) -> None:
        """Everything is flushed: if nobody else uses the store and all is dispatched, say so.

        Whoever stops last removes ``abort``; the disk may keep it, which costs time only.
        """
        if self.recovered.read_only is not None:
            # A cut that the disk refused is due still: after a clean stop it would be damage.
            self._release()
            return
        # Reput, stopping last, sees that this process did not die.
        self.positions.claim(Slot.BROKER_PID, 0)
        self._release()
        mark_clean_if_last(self.directory, self.positions)

    def close(self) -> None:
        """Give the locks back and unmap."""
        self._release()
        self.positions.close()

    def _release(self) -> None:
        while self._locks:
            self._locks.pop().release()
