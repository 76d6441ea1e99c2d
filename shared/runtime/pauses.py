"""Long work on the loop runs in slices, with pauses while requests are being answered.

    pauses = Pauses(lambda: requests_in_hand > 0)
    while work:
        ...  # a slice
        await pauses.rest()

So a send or pull is delayed by one slice in all, not by one slice in each of the loop iterations
that its answer takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

REST_S: Final = 0.001
"""One pause while a request is running. Another iteration of the loop alone is not enough: 1. A
flush ends in its thread, which needs the interpreter lock. 2. The loop releases the lock during an
empty poll and takes it again before the thread is awake; the thread starts to wait again. 3. This
repeated for as long as there were slices: sends that waited for the disk were delayed by 120 to
200 ms.
"""
SLICE_S: Final = 0.00025
"""Work between two pauses, on the loop or in a thread. A send takes several iterations of the loop,
and each is longer by a slice while there is such work."""
PATIENCE_S: Final = 0.5
"""Limit on the extra pauses of one piece of work, beyond one per slice; then the work continues
even if requests are always running."""


def never() -> bool:
    """Report that no request is running; for processes that answer no other requests."""
    return False


class Pace:
    """Shared rate of several pieces of work on one loop: together they get one slice per REST_S.

    Many pieces of work therefore take no more of the loop's time than one."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def rest_s(self, now: float, slices: int = 1) -> float:
        """Return the seconds to pause before that many slices. now: the loop's time [s]."""
        rest_s = max(0.0, self._free_at - now) + slices * REST_S
        self._free_at = now + rest_s
        return rest_s


class Pauses:
    """The pauses of one piece of work, on the event loop or in one thread beside it."""

    def __init__(
        self,
        is_awaited: Callable[[], bool] = never,
        patience_s: float = PATIENCE_S,
        pace: Pace | None = None,
    ) -> None:
        """is_awaited: whether a request is running whose answer does not wait for this work. pace:
        shared with other work; None: the work has its own."""
        self._is_awaited = is_awaited
        self._patience_s = patience_s
        self._pace = pace or Pace()
        self._works_since = 0.0

    async def rest(self) -> None:
        """Pause for two iterations of the loop, in which a new request is read and started. Then go
        on pausing while a request is running, until the patience is used up."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not self._is_awaited():
            return
        await asyncio.sleep(self._pace.rest_s(asyncio.get_running_loop().time()))
        while self._patience_s > 0 and self._is_awaited():
            self._patience_s -= REST_S
            await asyncio.sleep(REST_S)

    def rest_in_thread(self) -> None:
        """Pause this thread after each SLICE_S while a request is running: a working thread takes
        the interpreter lock from the loop and, on a busy machine, its core. Call this several times
        per SLICE_S."""
        now = time.monotonic()
        if now - self._works_since < SLICE_S:
            return
        if self._is_awaited():
            time.sleep(REST_S)
            now = time.monotonic()
        self._works_since = now
