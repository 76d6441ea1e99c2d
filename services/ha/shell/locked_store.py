"""The store as ha holds it: lock bytes, page, and operations on the log as a whole.

Byte 3 of ``lock`` is held all the time, byte 0 whenever the broker does not append. Step before:
configuration. Step after: ``replica_store`` recovers the volume; ``replica_disk`` runs the
replica's effects.
"""

from __future__ import annotations

import logging
import secrets
import threading
import zlib
from collections.abc import Callable
from typing import Self

from services.ha.core.setup import Setup
from services.ha.shell import cutting, resync
from services.ha.shell.lock_bytes import Stopping, wait_for_byte
from services.ha.shell.replica_files import (
    INCARNATION_DIGITS,
    Identity,
    Promise,
    ReplicaFiles,
    ResyncIntent,
)
from shared.cluster.grant import fence
from shared.files.clean_stop import mark_clean_if_last
from shared.files.disk import RecordLock
from shared.files.log_walk import Progress
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import LockByte, StoreDir, new_start_id
from tidemark.clock import Clock
from tidemark.errors import DamagedFile, GroupStore
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.formats.filenames import offset_name

log = logging.getLogger(__name__)


class LockedStore:
    """One store, with ha's byte locked by this process.

    For one thread at a time, except for ``write_promise`` and ``write_owed_identity``.
    """

    def __init__(
        self,
        directory: StoreDir,
        positions: Positions,
        lock: RecordLock,
        setup: Setup,
    ) -> None:
        self.directory, self.positions = directory, positions
        self.files = ReplicaFiles(directory)
        self._lock: RecordLock | None = lock
        self._append_lock: RecordLock | None = None
        self._setup = setup
        self.boot_id = (0, 0)
        """(high, low) of this boot of the machine."""
        self.is_halted = False
        """Recovery found damage that an operator has to judge: the log must not be changed."""
        self.identity: Identity | None = None
        self._identity_is_owed = False
        self._writing_identity = threading.Lock()

    @classmethod
    def open(cls, directory: StoreDir, setup: Setup, clock: Clock) -> Self:
        """Lock byte 3, open the page, fence, publish this process as the owner. Blocks.

        Raises StoreLocked, GroupStore (the volume is another node's, or another group's),
        StoreSizesDiffer, DiskFull, ReadOnlyDisk …
        """
        directory.disk.make_directory(directory.root)
        lock = directory.lock(LockByte.HA)
        try:
            directory.open_or_create()
            if directory.read_only is not None:
                raise directory.read_only
            _refuse_foreign(directory, setup)
            positions = Positions.open(directory.disk, directory.checkpoint_path)
        except BaseException:
            lock.release()
            raise
        # Before anything that takes time: the broker may serve under a grant of the previous ha.
        fence(positions)
        positions.publish(Slot.HA_NONCE, secrets.randbits(64) | 1)
        positions.claim(Slot.HA_PID, new_start_id())
        positions.publish(Slot.HA_HEARTBEAT_MS, clock.boot_ms())
        return cls(directory, positions, lock, setup)

    # -- the log --------------------------------------------------------------------------------

    def take_append_lock(self, stopping: Callable[[], bool]) -> None:
        """Take the append lock as soon as the broker has released it. Blocks. Raises Stopping."""
        if self._append_lock is None:
            self._append_lock = wait_for_byte(self.directory, LockByte.APPEND, stopping)

    def release_append_lock(self) -> None:
        """Release the append lock; no effect if it is not held. The log must be closed."""
        if self._append_lock is not None:
            self._append_lock.release()
            self._append_lock = None

    def recover_log(self, progress: Progress, stopping: Callable[[], bool]) -> Recovered:
        """Find the end of the log and sync the log up to it. Hold the append lock. Blocks.

        Raises CorruptRecord, StrayFile, WrongFileSize, DiskFull, ReadOnlyDisk, Stopping. Raises
        DamagedFile if ``ha/confirm`` is damaged: it is unknown then what may be cut.
        """

        def report(done: int, total: int) -> None:
            progress(done, total)
            if stopping():
                raise Stopping

        self.directory.mark_running()
        recovered = recover(
            self.directory,
            self.positions,
            boot_id=self.boot_id,
            progress=report,
            confirm=self.files.confirm(),
            recovered_by=self.positions.get(Slot.HA_PID),
        )
        if recovered.read_only is not None:
            raise recovered.read_only
        if recovered.cut is not None:
            log.warning(
                "a torn tail was cut and kept aside",
                extra={
                    "event": "tail-cut",
                    "start_offset": recovered.cut.start,
                    "end_offset": recovered.cut.end,
                    "path": str(recovered.cut.path),
                    "reason": recovered.cut.reason,
                },
            )
        self.is_halted = False
        return recovered

    def publish_log_epoch(self, table: tuple[EpochStart, ...]) -> None:
        """Publish the epoch of the end of the log. Byte 0 is held."""
        self.positions.publish(Slot.LOG_EPOCH, table[-1].epoch if table else 0)

    def cut(self, point: int, table: tuple[EpochStart, ...]) -> cutting.Cut:
        """Cut the log, see ``cutting.cut``; ``recover_log`` comes next."""
        return cutting.cut(
            self.directory,
            self.positions,
            self.files,
            point=point,
            table=table,
            confirm=max(self.files.confirm(), self.published_confirm),
        )

    def resync(
        self,
        first_offset: int,
        stopping: Callable[[], bool],
        intended: Callable[[], None] = lambda: None,
    ) -> str:
        """Take the append lock and empty the store, see ``resync``; return the new incarnation.

        intended: called once the next start would empty the store, too. ``recover_log`` comes next.
        Blocks. Raises Stopping.
        """
        identity = self.new_identity(secrets.token_hex(INCARNATION_DIGITS // 2))
        intent = ResyncIntent(identity.incarnation, first_offset)
        resync.begin(self.files, intent)
        intended()
        self.take_append_lock(stopping)
        resync.finish(self.directory, self.positions, self.files, intent, identity, stopping)
        self.identity, self._identity_is_owed = identity, False
        return identity.incarnation

    def write_promise(self, promise: Promise) -> None:
        """Write a promise durably; the first one makes this volume a member of the group."""
        self.write_owed_identity()
        self.files.write_promise(promise)

    def write_owed_identity(self) -> None:
        """Write a postponed identity durably, before a lease names it.

        Otherwise: 1. A store that was alone founds the group, and the lease names its volume. 2. ha
        is killed before the first promise. 3. The next start makes another incarnation, and the set
        has a member that does not exist any more.
        """
        with self._writing_identity:  # both threads of ``replica_disk`` may call it at once
            if self._identity_is_owed:
                assert self.identity is not None
                self.files.write_identity(self.identity)
                self._identity_is_owed = False

    @property
    def published_confirm(self) -> int:
        """The confirm offset on the page. Both slots were on this disk before they were published,
        so they also hold after a power cut."""
        get = self.positions.get
        return max(get(Slot.CONFIRM), get(Slot.DISPATCHED_DURABLE))

    def crc_before(self, end: int, size: int) -> int | None:
        """Return the CRC-32 of the log's bytes [end − size, end); None if some are missing. Any
        thread.

        size: at most 64 KiB, as in the protocol.
        """
        get = self.positions.get
        at, crc = end - size, 0
        if at < get(Slot.MIN) or end > get(Slot.WRITTEN):
            return None
        file_size = self.directory.config.commit_log_file_size
        while at < end:
            start = at - at % file_size
            wanted = min(end, start + file_size) - at
            try:
                path = self.directory.commit_log_dir / offset_name(start)
                file = self.directory.disk.open(path, writable=False)
            except FileNotFoundError:
                return None
            try:
                data = file.pread(wanted, at - start)
            finally:
                file.close()
            if len(data) < wanted:
                return None
            at, crc = at + wanted, zlib.crc32(data, crc)
        return crc

    # -- end ------------------------------------------------------------------------------------

    def stopped_clean(self) -> None:
        """Release all locks, and remove ``abort`` if this is the last process and all is done."""
        self.positions.claim(Slot.HA_PID, 0)
        self._release()
        others = (Slot.BROKER_PID, Slot.REPUT_PID)
        mark_clean_if_last(self.directory, self.positions, must_have_stopped=others)

    def close(self) -> None:
        """Release the locks and unmap."""
        self._release()
        self.positions.close()

    def _release(self) -> None:
        self.release_append_lock()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def new_identity(self, incarnation: str) -> Identity:
        """Return the identity of this node with that incarnation."""
        setup = self._setup
        return Identity(incarnation, setup.cluster, setup.group, setup.own.name)


def _refuse_foreign(directory: StoreDir, setup: Setup) -> None:
    """Raise GroupStore if the volume belongs to another node or group."""
    try:
        identity = ReplicaFiles(directory).identity()
    except DamagedFile:
        return  # recovery reports it, and a resync makes a new one
    wanted = (setup.cluster, setup.group, setup.own.name)
    if identity is None or (identity.cluster, identity.group, identity.node) == wanted:
        return
    raise GroupStore(
        f"{directory.root} belongs to node {identity.node!r} of group {identity.group!r}, cluster "
        f"{identity.cluster!r}; this is node {wanted[2]!r} of {wanted[1]!r}, {wanted[0]!r}. "
        "Nothing was changed.",
        "Mount the right volume; or, to give this one up, empty the directory.",
        path=directory.root,
    )
