"""Looks for the master of a group while calls wait for one, or are not answered.

Nothing is asked as long as calls are answered. Two things make it look: a call that pauses before
it is repeated, and an attempt that takes long: the node may be stopped, or cut off, and say nothing
for as long as a time-out lasts, while the group has another master after a few seconds. Then every
node is asked for its view (``nodes``); as soon as one says that it is the master, who pauses goes
on, and attempts at a node that has fallen silent are given up. The step before and after is
``connection``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.client.nodes import Nodes, View
from tidemark.client.pulse import Pulse

TICK_S: Final = 0.1
"""How often it is looked whether something takes long."""
SEARCH_S: Final = 0.2
"""Between two questions to one node, while the master is looked for."""
SEARCH_FAST_FOR_S: Final = 30.0
SEARCH_SLOW_S: Final = 1.0
"""The same for a group that has had no master for so long."""
LATE_S: Final = 0.5
"""An attempt that takes longer is looked after."""
LATE_HELD_S: Final = 2.0
"""The same for one that the broker holds until there are messages; and how often it is asked for
their sake. Rarely: there is one for every idle consumer."""
SILENT_S: Final = 0.3
"""A node that answers a question no sooner has fallen silent, for now."""
QUESTION_TIMEOUT_S: Final = 1.0


class Attempt:
    """One attempt of a call that is under way."""

    __slots__ = ("deadline", "is_held", "is_read", "node", "since")

    def __init__(
        self, node: str, deadline: asyncio.Timeout, since: float, *, is_held: bool, is_read: bool
    ) -> None:
        self.node, self.deadline, self.since = node, deadline, since
        self.is_held, self.is_read = is_held, is_read


class Lookout:
    """Of one connection, in its loop. Asks nobody before ``start``."""

    def __init__(self, nodes: Nodes, ask: Callable[[str], Awaitable[View | None]]) -> None:
        """ask: for a node's view; None if it gives none. It ends in a bounded time."""
        self._nodes = nodes
        self._ask = ask
        self._attempts: set[Attempt] = set()
        self._pausing = 0
        self._found = Pulse()
        self._wanted = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._asked_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        """Nodes whose last question was not answered."""
        self._seen_at = float("-inf")
        """When a master was heard last."""
        self._searching_since: float | None = None
        self._pace = 1.0 - random.random() / 4
        """Not all clients of a group ask at the same moment."""

    def start(self) -> None:
        """From now on there is a group to look around in."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_looking(self) -> bool:
        """Whether it was started."""
        return self._running is not None

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = list(self._asking.values())
        if self._running is not None:
            tasks.append(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def over(
        self, node: str, deadline: asyncio.Timeout, *, is_held: bool, is_read: bool
    ) -> Iterator[None]:
        """Look after an attempt: its deadline is moved to now when it is to be given up."""
        now = asyncio.get_running_loop().time()
        attempt = Attempt(node, deadline, now, is_held=is_held, is_read=is_read)
        self._attempts.add(attempt)
        try:
            yield
        finally:
            self._attempts.discard(attempt)

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until a master is heard of."""
        self._pausing += 1
        self._wanted.set()
        try:
            await self._found.wait(seconds * 1000)
        finally:
            self._pausing -= 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            interval_s = self._interval_s(now)
            if interval_s is None:
                self._silent.clear()  # it may speak again: nobody listens now
            else:
                self._question(now, interval_s)
                self._give_up(now)
            self._wanted.clear()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(0)  # many pause at once: one look for all

    def _interval_s(self, now: float) -> float | None:
        """How often nodes are to be asked now; None: not at all."""
        is_late = any(
            now - attempt.since >= (LATE_HELD_S if attempt.is_held else LATE_S)
            for attempt in self._attempts
        )
        if not is_late and not self._pausing:
            self._searching_since = None
            return None
        if not self._pausing and now - self._seen_at < LATE_HELD_S + QUESTION_TIMEOUT_S:
            self._searching_since = None
            is_waited_for = any(
                not attempt.is_held and now - attempt.since >= LATE_S for attempt in self._attempts
            )
            return LATE_S if is_waited_for else LATE_HELD_S
        if self._searching_since is None:
            self._searching_since = now
        is_long = now - self._searching_since > SEARCH_FAST_FOR_S
        return SEARCH_SLOW_S if is_long else SEARCH_S

    def _question(self, now: float, interval_s: float) -> None:
        urls = self._nodes.urls
        for url in urls:
            due_at = self._asked_at.get(url, float("-inf")) + interval_s * self._pace
            if url in self._asking or now < due_at:
                continue
            self._asked_at[url] = now
            self._asking[url] = asyncio.get_running_loop().create_task(self._hear(url))
        for url in self._asked_at.keys() - set(urls):
            del self._asked_at[url]

    async def _hear(self, url: str) -> None:
        try:
            view = await self._ask(url)
            if view is None:
                self._silent.add(url)
                return
            self._silent.discard(url)
            if self._nodes.heard(url, view):
                self._seen_at = asyncio.get_running_loop().time()
                self._found.ring()
                self._wanted.set()
        finally:
            del self._asking[url]

    def _give_up(self, now: float) -> None:
        """End attempts at nodes that say nothing, where another one would answer."""
        master = self._nodes.master
        answering = any(not self._is_silent(url, now) for url in self._asked_at)
        for attempt in self._attempts:
            elsewhere = answering if attempt.is_read else master not in (None, attempt.node)
            if elsewhere and self._is_silent(attempt.node, now):
                attempt.deadline.reschedule(now)

    def _is_silent(self, url: str, now: float) -> bool:
        if url in self._silent:
            return True
        return url in self._asking and now - self._asked_at.get(url, now) >= SILENT_S
