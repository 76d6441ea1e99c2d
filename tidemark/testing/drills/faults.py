"""What is wrong with a node's machine at the moment: one page that its services look at.

The drills' side sets values, ``faulty`` brings them about inside the services: clocks that step, a
disk that syncs slowly, a loop that stands still, a process that stops at a chosen step. One page
per node, mapped by all its services; a value is one aligned 8-byte store.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path
from typing import Final

PAGE_SIZE: Final = 4096
ARMED_SIZE_MAX: Final = 256
_ARMED_AT: Final = 2048
FAULTS_VARIABLE: Final = "TIDEMARK_DRILL_FAULTS"
"""Environment variable with the page's path."""


class Fault(IntEnum):
    """Values that can be set; the number is the slot's. 0: nothing is wrong."""

    BOOT_STEP_MS = 0
    """The boot-time clock is so far ahead: the machine was suspended."""
    WALL_STEP_MS = 1
    """The wall clock is so far off."""
    SYNC_DELAY_MS = 2
    """Every fdatasync and fsync takes so much longer."""
    STALL_MS = 3
    """A loop stands still for so long when its process gets SIGUSR1."""
    STOP_BEFORE_ANSWER = 4
    """1: the broker stops itself (SIGSTOP) when a send may be answered, and before it is."""
    RENEWALS_HELD = 5
    """1: ha asks for nothing of the lease; requests end as unknown."""


class FaultPage:
    """The page of one node."""

    def __init__(self, path: Path) -> None:
        """Maps the file at path, made if it is not there."""
        if not path.exists():
            path.write_bytes(bytes(PAGE_SIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_SIZE)
        self._slots = memoryview(self._page).cast("q")
        self._path = path

    def get(self, fault: Fault) -> int:
        """What is set."""
        return self._slots[fault]

    def set(self, fault: Fault, value: int) -> None:
        """Bring it about, from each service's next look on."""
        self._slots[fault] = value

    def arm(self, step: str, action: str) -> None:
        """Have the service that comes to a step (``hooks.before``) first take an action, once.

        action: "kill" (SIGKILL to itself) or "stop" (SIGSTOP).
        """
        text = f"{action} {step}".encode("ascii")
        if len(text) >= ARMED_SIZE_MAX:
            raise ValueError(f"the name of step {step!r} is too long")
        self._page[_ARMED_AT : _ARMED_AT + ARMED_SIZE_MAX] = text.ljust(ARMED_SIZE_MAX, b"\0")

    @property
    def armed(self) -> tuple[str, str] | None:
        """(action, step) that waits; None: nothing does, or it has happened."""
        text = self._page[_ARMED_AT : _ARMED_AT + ARMED_SIZE_MAX].rstrip(b"\0").decode("ascii")
        action, _, step = text.partition(" ")
        return (action, step) if step else None

    def disarm(self) -> None:
        """Nothing waits any more."""
        self._page[_ARMED_AT : _ARMED_AT + ARMED_SIZE_MAX] = bytes(ARMED_SIZE_MAX)

    def clear(self) -> None:
        """Nothing is wrong any more."""
        for fault in Fault:
            self.set(fault, 0)
        self.disarm()
