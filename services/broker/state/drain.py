"""A drained node takes no messages from producers, so that consumers can empty it.

Everything else goes on: fetches and commits, nacks, delayed deliveries, and redrives to the group
(not to the topic, which would be a send). The command is a record of the state, so it outlasts
restarts and failovers. Step before: ``drain_calls``. Step after: ``topics`` refuses sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from shared.state.records import DrainRecord, encode
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import Drained
from tidemark.offsets import PhysicalOffset


class StateLog(Protocol):
    """Appends state records (implemented by ``state_log.StateLog``)."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record; it is durable on return."""
        ...


class Drain:
    """Drains the node and ends that; the only writer of this part of the state."""

    def __init__(
        self,
        state: BrokerState,
        log: StateLog,
        clock: Clock,
        flushed: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """on_change: called after each durable change."""
        self._state, self._log, self._clock, self._flushed = state, log, clock, flushed
        self._changing = asyncio.Lock()
        self._on_change = on_change

    @property
    def since_ms(self) -> int | None:
        """Since when producers may not send [wall clock ms]; None: they may."""
        return self._state.drained_since_ms

    async def set(self, *, is_drained: bool) -> bool:
        """Refuse sends from now on, or take them again; durable on return.

        Returns whether that changed anything. Raises what a send raises.
        """
        # Runs to its end if the client disconnects, so that state and log do not differ.
        return await asyncio.shield(asyncio.ensure_future(self._set(is_drained)))

    async def _set(self, is_drained: bool) -> bool:
        async with self._changing:
            if is_drained == (self.since_ms is not None):
                return False
            since_ms = self._clock.wall_ms() if is_drained else None
            record = DrainRecord(self._flushed(), since_ms)
            await self._log.append_state(encode(record))
            self._state.apply(record)
            self._on_change()
            return True


def check_open(state: BrokerState) -> None:
    """Raise Drained if producers may not send."""
    since_ms = state.drained_since_ms
    if since_ms is not None:
        since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
        raise Drained(
            f"this broker group is drained since {since}: it takes no messages, and consumers go "
            "on. Nothing was stored.",
            "Send to another broker group, or end it with `tidemark cluster undrain`.",
            drained_since_ms=since_ms,
        )
