"""Who is master, as the nodes say: asked several times a second, remembered with times.

What producers, drills and the picture of a report know of the group's state. It asks every node, so
that one that is cut off, or paused, does not decide what is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import aiohttp

from drills.pace import Pace

LOOK_S: Final = 0.1
ASK_TIMEOUT_S: Final = 0.6
JSON: Final = {"Accept": "application/json"}


class Look(NamedTuple):
    """What one node said of the group at one time."""

    at: float
    node: str
    said: Mapping[str, Any]
    """The answer to ``GET /v1/cluster``; empty: no answer."""

    @property
    def epoch(self) -> int:
        """The epoch that it knows; 0: none."""
        return int(self.said.get("epoch") or 0)

    @property
    def master(self) -> str | None:
        """The master that it knows."""
        master = self.said.get("master")
        return str(master) if master else None

    def of(self, name: str) -> Mapping[str, Any]:
        """What it says of a node; empty: nothing."""
        for entry in self.said.get("nodes") or ():
            if entry.get("node") == name:
                return dict(entry)
        return {}

    @property
    def role(self) -> str:
        """What the node says of itself: its state, or "silent"."""
        return str(self.of(self.node).get("state") or ("?" if self.said else "silent"))

    @property
    def in_sync(self) -> frozenset[str]:
        """Members of the in-sync set that it knows."""
        return frozenset(
            str(entry["node"]) for entry in self.said.get("nodes") or () if entry.get("in_sync")
        )

    def may_switch(self, master: str) -> bool:
        """Whether it has a slave that can take over from the master now."""
        return any(
            entry.get("state") == "in-sync" and entry.get("in_sync") and not entry.get("reason")
            for entry in self.said.get("nodes") or ()
            if entry.get("node") != master
        )


class Turn(NamedTuple):
    """A node's state changed."""

    at: float
    node: str
    role: str
    epoch: int


@dataclass(slots=True)
class Known:
    """What the looks have told; the newest of each node, and every change."""

    newest: dict[str, Look] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    masters: dict[int, str] = field(default_factory=dict)
    """Who held each epoch, as somebody said."""
    contradictions: set[str] = field(default_factory=set)
    """Two nodes of the group named as the master of one epoch."""

    def take(self, look: Look) -> None:
        """Remember what a node said."""
        before = self.newest.get(look.node)
        self.newest[look.node] = look
        if before is None or (before.role, before.epoch) != (look.role, look.epoch):
            self.turns.append(Turn(look.at, look.node, look.role, look.epoch))
        # A name that somebody has written into the lease by hand is nobody's.
        if look.epoch and look.master in self.newest:
            known = self.masters.setdefault(look.epoch, look.master)
            if known != look.master:
                self.contradictions.add(
                    f"D: epoch {look.epoch}: {known} is its master; {look.node} says {look.master}"
                )

    def best(self) -> Look | None:
        """The answer that knows the highest epoch and names a master; None: nobody does."""
        named = [look for look in self.newest.values() if look.master]
        return max(named, key=lambda look: (look.epoch, look.at), default=None)


class Finder:
    """Asks every node of a group, from its start to its stop."""

    def __init__(self, apis: Mapping[str, str], pace: Pace | None = None) -> None:
        """apis: URL of every node's API, by name; a single node alone is its own master.
        pace: how many times longer everything is waited for; None: not longer.
        """
        self.pace = pace or Pace()
        self.apis = dict(apis)
        self.known = Known()
        self._hint: str | None = None
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Finder:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S), headers=JSON
        )
        self._tasks = [asyncio.create_task(self._watch(node)) for node in self.apis]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._session is not None
        await self._session.close()

    def hint(self, node: str | None) -> None:
        """A node said, in an answer, who is master; None: it is not who we think."""
        self._hint = node

    def master(self) -> str | None:
        """The master as far as is known now."""
        if len(self.apis) == 1:
            return next(iter(self.apis))
        if self._hint is not None:
            return self._hint
        best = self.known.best()
        return None if best is None else best.master

    async def ask(self, node: str) -> Look:
        """Ask one node now."""
        assert self._session is not None
        said: dict[str, Any] = {}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, OSError):
            async with self._session.get(self.apis[node] + "/v1/cluster") as answer:
                if answer.status == 200:
                    said = json.loads(await answer.read())
        return Look(time.monotonic(), node, said)

    async def until(self, condition: Callable[[Known], bool], what: str, timeout_s: float) -> float:
        """Wait until what is known fulfils condition; how long it took [s]. Raises TimeoutError."""
        started, timeout_s = time.monotonic(), timeout_s * self.pace.now
        while not condition(self.known):
            left = started + timeout_s - time.monotonic()
            if left <= 0:
                told = "; ".join(self.described())
                raise TimeoutError(f"waited {timeout_s:.1f} s for {what}. Known: {told}")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left, LOOK_S))
        return time.monotonic() - started

    def described(self) -> Iterable[str]:
        """What each node said last, for a message."""
        for node, look in sorted(self.known.newest.items()):
            own = look.of(node)
            reason = own.get("reason") or look.said.get("reason") or ""
            yield (
                f"{node} is {look.role} in epoch {look.epoch}, master {look.master}, "
                f"in sync {sorted(look.in_sync)} {reason}"
            )

    async def _watch(self, node: str) -> None:
        while True:
            look = await self.ask(node)
            before = self.known.best()
            self.known.take(look)
            if self.known.best() != before:
                after = self.known.best()
                if after is not None and (before is None or after.epoch != before.epoch):
                    self._hint = None  # news of a newer epoch count more than an old answer
            self._news.set()
            await asyncio.sleep(LOOK_S)
