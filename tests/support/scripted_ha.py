"""ha as a script: holds bytes 3 and 0 and plays ha's part in the page, against real processes.

    with ScriptedHa(node) as ha:
        ha.start()
        node.start("broker", "reput")
        ha.serve(epoch=1)
        ... sends are accepted, and confirmed as they are flushed ...
        ha.take_back()

Every step is a method, so that a test can stop, kill or repeat at any point. ``serve`` follows in a
thread: it publishes what a group of this one node would confirm. Nothing of ``services.ha`` is
used: the broker's behaviour must follow from the page alone (``shared.cluster.grant``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final

from shared.cluster import grant
from shared.files.commit_log import CommitLogAppender
from shared.files.disk import RecordLock
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_config import StoreConfig
from shared.files.store_dir import LockByte, StoreDir
from shared.runtime.clock import SystemClock, boot_id
from shared.runtime.doorbell import socket_path
from tests.support.node import SMALL_STORE, Node, wait_until
from tidemark.errors import StoreLocked
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

LOCK_TIMEOUT_S: Final = 60.0
FOLLOW_PAUSE_S: Final = 0.0005
LEASE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
"""How long a granted epoch lasts unless a test says otherwise."""


def cluster_table(node_name: str = "n0") -> dict[str, object]:
    """A [cluster] table that broker and reput accept; its addresses are never used."""
    names = ("n0", "n1")
    return {
        "node": node_name,
        "nodes": [f"{name}=127.0.0.1:{port}" for name, port in zip(names, (1, 2), strict=True)],
        "api": [f"{name}=http://{name}.example:8080" for name in names],
        "admin": [f"{name}=http://{name}.example:8083" for name in names],
        "secret_file": "/dev/null",
        "lease_dir": "/tmp",
        "profile": "local",
    }


def scripted_node(directory: Any, **more: Any) -> Node:
    """A node of a group whose ha is a script."""
    store = {"visible_after": "confirmed", **more.pop("store", {})}
    return Node(directory, cluster=cluster_table(), store=store, **more)


class ScriptedHa:
    """One start of ha on one node. ``close`` it, or ``die``."""

    def __init__(self, node: Node, *, in_sync: int = 2, store: Mapping[str, Any] | None = None):
        """in_sync: size of the set in the page. store: settings on top of SMALL_STORE."""
        self._run_dir = node.run_dir
        self.disk = OsDisk()
        values = {**SMALL_STORE, "visible_after": "confirmed", **(store or {})}
        self.directory = StoreDir(
            self.disk,
            node.store_dir,
            StoreConfig(**values),
            run_dir=node.run_dir,
        )
        self.in_sync = in_sync
        self.epoch = 0
        self.positions: Positions | None = None
        self._locks: dict[LockByte, RecordLock] = {}
        self._clock = SystemClock()
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._following: threading.Thread | None = None
        self._stop = threading.Event()
        self.holds_confirm = False
        """Whether the confirm offset stands still, as while a member of the set is silent."""

    def __enter__(self) -> ScriptedHa:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.die()
        self._bell.close()

    # -- the page -------------------------------------------------------------------------------

    @property
    def slots(self) -> Positions:
        """The mapped page."""
        assert self.positions is not None, "start comes first"
        return self.positions

    def get(self, slot: Slot) -> int:
        """Return the value of a slot."""
        return self.slots.get(slot)

    def publish(self, slot: Slot, value: int) -> None:
        """Store one slot, without a ring."""
        self.slots.publish(slot, value)

    def ring(self) -> None:
        """Ring the doorbells of both other services."""
        for service in ("broker", "reput"):
            with contextlib.suppress(OSError):
                self._bell.sendto(b"\x01", str(socket_path(self._run_dir, service)))

    # -- start and end --------------------------------------------------------------------------

    def start(self) -> Recovered:
        """Byte 3, fence, byte 0, recovery, FOLLOWER: what every start of ha begins with."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self.disk.make_directory(self.directory.root)
        self._locks[LockByte.HA] = self.directory.lock(LockByte.HA)
        self.directory.open_or_create()
        self.positions = Positions.open(self.disk, self.directory.checkpoint_path)
        grant.fence(self.slots)
        self.publish(Slot.HA_NONCE, secrets.randbits(63) | 1)
        self.publish(Slot.HA_PID, os.getpid())
        self.ring()
        return self.take_back()

    def die(self) -> None:
        """End as by SIGKILL: the locks are released, the page stays as it is."""
        self._end_following()
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        if self.positions is not None:
            self.positions.close()
            self.positions = None

    # -- the append lock ------------------------------------------------------------------------

    def fence(self) -> None:
        """End the grant, without a wait."""
        self._end_following()
        grant.fence(self.slots)
        self.ring()

    def take_back(self) -> Recovered:
        """Fence, wait for byte 0, recover, follow."""
        self.fence()
        return self.follow()

    def follow(self) -> Recovered:
        """Once fenced: byte 0, recovery, confirm as it was, FOLLOWER."""
        self.wait_append_lock()
        found = self.recover()
        confirm = max(self.get(Slot.CONFIRM), self.get(Slot.DISPATCHED_DURABLE))
        self.publish(Slot.CONFIRM, confirm)
        boot = boot_id()
        self.publish(Slot.HA_BOOT_ID_HIGH, boot.high)
        self.publish(Slot.HA_BOOT_ID_LOW, boot.low)
        self.publish(Slot.ROLE, NodeRole.FOLLOWER)
        self.ring()
        return found

    def wait_append_lock(self) -> None:
        """Take byte 0, waiting until the broker has given it back."""

        def taken() -> bool:
            try:
                self._locks[LockByte.APPEND] = self.directory.lock(LockByte.APPEND)
            except StoreLocked:
                return False
            return True

        if LockByte.APPEND not in self._locks:
            wait_until(taken, "the append lock to be given back", LOCK_TIMEOUT_S)

    def recover(self) -> Recovered:
        """Recover the store, as any process that takes byte 0 does; this raises GENERATION."""
        self.directory.mark_running()
        self.publish(Slot.HA_HEARTBEAT_MS, self._clock.boot_ms() + HOUR_MS)  # it beats no more
        return recover(
            self.directory,
            self.slots,
            boot_id=boot_id(),
            recovered_by=os.getpid(),
        )

    def release_append_lock(self) -> None:
        """Release byte 0."""
        lock = self._locks.pop(LockByte.APPEND, None)
        if lock is not None:
            lock.release()

    # -- an epoch -------------------------------------------------------------------------------

    def wait_nonce(self, *, other_than: int = 0) -> int:
        """Wait for a start of the broker; return its nonce."""
        wait_until(lambda: self.get(Slot.BROKER_NONCE) not in (0, other_than), "a broker's nonce")
        return self.get(Slot.BROKER_NONCE)

    def grant(self, epoch: int, *, nonce: int | None = None, lease_ms: int = LEASE_MS) -> None:
        """Let the broker append under epoch; byte 0 is free by then."""
        self.release_append_lock()
        self.epoch = epoch
        self.publish(Slot.IN_SYNC_SIZE, self.in_sync)
        self.publish(Slot.MIN_IN_SYNC, 1)
        self.publish(Slot.SENDS_HELD, 0)
        grant.grant(
            self.slots,
            epoch=epoch,
            nonce=self.wait_nonce() if nonce is None else nonce,
            deadline_boot_ms=self._clock.boot_ms() + lease_ms,
            boot=boot_id(),
        )
        self.ring()

    def extend(self, lease_ms: int) -> None:
        """Set the lease's deadline to that long from now; a negative value puts it in the past."""
        self.publish(Slot.LEASE_DEADLINE, self._clock.boot_ms() + lease_ms)

    def confirm_flushed(self) -> int:
        """Publish what a group of this one node has confirmed; return the confirm offset."""
        confirm = self.get(Slot.CONFIRM)
        # Only from here on is what is flushed of this epoch.
        if self.get(Slot.SERVING_EPOCH) == self.epoch and not self.holds_confirm:
            record_end = self.get(Slot.EPOCH_RECORD_END)
            flushed = self.get(Slot.FLUSHED)
            if flushed > confirm:
                confirm = flushed
                self.publish(Slot.CONFIRM, confirm)
                self.ring()
            if record_end and confirm >= record_end and self.get(Slot.ROLE) != NodeRole.MASTER:
                self.publish(Slot.ROLE, NodeRole.MASTER)
                self.ring()
        return confirm

    def follow_in_thread(self) -> None:
        """``confirm_flushed`` again and again until the grant is taken back."""
        self._stop.clear()

        def run() -> None:
            while not self._stop.is_set():
                self.confirm_flushed()
                time.sleep(FOLLOW_PAUSE_S)

        self._following = threading.Thread(target=run, name="scripted-ha", daemon=True)
        self._following.start()

    def serve(self, epoch: int, *, lease_ms: int = LEASE_MS) -> None:
        """Grant, and confirm as a group of one would, until the grant is taken back."""
        self.grant(epoch, lease_ms=lease_ms)
        self.follow_in_thread()

    def _end_following(self) -> None:
        self._stop.set()
        if self._following is not None:
            self._following.join()
            self._following = None

    # -- a slave --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def copying(self) -> Iterator[CommitLogAppender]:
        """Append as a slave's ha does, under byte 0; what is flushed counts as confirmed on exit.

        Not byte for byte of a master: what the broker sees of it is the same.
        """
        assert LockByte.APPEND in self._locks, "a slave's ha holds byte 0"
        appender = CommitLogAppender(self.directory, self.slots, ahead=1)
        appender.start_at(PhysicalOffset(self.get(Slot.WRITTEN)))
        try:
            yield appender
            appender.flush()
            self.publish(Slot.CONFIRM, self.get(Slot.FLUSHED))
            self.ring()
        finally:
            appender.close(clean=False)

    def copy(self, *runs: tuple[Run, int]) -> None:
        """Append runs with the queue offset of their first message, as ``copying``."""
        with self.copying() as appender:
            for run, first in runs:
                appender.append([run], [first], self._clock.wall_ms())
