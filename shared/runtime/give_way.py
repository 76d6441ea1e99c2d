"""Long work on the loop, in slices, gives way to requests that somebody waits for.

    way = GiveWay(lambda: requests_in_hand > 0)
    while work:
        ...  # a slice
        await way.rest()

Before: a slice of a scrape is over. After: whoever sends or pulls met one slice, not one in each of
the turns that an answer takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

REST_S: Final = 0.001
"""One rest while somebody waits. Merely another turn of the loop is not enough: 1. A flush ends in
its thread, which wants the interpreter back. 2. The loop lets go of it for the moment of an empty
poll, takes it again before the thread is awake, and the thread's patience begins anew. 3. So it
went for as long as there were slices: sends that waited for the disk were held up by 120 to 200 ms.
"""
SLICE_S: Final = 0.00025
"""So long a thread works between two rests."""
PATIENCE_S: Final = 0.5
"""So much of it beyond one rest per slice; then the work goes on beside requests that never end."""


def nobody() -> bool:
    """Nobody waits: a process that answers no requests but these."""
    return False


class Pace:
    """Of several pieces of work on one loop while somebody waits: together they have one slice in
    each REST_S, so that many take no more of the loop than one."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def rest_s(self, now: float, slices: int = 1) -> float:
        """How long to rest before work of so many slices. now: the loop's time [s]."""
        rest_s = max(0.0, self._free_at - now) + slices * REST_S
        self._free_at = now + rest_s
        return rest_s


class GiveWay:
    """The rests of one piece of work, on the event loop or in one thread beside it."""

    def __init__(
        self,
        is_awaited: Callable[[], bool] = nobody,
        patience_s: float = PATIENCE_S,
        pace: Pace | None = None,
    ) -> None:
        """is_awaited: whether a request is in hand whose answer does not wait for this work. pace:
        shared with other work; None: it has its own."""
        self._is_awaited = is_awaited
        self._patience_s = patience_s
        self._pace = pace or Pace()
        self._works_since = 0.0

    async def rest(self) -> None:
        """Let others have their turn: two turns of the loop, in which a request that has come is
        read and begun, and as long as somebody waits, for as long as there is patience."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not self._is_awaited():
            return
        await asyncio.sleep(self._pace.rest_s(asyncio.get_running_loop().time()))
        while self._patience_s > 0 and self._is_awaited():
            self._patience_s -= REST_S
            await asyncio.sleep(REST_S)

    def rest_in_thread(self) -> None:
        """The same for work in a thread, which keeps the interpreter from the loop, and on a busy
        machine its core: a rest after each SLICE_S while somebody waits. Call it far more often."""
        now = time.monotonic()
        if now - self._works_since < SLICE_S:
            return
        if self._is_awaited():
            time.sleep(REST_S)
            now = time.monotonic()
        self._works_since = now
