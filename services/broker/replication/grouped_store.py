"""The store of a node of a group, as its broker holds it.

The broker holds byte 1 of ``lock`` all the time. It holds byte 0 (append) only for the epochs that
ha grants, and recovers the log for each, because ha appended meanwhile. ha creates the store,
publishes what is confirmed, and empties the store if it has to be copied anew: then this process
ends, and its next start waits for its byte. Step before: configuration. Step after: ``node``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets

from services.broker.config import BrokerConfig
from services.broker.log.open_store import OpenStore
from shared.cluster.grant import granted
from shared.files.clean_stop import mark_clean_if_last
from shared.files.disk import Disk, RecordLock
from shared.files.log_walk import Progress
from shared.files.positions import Positions
from shared.files.recovery import Recovered
from shared.files.store_dir import LockByte, StoreDir, new_start_id
from shared.runtime.clock import boot_id
from shared.runtime.health import Health
from tidemark.clock import Clock
from tidemark.errors import RestartNeeded, StoreLocked
from tidemark.formats.checkpoint import BrokerPhase, NodeRole, Slot, Trouble
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

OPEN_POLL_S = 0.05


class GroupedStore(OpenStore):
    """One store of a group, with byte 1 locked by this process."""

    def __init__(
        self, directory: StoreDir, positions: Positions, lock: RecordLock, clock: Clock
    ) -> None:
        super().__init__(directory, positions, [lock])
        self._clock = clock
        self.nonce = secrets.randbits(63) | 1
        """Nonce of this start; ha grants epochs to it, and to no other."""
        self.boot: tuple[int, int] = boot_id()
        self._append_lock: RecordLock | None = None
        self._dispatch_is_known = False

    # -- opening --------------------------------------------------------------------------------

    @classmethod
    async def wait_open(
        cls, config: BrokerConfig, disk: Disk, clock: Clock, health: Health, stop: asyncio.Event
    ) -> GroupedStore | None:
        """Open the store once ha has created it and the lock is free; None if stopped first.

        Raises StoreSizesDiffer, StoreFormatUnknown, DiskFull, ReadOnlyDisk …
        """
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        while not stop.is_set():
            try:
                if await asyncio.to_thread(disk.stat, directory.description_path) is not None:
                    store = await asyncio.to_thread(cls._open, directory, disk, clock)
                    health.clear_reason("waiting-for-store")
                    return store
                detail = f"there is no store in {config.store_dir} yet: check that ha runs"
            except StoreLocked as error:
                # Held by a broker that is about to end, or by ha while it empties the store.
                detail = error.detail
            health.add_reason("waiting-for-store", detail)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPEN_POLL_S):
                    await stop.wait()
        return None

    @classmethod
    def _open(cls, directory: StoreDir, disk: Disk, clock: Clock) -> GroupedStore:
        lock = directory.lock(LockByte.BROKER)
        try:
            directory.open_or_create()
            directory.describe_delay_levels()
            for what in directory.unsupported():
                log.warning(
                    "kept untouched and not served", extra={"event": "unsupported", "what": what}
                )
            # No private page is used here: ha and reput would not see it.
            positions = Positions.open(disk, directory.checkpoint_path)
        except BaseException:
            lock.release()
            raise
        store = cls(directory, positions, lock, clock)
        store._introduce()
        return store

    def _introduce(self) -> None:
        """Publish that a broker is here. The nonce is last: ha may grant an epoch from then on.

        EPOCH_RECORD_END may have the value of an earlier start. It is valid only while
        SERVING_EPOCH is set, and is cleared before that.
        """
        publish = self.positions.publish
        publish(Slot.SERVING_EPOCH, 0)
        publish(Slot.BROKER_TROUBLE, Trouble.NONE)
        publish(Slot.DAMAGED_AT, 0)
        publish(Slot.BROKER_STATE, BrokerPhase.STARTING)
        self.positions.claim(Slot.BROKER_PID, new_start_id())
        publish(Slot.BROKER_HEARTBEAT_MS, self._clock.boot_ms())
        publish(Slot.BROKER_NONCE, self.nonce)

    # -- what ha publishes ------------------------------------------------------------------------

    @property
    def ha_has_spoken(self) -> bool:
        """Return whether ha has published anything in this boot; older values are void."""
        get = self.positions.get
        return (get(Slot.HA_BOOT_ID_HIGH), get(Slot.HA_BOOT_ID_LOW)) == self.boot

    @property
    def follows(self) -> bool:
        """Return whether this node is a slave whose log may be read up to what is confirmed."""
        return self.ha_has_spoken and self.positions.get(Slot.ROLE) == NodeRole.FOLLOWER

    @property
    def is_halted(self) -> bool:
        """Return whether this node needs an operator."""
        return self.ha_has_spoken and self.positions.get(Slot.ROLE) == NodeRole.HALTED

    def granted(self, served: int) -> int | None:
        """Return the epoch above ``served`` that this start may serve now; None: there is none."""
        return granted(self.positions, nonce=self.nonce, boot=self.boot, served=served)

    def check_not_emptied(self) -> None:
        """Raise RestartNeeded if ha is about to empty the store, or was when the power failed."""
        # In any boot. Otherwise: 1. the power fails while a store is emptied; 2. the next start of
        # ha continues this, and waits for this process's byte before it publishes anything;
        # 3. this process waits for ha to publish, forever.
        if self.positions.get(Slot.ROLE) == NodeRole.RESYNC:
            raise RestartNeeded(
                f"the store {self.directory.root} is emptied and copied anew from the master.",
                "Start this process again; it waits until the copy can be read.",
                path=self.directory.root,
            )

    @property
    def dispatched(self) -> PhysicalOffset:
        """End of what queues and index cover and is visible.

        Reput goes on with every new generation, because what it has dispatched is confirmed and
        never cut. Until a reput of this boot has begun, the page's value is from another boot.
        """
        if not self.dispatch_is_known:
            return PhysicalOffset(0)
        get = self.positions.get
        return PhysicalOffset(min(get(Slot.DISPATCHED), get(Slot.CONFIRM)))

    @property
    def dispatch_is_known(self) -> bool:
        """Return whether reput has published in this boot what queues and index cover."""
        get = self.positions.get
        if not self._dispatch_is_known and self.ha_has_spoken:
            self._dispatch_is_known = get(Slot.REPUT_GENERATION) == get(Slot.GENERATION)
        return self._dispatch_is_known

    # -- appending ------------------------------------------------------------------------------

    def take_append_lock(self) -> bool:
        """Take the append lock if it is free; return whether this process holds it now."""
        try:
            self._append_lock = self.directory.lock(LockByte.APPEND)
        except StoreLocked:
            return False
        return True

    def recover_for_term(self, progress: Progress) -> Recovered:
        """Find the log's end, as ha left it. Blocks. Raises CorruptRecord.

        Needs the append lock.
        """
        assert self._append_lock is not None, "the append lock is held during recovery"
        self.directory.mark_running()
        # ha has written to the log since this process began.
        self.directory.forget_clean()
        self._recovered = self._recover(progress)
        return self._recovered

    def give_append_lock_back(self) -> None:
        """Release the append lock: all bytes of this term are in the files, and ha may write."""
        self.positions.publish(Slot.SERVING_EPOCH, 0)
        if self._append_lock is not None:
            self._append_lock.release()
            self._append_lock = None

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record that the last recovery read; 0 if this node was no
        master."""
        return 0 if self._recovered is None else self._recovered.last_store_timestamp_ms

    # -- end ------------------------------------------------------------------------------------

    def stopped_clean(self) -> None:
        """Mark a clean stop of this process; the last process to stop marks the store."""
        self._leave()
        self.positions.claim(Slot.BROKER_PID, 0)
        self._release()
        mark_clean_if_last(self.directory, self.positions, must_have_stopped=(Slot.HA_PID,))

    def close(self) -> None:
        """Release the locks and unmap."""
        self._leave()
        super().close()

    def _leave(self) -> None:
        self.give_append_lock_back()
        self.positions.publish(Slot.BROKER_NONCE, 0)
