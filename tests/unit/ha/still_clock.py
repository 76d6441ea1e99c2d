"""A clock that stands still unless it is moved, and a wait for other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Wait until condition() holds, checked once a millisecond."""
    async with asyncio.timeout(10):
        waiting = asyncio.Event()
        while not condition():
            asyncio.get_running_loop().call_later(0.001, waiting.set)
            await waiting.wait()
            waiting.clear()


class StillClock:
    """All clocks of a machine, in milliseconds."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def wall_ms(self) -> int:
        return self.now_ms

    def boot_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000
