"""The store directory: paths, sizes, locks, the abort marker, tidemark.json, cut/.

It knows all paths and handles the directory as a whole; it opens none of the files that hold
messages. Names are RocketMQ's where it has one (docs/formats.md, section 1), and so is the meaning
of ``lock`` and ``abort`` (sections 8.1, 8.6, 8.7). Invariants:

- ``tidemark.json`` is created once and then only compared: sizes affect every file of the store.
- ``abort`` always exists while a process may write: it is created before the first byte, and
  replaced by renaming, never by removing it first.
- ``cut/`` is bounded; a file appears there under its name complete or not at all.

Every service opens this first, then positions, then the commit log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from shared.files import kept_cuts
from shared.files.disk import Disk, RecordLock, read_whole, write_atomically
from shared.files.store_config import (
    GROUP_MARKER,
    Adopting,
    StoreConfig,
    compare_sizes,
    config_of,
    describe,
    described_adopting,
    described_delay_levels,
    described_sizes,
    existing_sizes,
)
from tidemark.errors import (
    DiskFull,
    GroupStore,
    OutOfResources,
    ReadOnlyDisk,
    StoreError,
    StoreLocked,
    StoreMissing,
)
from tidemark.formats.checkpoint import Slot, pid_of, start_id
from tidemark.formats.filenames import RUNNING_SIGN
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

__all__ = ["LockByte", "StoreConfig", "StoreDir", "config_of"]

log = logging.getLogger(__name__)

LOCK_CONTENT: Final = b"lock"
OPENED: Final = b" tidemark"
"""End of abort's content after a start of ours has taken over RocketMQ's data."""
LMQ_PREFIX: Final = "%LMQ%"
DESCRIBE_BYTE: Final = 4
"""Byte of ``lock`` that is held while tidemark.json is changed, for a few milliseconds."""
DESCRIBE_PAUSE_S: Final = 0.01
DESCRIBE_TRIES: Final = 500
DELAY_LEVELS_KEPT: Final = 16
"""Delay level settings kept in tidemark.json; messages of still earlier ones are long due."""
QUEUE_MAX: Final = (1 << 31) - 1
"""Largest queue id that a record can contain."""

UNSUPPORTED: Final = (("compaction", "compacted topics"),)
"""Data of RocketMQ that Tidemark neither serves nor changes (docs/formats.md 1)."""


class QueueDirectory(NamedTuple):
    """The directory of one queue, and the shape of its files."""

    path: Path
    unit_size: int
    """BATCH_UNIT_SIZE for a batch queue, otherwise UNIT_SIZE."""
    file_size: int


class LockByte(IntEnum):
    """Byte of ``lock`` for each role. A RocketMQ broker takes byte 0."""

    APPEND = 0
    BROKER = 1
    REPUT = 2
    HA = 3


PID_SLOTS: Final = {
    LockByte.APPEND: (Slot.BROKER_PID, Slot.HA_PID),
    LockByte.BROKER: (Slot.BROKER_PID,),
    LockByte.REPUT: (Slot.REPUT_PID,),
    LockByte.HA: (Slot.HA_PID,),
}
"""Slots in which the holder of a role publishes its start id, the most likely one first."""


def new_start_id() -> int:
    """Create the id of this start, which differs at each start even if the process id does not."""
    return start_id(os.getpid(), secrets.randbits(40))


def _queue_number(name: str) -> int | None:
    if not (name.isascii() and name.isdigit() and len(name) <= len(str(QUEUE_MAX))):
        return None
    number = int(name)
    return number if number <= QUEUE_MAX and name == str(number) else None


class StandInLock:
    """Lock on a byte of run_dir's lock file, and later also on the store's own, when possible."""

    def __init__(self, role: LockByte, lock: RecordLock) -> None:
        self.role = role
        self._locks = [lock]
        self.held = True

    def add(self, lock: RecordLock) -> None:
        """Hold the store's own byte as well."""
        self._locks.append(lock)

    def show(self, sign: Path) -> None:
        """Call ``show`` of the lock that was added last, which is the store's own if it is held."""
        self._locks[-1].show(sign)

    def release(self) -> None:
        """Release all locks."""
        self.held = False
        for lock in self._locks:
            lock.release()


class StoreDir:
    """One store directory. Call ``open_or_create`` first; paths are valid before it."""

    def __init__(
        self, disk: Disk, root: Path, config: StoreConfig, *, run_dir: Path | None = None
    ) -> None:
        self.disk = disk
        self.root = root
        self.config = config
        self.run_dir = run_dir if run_dir is not None else root / "run"
        self.commit_log_dir = root / "commitlog"
        self.consume_queues_dir = root / "consumequeue"
        self.batch_queues_dir = root / "batchconsumequeue"
        self.extensions_dir = root / "consumequeue_ext"
        """Files of RocketMQ's ``enableConsumeQueueExt``. They are never read or changed."""
        self.index_dir = root / "index"
        self.config_dir = root / "config"
        self.cut_dir = root / "cut"
        self.checkpoint_path = root / "checkpoint"
        self.log_start_path = root / "log-start"
        self.abort_path = root / "abort"
        self.lock_path = root / "lock"
        self.epochs_path = root / "epochFileCheckpoint"
        self.ha_dir = root / "ha"
        self.identity_path = root / GROUP_MARKER
        self.description_path = root / "tidemark.json"
        self.private_positions_path = self.run_dir / "checkpoint"
        self.is_foreign = False
        """Whether the store is RocketMQ's and no recovery of ours has finished yet."""
        self.read_only: StoreError | None = None
        """Why the directory cannot be written now: ReadOnlyDisk or DiskFull; None if it can."""
        self._was_clean: bool | None = None
        self._stand_ins: list[StandInLock] = []
        self._abort_owed: int | None = None
        self._abort_is_durable = False
        self._append_lock: RecordLock | None = None

    @property
    def is_grouped(self) -> bool:
        """Whether the store belongs to a group of nodes."""
        return self.disk.stat(self.identity_path) is not None

    def queue_directory(
        self, topic: str, queue: int, unit_size: int | None = None
    ) -> QueueDirectory:
        """Return the directory of one queue's files, which may not exist.

        unit_size: the kind of the queue; None: a batch queue if it has a directory as such.
        """
        if unit_size is None:
            batches = self.disk.stat(self.batch_queues_dir / topic / str(queue)) is not None
            unit_size = BATCH_UNIT_SIZE if batches else UNIT_SIZE
        parent = self.batch_queues_dir if unit_size == BATCH_UNIT_SIZE else self.consume_queues_dir
        units = self.config.consume_queue_file_size // UNIT_SIZE
        return QueueDirectory(parent / topic / str(queue), unit_size, units * unit_size)

    def queue_directories(self, topic: str, queue: int) -> list[QueueDirectory]:
        """Return the directories of a queue that exist: one of each kind at most."""
        kinds = [self.queue_directory(topic, queue, size) for size in (UNIT_SIZE, BATCH_UNIT_SIZE)]
        return [kind for kind in kinds if self.disk.stat(kind.path) is not None]

    def queues(self, topics: Container[str] | None = None) -> list[tuple[str, int]]:
        """Return every (topic, queue) that has a directory, of the given topics if any.

        Directories whose names are not queue numbers in canonical form are ignored: 007 would be
        queue 7 a second time, and a number above the 32 bits of a record's queue id is impossible.
        """
        found = set()
        for parent in (self.consume_queues_dir, self.batch_queues_dir):
            for topic in self.disk.list_directory(parent):
                if not topic.is_directory or topic.name.startswith(LMQ_PREFIX):
                    continue
                if topics is not None and topic.name not in topics:
                    continue
                for queue in self.disk.list_directory(parent / topic.name):
                    number = _queue_number(queue.name) if queue.is_directory else None
                    if number is not None:
                        found.add((topic.name, number))
        return sorted(found)

    def unsupported(self) -> list[str]:
        """Describe data that Tidemark keeps unchanged and does not serve, one phrase each."""
        found = [
            f"{name} ({what})"
            for name, what in UNSUPPORTED
            if self.disk.stat(self.root / name) is not None
        ]
        found += [
            f"consumequeue/{topic.name} (light message queue)"
            for topic in self.disk.list_directory(self.consume_queues_dir)
            if topic.is_directory and topic.name.startswith(LMQ_PREFIX)
        ]
        return found

    # -- opening ------------------------------------------------------------------------------

    def open_or_create(self, *, writable: bool = True) -> None:
        """Compare the store with the configuration; create missing parts.

        writable: False for tools that only read; then nothing is created.
        Raises StoreMissing (only if nothing may be created), StoreFormatUnknown, StoreSizesDiffer,
        DamagedFile; GroupStore if a standalone node would write a group's store; DiskFull or
        ReadOnlyDisk only if there is no store yet. An existing store is opened on such a disk, and
        ``read_only`` holds the error.
        """
        _ = self.was_clean  # evaluated before this start creates abort
        exists = self.disk.stat(self.commit_log_dir) is not None
        if not writable and not exists:
            raise StoreMissing(
                f"{self.root} holds no store: there is no commitlog/ in it. Nothing was made.",
                "Give the directory that holds commitlog/.",
                path=self.root,
            )
        described = described_sizes(self.disk, self.description_path, self.config.sizes)
        if described is not None:
            compare_sizes(described, self.config, self.description_path)
            adopting = described_adopting(self.disk, self.description_path)
            if adopting is not None:
                # abort is from our own start by now; this records how RocketMQ left the store.
                self.is_foreign, self._was_clean = True, adopting == "clean"
        else:
            files: dict[str, Path] = {}
            found = existing_sizes(self.disk, self.root, files)
            self.is_foreign = "commit_log_file_size" in found
            compare_sizes(found, self.config, self.root, files)
        if not writable:
            return
        self._refuse_alone()
        try:
            self._make_missing(describing=described is None)
        except (DiskFull, ReadOnlyDisk) as error:
            if not exists:
                raise
            self.read_only = error

    def _refuse_alone(self) -> None:
        if self.config.visible_after == "confirmed" or not self.is_grouped:
            return
        raise GroupStore(
            f"{self.root} belongs to a group of nodes: it has {self.identity_path}. Alone, this "
            "node would append records that its group knows nothing of. Nothing was changed.",
            "Give it the [cluster] settings of its group. To take it out of the group for good, "
            "remove the directory ha/ and the node from the group's settings.",
            path=self.root,
        )

    def _make_missing(self, *, describing: bool) -> None:
        for directory in (self.commit_log_dir, self.consume_queues_dir, self.index_dir):
            self.disk.make_directory(directory)
        self.disk.make_directory(self.config_dir)
        if describing:
            adopting: Adopting = "clean" if self.was_clean else "unclean"
            with self._describing() as has_turn:
                # In a group several services may create the store at the same time.
                missing = self.disk.stat(self.description_path) is None
                if missing and not has_turn:
                    # Without the file the next start would consider the store RocketMQ's.
                    raise StoreLocked(
                        f"byte {DESCRIBE_BYTE} of {self.lock_path} is held by another process, "
                        f"which kept it for {DESCRIBE_TRIES * DESCRIBE_PAUSE_S:.0f} s: "
                        f"{self.description_path} was not made.",
                        "Start it again. If that does not help, stop the other service of this "
                        "store, which hangs.",
                        path=self.lock_path,
                    )
                if missing:
                    self._describe(adopting=adopting if self.is_foreign else None)
        self._show_running()
        # A process killed between creating a name and syncing it left it in the page cache only.
        self.disk.sync_directory(self.root)

    @contextlib.contextmanager
    def _describing(self) -> Iterator[bool]:
        """Hold the lock for changes of tidemark.json until the block ends; yields success. Blocks.

        Without the lock: 1. ha reads the file to finish an adoption; 2. the broker records its
        delay levels; 3. ha writes what it read, and the levels are lost. Yields False if another
        process holds the lock for DESCRIBE_TRIES. The next start then makes the change; if the
        file does not exist at all, this start fails.
        """
        for _ in range(DESCRIBE_TRIES):
            lock = self.disk.lock(self.lock_path, byte=DESCRIBE_BYTE)
            if lock is not None:
                try:
                    yield True
                finally:
                    lock.release()
                return
            time.sleep(DESCRIBE_PAUSE_S)
        yield False

    def _describe(self, *, adopting: Adopting | None, delay_levels: Sequence[str] = ()) -> None:
        content = describe(self.config, adopting=adopting, delay_levels=delay_levels)
        write_atomically(self.disk, self.description_path, content)

    def finish_adoption(self) -> None:
        """Record that recovery has finished with RocketMQ's store, which is now ours. Blocks."""
        if described_adopting(self.disk, self.description_path) is None:
            return
        with self._describing() as has_turn:
            if has_turn:
                levels = described_delay_levels(self.disk, self.description_path)
                self._describe(adopting=None, delay_levels=levels)
            else:
                self._note_left_out("that RocketMQ's store is taken over", "takes it over again")

    def describe_delay_levels(self) -> None:
        """Record the configured delay levels in tidemark.json. Blocks. On a disk that refuses
        writes, the next start records them."""
        path, current = self.description_path, self.config.delay_levels
        if described_delay_levels(self.disk, path)[-1:] == (current,):
            return
        with contextlib.suppress(DiskFull, ReadOnlyDisk), self._describing() as has_turn:
            if not has_turn:
                self._note_left_out("the delay levels", "records them")
            elif self.disk.stat(path) is not None:
                known = described_delay_levels(self.disk, path)
                levels = [*(each for each in known if each != current), current]
                self._describe(
                    adopting=described_adopting(self.disk, path),
                    delay_levels=levels[-DELAY_LEVELS_KEPT:],
                )

    def _note_left_out(self, what: str, instead: str) -> None:
        log.warning(
            "tidemark.json does not say %s: another process keeps byte %d of lock; the next start "
            "%s",
            what,
            DESCRIBE_BYTE,
            instead,
            extra={"event": "description-left-out", "what": what, "path": self.description_path},
        )

    # -- locks and the abort marker -----------------------------------------------------------

    def lock(self, role: LockByte) -> RecordLock:
        """Lock the role's byte of ``lock``. Raises StoreLocked, naming the holder if known.

        On a disk that refuses writes the lock file of ``run_dir`` is used instead. The store cannot
        be written then, but two processes of one role would still share sockets and positions.
        """
        try:
            lock = self._take(self.lock_path, role)
            if role is LockByte.APPEND:
                self._append_lock = lock
                self._show_running()
            return lock
        except ReadOnlyDisk:
            self.disk.make_directory(self.run_dir)
            lock = StandInLock(role, self._take(self.run_dir / "lock", role))
            if role is LockByte.APPEND:
                self._append_lock = lock
        self._stand_ins.append(lock)
        return lock

    def _show_running(self) -> None:
        """Keep RocketMQ from changing a store that is in use.

        RocketMQ recovers before it takes the lock (docs/formats.md, section 8), and so removes log
        files and index files after the end that it finds. A name in commitlog/ whose size is not a
        log file's makes it give up before that. It removes a dangling link and continues, so a
        store whose process was killed opens as before.
        """
        if self._append_lock is not None:
            self._append_lock.show(self.commit_log_dir / RUNNING_SIGN)

    def _take(self, path: Path, role: LockByte) -> RecordLock:
        lock = self.disk.lock(path, byte=role)
        if lock is None:
            pid = self._holder(role)
            by = f"process {pid}" if pid else "a process that did not say its id"
            raise StoreLocked(
                f"byte {role.value} ({role.name.lower()}) of {path} is held by {by}. "
                "Nothing was changed.",
                "Stop that process, or choose another store directory.",
                path=path,
                role=role.name.lower(),
                holder=pid,
            )
        self._fill_lock_file(path)
        return lock

    def make_up(self) -> None:
        """Do what a start on a full or read-only disk had to leave out; before the first write.

        This takes the store's own lock in addition to the substitute, and creates missing
        directories, tidemark.json and abort. After an ordinary start it does nothing. Raises
        DiskFull, ReadOnlyDisk: try again later; StoreLocked: another process locked the store.
        """
        while self._stand_ins:
            lock = self._stand_ins[-1]
            if lock.held:
                lock.add(self._take(self.lock_path, lock.role))
                if lock is self._append_lock:
                    self._show_running()
            self._stand_ins.pop()
        if self.read_only is not None:
            self._make_missing(describing=self.disk.stat(self.description_path) is None)
            self.read_only = None
        if self._abort_owed is not None:
            self.mark_running(self._abort_owed)

    def _fill_lock_file(self, path: Path) -> None:
        # The content is only for people and RocketMQ's tools: a full disk must not prevent a start.
        refused = contextlib.suppress(DiskFull, ReadOnlyDisk)
        with refused, closing(self.disk.open(path, writable=True)) as file:
            if file.size < len(LOCK_CONTENT):
                file.pwrite(LOCK_CONTENT, 0)

    def _holder(self, role: LockByte) -> int | None:
        """Return the process id of the holder of the role's byte, if it is recorded."""
        page = read_whole(self.disk, self.checkpoint_path) or b""
        for slot in PID_SLOTS[role]:
            start = int.from_bytes(page[slot * 8 : slot * 8 + 8], "little")
            if start:
                return pid_of(start)
        text = (read_whole(self.disk, self.abort_path) or b"").removesuffix(OPENED).strip()
        return int(text) if text.isdigit() else None

    @property
    def was_clean(self) -> bool:
        """Whether the store had been closed cleanly when this object first checked."""
        if self._was_clean is None:
            self._was_clean = self.disk.stat(self.abort_path) is None
        return self._was_clean

    def forget_clean(self) -> None:
        """Reset ``was_clean`` after a recovery: the log is no longer as at that stop."""
        self._was_clean = False

    def mark_running(self, pid: int | None = None) -> None:
        """Create ``abort`` durably, with the decimal process id and no newline.

        An existing one is not changed, because only the name matters. Raises DiskFull,
        ReadOnlyDisk; then nothing may be appended before ``make_up``, which the appender calls.
        """
        _ = self.was_clean
        self._abort_owed = os.getpid() if pid is None else pid
        was_durable, self._abort_is_durable = self._abort_is_durable, False
        if self._make_abort(str(self._abort_owed).encode()) or not was_durable:
            self.disk.sync_directory(self.root)
        self._abort_is_durable = True
        self._abort_owed = None

    def _make_abort(self, text: bytes) -> bool:
        """Create ``abort``; return False if it exists."""
        # Created, never replaced. Otherwise: 1. reput sees that the store is not opened; 2. the
        # broker records that it is; 3. reput overwrites that with its process id.
        try:
            file = self.disk.create(self.abort_path, 0, reserve=False)
        except FileExistsError:
            return False
        try:
            # There is often space for a name when there is none for a block.
            with contextlib.suppress(DiskFull):
                file.pwrite(text, 0)
                file.sync()
        finally:
            file.close()
        return True

    @property
    def is_opened(self) -> bool:
        """Whether the last program that started on this store is ours and has opened it.

        A RocketMQ broker writes its own ``abort`` once it holds the lock. If this is true, JSON
        files of RocketMQ come from a broker that was refused. It rewrites them when it ends, with
        the data it read at its start, and this data must not be taken over.
        """
        return (read_whole(self.disk, self.abort_path) or b"").endswith(OPENED)

    def mark_opened(self) -> None:
        """Record ``is_opened``: RocketMQ's data is in the log, the JSON files are ours. Blocks.
        Call this after ``mark_running``, again and again: on a disk that refuses writes, and
        without a free descriptor, it is not recorded."""
        refusals = (DiskFull, ReadOnlyDisk, OutOfResources)
        with contextlib.suppress(*refusals, FileExistsError, FileNotFoundError):
            if self.disk.stat(self.abort_path) is not None and not self.is_opened:
                write_atomically(self.disk, self.abort_path, str(os.getpid()).encode() + OPENED)

    def mark_clean(self) -> None:
        """Remove ``abort``, if it exists, after everything was synced and dispatched."""
        self._abort_is_durable = False
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(self.abort_path)
        self.disk.sync_directory(self.root)

    def keep_cut(self, start: int, data: Iterable[bytes], *, epoch: int, reason: str) -> Path:
        """Keep bytes that are about to be cut from the log; see ``kept_cuts.keep_cut``."""
        return kept_cuts.keep_cut(self.disk, self.cut_dir, start, data, epoch=epoch, reason=reason)
