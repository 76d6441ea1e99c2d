"""The consumer side of a broker without members of groups and delivery of delayed messages.

Groups, committed offsets and the progress of delayed delivery are real state: they are stored by
the broker's own code, and clients change them (``consumer``). All other components of a term are
real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from services.broker.groups.configs import GroupConfigs
from services.broker.groups.offsets import Offsets
from shared.state import records
from shared.state.records import DelayRecord
from tests.simulation.replication.expiring import Expiring
from tests.simulation.replication.process import running

if TYPE_CHECKING:
    from services.broker.consuming import Core

LEVEL: Final = 3


class _Delivery:
    """Replaces the delivery of delayed messages: it only records its progress."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def deliver(self) -> None:
        """Record that one more message of a level is delivered. Raises TidemarkError."""
        core = self._core
        done = core.state_log.delay_now().levels.get(LEVEL, 0) + 1
        record = DelayRecord(core.log.flushed(), {LEVEL: done})
        core.state_log.append_state_now(records.encode(record))
        core.state.apply(record)


class SimpleConsuming:
    """Replaces ``services.broker.consuming.Consuming``."""

    def __init__(self, core: Core, *, on_group_change: Callable[[], None]) -> None:
        self._core = core
        flushed = core.log.flushed
        self.offsets = Offsets(core.state, core.state_log, flushed=flushed)
        core.state_log.take_offsets_from(self.offsets.now)
        configs = GroupConfigs(
            core.state,
            core.state_log,
            core.topics,
            self.offsets,
            flushed=flushed,
            on_change=on_group_change,
        )
        self.retention = Expiring(core, core.log.queues.forget)
        coordinator = SimpleNamespace(topic_changed=lambda topic: None)
        self.groups = SimpleNamespace(
            coordinator=coordinator, state=core.state, offsets=self.offsets, configs=configs
        )
        self.delayed = _Delivery(core)

    def runners(
        self, stop: asyncio.Event, opened: asyncio.Event, closed: asyncio.Future[bool]
    ) -> Mapping[str, Any]:
        """Return a component that waits for the open epoch, as all of them do, and retention."""
        thread = running()
        assert thread is not None
        process = thread.process
        process.opened = None
        process.machine.begins_with(self._core.state)

        async def write_offsets() -> None:
            await opened.wait()
            process.opened = self._core.state
            await self.offsets.run(stop)

        return {"offsets": write_offsets, "retention": lambda: self.retention.run(stop)}

    async def finish(self) -> None:
        """Append the last offsets."""
        await self.offsets.finish()
