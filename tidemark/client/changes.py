"""Notifies the program of assigned and revoked queues and releases revoked queues, one at a time.

For an assigned queue: look up the committed offset, notify the program, then fetch. For a revoked
queue: wait until none of its messages is in progress, notify the program, commit, then release it
so that the broker can assign it to another member. For a lost queue: notify the program. The
program's callbacks run here and not in the heartbeat task, so a slow callback does not cost the
session.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tidemark.client.committing import Committing
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.queue_names import Queue

Callback = Callable[[list[tuple[str, Any]]], Awaitable[None]]
"""The program's callback for assigned or revoked queues, each a (topic, queue) pair. A program of a
single broker may declare that its queues are numbers."""


class Changes:
    """Applies changes of a member's queues."""

    def __init__(
        self,
        member: Member,
        committing: Committing,
        *,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
    ) -> None:
        self._member, self._committing = member, committing
        self._on_assigned, self._on_revoked = on_assigned, on_revoked

    async def run(self) -> None:
        """Run forever. An exception of a callback ends this task and the subscription."""
        holdings = self._member.holdings
        while True:
            if lost := self._member.take_lost():
                await self._notify_revoked(lost)
            elif left := [held for held in holdings.of(Hold.LEAVING) if held.is_idle]:
                await self.release(left)
            elif arrived := [held for held in holdings.of(Hold.ARRIVING) if not held.is_notified]:
                await self._take_up(arrived)
            else:
                await self._member.pulse.wait()

    async def release(self, left: list[HeldQueue]) -> None:
        """Notify the program, commit, release. No message of these queues is in progress."""
        await self._notify_revoked(left)
        await self._committing.settle(left)
        self._member.holdings.release(left)
        self._member.ledger.forget(held.queue for held in left)
        self._member.hurry()

    async def _take_up(self, arrived: list[HeldQueue]) -> None:
        member = self._member
        committed: Mapping[Queue, int] = {}
        if not member.joined.broadcast:
            committed = await self._committing.committed()
        for held in arrived:
            offset = committed.get(held.queue)
            if offset is not None:
                held.start_at(offset)
                member.ledger.know(held.queue, offset)
            elif held.fetched_to is None:
                held.is_placed = True  # the broker resolves the start offset
        # A queue may have been revoked during the call: then the program is not notified of it.
        arrived = [held for held in arrived if held.hold is Hold.ARRIVING]
        for held in arrived:
            held.is_notified = True
        if arrived and self._on_assigned is not None:
            await _call(self._on_assigned, [held.queue for held in arrived])
        member.holdings.own(arrived)
        member.pulse.ring()

    async def _notify_revoked(self, gone: Iterable[HeldQueue]) -> None:
        notified = [held for held in gone if held.is_notified]
        for held in notified:
            held.is_notified = False
        if notified and self._on_revoked is not None:
            await _call(self._on_revoked, [held.queue for held in notified])


async def _call(callback: Callback, queues: list[Queue]) -> None:
    called: object = callback(queues)
    if not inspect.isawaitable(called):
        raise TypeError(f"on_assigned and on_revoked must be async: {callback!r} is not")
    await called
