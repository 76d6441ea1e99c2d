"""Wakes all waiting tasks when some state has changed. It carries no value: waiters check again."""

from __future__ import annotations

import asyncio


class Pulse:
    """``while not condition(): await pulse.wait()`` misses no change.

    No other task runs between the check and the wait, and a ring wakes all waiting tasks.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake all waiting tasks."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    async def wait(self, at_most_ms: float | None = None) -> None:
        """Return at the next ring, or when the time has passed."""
        event = self._next
        if at_most_ms is None:
            await event.wait()
            return
        try:
            async with asyncio.timeout(at_most_ms / 1000):
                await event.wait()
        except TimeoutError:
            return
