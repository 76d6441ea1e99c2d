"""A broker without consumer groups and delayed messages; all other components of a term are
real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.simulation.replication.expiring import Expiring
from tests.simulation.replication.process import running

if TYPE_CHECKING:
    from services.broker.consuming import Core


class _NoOffsets:
    """Committed offsets of no group."""

    changes = 0

    def now(self) -> Mapping[str, Mapping[Any, int]]:
        """Return no offsets."""
        return {}

    def recount(self) -> None:
        """Do nothing: there are no offsets."""


class NoConsuming:
    """Replaces ``services.broker.consuming.Consuming``."""

    def __init__(self, core: Core, *, on_group_change: Callable[[], None]) -> None:
        self.offsets = _NoOffsets()
        self.retention = Expiring(core, core.log.queues.forget)
        coordinator = SimpleNamespace(topic_changed=lambda topic: None)
        self.groups = SimpleNamespace(coordinator=coordinator, state=core.state)
        self.delayed = None

    def runners(
        self, stop: asyncio.Event, opened: asyncio.Event, closed: asyncio.Future[bool]
    ) -> Mapping[str, Any]:
        """Return a component that waits for the open epoch, as all of them do, and retention."""
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
        """Do nothing: no write is pending."""
