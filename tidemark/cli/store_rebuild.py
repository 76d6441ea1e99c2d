"""``tidemark store rebuild`` and ``repair``: rebuild derived files from the log, cut off damage.

Both hold all four locks of the store, so that no service runs. Queues and index contain only data
that is in the log: they are removed, and reput dispatches the log again in its own process. After a
kill at any point the same command may be run again; every start detects what is missing.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from shared.files import log_walk
from shared.files.consume_queue import EVERYTHING
from shared.files.disk import RecordLock
from shared.files.log_walk import LogFiles
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_config import StoreConfig
from shared.files.store_dir import LockByte, StoreDir
from shared.files.valid_end import Verdict
from shared.runtime import programs
from shared.runtime.clock import boot_id
from shared.state.records import part_of
from tidemark.cli.damage import DamagedRange, walk
from tidemark.cli.index_check import geometry_of_store
from tidemark.cli.offline import LogEnd, OfflineStore, Window
from tidemark.errors import BadRequest, DamagedFile, StoreLocked
from tidemark.formats import record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name, parse_index_name
from tidemark.formats.scan import Entry
from tidemark.offsets import Queue

ZEROS_AT_ONCE: Final = 1 << 20
RENAMED: Final = "-renamed"
"""Suffix in cut/ of a log file that is being moved to its own name."""


class RebuildPlan(NamedTuple):
    """The files that a rebuild removes; all of them are recreated from the log."""

    queues: list[Queue]
    kept_queues: list[Queue]
    """Queues whose records have all expired: only their files record their next queue offset."""
    index_files: list[Path]


class Beginning(NamedTuple):
    """A file that can become the first of the log: it starts with a whole snapshot of the state."""

    start: int
    records: int
    """Number of sound records before it, which would be lost."""


class Loss(NamedTuple):
    """What a cut of the log at an offset would remove."""

    cut_at: int
    reason: str
    damaged_end: int | None
    """Where sound records resume after the damage; None if none do."""
    end: int
    """Offset after the last byte that would be cut."""
    records: dict[Queue, int]
    """Sound messages after the damage, by topic and queue, which would be lost with it. State
    records count as messages of their topic."""
    beginning: Beginning | None = None
    """The alternative: the log starts after the damage. None if no file there can be the first."""


# -- planning -------------------------------------------------------------------------------------


def config_of_store(root: Path, index_slots: int | None) -> StoreConfig:
    """Return the sizes for opening a store for writing. Raises BadRequest if they are not known."""
    with OfflineStore(root) as offline:
        geometry = geometry_of_store(offline, index_slots)
        if geometry is None:
            raise BadRequest(
                "the number of slots of this store's index files is not known. "
                "Nothing was changed.",
                "Give --index-slots: RocketMQ's maxHashSlotNum, 5000000 by default.",
            )
        return replace(offline.config, index_slots=geometry.slots, index_entries=geometry.entries)


def plan_rebuild(
    offline: OfflineStore, *, queues: bool, index: bool, topic: str | None
) -> RebuildPlan:
    """Return what a rebuild would remove. Changes nothing."""
    chosen = [key for key in offline.queues() if queues and (topic is None or key[0] == topic)]
    kept = [key for key in chosen if _all_expired(offline, key)]
    files = []
    if index:
        directory = offline.store.index_dir
        files = [
            directory / entry.name
            for entry in offline.disk.list_directory(directory)
            if not entry.is_directory and parse_index_name(entry.name) is not None
        ]
    return RebuildPlan([key for key in chosen if key not in kept], kept, files)


def _all_expired(offline: OfflineStore, key: Queue) -> bool:
    """Whether a queue has queue offsets but none of its messages is in the log any more.

    Its next offset continues the old ones. After a new dispatch it would start at 0, and consumers
    would skip new messages as already read.
    """
    with closing(offline.reader(*key)) as reader:
        end = reader.max_offset(EVERYTHING)
        return 0 < end <= reader.min_offset(offline.min_offset)


def losses(offline: OfflineStore) -> list[Loss]:
    """Return, for each damaged place, what a cut there would lose; empty without damage."""
    starts: list[tuple[int, str, int | None, Counter[Queue]]] = []
    beginnings = _Beginnings()
    end = 0
    for found in walk(offline):
        match found:
            case DamagedRange():
                starts.append((found.start, found.reason, found.end, Counter()))
            case LogEnd():
                if found.decision.verdict is Verdict.CORRUPTION:
                    reason = f"{found.reason or 'no file follows'}; {found.decision.reason}"
                    starts.append((found.end, reason, None, Counter()))
                end = found.end if found.last_byte is None else found.last_byte + 1
            case _:
                beginnings.take(found)
                for entry in found.entries if starts else ():
                    starts[-1][3][entry.topic, entry.queue_id] += entry.message_count
    found_losses: list[Loss] = []
    behind: Counter[Queue] = Counter()
    for start, reason, damaged_end, records in reversed(starts):
        behind = behind + records
        beginning = beginnings.after(start)
        found_losses.append(Loss(start, reason, damaged_end, end, dict(behind), beginning))
    return found_losses[::-1]


class _Beginnings:
    """Collects the files that can become the first, from the log's records in physical order.

    Such a file needs a snapshot at its start; otherwise topics and groups would be missing. Files
    of RocketMQ have no snapshot.
    """

    def __init__(self) -> None:
        self._found: list[Beginning] = []
        self._file: Beginning | None = None
        """The file whose snapshot is being read."""
        self._parts = 0
        """Number of its parts read so far."""
        self._records = 0

    def after(self, offset: int) -> Beginning | None:
        """Return the first such file that starts after offset."""
        at = bisect_right(self._found, offset, key=lambda beginning: beginning.start)
        return self._found[at] if at < len(self._found) else None

    def take(self, window: Window) -> None:
        """Process the next records of the log."""
        for entry in window.entries:
            if entry.physical_offset == window.file_start:
                self._file, self._parts = Beginning(window.file_start, self._records), 0
            self._records += 1
            if self._file is None:
                continue
            if not self._is_last_part(window, entry):
                if self._parts == 0:  # the file does not start with a snapshot
                    self._file = None
                continue
            self._found.append(self._file)
            self._file = None

    def _is_last_part(self, window: Window, entry: Entry) -> bool:
        """Whether the entry completes the snapshot. Other records may be between its parts."""
        if entry.topic != log_walk.STATE_TOPIC:
            return False
        part = part_of(record.decode(window.view, window.at(entry)).body)
        if part is None or part[0] != self._parts:
            return False
        self._parts += 1
        return self._parts == part[1]


def loss_at(offline: OfflineStore, cut_at: int) -> Loss:
    """Return what a cut at a chosen offset would lose. Raises BadRequest if the log cannot be cut
    there."""
    lost: Counter[Queue] = Counter()
    is_boundary = False
    for found in walk(offline):
        match found:
            case DamagedRange():
                if found.start < cut_at:
                    raise BadRequest(
                        f"a cut at {cut_at} would leave the damage at {found.start} before it. "
                        "Nothing was changed.",
                        f"Cut at {found.start} or before.",
                    )
                is_boundary = is_boundary or found.start == cut_at
            case LogEnd():
                if not is_boundary and found.end != cut_at:
                    raise BadRequest(
                        f"no record and no damage starts at physical offset {cut_at}. "
                        "Nothing was changed.",
                        "Choose an offset that `tidemark store repair --dry-run` lists, or the "
                        "physical_offset of a record.",
                    )
                end = found.end if found.last_byte is None else found.last_byte + 1
                return Loss(cut_at, "", None, max(end, cut_at), dict(lost))
            case _:
                for entry in found.entries:
                    is_boundary = is_boundary or entry.physical_offset == cut_at
                    if entry.physical_offset >= cut_at:
                        lost[entry.topic, entry.queue_id] += entry.message_count
    raise AssertionError("walk() ends with a LogEnd")


# -- executing ------------------------------------------------------------------------------------


def hold_all(store: StoreDir, parts: ExitStack) -> dict[LockByte, RecordLock]:
    """Take all four locks. Raises StoreLocked naming the holder of one."""
    locks: dict[LockByte, RecordLock] = {}
    for role in LockByte:
        locks[role] = store.lock(role)
        parts.callback(locks[role].release)
    return locks


def rebuild(root: Path, plan: RebuildPlan, config: StoreConfig, say: Callable[[str], None]) -> None:
    """Remove the files in the plan and let reput recreate them.

    Raises StoreLocked, CorruptRecord (nothing removed), DamagedFile if reput fails.
    """
    with ExitStack() as parts, OfflineStore(root, config) as offline:
        store = offline.store
        locks = hold_all(store, parts)
        _recover(store, say)
        _remove_derived(offline, plan)
        _dispatch(offline, locks, say)


def cut(root: Path, loss: Loss, config: StoreConfig, say: Callable[[str], None]) -> None:
    """Cut the log at ``loss.cut_at``, keep the bytes in cut/, and rebuild all derived files."""
    with ExitStack() as parts, OfflineStore(root, config) as offline:
        store = offline.store
        locks = hold_all(store, parts)
        if loss.end > loss.cut_at:
            kept = store.keep_cut(
                loss.cut_at,
                log_walk.chunks(offline.files, loss.cut_at, loss.end),
                epoch=offline.slot(Slot.LOG_EPOCH),
                reason="repair",
            )
            say(f"kept {loss.end - loss.cut_at} bytes in {kept}")
        # Queues, index and checkpoint claim that the cut bytes were durable, so they are removed
        # first. A kill from here on leaves the damage, or a torn tail, and fewer derived files.
        plan = plan_rebuild(offline, queues=True, index=True, topic=None)
        _remove_derived(offline, plan)
        with suppress(FileNotFoundError):
            store.disk.unlink(store.checkpoint_path)
        store.disk.sync_directory(root)
        _zero(offline, loss.cut_at)
        offline.files.close()
        _recover(store, say)
        _dispatch(offline, locks, say)


def begin(root: Path, begin_at: int, config: StoreConfig, say: Callable[[str], None]) -> None:
    """Let the log start at begin_at, the start of one of its files; earlier data is lost.

    Whole files before it are kept in cut/. Queues and index are adapted to the remaining log. If
    all files are missing, an empty one is created, and queue offsets continue.
    """
    with ExitStack() as parts, OfflineStore(root, config) as offline:
        store, files = offline.store, offline.files
        is_empty = not files.starts and begin_at == offline.start_after_all() > 0
        if begin_at not in files.starts and not is_empty:
            raise BadRequest(
                f"no commit log file starts at {begin_at}. Nothing was changed.",
                "Choose an offset that `tidemark store repair` lists.",
            )
        locks = hold_all(store, parts)
        if is_empty:
            if begin_at in files.empty:  # an earlier run of this command was killed
                store.disk.unlink(files.path(begin_at))
            store.disk.create(files.path(begin_at), files.file_size, reserve=False).close()
        store.disk.make_directory(store.cut_dir)
        for start in [start for start in files.starts if start < begin_at]:
            kept = store.cut_dir / f"{start}-{start + files.file_size}-before-{begin_at}"
            store.disk.rename(files.path(start), kept)
            say(f"kept {files.path(start).name} as {kept}")
        store.disk.sync_directory(store.cut_dir)
        store.disk.sync_directory(store.commit_log_dir)
        files.close()
        _recover(store, say, begin_at=begin_at)
        _dispatch(offline, locks, say)


def restore_names(root: Path, say: Callable[[str], None]) -> None:
    """Rename log files that have other names than their own. Nothing is lost.

    They are moved through cut/, so that no file ever replaces another. After a kill at any point
    the same command may be run again. Raises BadRequest if two files are the same part of the log.
    """
    with ExitStack() as parts, OfflineStore(root) as offline:
        store, files = offline.store, offline.files
        disk = store.disk
        hold_all(store, parts)
        moves = renames(files)
        files.close()
        disk.make_directory(store.cut_dir)
        for start, true in moves.items():
            disk.rename(files.path(start), store.cut_dir / (offset_name(true) + RENAMED))
        disk.sync_directory(store.cut_dir)
        disk.sync_directory(store.commit_log_dir)
        for entry in disk.list_directory(store.cut_dir):
            if entry.name.endswith(RENAMED):
                name = entry.name.removesuffix(RENAMED)
                disk.rename(store.cut_dir / entry.name, store.commit_log_dir / name)
                say(f"{name} has its own name again")
        disk.sync_directory(store.commit_log_dir)
        disk.sync_directory(store.cut_dir)


def renames(files: LogFiles) -> dict[int, int]:
    """Map the start in the name of every log file to be renamed to its true start."""
    moves = files.misnamed()
    vacated = sorted(set(moves) - set(moves.values()))
    for start in sorted(set(moves.values()) & set(files.starts) - set(moves)):
        if files.first_record(start) is not None:
            named = next(name for name, true in moves.items() if true == start)
            raise _two_of_one(files, start, named)
        moves[start] = vacated.pop(0)  # a preallocated file without records
    names = dict(zip(moves.values(), moves, strict=False))
    for start, true in moves.items():
        if names[true] != start:
            raise _two_of_one(files, names[true], start)
    return moves


def _two_of_one(files: LogFiles, start: int, other: int) -> BadRequest:
    return BadRequest(
        f"{files.path(start)} and {files.path(other)} are the same part of the log. "
        "Nothing was changed.",
        "Move the older one out of the directory, and run this command again.",
    )


def _recover(
    store: StoreDir, say: Callable[[str], None], *, begin_at: int | None = None
) -> Recovered:
    """Find the log's end as every start does, and publish it for reput.

    Damaged positions are cleared, including those of services that do not run on this node.
    """
    store.open_or_create()
    store.mark_running()
    with closing(Positions.open(store.disk, store.checkpoint_path)) as positions:
        for slot in positions.damaged():
            positions.publish(slot, 0)
        recovered = recover(store, positions, boot_id=boot_id(), begin_at=begin_at)
        positions.sync()
    if recovered.cut is not None:
        say(f"cut a torn tail at {recovered.cut.start}, kept in {recovered.cut.path}")
    say(f"the log contains physical offsets {recovered.min_offset} to {recovered.end}")
    return recovered


def _remove_derived(offline: OfflineStore, plan: RebuildPlan) -> None:
    """Remove files of queues and index; durable on return."""
    disk, store = offline.disk, offline.store
    for topic, queue in plan.queues:
        directory = store.queue_directory(topic, queue).path
        for entry in disk.list_directory(directory):
            disk.unlink(directory / entry.name)
        disk.sync_directory(directory)
        disk.remove_directory(directory)
        disk.sync_directory(directory.parent)
    for path in plan.index_files:
        disk.unlink(path)
    if plan.index_files:
        disk.sync_directory(store.index_dir)


def _zero(offline: OfflineStore, cut_at: int) -> None:
    """Zero the log from cut_at on and remove later files; durable on return."""
    files, disk = offline.files, offline.disk
    first = files.start_of(cut_at)
    for start in reversed([start for start in files.starts if start > first]):
        disk.unlink(files.path(start))
        files.starts.remove(start)
    if first in files.starts:
        with closing(files.open(first, writable=True)) as file:
            for at in range(cut_at - first, files.file_size, ZEROS_AT_ONCE):
                size = min(ZEROS_AT_ONCE, files.file_size - at)
                if file.pread(size, at).strip(b"\0"):  # holes are kept
                    file.pwrite(bytes(size), at)
            file.sync()
    disk.sync_directory(offline.store.commit_log_dir)


def _dispatch(
    offline: OfflineStore, locks: dict[LockByte, RecordLock], say: Callable[[str], None]
) -> None:
    """Let reput dispatch the whole log and end; afterwards the store is marked clean."""
    locks.pop(LockByte.REPUT).release()
    _run_reput(offline.store.root, offline.config, say)
    with suppress(StoreLocked):
        # If another process starts reput just now, it owns the store's state from then on.
        lock = offline.store.lock(LockByte.REPUT)
        offline.store.mark_clean()
        lock.release()


def _run_reput(root: Path, config: StoreConfig, say: Callable[[str], None]) -> None:
    say("dispatching the log into queues and index")
    # A separate directory for sockets: a path below the store may be too long for them.
    with tempfile.TemporaryDirectory(prefix="tidemark-") as run_dir:
        settings = Path(run_dir, "reput.toml")
        settings.write_text("".join(_settings(config, run_dir)), encoding="utf-8")
        done = subprocess.run(
            [
                *programs.service("reput"),
                *("--store", str(root), "--config", str(settings), "--once"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise DamagedFile(
            "the queues and the index are incomplete: "
            f"{exit_reason(done.stderr, done.returncode)} The log was not changed.",
            "Remove the cause and run the same command again.",
        )


def exit_reason(stderr: str, status: int) -> str:
    """Return the error message of a service; its last output lines if there is none."""
    lines = stderr.strip().splitlines()
    messages = [line for line in lines if line.startswith("tidemark: ")]
    if messages:
        return messages[-1].removeprefix("tidemark: ")
    return f"reput ended with status {status}: " + " / ".join(lines[-3:])


def _settings(config: StoreConfig, run_dir: str) -> Iterator[str]:
    """Yield the store's own sizes and delay levels as settings of a service."""
    yield f"run_dir = {json.dumps(run_dir)}\n[store]\n"
    for name, value in config.sizes.items():
        yield f"{name} = {json.dumps(value)}\n"
    # With other levels, units of delayed messages would get other delivery times.
    yield f"delay_levels = {json.dumps(config.delay_levels)}\n"
    if config.visible_after == "confirmed":
        yield f"visible_after = {json.dumps(config.visible_after)}\n"
