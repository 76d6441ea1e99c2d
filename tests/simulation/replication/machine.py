"""One node: its disk, page, clock and locks, and the starts of its three services."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Final, Protocol

from shared.files.store_config import StoreConfig
from shared.files.store_dir import Role
from tests.simulation.replication.clock import Clock
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation
from tests.support.sim_disk import SimDisk
from tests.support.sim_files import Directory, Inode
from tidemark.errors import DiskFull
from tidemark.formats import epochs
from tidemark.formats.checkpoint import Slot, check_slot, proven
from tidemark.formats.epochs import EpochStart, EpochsUnreadable
from tidemark.formats.filenames import offset_name, parse_offset_name

ROOT: Final = Path("/store")
FILE_SIZE: Final = 1 << 13
STORE: Final = StoreConfig(
    commit_log_file_size=FILE_SIZE,
    consume_queue_file_size=20_000,
    index_enabled=False,
    visible_after="confirmed",
)
LOG: Final = ROOT / "commitlog"
QUEUES: Final = ROOT / "consumequeue"
TABLE: Final = ROOT / "epochFileCheckpoint"
PAGE: Final = ROOT / "checkpoint"
PROMISE: Final = ROOT / "ha" / "promise"
IDENTITY: Final = ROOT / "ha" / "identity"
INTENT: Final = ROOT / "ha" / "intent"
CONFIRM: Final = ROOT / "ha" / "confirm"
DAMAGE: Final = ROOT / "ha" / "damage"
TWIN: Final = TABLE.with_name(TABLE.name + ".bak")
CUT: Final = ROOT / "cut"
WATCHED_FILES: Final = (
    *("promise", "confirm", "intent", "identity"),
    *(TABLE.name, TABLE.name, TABLE.name, "cut", "cut"),
)
"""Whose changes faults strike at."""
WALL_AHEAD_MS: Final = 1_700_000_000_000


class Judge(Protocol):
    """What is told of everything that other processes, or the world, can see."""

    def publishes(self, machine: Machine, process: Process, slot: Slot, value: int) -> None:
        """A process is about to store to the page."""
        ...

    def writes(self, machine: Machine, process: Process, what: str) -> None:
        """A process is about to write to the log, or has replaced what belongs to it."""
        ...

    def promises(self, machine: Machine, epoch: int) -> None:
        """A promise stands in its file, not durable yet."""
        ...

    def becomes_another(self, machine: Machine, *, alone: bool) -> None:
        """A volume was emptied. alone: broker and reput are kept away."""
        ...

    def notes_confirm(self, machine: Machine) -> None:
        """A process has written down what is confirmed."""
        ...

    def cut_is_over(self, machine: Machine) -> None:
        """A process is about to remove the intent of a cut or a resync."""
        ...

    def cuts(self, machine: Machine, point: int) -> None:
        """The intent to cut the log at point stands in its file."""
        ...

    def gives_log_back(self, machine: Machine, process: Process) -> None:
        """A process is about to release byte 0."""
        ...


class Machine:
    """What survives a start of a service; what survives a boot is ``disk``."""

    def __init__(
        self, timeline: Timeline, name: str, judge: Judge, *, drift: float, disk_us: int
    ) -> None:
        """disk_us: what a sync takes, about."""
        self.timeline, self.name, self._judge = timeline, name, judge
        self.disk = self._new_disk()
        self.clock = Clock(timeline, timeline.random, drift=drift)
        self.disk_us = disk_us
        self.is_on = True
        self.off_us = 0
        """When its power was cut last."""
        self.processes: dict[str, Process] = {}
        """The present start of each service."""
        self.boot = self._new_boot()
        self.ended_us = 0
        """When one of its processes has ended last."""
        self.has_taken_up = False
        """In this boot, reput has said what queues and index cover."""
        self._was = ""
        """Its incarnation."""
        self.resync_of: str | None = None
        """The incarnation that is given up by the resync that has begun last."""
        self._syncs_fail = self.has_failed = False
        """Has failed: a sync may have, once."""
        self.roomy_us = 0
        """Since when its disk has room again."""
        self.is_crowded = False
        """The disk is filled to where sends are refused, and takes everything all the same."""
        self.queues_are_full = False
        """The disk takes no further queue file."""
        self._armed_files: dict[str, Callable[[], None]] = {}
        self._armed_append: Callable[[], None] | None = None
        self._armed: dict[Slot, Callable[[], None]] = {}
        self._locks: dict[int, Process] = {}
        self.taken_us: dict[int, int] = {}
        """When each byte of the lock file was taken last."""
        self.changed_us: dict[Slot, int] = {}
        """When another value was last stored to each slot."""
        self.log_size_max = 0
        """Bytes of log that its broker keeps; 0: all. Of a slave: what its master keeps."""
        self.master_from: Callable[[], int | None] = lambda: None
        """Says where the log of the master begins; None: there is none."""
        self.held_up: dict[str, int] = {}
        """Files of which the next sync takes so many microseconds."""
        self._armed_steps: dict[str, Callable[[], None]] = {}

    def _new_boot(self) -> tuple[int, int]:
        bits = self.timeline.random.getrandbits
        return bits(63) | 1, bits(63)

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(Random(self.timeline.random.getrandbits(64)))
        disk.failing_sync = lambda path: self._syncs_fail
        disk.make_directory(ROOT)
        return disk

    # -- clocks (``tidemark.clock.Clock``) ------------------------------------------------------

    def wall_ms(self) -> int:
        """The same on all nodes: nothing may depend on it."""
        return WALL_AHEAD_MS + self.timeline.now_us // 1000

    def monotonic(self) -> float:
        """Seconds."""
        return self.timeline.now_us / 1e6

    def boot_ms(self) -> int:
        """CLOCK_BOOTTIME."""
        return self.clock.now_ms()

    # -- what processes do ----------------------------------------------------------------------

    def publishes(self, process: Process, slot: Slot, value: int) -> None:
        """Before a store to the page."""
        self._judge.publishes(self, process, slot, value)
        if value != self.slot(slot):
            self.changed_us[slot] = self.timeline.now_us
        if slot is Slot.REPUT_GENERATION and value == self.slot(Slot.GENERATION):
            self.has_taken_up = True

    def published(self, slot: Slot) -> None:
        """Behind it: whoever reads the slot finds that its check fits."""
        page = self._inode(PAGE)
        assert page is not None, "it was stored to"
        slots = memoryview(page.cache).cast("Q")
        fits = not slots[check_slot(Slot.MAGIC_AND_FORMAT)] or proven(slot, slots.__getitem__)
        if slots[slot] and not fits:
            raise Violation(f"{self.name} publishes {slot.name} {slots[slot]} without its check")
        if self._armed and slot in self._armed:
            self._armed.pop(slot)()

    def check_write(self, process: Process, path: Path) -> None:
        """Before a write to a file."""
        if path.parent == LOG:
            self._judge.writes(self, process, "writes to the log")
            if self._armed_append is not None and process.name == "broker":
                strike, self._armed_append = self._armed_append, None
                strike()

    def unlinks(self, path: Path) -> None:
        """A name is about to go."""
        if path == INTENT:
            self._judge.cut_is_over(self)

    def touched(self, path: Path, process: Process) -> None:
        """A name was made, replaced or removed."""
        if path == INTENT and self.is_being_emptied:
            self.resync_of = self.incarnation
        point = self._said(INTENT).get("point") if path == INTENT else None
        if isinstance(point, int):
            self._judge.cuts(self, point)
        if path == CONFIRM:
            self._judge.notes_confirm(self)
        if path == TABLE:
            self._judge.writes(self, process, "replaces the epoch table")
        if path == PROMISE:
            self._judge.promises(self, self.promised)
        if path == IDENTITY:
            before, self._was = self._was, self.incarnation
            if before not in ("", self._was):
                owners = [self._locks.get(byte) for byte in (Role.BROKER, Role.REPUT)]
                alone = all(owner is not None and owner.name == "ha" for owner in owners)
                self._judge.becomes_another(self, alone=alone)
        name = "cut" if path.parent == CUT else path.name
        if name in self._armed_files:
            self._armed_files.pop(name)()

    def take_lock(self, byte: int, process: Process) -> bool:
        """Lock one byte of the lock file; False if a living process has it."""
        owner = self._locks.get(byte)
        if owner is not None and owner.alive:
            return False
        self._locks[byte] = process
        self.taken_us[byte] = self.timeline.now_us
        return True

    def release_lock(self, byte: int, process: Process) -> None:
        """Give it back."""
        if self._locks.get(byte) is process:
            if byte == Role.APPEND:
                self._judge.gives_log_back(self, process)
            del self._locks[byte]

    def holds(self, byte: int, process: Process) -> bool:
        """Whether that process has it."""
        return self._locks.get(byte) is process and process.alive

    def holder(self, byte: int) -> Process | None:
        """The process that has it."""
        return self._locks.get(byte)

    def is_held(self, byte: int) -> bool:
        """Whether a living process has it (F_OFD_GETLK)."""
        owner = self._locks.get(byte)
        return owner is not None and owner.alive

    def disk_delay_us(self, path: Path | None = None) -> int:
        """How long the next sync takes, of that file."""
        if path is not None and path.name in self.held_up:
            return self.held_up.pop(path.name)
        return self.timeline.random.randint(self.disk_us // 4 + 1, self.disk_us + 1)

    # -- what the world does --------------------------------------------------------------------

    def arm(self, slot: Slot, call: Callable[[], None]) -> None:
        """Call once, right after the next store to slot."""
        self._armed[slot] = call

    def arm_append(self, call: Callable[[], None]) -> None:
        """Call once, right before the broker's next write to the log."""
        self._armed_append = call

    def arm_file(self, name: str, call: Callable[[], None]) -> None:
        """Call once, right after that file of ha is replaced or removed; "cut": any kept tail."""
        self._armed_files[name] = call

    def arm_step(self, step: str, call: Callable[[], None]) -> None:
        """Call once, right before that step of a cut, a resync or a promotion."""
        self._armed_steps[step] = call

    def reaches(self, step: str) -> None:
        """A process is about to take that step (``services.ha.shell.hooks``)."""
        if step in self._armed_steps:
            self._armed_steps.pop(step)()

    def calm(self) -> None:
        """Nothing is planned any more, and the disk is as it was."""
        self._armed.clear()
        self._armed_steps.clear()
        self.held_up.clear()
        self._armed_files.clear()
        self._armed_append = None
        self.is_full = self.syncs_fail = False
        self.is_crowded = self.queues_are_full = False

    @property
    def syncs_fail(self) -> bool:
        """Whether syncs fail: what they were to write is on no disk, and called clean."""
        return self._syncs_fail

    @syncs_fail.setter
    def syncs_fail(self, value: bool) -> None:
        self._syncs_fail = value
        self.has_failed = self.has_failed or value

    @property
    def is_full(self) -> bool:
        """The disk takes nothing more than what was reserved."""
        return self.disk.capacity_bytes is not None

    @is_full.setter
    def is_full(self, value: bool) -> None:
        if self.is_full and not value:
            self.roomy_us = self.timeline.now_us
        self.disk.capacity_bytes = 0 if value else None

    def power_off(self) -> None:
        """Every process is gone, and what was not on disk."""
        self.is_on, self.off_us = False, self.timeline.now_us
        for process in list(self.processes.values()):
            process.end()
        self.processes.clear()
        self._locks.clear()
        self.disk = self.disk.power_cut()
        self.disk.failing_sync = lambda path: self._syncs_fail
        self._was = self.incarnation  # a name that was not durable yet may be gone

    def power_on(self) -> None:
        """Another boot."""
        self.is_on, self.has_taken_up = True, False
        self.boot = self._new_boot()
        self.clock.boot()

    def replace_volume(self) -> None:
        """A new disk instead of the old one; the machine is off."""
        self.disk = self._new_disk()
        self.ended_us = 0
        """When one of its processes has ended last."""
        self._was = ""

    def flip(self, at: int, bit: int) -> None:
        """One bit of the log is another, for whoever reads it and on the disk."""
        directory = self._directory()
        assert directory is not None
        inode = directory.names[offset_name(at - at % FILE_SIZE)]
        assert isinstance(inode, Inode)
        inode.flip(at % FILE_SIZE, bit)

    def page(self) -> bytes:
        """As processes see it."""
        return self.disk.peek(PAGE) or b""

    def put_page(self, data: bytes) -> None:
        """The page is that one, for whoever opens it and on the disk; no process has it mapped."""
        page = self._inode(PAGE)
        assert page is not None, "it was there"
        page.cache[:] = page.durable[:] = data
        page.lengths = [len(data)]

    def remove_log_file(self, at: int) -> None:
        """The file that holds at is gone, for whoever opens it and on the disk."""
        self.disk.remove_tree(LOG / offset_name(at - at % FILE_SIZE))

    def put_file(self, path: Path, data: bytes | None) -> None:
        """A file of the store is replaced, or removed (None), durably."""
        self.disk.remove_tree(path)
        if data is not None:
            file = self.disk.create(path, 0, reserve=False)
            file.pwrite(data, 0)
            file.sync()
            file.close()
        self.disk.sync_directory(path.parent)

    def must_have_room(self, path: Path) -> None:
        """A file is about to be made. Raises DiskFull."""
        if self.queues_are_full and QUEUES in path.parents:
            raise DiskFull(f"no room for {path}.", path=path, free_bytes=0, limit=1)

    def remove_queues(self) -> None:
        """Somebody removes every queue file."""
        _remove_below(self.disk, QUEUES)

    # -- what the judge looks at ----------------------------------------------------------------

    def slot(self, slot: Slot) -> int:
        """What the page says."""
        page = self._inode(PAGE)
        if page is None or len(page.cache) < (slot + 1) * 8:
            return 0
        return int.from_bytes(page.cache[slot * 8 : slot * 8 + 8], "little")

    def durable_slot(self, slot: Slot) -> int:
        """What the page will say after a power cut."""
        raw = self._durable_file(PAGE)[slot * 8 : slot * 8 + 8]
        return int.from_bytes(raw, "little")

    @property
    def has_noted_damage(self) -> bool:
        """Whether ``ha/damage`` is there."""
        return self._inode(DAMAGE) is not None or bool(self._durable_file(DAMAGE))

    @property
    def flushed(self) -> int:
        """End of the log that is on disk, as the page says, of whichever boot."""
        return self.slot(Slot.FLUSHED)

    @property
    def is_clean(self) -> bool:
        """Whether its store is marked as stopped in order."""
        return self._inode(ROOT / "abort") is None

    @property
    def incarnation(self) -> str:
        """As ``ha/identity`` says; empty: it says nothing."""
        said = self._said(IDENTITY).get("incarnation")
        return said if isinstance(said, str) else ""

    @property
    def noted_confirm(self) -> int:
        """As ``ha/confirm`` says."""
        said = self._said(CONFIRM).get("confirm")
        return said if isinstance(said, int) else 0

    @property
    def noted_damage(self) -> int | None:
        """Where ``ha/damage`` says that the log is damaged; None: it says nothing."""
        said = self._said(DAMAGE).get("at")
        return said if isinstance(said, int) else None

    @property
    def has_durable_damage(self) -> bool:
        """Whether a start after a power cut would know of damage."""
        return bool(self._durable_file(DAMAGE))

    @property
    def promised(self) -> int:
        """As ``ha/promise`` says."""
        said = self._said(PROMISE).get("promised")
        return said if isinstance(said, int) else 0

    @property
    def seen(self) -> tuple[int, int]:
        """As ``ha/promise`` says: the largest epoch and version of the set that the lease had."""
        said = self._said(PROMISE)
        epoch, version = said.get("seen_epoch"), said.get("seen_version")
        if isinstance(epoch, int) and isinstance(version, int):
            return epoch, version
        return 0, 0

    @property
    def durably_promised(self) -> int:
        """As ``ha/promise`` will say after a power cut."""
        said = _facts(self._durable_file(PROMISE)).get("promised", 0)
        return said if isinstance(said, int) else 0

    @property
    def durably_seen(self) -> tuple[int, int]:
        """The newest (epoch, version of the in-sync set) that ``ha/promise`` will know after a
        power cut."""
        said = _facts(self._durable_file(PROMISE))
        epoch, version = said.get("seen_epoch", 0), said.get("seen_version", 0)
        assert isinstance(epoch, int), "ha writes numbers"
        assert isinstance(version, int), "ha writes numbers"
        return epoch, version

    @property
    def durable_table(self) -> tuple[EpochStart, ...]:
        """The epoch table as it will be after a power cut."""
        return _entries(self._durable_file(TABLE)) or _entries(self._durable_file(TWIN))

    @property
    def durable_incarnation(self) -> str:
        """As ``ha/identity`` will say after a power cut."""
        said = _facts(self._durable_file(IDENTITY)).get("incarnation", "")
        return said if isinstance(said, str) else ""

    @property
    def has_durable_intent(self) -> bool:
        """Whether the next start after a power cut would repeat a cut or a resync."""
        return bool(self._durable_file(INTENT))

    def _durable_file(self, path: Path) -> bytes:
        directory = self.disk._find(path.parent)
        inode = directory.durable.get(path.name) if isinstance(directory, Directory) else None
        return bytes(inode.durable[: inode.lengths[0]]) if isinstance(inode, Inode) else b""

    @property
    def intent(self) -> dict[str, object]:
        """As ``ha/intent`` says; empty: there is none."""
        return self._said(INTENT)

    def kept(self, start: int) -> list[bytes]:
        """What ``cut/`` has of cuts at that offset."""
        names = self.disk._find(CUT)
        if not isinstance(names, Directory):
            return []
        return [
            bytes(child.durable[: child.lengths[0]])
            for name, child in names.durable.items()
            if isinstance(child, Inode) and name.startswith(offset_name(start))
        ]

    @property
    def has_intent(self) -> bool:
        """Whether a cut or a resync has begun and not ended."""
        return self._inode(INTENT) is not None

    @property
    def table(self) -> tuple[EpochStart, ...]:
        """The epoch table."""
        return _entries(self.disk.peek(TABLE) or b"") or _entries(self.disk.peek(TWIN) or b"")

    @property
    def has_twin(self) -> bool:
        """Whether the table and its twin are the same."""
        return self.disk.peek(TABLE) == self.disk.peek(TWIN)

    @property
    def begins_at(self) -> int:
        """Where its log begins: as its page says, or by the first file until it was recovered."""
        if self.is_on and self.slot(Slot.RECOVERED_BY) and self._is_of_this_boot:
            return self.slot(Slot.MIN)
        return self.first_file()

    def files(self) -> list[int]:
        """Where its log files begin, of those that a power cut leaves as well."""
        directory = self._directory()
        names = {} if directory is None else {**directory.names, **directory.durable}
        starts = (parse_offset_name(name) for name in names)
        return sorted(start for start in starts if start is not None)

    def first_file(self, *, durable: bool = False) -> int:
        """Where the first log file begins; 0: there is none. durable: after a power cut."""
        directory = self._directory()
        if directory is None:
            return 0
        names = directory.durable if durable else directory.names
        starts = (parse_offset_name(name) for name in names)
        return min((start for start in starts if start is not None), default=0)

    @property
    def _is_of_this_boot(self) -> bool:
        return (self.slot(Slot.BOOT_ID_HIGH), self.slot(Slot.BOOT_ID_LOW)) == self.boot

    @property
    def end(self) -> int:
        """End of the log; 0 until it was recovered in this boot."""
        return self.slot(Slot.WRITTEN) if self.is_on and self._is_of_this_boot else 0

    def log(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the log as processes see them; fewer if some are not there."""
        return self._bytes(start, end, durable=False)

    def durable_log(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the log that no power cut can take; the first missing one ends."""
        return self._bytes(start, end, durable=True)

    def unsynced(self) -> Iterator[Path]:
        """Log files, and marks that tell of them, of which a power cut can take something."""
        for path, names in ((LOG, None), (ROOT, TABLE.name), (IDENTITY.parent, IDENTITY.name)):
            node = self.disk._find(path)
            if not isinstance(node, Directory):
                continue
            for name, child in node.names.items():
                if names in (None, name) and isinstance(child, Inode):
                    durable = bytes(child.durable[: child.lengths[0]])
                    if node.durable.get(name) is not child or durable != bytes(child.cache):
                        yield path / name

    def _bytes(self, start: int, end: int, *, durable: bool) -> bytes:
        directory = self._directory()
        if directory is None:
            return b""
        names = directory.durable if durable else directory.names
        found = []
        while start < end:
            first = start - start % FILE_SIZE
            inode = names.get(offset_name(first))
            if not isinstance(inode, Inode):
                break
            size = min(end, first + FILE_SIZE) - start
            at = start - first
            source = inode.durable[: inode.lengths[0]] if durable else inode.cache
            piece = bytes(source[at : at + size])
            found.append(piece)
            if len(piece) < size:
                break
            start += size
        return b"".join(found)

    def _directory(self) -> Directory | None:
        node = self.disk._find(LOG)
        return node if isinstance(node, Directory) else None

    def _inode(self, path: Path) -> Inode | None:
        node = self.disk._find(path)
        return node if isinstance(node, Inode) else None

    @property
    def left_behind(self) -> list[str]:
        """What a store that was emptied still has of the log before, after a power cut, too."""
        log = self._directory()
        files = [] if log is None else list(log.durable)
        below = [self.disk._find(path) for path in (QUEUES, ROOT / "config")]
        names = [name for each in below if isinstance(each, Directory) for name in each.durable]
        return [*names, *files[1:]]

    @property
    def is_being_emptied(self) -> bool:
        """Whether a resync has begun: nothing in the store counts, the identity is not new yet."""
        return self._said(INTENT).get("what") == "resync"

    def _said(self, path: Path) -> dict[str, object]:
        return _facts(self.disk.peek(path) or b"")


def _remove_below(disk: SimDisk, directory: Path) -> None:
    for entry in disk.list_directory(directory):
        path = directory / entry.name
        if entry.is_directory:
            _remove_below(disk, path)
        else:
            disk.unlink(path)
    disk.sync_directory(directory)


@lru_cache(maxsize=1024)
def _facts(raw: bytes) -> dict[str, object]:
    """What a file of ha says; the judge asks again and again. Nothing, if it was spoiled."""
    try:
        said = json.loads(raw.partition(b"\n")[0] or b"{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


@lru_cache(maxsize=1024)
def _entries(raw: bytes) -> tuple[EpochStart, ...]:
    try:
        return tuple(epochs.decode(raw)) if raw else ()
    except EpochsUnreadable:
        return ()  # it was spoiled
