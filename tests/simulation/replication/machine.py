"""One node: disk, page, clock, locks, and the current start of each of its three services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, Protocol

from shared.files.store_dir import LockByte
from shared.state.state import BrokerState
from tests.simulation.replication.clock import Clock
from tests.simulation.replication.process import Process
from tests.simulation.replication.store_view import (
    CONFIRM,
    CUT,
    FILE_SIZE,
    IDENTITY,
    INTENT,
    LOG,
    PAGE,
    PROMISE,
    QUEUES,
    ROOT,
    TABLE,
    StoreView,
)
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation
from tests.support.sim_disk import SimDisk
from tests.support.sim_files import Inode
from tidemark.errors import DiskFull
from tidemark.formats.checkpoint import Slot, check_slot, proven
from tidemark.formats.filenames import offset_name, parse_offset_name

WATCHED_FILES: Final = (
    *("promise", "confirm", "intent", "identity"),
    *(TABLE.name, TABLE.name, TABLE.name, "cut", "cut"),
)
"""Files after whose changes faults may strike."""
WALL_AHEAD_MS: Final = 1_700_000_000_000


class Judge(Protocol):
    """Receives every change that other processes or the outside can see, and checks it."""

    def publishes(self, machine: Machine, process: Process, slot: Slot, value: int) -> None:
        """A process is about to store to the page."""
        ...

    def writes(self, machine: Machine, process: Process, what: str) -> None:
        """A process is about to write to the log, or has replaced the epoch table."""
        ...

    def promises(self, machine: Machine, epoch: int) -> None:
        """The promise file was replaced; it is not durable yet."""
        ...

    def empties_store(self, machine: Machine, *, alone: bool) -> None:
        """A store was emptied. alone: this process holds the locks of broker and reput."""
        ...

    def notes_confirm(self, machine: Machine) -> None:
        """A process has written the confirm offset to its file."""
        ...

    def finishes_cut(self, machine: Machine) -> None:
        """A process is about to remove the intent of a cut or a resync."""
        ...

    def cuts(self, machine: Machine, point: int) -> None:
        """The intent to cut the log at point was written to its file."""
        ...

    def releases_log(self, machine: Machine, process: Process) -> None:
        """A process is about to release byte 0."""
        ...

    def begins_with(self, machine: Machine, state: BrokerState) -> None:
        """A broker is about to serve an epoch with this state."""
        ...


class Machine(StoreView):
    """The state of a node across starts of its services. Only ``disk`` survives a boot."""

    def __init__(
        self, timeline: Timeline, name: str, judge: Judge, *, drift: float, disk_us: int
    ) -> None:
        """disk_us: approximate duration of a sync."""
        self.timeline, self.name, self._judge = timeline, name, judge
        self.disk = self._new_disk()
        self.clock = Clock(timeline, timeline.random, drift=drift)
        self.disk_us = disk_us
        self.is_on = True
        self.off_us = 0
        """When its power was last cut."""
        self.processes: dict[str, Process] = {}
        """The current start of each service."""
        self.boot = self._new_boot()
        self.ended_us = 0
        """When one of its processes last ended."""
        self.has_taken_up = False
        """Whether reput has published in this boot what queues and index cover."""
        self._last_incarnation = ""
        """Last known incarnation."""
        self.resync_of: str | None = None
        """The incarnation that the last resync gives up."""
        self._syncs_fail = self.has_failed = False
        """has_failed: a sync may have failed at some time."""
        self.roomy_us = 0
        """Since when its disk has room again."""
        self.is_crowded = False
        """Whether the disk is so full that sends are refused; all writes still succeed."""
        self.queues_are_full = False
        """Whether the disk has no room for another queue file."""
        self.no_room_for: Path | None = None
        """The only file for which the disk has no room; None: there is none."""
        self._armed_files: dict[str, Callable[[], None]] = {}
        self._armed_append: Callable[[], None] | None = None
        self._armed: dict[Slot, Callable[[], None]] = {}
        self._locks: dict[int, Process] = {}
        self.taken_us: dict[int, int] = {}
        """When each byte of the lock file was last taken."""
        self.changed_us: dict[Slot, int] = {}
        """When the value of each slot last changed."""
        self.log_size_max = 0
        """Size of the log that retention keeps; 0 for all. A slave uses the value of its master."""
        self.master_from: Callable[[], int | None] = lambda: None
        """Returns the start of the master's log, or None without a master."""
        self.held_up: dict[Path, int] = {}
        """Files, or directories of files, whose next sync takes that many microseconds."""
        self.hung_until_us = 0
        """When the last of these syncs ends."""
        self._armed_steps: dict[str, Callable[[], None]] = {}

    def _new_boot(self) -> tuple[int, int]:
        bits = self.timeline.random.getrandbits
        return bits(63) | 1, bits(63)

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(Random(self.timeline.random.getrandbits(64)))
        disk.failing_sync = lambda path: self._syncs_fail
        disk.make_directory(ROOT)
        return disk

    # -- clocks (``tidemark.clock.Clock``) -------------------------------------------------

    def wall_ms(self) -> int:
        """Wall clock, equal on all nodes. No decision may depend on it."""
        return WALL_AHEAD_MS + self.timeline.now_us // 1000

    def monotonic(self) -> float:
        """Monotonic time in seconds."""
        return self.timeline.now_us / 1e6

    def boot_ms(self) -> int:
        """CLOCK_BOOTTIME in milliseconds."""
        return self.clock.now_ms()

    # -- what processes do -----------------------------------------------------------------

    def publishes(self, process: Process, slot: Slot, value: int) -> None:
        """Let the judge check a write to a slot of the page before it becomes visible."""
        self._judge.publishes(self, process, slot, value)
        if value != self.slot(slot):
            self.changed_us[slot] = self.timeline.now_us
        if slot is Slot.REPUT_GENERATION and value == self.slot(Slot.GENERATION):
            self.has_taken_up = True

    def published(self, slot: Slot) -> None:
        """Check after a store that the slot and its check value agree, and run what is armed for
        the slot."""
        page = self._inode(PAGE)
        assert page is not None, "it was stored to"
        slots = memoryview(page.cache).cast("Q")
        fits = not slots[check_slot(Slot.MAGIC_AND_FORMAT)] or proven(slot, slots.__getitem__)
        if slots[slot] and not fits:
            raise Violation(
                f"{self.name} publishes {slot.name} {slots[slot]} without its check value"
            )
        if self._armed and slot in self._armed:
            self._armed.pop(slot)()

    def begins_with(self, state: BrokerState) -> None:
        """Let the judge check the state with which the broker is about to serve an epoch."""
        self._judge.begins_with(self, state)

    def check_write(self, process: Process, path: Path) -> None:
        """Check before a write to a file that the process may write to the log."""
        if path.parent == LOG:
            self._judge.writes(self, process, "writes to the log")
            if self._armed_append is not None and process.name == "broker":
                strike, self._armed_append = self._armed_append, None
                strike()

    def unlinks(self, path: Path, process: Process) -> None:
        """Check before a name is removed."""
        if path == INTENT:
            self._judge.finishes_cut(self)
        start = parse_offset_name(path.name) if path.parent == LOG else None
        # The broker of a slave deletes files below the published start without byte 0.
        if start is not None and (process.name == "ha" or start >= self.slot(Slot.MIN)):
            self._judge.writes(self, process, f"removes the log file {path.name}")

    def touched(self, path: Path, process: Process) -> None:
        """Check after a name was created, replaced or removed."""
        if path == INTENT and self.is_being_emptied:
            self.resync_of = self.incarnation
        point = self._facts_in(INTENT).get("point") if path == INTENT else None
        if isinstance(point, int):
            self._judge.cuts(self, point)
        if path == CONFIRM:
            self._judge.notes_confirm(self)
        if path == TABLE:
            self._judge.writes(self, process, "replaces the epoch table")
        if path == PROMISE:
            self._judge.promises(self, self.promised)
        if path == IDENTITY:
            before, self._last_incarnation = self._last_incarnation, self.incarnation
            if before not in ("", self._last_incarnation):
                owners = [self._locks.get(byte) for byte in (LockByte.BROKER, LockByte.REPUT)]
                alone = all(owner is not None and owner.name == "ha" for owner in owners)
                self._judge.empties_store(self, alone=alone)
        name = "cut" if path.parent == CUT else path.name
        if name in self._armed_files:
            self._armed_files.pop(name)()

    def take_lock(self, byte: int, process: Process) -> bool:
        """Lock one byte of the lock file; False if a living process holds it."""
        owner = self._locks.get(byte)
        if owner is not None and owner.alive:
            return False
        self._locks[byte] = process
        self.taken_us[byte] = self.timeline.now_us
        return True

    def release_lock(self, byte: int, process: Process) -> None:
        """Release the byte if the process holds it."""
        if self._locks.get(byte) is process:
            if byte == LockByte.APPEND:
                self._judge.releases_log(self, process)
            del self._locks[byte]

    def holds(self, byte: int, process: Process) -> bool:
        """Whether the process holds the byte."""
        return self._locks.get(byte) is process and process.alive

    def holder(self, byte: int) -> Process | None:
        """The process that holds the byte."""
        return self._locks.get(byte)

    def is_held(self, byte: int) -> bool:
        """Whether a living process holds the byte (F_OFD_GETLK)."""
        owner = self._locks.get(byte)
        return owner is not None and owner.alive

    def disk_delay_us(self, path: Path | None = None) -> int:
        """Duration of the next sync of that file."""
        for held in () if path is None else (path, path.parent):
            if held in self.held_up:
                delay_us = self.held_up.pop(held)
                self.hung_until_us = self.timeline.now_us + delay_us
                return delay_us
        return self.timeline.random.randint(self.disk_us // 4 + 1, self.disk_us + 1)

    # -- faults and trials -----------------------------------------------------------------

    def arm(self, slot: Slot, call: Callable[[], None]) -> None:
        """Call once, right after the next store to slot."""
        self._armed[slot] = call

    def arm_append(self, call: Callable[[], None]) -> None:
        """Call once, right before the broker's next write to the log."""
        self._armed_append = call

    def arm_file(self, name: str, call: Callable[[], None]) -> None:
        """Call once, right after that file of ha is replaced or removed. "cut": any file in
        ``cut/``."""
        self._armed_files[name] = call

    def arm_step(self, step: str, call: Callable[[], None]) -> None:
        """Call once, right before that step of a cut, a resync or a promotion."""
        self._armed_steps[step] = call

    def reaches(self, step: str) -> None:
        """Run what is armed for the step (``services.ha.shell.hooks``)."""
        if step in self._armed_steps:
            self._armed_steps.pop(step)()

    def calm(self) -> None:
        """Remove everything that is armed, and repair the disk."""
        self._armed.clear()
        self._armed_steps.clear()
        self.held_up.clear()
        self._armed_files.clear()
        self._armed_append = None
        self.is_full = self.syncs_fail = False
        self.is_crowded = self.queues_are_full = False
        self.no_room_for = None

    @property
    def syncs_fail(self) -> bool:
        """Whether syncs fail. The pages of a failed sync become clean without reaching the disk."""
        return self._syncs_fail

    @syncs_fail.setter
    def syncs_fail(self, value: bool) -> None:
        self._syncs_fail = value
        self.has_failed = self.has_failed or value

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room beyond what is reserved."""
        return self.disk.capacity_bytes is not None

    @is_full.setter
    def is_full(self, value: bool) -> None:
        if self.is_full and not value:
            self.roomy_us = self.timeline.now_us
        self.disk.capacity_bytes = 0 if value else None

    def power_off(self) -> None:
        """End all processes and drop what is not durable."""
        self.is_on, self.off_us = False, self.timeline.now_us
        for process in list(self.processes.values()):
            process.end()
        self.processes.clear()
        self._locks.clear()
        self.disk = self.disk.power_cut()
        self.disk.failing_sync = lambda path: self._syncs_fail
        self._last_incarnation = self.incarnation  # The name may not have been durable.

    def power_on(self) -> None:
        """Begin another boot."""
        self.is_on, self.has_taken_up = True, False
        self.boot = self._new_boot()
        self.clock.boot()

    def replace_volume(self) -> None:
        """Replace the disk by an empty one. The machine must be off."""
        self.disk = self._new_disk()
        self.ended_us = 0
        """When one of its processes last ended."""
        self._last_incarnation = ""

    def flip(self, at: int, bit: int) -> None:
        """Flip one bit of the log, in the page cache and on the disk."""
        directory = self._directory()
        assert directory is not None
        inode = directory.names[offset_name(at - at % FILE_SIZE)]
        assert isinstance(inode, Inode)
        inode.flip(at % FILE_SIZE, bit)

    def put_page(self, data: bytes) -> None:
        """Replace the page, in the page cache and on the disk. No process may have it mapped."""
        page = self._inode(PAGE)
        assert page is not None, "it was there"
        page.cache[:] = page.durable[:] = data
        page.lengths = [len(data)]

    def remove_log_file(self, at: int) -> None:
        """Remove the log file that contains at, also on the disk."""
        self.disk.remove_tree(LOG / offset_name(at - at % FILE_SIZE))

    def put_file(self, path: Path, data: bytes | None) -> None:
        """Replace a file of the store, or remove it (None), durably."""
        self.disk.remove_tree(path)
        if data is not None:
            file = self.disk.create(path, 0, reserve=False)
            file.pwrite(data, 0)
            file.sync()
            file.close()
        self.disk.sync_directory(path.parent)

    def creates(self, path: Path, process: Process) -> None:
        """Check before a file is created that the process may do it. Raises DiskFull."""
        if path.parent == LOG:
            self._judge.writes(self, process, f"creates the log file {path.name}")
        if path == self.no_room_for or (self.queues_are_full and QUEUES in path.parents):
            raise DiskFull(f"no room for {path}.", path=path, free_bytes=0, limit=1)

    def remove_queues(self) -> None:
        """Remove every queue file."""
        _remove_below(self.disk, QUEUES)


def _remove_below(disk: SimDisk, directory: Path) -> None:
    for entry in disk.list_directory(directory):
        path = directory / entry.name
        if entry.is_directory:
            _remove_below(disk, path)
        else:
            disk.unlink(path)
    disk.sync_directory(directory)
