"""A bounded resource that many tasks share in first-come, first-served order.

``producer`` uses it for bytes in memory and for requests in flight, ``connection`` for joins.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class Turns:
    """At most ``limit`` units are taken at once; a single taker may exceed it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        """Units taken now."""
        # Ordered, and not a deque: a cancelled waiter is removed in constant time.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._when_empty: list[asyncio.Future[None]] = []

    def take_now(self, amount: int) -> bool:
        """Take units if there is room and no task is waiting."""
        if self._waiting or not self._fits(amount):
            return False
        self.taken += amount
        return True

    async def take(self, amount: int, ends_at: Callable[[], float]) -> bool:
        """Take units as soon as there is room. Returns False on timeout, with nothing taken.

        ends_at: time limit on the loop's clock; evaluated again when it has passed.
        """
        if self.take_now(amount):
            return True
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._waiting[ready] = amount
        try:
            while not ready.done() and (left_s := ends_at() - loop.time()) > 0:
                await asyncio.wait((ready,), timeout=left_s)
        except asyncio.CancelledError:
            if ready.done():  # granted in the same loop iteration as the cancellation
                self.give(amount)
            else:
                self._leave(ready)
            raise
        if ready.done():
            return True
        self._leave(ready)
        return False

    def give(self, amount: int) -> None:
        """Return units; waiting tasks get them in their order as far as there is room."""
        self.taken -= amount
        self._admit()
        if not self.taken and not self._waiting:
            for empty in self._when_empty:
                if not empty.done():
                    empty.set_result(None)
            self._when_empty.clear()

    async def empty(self) -> None:
        """Wait until nothing is taken and no task waits."""
        while self.taken or self._waiting:
            empty: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_empty.append(empty)
            await empty

    def _leave(self, ready: asyncio.Future[None]) -> None:
        del self._waiting[ready]
        self._admit()  # it may have blocked a smaller request behind it

    def _admit(self) -> None:
        while self._waiting:
            ready, amount = next(iter(self._waiting.items()))
            if not self._fits(amount):
                return
            del self._waiting[ready]
            self.taken += amount
            ready.set_result(None)

    def _fits(self, amount: int) -> bool:
        return self.taken == 0 or self.taken + amount <= self._limit
