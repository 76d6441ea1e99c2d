"""A broker without consumer groups and delays: the parts of a term are all there."""

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
    """Nobody commits any."""

    changes = 0

    def now(self) -> Mapping[str, Mapping[Any, int]]:
        """None."""
        return {}

    def recount(self) -> None:
        """There are none."""


class NoConsuming:
    """In place of ``services.broker.consuming.Consuming``."""

    def __init__(self, core: Core, *, on_group_change: Callable[[], None]) -> None:
        self.offsets = _NoOffsets()
        self.retention = Expiring(core, core.log.queues.forget)
        coordinator = SimpleNamespace(topic_changed=lambda topic: None)
        self.groups = SimpleNamespace(coordinator=coordinator, state=core.state)
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
