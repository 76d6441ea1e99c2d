"""The common parts of the three simulated services: process, event loop, doorbell and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.replication.history import History
from tests.simulation.replication.loop import Loop
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.node_disk import ProcessDisk
from tests.simulation.replication.process import Killed, Process, border
from tests.simulation.replication.violation import Violation
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    FlushFailed,
    PartEnded,
    StrayFile,
    TidemarkError,
    WriteFailed,
    WrongFileSize,
)

IMPOSSIBLE = (
    CorruptRecord,
    DamagedFile,
    FlushFailed,
    PartEnded,
    StrayFile,
    WriteFailed,
    WrongFileSize,
)
"""Errors that only damage, a failed sync or a bug can cause."""
DAMAGED = (CorruptRecord, DamagedFile)
"""Errors with which a flipped bit may end a process."""
FAILED = (FlushFailed, PartEnded, WriteFailed)
"""Errors with which a failed sync may end a process."""


class Bell:
    """The doorbells of a node for one service (``shared.runtime.doorbell.Doorbell``)."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._rung = False
        self._waiter: asyncio.Future[bool] | None = None

    def ring(self, service: str, note: bytes = b"") -> bool:
        """Wake another service; the ring may be lost."""
        self._ring(service)
        border()
        return True

    def wake(self) -> None:
        """End a wait of this process, as a ring would."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._rung = False
            self._waiter.set_result(True)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until rung, or until the timeout."""
        if self._rung:
            self._rung = False
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, _settle, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def rest(self, seconds: float) -> None:
        """Ignore rings for that time."""
        await asyncio.sleep(seconds)


def _settle(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Service:
    """One start of a service; ``main`` runs it."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        history: History,
        ring: Callable[[str], None],
        write_trace: Callable[[str, str], None] | None,
    ) -> None:
        """write_trace: takes (node and service, line) of a trace."""
        self.machine, self.process, self.history = machine, process, history
        self.write_trace = write_trace
        self.disk = ProcessDisk(machine, process)
        self.bell = Bell(ring)
        self.loop = Loop(process, self.failed)
        self.stop = asyncio.Event()
        """Set when the service is to shut down."""

    def start(self) -> None:
        """Start the process."""
        thread = self.process.start("loop", self._run, loop=self.loop)
        self.loop.turned_by(thread)

    def rung(self) -> None:
        """Receive a ring."""
        self.loop.call_soon_threadsafe(self.bell.wake)

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.process.alive:
            self.loop.call_soon_threadsafe(self.stop.set)

    def main(self) -> Coroutine[Any, Any, None]:
        """The coroutine that runs the service."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """Judge an error: it is due to a fault, or to a bug."""
        for cause in _causes(error):
            if isinstance(cause, Killed | Violation):
                raise cause
            may_be = self.machine.has_failed and isinstance(cause, FAILED)
            is_damaged = self.machine.name in self.history.damaged
            may_be = may_be or (is_damaged and isinstance(cause, DAMAGED))
            if not isinstance(cause, TidemarkError | OSError) or (
                isinstance(cause, IMPOSSIBLE) and not may_be
            ):
                raise Violation(
                    f"{self.machine.name} {self.process.name} failed: "
                    f"{type(cause).__name__}: {cause}"
                ) from cause

    def trace(self, line: str) -> None:
        """Write a line of the trace."""
        if self.write_trace is not None:
            self.write_trace(f"{self.machine.name} {self.process.name}", line)

    def _run(self) -> None:
        try:
            self.loop.run_to_end(self.main())
        except Exception as error:  # noqa: BLE001 - reported to failed()
            self.trace(f"ends by {type(error).__name__}: {error}")
            self.failed(error)
        else:
            self.process.is_finished = True
        self.process.end()


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in _causes(inner)]
    return [error]
