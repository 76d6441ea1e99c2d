"""Tells everybody who waits that something has changed. It carries nothing: who is woken looks."""

from __future__ import annotations

import asyncio


class Pulse:
    """``while not what_i_want(): await pulse.wait()`` misses nothing.

    Between the look and the wait nothing else runs in the loop, and a ring reaches all who wait.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Something changed."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    async def wait(self, at_most_ms: float | None = None) -> None:
        """Return at the next ring, or when the time is up."""
        event = self._next
        if at_most_ms is None:
            await event.wait()
            return
        try:
            async with asyncio.timeout(at_most_ms / 1000):
                await event.wait()
        except TimeoutError:
            return
