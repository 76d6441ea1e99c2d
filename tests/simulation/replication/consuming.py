"""A broker without consumer groups, delays and retention: the parts of a term are all there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.replication.process import running
from tidemark.errors import DiskFull

if TYPE_CHECKING:
    from tests.simulation.replication.machine import Machine

LOOK_S: Final = 0.25
"""Interval at which the disk is looked at."""


class _NoOffsets:
    """Nobody commits any."""

    changes = 0

    def now(self) -> Mapping[str, Mapping[Any, int]]:
        """None."""
        return {}

    def recount(self) -> None:
        """There are none."""


class _NoRetention:
    """Nothing expires; the disk is looked at, as ``retention.fullness`` does."""

    def __init__(self, files_ahead: Any, machine: Machine) -> None:
        self._files, self._machine = files_ahead, machine
        self.fullness = self

    @property
    def sends_refused(self) -> bool:
        """Whether the disk is too full for sends."""
        return self._files.refusal is not None

    async def run(self, stop: asyncio.Event) -> None:
        """Until stop."""
        while not stop.is_set():
            is_crowded = self._machine.is_crowded
            self._files.refusal = DiskFull("too full for sends.") if is_crowded else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()


class NoConsuming:
    """In place of ``services.broker.consuming.Consuming``."""

    def __init__(self, base: Any, *, on_group_change: Callable[[], None]) -> None:
        self.offsets = _NoOffsets()
        thread = running()
        assert thread is not None
        self.retention = _NoRetention(base.files_ahead, thread.process.machine)
        coordinator = SimpleNamespace(topic_changed=lambda topic: None)
        self.groups = SimpleNamespace(coordinator=coordinator, state=base.state)
        self.configs = self.views = self.send_back = self.redrive = self.tracer = None
        self.delayed = None

    def runners(
        self, stop: asyncio.Event, opened: asyncio.Event, closed: asyncio.Future[bool]
    ) -> Mapping[str, Any]:
        """One that waits for the epoch to be open, as all of them do."""
        thread = running()
        assert thread is not None
        process = thread.process
        process.is_opened = False

        async def wait() -> None:
            await opened.wait()
            process.is_opened = True
            await stop.wait()

        return {"opened": wait, "retention": lambda: self.retention.run(stop)}

    async def finish(self) -> None:
        """Nothing is still to be said."""
