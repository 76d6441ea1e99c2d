"""Tells the program which queues come and go, and lets go of those that do. One step at a time.

A queue that arrives: look up what is committed, tell the program, then fetch. One that leaves:
when nothing of it is under way, tell the program, commit, then release it, so that the broker may
give it to another. One that is lost: tell the program. The program's callbacks run here and not in
the heartbeats' task: a slow one costs no lease.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidemark.client.commits import Queue
from tidemark.client.committing import Committing
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member

Callback = Callable[[list[Queue]], Awaitable[None]]
"""What a program gives to be told of queues: (topic, queue) each."""


class Changes:
    """Follows a member's holdings."""

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
        """Follow for ever. What a callback raises ends it, and the subscription with it."""
        holdings = self._member.holdings
        while True:
            if lost := self._member.take_lost():
                await self._tell_revoked(lost)
            elif left := [held for held in holdings.of(Hold.LEAVING) if held.is_idle]:
                await self.let_go(left)
            elif arrived := [held for held in holdings.of(Hold.ARRIVING) if not held.told]:
                await self._take_up(arrived)
            else:
                await self._member.pulse.wait()

    async def let_go(self, left: list[HeldQueue]) -> None:
        """Tell the program, commit, release. Nothing of these queues is under way."""
        await self._tell_revoked(left)
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
                held.is_placed = True  # the broker resolves where a queue starts
        # Some may have been taken away again while we asked: of those the program hears nothing.
        arrived = [held for held in arrived if held.hold is Hold.ARRIVING]
        for held in arrived:
            held.told = True
        if arrived and self._on_assigned is not None:
            await _call(self._on_assigned, [held.queue for held in arrived])
        member.holdings.own(arrived)
        member.pulse.ring()

    async def _tell_revoked(self, gone: Iterable[HeldQueue]) -> None:
        told = [held for held in gone if held.told]
        for held in told:
            held.told = False
        if told and self._on_revoked is not None:
            await _call(self._on_revoked, [held.queue for held in told])


async def _call(callback: Callback, queues: list[Queue]) -> None:
    called: object = callback(queues)
    if not inspect.isawaitable(called):
        raise TypeError(f"on_assigned and on_revoked are awaited: {callback!r} is not async")
    await called
