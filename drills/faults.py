"""Fault page of a node: a file with the faults that its services inject into themselves.

The drill sets values; ``faulty`` applies them inside the services: clock steps, slow fsync, a
blocked event loop, a process that stops at a chosen step. Each node has one page, which all its
services read. A value has 8 bytes and is written with one call.
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
"""Environment variable with the path of the page."""


class Fault(IntEnum):
    """Fault values; the number is the slot in the page. The value 0 means no fault."""

    BOOT_STEP_MS = 0
    """Step of the boot-time clock, as if the machine had been suspended."""
    WALL_STEP_MS = 1
    """Offset of the wall clock."""
    SYNC_DELAY_MS = 2
    """Additional duration of every fdatasync and fsync."""
    STALL_MS = 3
    """Duration for which the event loop is blocked when the process receives SIGUSR1; the process
    resets it when that begins.
    """
    STOP_BEFORE_ANSWER = 4
    """1: the broker stops itself (SIGSTOP) when it is about to answer a send."""


class FaultPage:
    def __init__(self, path: Path) -> None:
        """Open the file at path; create it if it does not exist."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._descriptor).st_size < PAGE_SIZE:
            os.pwrite(self._descriptor, bytes(PAGE_SIZE), 0)

    def get(self, fault: Fault) -> int:
        return int.from_bytes(os.pread(self._descriptor, 8, fault * 8), "little", signed=True)

    def set(self, fault: Fault, value: int) -> None:
        """Set a fault; each service applies it from its next read of the page on."""
        os.pwrite(self._descriptor, value.to_bytes(8, "little", signed=True), fault * 8)

    def arm(self, step: str, action: str) -> None:
        """Make the service that reaches a step (``hooks.before``) execute an action there, once."""
        text = f"{action} {step}".encode("ascii")
        if len(text) >= ARMED_SIZE_MAX:
            raise ValueError(f"the name of step {step!r} is too long")
        os.pwrite(self._descriptor, text.ljust(ARMED_SIZE_MAX, b"\0"), ARMED_AT)

    @property
    def armed(self) -> tuple[str, str] | None:
        """The pending (action, step); None if there is none or it was executed."""
        text = os.pread(self._descriptor, ARMED_SIZE_MAX, ARMED_AT).rstrip(b"\0").decode("ascii")
        action, _, step = text.partition(" ")
        return (action, step) if step else None

    def disarm(self) -> None:
        os.pwrite(self._descriptor, bytes(ARMED_SIZE_MAX), ARMED_AT)

    def clear(self) -> None:
        """Reset all faults except the boot-time clock, which must never go back."""
        for fault in Fault:
            if fault is not Fault.BOOT_STEP_MS:
                self.set(fault, 0)
        self.disarm()
