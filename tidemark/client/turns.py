"""A bound that many share fairly: so much at once, and who came first goes first.

Used by ``producer`` for bytes in memory and for requests in flight. Knows neither.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class Turns:
    """At most ``limit`` taken at once; one taker alone always fits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        """How much is taken now."""
        # Ordered, and not a deque: one that gives up leaves at once, wherever it stands.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._when_empty: list[asyncio.Future[None]] = []

    def take_now(self, amount: int) -> bool:
        """Take if there is room, and nobody waits for it."""
        if self._waiting or not self._fits(amount):
            return False
        self.taken += amount
        return True

    async def take(self, amount: int, ends_at: Callable[[], float]) -> bool:
        """Take as soon as there is room; False: it is too late, and nothing was taken.

        ends_at: on the loop's clock; asked again when its time has come.
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
            if ready.done():  # the turn came in the same moment
                self.give(amount)
            else:
                self._leave(ready)
            raise
        if ready.done():
            return True
        self._leave(ready)
        return False

    def give(self, amount: int) -> None:
        """Give back; those who wait go on in their order, as far as there is room."""
        self.taken -= amount
        self._let_in()
        if not self.taken and not self._waiting:
            for empty in self._when_empty:
                if not empty.done():
                    empty.set_result(None)
            self._when_empty.clear()

    async def empty(self) -> None:
        """Wait until nothing is taken and nobody waits."""
        while self.taken or self._waiting:
            empty: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_empty.append(empty)
            await empty

    def _leave(self, ready: asyncio.Future[None]) -> None:
        del self._waiting[ready]
        self._let_in()  # it may have stood before a smaller one

    def _let_in(self) -> None:
        while self._waiting:
            ready, amount = next(iter(self._waiting.items()))
            if not self._fits(amount):
                return
            del self._waiting[ready]
            self.taken += amount
            ready.set_result(None)

    def _fits(self, amount: int) -> bool:
        return self.taken == 0 or self.taken + amount <= self._limit
