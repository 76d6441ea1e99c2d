"""Long work on the loop, in slices, gives way to requests in hand.

    way = GiveWay(lambda: requests_in_hand > 0)
    while work:
        ...  # a slice
        await way.rest()

Before: a slice of a scrape is over. After: a send or pull waited for one slice, not for one in each
of the turns that its answer takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

REST_S: Final = 0.001
"""One rest while a request is in hand. Another turn of the loop alone is not enough: 1. A flush
ends in its thread, which needs the interpreter back. 2. The loop releases it during an empty poll,
and takes it again before the thread is awake; the thread's wait begins anew. 3. This repeated for
as long as there were slices: sends that waited for the disk were held up by 120 to 200 ms.
"""
SLICE_S: Final = 0.00025
"""Work between two rests, on the loop or in a thread. A send takes several turns of the loop, and
each is longer by a slice while there is such work."""
PATIENCE_S: Final = 0.5
"""All rests of one piece of work beyond one per slice: then it goes on beside requests that never
end."""


def never() -> bool:
    """No request is ever in hand: of a process that answers no others."""
    return False


class Pace:
    """Several pieces of work on one loop have one slice in each REST_S together: many take no more
    of the loop than one."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def rest_s(self, now: float, slices: int = 1) -> float:
        """Seconds to rest before work of so many slices. now: the loop's time [s]."""
        rest_s = max(0.0, self._free_at - now) + slices * REST_S
        self._free_at = now + rest_s
        return rest_s


class GiveWay:
    """The rests of one piece of work, on the event loop or in one thread beside it."""

    def __init__(
        self,
        is_awaited: Callable[[], bool] = never,
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
        """Rest for two turns of the loop, in which a request that has come is read and begun, and
        then while a request is in hand, for as long as there is patience."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not self._is_awaited():
            return
        await asyncio.sleep(self._pace.rest_s(asyncio.get_running_loop().time()))
        while self._patience_s > 0 and self._is_awaited():
            self._patience_s -= REST_S
            await asyncio.sleep(REST_S)

    def rest_in_thread(self) -> None:
        """Rest in a thread, after each SLICE_S while a request is in hand: a thread that works
        keeps the interpreter from the loop and, on a busy machine, its core. Call this several
        times in each SLICE_S."""
        now = time.monotonic()
        if now - self._works_since < SLICE_S:
            return
        if self._is_awaited():
            time.sleep(REST_S)
            now = time.monotonic()
        self._works_since = now
