"""Finds the master of a group while calls wait for one or are not answered.

No node is queried while calls are answered. Two conditions start a search: a call that pauses
before its next attempt, and an attempt that takes long. The second is needed because a stopped or
partitioned node may not respond until the call's timeout, while the group has a new master after a
few seconds. During a search every node is asked for its view (``nodes``). When a node answers that
it is the master, paused calls continue, and attempts at an unresponsive node are cancelled. The
step before and after is ``connection``.
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
"""Interval at which the attempts under way are checked."""
SEARCH_S: Final = 0.2
"""Interval between two queries to one node during a search for the master."""
SEARCH_FAST_FOR_S: Final = 30.0
SEARCH_SLOW_S: Final = 1.0
"""The same interval once the search has taken SEARCH_FAST_FOR_S."""
LATE_S: Final = 0.5
"""An attempt that takes longer starts a search."""
LATE_HELD_S: Final = 2.0
"""The same for an attempt that the broker holds until there are messages, and the interval of the
queries for it. It is long because every idle consumer has such an attempt."""
SILENT_S: Final = 0.3
"""A node that takes longer to answer a query counts as unresponsive for now."""
QUESTION_TIMEOUT_S: Final = 1.0


class Attempt:
    """One attempt of a call that is in progress."""

    __slots__ = ("deadline", "is_held", "is_read", "node", "since")

    def __init__(
        self, node: str, deadline: asyncio.Timeout, since: float, *, is_held: bool, is_read: bool
    ) -> None:
        self.node, self.deadline, self.since = node, deadline, since
        self.is_held, self.is_read = is_held, is_read


class MasterDiscovery:
    """Searches for the master on behalf of one connection, in its loop. Idle before ``start``."""

    def __init__(self, nodes: Nodes, ask: Callable[[str], Awaitable[View | None]]) -> None:
        """ask: returns a node's view, None if the node gives none. It ends in a bounded time."""
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
        """Nodes that did not answer the last query."""
        self._seen_at = float("-inf")
        """When a node last answered that it is the master."""
        self._searching_since: float | None = None
        self._pace = 1.0 - random.random() / 4
        """Factor that spreads the queries of many clients over time."""

    def start(self) -> None:
        """Start to watch attempts; called once the connection knows several nodes."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_started(self) -> bool:
        """Whether ``start`` was called."""
        return self._running is not None

    async def close(self) -> None:
        """Cancel all queries and the watch."""
        tasks = list(self._asking.values())
        if self._running is not None:
            tasks.append(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def watching(
        self, node: str, deadline: asyncio.Timeout, *, is_held: bool, is_read: bool
    ) -> Iterator[None]:
        """Watch an attempt. To cancel it, its deadline is moved to the current time."""
        now = asyncio.get_running_loop().time()
        attempt = Attempt(node, deadline, now, is_held=is_held, is_read=is_read)
        self._attempts.add(attempt)
        try:
            yield
        finally:
            self._attempts.discard(attempt)

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until a master is found."""
        self._pausing += 1
        self._wanted.set()
        try:
            await self._found.wait(seconds * 1000)
        finally:
            self._pausing -= 1

    def go_on(self) -> None:
        """End all pauses, because a name service has reported a new master."""
        self._found.ring()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            interval_s = self._interval_s(now)
            if interval_s is None:
                self._silent.clear()  # stale: no queries are sent now that could clear it
            else:
                self._query_due_nodes(now, interval_s)
                self._give_up(now)
            self._wanted.clear()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(0)  # calls that pause at the same time share one search

    def _interval_s(self, now: float) -> float | None:
        """Interval at which to query nodes now; None: no queries are needed."""
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

    def _query_due_nodes(self, now: float, interval_s: float) -> None:
        urls = self._nodes.urls
        for url in urls:
            due_at = self._asked_at.get(url, float("-inf")) + interval_s * self._pace
            if url in self._asking or now < due_at:
                continue
            self._asked_at[url] = now
            self._asking[url] = asyncio.get_running_loop().create_task(self._query(url))
        for url in self._asked_at.keys() - set(urls):
            del self._asked_at[url]

    async def _query(self, url: str) -> None:
        try:
            view = await self._ask(url)
            if view is None:
                self._silent.add(url)
                return
            self._silent.discard(url)
            if self._nodes.record_view(url, view):
                self._seen_at = asyncio.get_running_loop().time()
                self._found.ring()
                self._wanted.set()
        finally:
            del self._asking[url]

    def _give_up(self, now: float) -> None:
        """Cancel attempts at unresponsive nodes if another node would answer."""
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
