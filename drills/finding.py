"""Find the master: poll the status of every node several times a second and record changes.

Producers, drills and the report's timeline use these results. All nodes are polled, so the state of
the group is known even if one node is cut off or paused.
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

POLL_S: Final = 0.1
ASK_TIMEOUT_S: Final = 0.6
JSON: Final = {"Accept": "application/json"}


class NodeStatus(NamedTuple):
    """Cluster status that one node reported at one time."""

    at: float
    node: str
    response: Mapping[str, Any]
    """The response to ``GET /v1/cluster``; empty if there was none."""

    @property
    def epoch(self) -> int:
        """The epoch that the node reports; 0 if it knows none."""
        return int(self.response.get("epoch") or 0)

    @property
    def master(self) -> str | None:
        master = self.response.get("master")
        return str(master) if master else None

    def of(self, name: str) -> Mapping[str, Any]:
        """Return the reported entry of a node; empty if there is none."""
        for entry in self.response.get("nodes") or ():
            if entry.get("node") == name:
                return dict(entry)
        return {}

    @property
    def role(self) -> str:
        """State that the node reports of itself; "silent" if it did not answer."""
        return str(self.of(self.node).get("state") or ("?" if self.response else "silent"))

    @property
    def in_sync(self) -> frozenset[str]:
        return frozenset(
            str(entry["node"]) for entry in self.response.get("nodes") or () if entry.get("in_sync")
        )

    def may_switch(self, master: str) -> bool:
        """Return whether a slave is reported that can take over from the master now."""
        return any(
            entry.get("state") == "in-sync" and entry.get("in_sync") and not entry.get("reason")
            for entry in self.response.get("nodes") or ()
            if entry.get("node") != master
        )


class StateChange(NamedTuple):
    at: float
    node: str
    role: str
    epoch: int


@dataclass(slots=True)
class Known:
    """The newest status of each node, and every change of state."""

    newest: dict[str, NodeStatus] = field(default_factory=dict)
    changes: list[StateChange] = field(default_factory=list)
    masters: dict[int, str] = field(default_factory=dict)
    """Master of each epoch, as reported by any node."""
    contradictions: set[str] = field(default_factory=set)
    """Reports of two different masters of the group in one epoch."""

    def take(self, status: NodeStatus) -> None:
        before = self.newest.get(status.node)
        self.newest[status.node] = status
        if before is None or (before.role, before.epoch) != (status.role, status.epoch):
            self.changes.append(StateChange(status.at, status.node, status.role, status.epoch))
        # A name written into the lease by hand may not belong to a node; ignore it.
        if status.epoch and status.master in self.newest:
            known = self.masters.setdefault(status.epoch, status.master)
            if known != status.master:
                self.contradictions.add(
                    f"D: epoch {status.epoch}: {known} is its master; "
                    f"{status.node} says {status.master}"
                )

    def best(self) -> NodeStatus | None:
        """Return the status with the highest epoch that names a master; None if there is none."""
        named = [status for status in self.newest.values() if status.master]
        return max(named, key=lambda status: (status.epoch, status.at), default=None)


class Finder:
    """Polls every node of a group between entering and leaving its context."""

    def __init__(self, apis: Mapping[str, str], pace: Pace | None = None) -> None:
        """apis: API URL of every node by name; a standalone node is its own master.

        pace: factor by which all timeouts are extended; None for no extension.
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
        """Store the master named in a response; None if the known one is not master."""
        self._hint = node

    def master(self) -> str | None:
        """Return the master as far as it is known now."""
        if len(self.apis) == 1:
            return next(iter(self.apis))
        if self._hint is not None:
            return self._hint
        best = self.known.best()
        return None if best is None else best.master

    async def ask(self, node: str) -> NodeStatus:
        assert self._session is not None
        response: dict[str, Any] = {}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, OSError):
            async with self._session.get(self.apis[node] + "/v1/cluster") as answer:
                if answer.status == 200:
                    response = json.loads(await answer.read())
        return NodeStatus(time.monotonic(), node, response)

    async def until(self, condition: Callable[[Known], bool], what: str, timeout_s: float) -> float:
        """Wait until the known state fulfils condition; return the duration [s].

        Raises TimeoutError.
        """
        started, timeout_s = time.monotonic(), timeout_s * self.pace.now
        while not condition(self.known):
            left = started + timeout_s - time.monotonic()
            if left <= 0:
                summary = "; ".join(self.described())
                raise TimeoutError(f"waited {timeout_s:.1f} s for {what}. Known: {summary}")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left, POLL_S))
        return time.monotonic() - started

    def described(self) -> Iterable[str]:
        """Describe the last status of each node, for a message."""
        for node, status in sorted(self.known.newest.items()):
            own = status.of(node)
            reason = own.get("reason") or status.response.get("reason") or ""
            yield (
                f"{node} is {status.role} in epoch {status.epoch}, master {status.master}, "
                f"in sync {sorted(status.in_sync)} {reason}"
            )

    async def _watch(self, node: str) -> None:
        while True:
            status = await self.ask(node)
            before = self.known.best()
            self.known.take(status)
            if self.known.best() != before:
                after = self.known.best()
                if after is not None and (before is None or after.epoch != before.epoch):
                    self._hint = None  # a newer epoch invalidates the hint of an older response
            self._news.set()
            await asyncio.sleep(POLL_S)
