"""The consumers' side of a broker, built and run: groups and what belongs to them.

Built when the state has been replayed; its background parts run once sends are open, because all of
them append. Before: ``serving`` has the log, the queues and the topics. After: ``parts`` for the
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import NamedTuple

from services.broker.config import BrokerConfig
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.offsets import Offsets
from services.broker.state_log import StateLog
from services.broker.topics import Topics
from shared.state.state import BrokerState
from tidemark.clock import Clock

Runners = Mapping[str, Callable[[], Coroutine[None, None, None]]]
"""Name → what runs until it is stopped."""


class Foundation(NamedTuple):
    """What the consumers' side stands on."""

    config: BrokerConfig
    clock: Clock
    state: BrokerState
    """As served; each part of it has one owner."""
    state_log: StateLog
    topics: Topics
    flushed: Callable[[], int]


class Consuming:
    """Groups, their offsets, and what else serves consumers."""

    def __init__(self, base: Foundation, *, on_group_change: Callable[[], None]) -> None:
        """on_group_change: called after a group was made, changed or deleted."""
        self.offsets = Offsets(base.state, base.state_log, flushed=base.flushed)
        base.state_log.offsets_now = self.offsets.now
        self.configs = GroupConfigs(
            base.state,
            base.state_log,
            base.topics,
            self.offsets,
            flushed=base.flushed,
            auto_create=base.config.auto_create_groups,
            on_change=on_group_change,
        )

    def runners(self, stop: asyncio.Event) -> Runners:
        """The background parts, to be run from when sends are open."""
        return {"offsets": lambda: self.offsets.run(stop)}

    async def finish(self) -> None:
        """Append what is still to be said; the node stops, and appending ends after this."""
        await self.offsets.finish()
