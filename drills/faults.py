"""What is wrong with a node's machine at the moment: one file that its services look at.

The drills' side sets values, ``faulty`` brings them about inside the services: clocks that step, a
disk that syncs slowly, a loop that stands still, a process that stops at a chosen step. One page
per node, in a file that all its services read; a value is 8 bytes, written at once.
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path
from typing import Final

PAGE_SIZE: Final = 4096
ARMED_SIZE_MAX: Final = 256
ARMED_AT: Final = 2048
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


class FaultPage:
    """The page of one node."""

    def __init__(self, path: Path) -> None:
        """Opens the file at path, made if it is not there."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._descriptor).st_size < PAGE_SIZE:
            os.pwrite(self._descriptor, bytes(PAGE_SIZE), 0)

    def get(self, fault: Fault) -> int:
        """What is set."""
        return int.from_bytes(os.pread(self._descriptor, 8, fault * 8), "little", signed=True)

    def set(self, fault: Fault, value: int) -> None:
        """Bring it about, from each service's next look on."""
        os.pwrite(self._descriptor, value.to_bytes(8, "little", signed=True), fault * 8)

    def arm(self, step: str, action: str) -> None:
        """Have the service that comes to a step (``hooks.before``) first take an action, once.

        action: "kill" (SIGKILL to itself) or "stop" (SIGSTOP).
        """
        text = f"{action} {step}".encode("ascii")
        if len(text) >= ARMED_SIZE_MAX:
            raise ValueError(f"the name of step {step!r} is too long")
        os.pwrite(self._descriptor, text.ljust(ARMED_SIZE_MAX, b"\0"), ARMED_AT)

    @property
    def armed(self) -> tuple[str, str] | None:
        """(action, step) that waits; None: nothing does, or it has happened."""
        text = os.pread(self._descriptor, ARMED_SIZE_MAX, ARMED_AT).rstrip(b"\0").decode("ascii")
        action, _, step = text.partition(" ")
        return (action, step) if step else None

    def disarm(self) -> None:
        """Nothing waits any more."""
        os.pwrite(self._descriptor, bytes(ARMED_SIZE_MAX), ARMED_AT)

    def clear(self) -> None:
        """Nothing is wrong any more. The boot-time clock stays where it is: it never goes back."""
        for fault in Fault:
            if fault is not Fault.BOOT_STEP_MS:
                self.set(fault, 0)
        self.disarm()
