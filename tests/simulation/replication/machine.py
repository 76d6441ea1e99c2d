"""One node: its disk, page, clock and locks, and the starts of its three services."""

from __future__ import annotations

from tests.simulation.replication.clock import Clock
from tests.simulation.replication.page import Page
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.volume import Volume


class Machine:
    """What survives a start of a service; what survives a boot is ``volume`` and part of page."""

    def __init__(self, timeline: Timeline, name: str, *, drift: float, disk_us: int) -> None:
        """disk_us: what a write with its sync takes, about."""
        self.timeline = timeline
        self.name = name
        self.volume = Volume(timeline.random)
        self.page = Page(timeline.random)
        self.clock = Clock(timeline, timeline.random, drift=drift)
        self.disk_us = disk_us
        self.is_on = True
        self.is_full = False
        """The disk takes nothing more; what was reserved for the broker's own records is there."""
        self.processes: dict[str, Process] = {}
        """The present start of each service."""
        self.boot = self._new_boot()
        self._locks: dict[int, Process] = {}
        self._appending: tuple[Process, int] | None = None

    def _new_boot(self) -> tuple[int, int]:
        bits = self.timeline.random.getrandbits
        return bits(63) | 1, bits(63)

    def begin_appending(self, process: Process, epoch: int) -> None:
        """A start of the broker has byte 0, and uses it."""
        self._appending = process, epoch

    def end_appending(self) -> None:
        """It has put everything of its term into the log."""
        self._appending = None

    @property
    def appending_epoch(self) -> int | None:
        """The epoch under which a living broker appends; None: none does."""
        if self._appending is None or not self._appending[0].alive:
            return None
        return self._appending[1]

    def take_lock(self, byte: int, process: Process) -> bool:
        """Lock one byte of the lock file; False if a living process has it."""
        owner = self._locks.get(byte)
        if owner is not None and owner.alive and owner is not process:
            return False
        self._locks[byte] = process
        return True

    def release_lock(self, byte: int, process: Process) -> None:
        """Give it back."""
        if self._locks.get(byte) is process:
            del self._locks[byte]

    def is_locked(self, byte: int) -> bool:
        """Whether a living process has it (F_OFD_GETLK)."""
        owner = self._locks.get(byte)
        return owner is not None and owner.alive

    def disk_delay_us(self) -> int:
        """How long the next write with its sync takes."""
        return self.timeline.random.randint(self.disk_us // 4 + 1, self.disk_us + 1)

    def power_off(self) -> None:
        """Every process is gone, and what was not on disk."""
        self.is_on = False
        for process in self.processes.values():
            process.end()
        self.processes.clear()
        self._locks.clear()
        self.volume.power_cut()
        self.page.power_cut()

    def power_on(self) -> None:
        """Another boot."""
        self.is_on = True
        self.boot = self._new_boot()
        self.clock.boot()

    def replace_volume(self) -> None:
        """A new disk instead of the old one; the machine is off."""
        self.volume = Volume(self.timeline.random)
        self.page.erase()
