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
    """All clocks of a machine. They stand until a test moves them, all together."""

    def __init__(self, now_ms: int = 1_000_000, *, wall_ahead_ms: int = 0) -> None:
        """wall_ahead_ms: difference of the wall clock to the others."""
        self.now_ms, self.wall_ahead_ms = now_ms, wall_ahead_ms

    @property
    def now_s(self) -> float:
        return self.now_ms / 1000

    @now_s.setter
    def now_s(self, seconds: float) -> None:
        self.now_ms = round(seconds * 1000)

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_ahead_ms

    def boot_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_s
