"""Empties the store in place, to copy the master's log anew; crash-safe.

It is done in place because a directory that two other processes have mapped cannot be exchanged,
and neither can a mount point. Broker and reput end when the page shows RESYNC; ha holds their bytes
meanwhile, so there is no reader. The promise stays: it concerns the group, not the content of the
volume. The volume becomes another member, electable once it was added to the in-sync set
(docs/replication.md, rejoining). The next start finishes the steps after a crash; they are hooks:

1. The intent is written: from here on nothing in the store counts.
2. The page shows RESYNC; bytes 1 and 2 are taken as soon as broker and reput have ended.
3. The page's positions begin anew; the generation keeps rising.
4. Log, consume queues, index and caches are removed; no file is shortened.
5. The first log file is made: the log begins where the master's does.
6. Table and confirm offset are empty.
7. The new incarnation is written.
8. The intent is removed.

Step before: the slave's link found no common history, or an operator ordered it. Step after: the
log is recovered, empty.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.ha.shell import hooks
from services.ha.shell.lock_bytes import wait_for_byte
from services.ha.shell.replica_files import Identity, ReplicaFiles, ResyncIntent
from shared.files.disk import Disk, RecordLock
from shared.files.log_start import write_log_start
from shared.files.mapped_file_queue import MappedFileQueue, Preallocation
from shared.files.positions import Positions
from shared.files.store_dir import LockByte, StoreDir
from tidemark.formats.checkpoint import REGION_HA, REGION_REPUT, SLOT_SIZE, NodeRole, Slot
from tidemark.formats.filenames import parse_offset_name

REPUT_SLOTS: Final = tuple(slot for slot in Slot if REGION_REPUT <= slot * SLOT_SIZE < REGION_HA)
ZEROED: Final = (
    *REPUT_SLOTS,
    Slot.LOG_EPOCH,
    Slot.SERVING_EPOCH,
    Slot.EPOCH_RECORD_END,
    Slot.FOREIGN_FROM,
    Slot.FOREIGN_UNTIL,
    Slot.CONFIRM,
)


def begin(files: ReplicaFiles, intent: ResyncIntent) -> None:
    """Run step 1. The log is closed. Raises StoreError, OSError."""
    hooks.before("resync-1")
    files.write_intent(intent)


def finish(
    store: StoreDir,
    positions: Positions,
    files: ReplicaFiles,
    intent: ResyncIntent,
    identity: Identity,
    stopping: Callable[[], bool],
) -> None:
    """Empty the store and give it the new identity: steps 2 to 8, each of which an earlier start
    may have done already.

    The append lock is held. identity: identity of this node, with the new incarnation. Blocks until
    broker and reput have ended. Raises Stopping, StoreError, OSError: the next start continues.
    """
    hooks.before("resync-2")
    positions.publish(Slot.ROLE, NodeRole.RESYNC)
    held: list[RecordLock] = []
    try:
        for role in (LockByte.BROKER, LockByte.REPUT):
            held.append(wait_for_byte(store, role, stopping))
        hooks.before("resync-3")
        _begin_page(positions, intent.first_offset)
        write_log_start(store.disk, store.log_start_path, intent.first_offset)
        hooks.before("resync-4")
        _remove_content(store)
        hooks.before("resync-5")
        _make_first_file(store, intent.first_offset)
        hooks.before("resync-6")
        files.write_table(())
        files.write_confirm(0)
        files.remove_damage()
        hooks.before("resync-7")
        files.write_identity(identity)
        hooks.before("resync-8")
        files.remove_intent()
        # Before they get their bytes back: a start that still saw RESYNC would end again at once.
        positions.publish(Slot.ROLE, NodeRole.VOID)
    finally:
        for lock in held:
            lock.release()


def _begin_page(positions: Positions, first_offset: int) -> None:
    """Reset the slots of broker and reput; ha may write them because it holds their bytes."""
    for slot in ZEROED:
        positions.publish(slot, 0)
    for slot in (Slot.FLUSHED, Slot.WRITTEN, Slot.MIN):
        positions.publish(slot, first_offset)
    positions.sync()


def _remove_content(store: StoreDir) -> None:
    disk = store.disk
    for entry in disk.list_directory(store.commit_log_dir):
        # Other files do not belong there: recovery reports them, and an operator moves them away.
        if not entry.is_directory and parse_offset_name(entry.name) is not None:
            disk.unlink(store.commit_log_dir / entry.name)
    disk.sync_directory(store.commit_log_dir)
    # Files of config/ that RocketMQ wrote would be taken over as state of the master's log.
    for directory in (store.consume_queues_dir, store.index_dir, store.config_dir):
        _remove_below(disk, directory)


def _remove_below(disk: Disk, directory: Path) -> None:
    """Remove everything in a directory, durably."""
    for entry in disk.list_directory(directory):
        path = directory / entry.name
        if entry.is_directory:
            _remove_below(disk, path)
            disk.remove_directory(path)
        else:
            disk.unlink(path)
    disk.sync_directory(directory)


def _make_first_file(store: StoreDir, first_offset: int) -> None:
    """Make the first file: an empty log begins at the offset in its name."""
    size = store.config.commit_log_file_size
    assert first_offset % size == 0, "a log begins where a file does"
    queue = MappedFileQueue(
        store.disk,
        store.commit_log_dir,
        size,
        mapped_max=1,
        writable=True,
        preallocation=Preallocation(reserve=True),
    )
    try:
        queue.load()
        queue.wrote_offset = first_offset
        queue.prepare_next()
    finally:
        queue.close()
