"""Commits the positions of done messages: one request at a time, with all changes since the last.

This is the shell around ``commits``. A commit that is rejected because of an old generation waits
for the next heartbeat and is sent again under the new generation, for the queues that the member
still owns. A commit that does not get through is repeated. A commit that never arrives loses
nothing: the messages are delivered again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

from tidemark import errors
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.pulse import Pulse
from tidemark.client.queue_names import Queue

OTHER_GENERATION: Final = (errors.StaleGeneration, errors.UnknownMember, errors.MemberRequired)
"""Errors of a call whose generation has ended."""


NOT_OURS: Final = (
    errors.NotAssigned,
    errors.UnknownTopic,
    errors.UnknownQueue,
    errors.OffsetBeyondEnd,
)
"""Errors of a commit for a queue that another member owns or whose topic was deleted."""


class Committing:
    """Commits the positions of a member's queues."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._has_moved = False
        self._moved, self._hurried = Pulse(), Pulse()
        self._is_urgent = self._is_over = False

    def end(self) -> None:
        """Stop repeating commits that do not get through, because the group is being left."""
        self._is_over = True

    def moved(self) -> None:
        """Note that a position may have changed. Called for every message, so it must be cheap."""
        if not self._has_moved:
            self._has_moved = True
            self._moved.ring()

    def hurry(self) -> None:
        """Commit all changes now and not at the end of the interval."""
        self._is_urgent = True
        self._hurried.ring()
        self.moved()

    async def run(self) -> None:
        """Commit forever. Not used for a broadcast group, which commits nothing."""
        while True:
            self._has_moved = False
            self._offer()
            wait_ms = self._member.ledger.wait_ms(self._member.clock())
            if wait_ms is None:
                self._is_urgent = False
                while not self._has_moved:
                    await self._moved.wait()
            elif wait_ms > 0 and not self._is_urgent:
                await self._hurried.wait(wait_ms)
            else:
                self._is_urgent = False
                await self._member.calls.connection.repeated(self._commit_changes)

    async def settle(self, queues: Iterable[HeldQueue] | None = None) -> None:
        """Wait until the done messages of these queues, or of all, are committed.

        Lost queues are not waited for. Runs alongside ``run``, which makes the requests.
        """
        member = self._member
        if member.joined.broadcast:
            return
        waiting = list(member.holdings if queues is None else queues)
        self._offer()
        self.hurry()
        while any(
            held.hold is not Hold.LOST and not member.ledger.settled(held.queue) for held in waiting
        ):
            await member.pulse.wait()

    async def commit(self, ack: str) -> None:
        """Commit what is done now. ``disk``: return when the commit is on disk.

        Waits while the broker does not answer.
        """
        await self.settle()
        member = self._member
        if ack == "accepted" or member.joined.broadcast:
            return
        connection = member.calls.connection
        while not await connection.repeated(
            functools.partial(self._commit_all, ack), lambda: self._is_over
        ):
            continue

    async def _commit_all(self, ack: str) -> bool:
        """Commit all acknowledged offsets again; return whether the generation was current."""
        member = self._member
        offsets = {
            held.queue: offset
            for held in member.holdings.of(Hold.OWNED, Hold.LEAVING)
            if (offset := member.ledger.acknowledged(held.queue)) is not None
        }
        generation = member.generation
        try:
            if offsets:
                await member.calls.commit(offsets, generation=generation, ack=ack)
        except OTHER_GENERATION:
            await member.until_other_than(generation)
            return False
        return True

    async def committed(self) -> Mapping[Queue, int]:
        """Return the offsets that the group has committed; repeated until the broker answers."""
        calls = self._member.calls
        return await calls.connection.repeated(calls.committed)

    def _offer(self) -> None:
        ledger = self._member.ledger
        for held in self._member.holdings.of(Hold.OWNED, Hold.LEAVING):
            position = held.progress.position
            if position is not None:
                ledger.offer(held.queue, position)

    async def _commit_changes(self) -> None:
        """Make one commit request. Raises its errors except that the generation was old."""
        member, generation = self._member, self._member.generation
        self._offer()  # positions may have changed since an attempt that failed
        offsets = member.ledger.take(member.clock())
        if not offsets:
            return  # the queues were lost since then
        try:
            await member.calls.commit(offsets, generation=generation)
        except OTHER_GENERATION:
            member.ledger.failed()
            await member.until_other_than(generation)
        except NOT_OURS:
            member.ledger.failed()
            await self._commit_each(offsets, generation)
        except BaseException:
            member.ledger.failed()
            raise
        else:
            member.ledger.accepted()
            member.pulse.ring()

    async def _commit_each(self, offsets: Mapping[Queue, int], generation: int) -> None:
        """At least one queue was revoked: commit them one by one to find out which."""
        member = self._member
        for queue, offset in offsets.items():
            try:
                await member.calls.commit({queue: offset}, generation=generation)
            except NOT_OURS:
                member.lose([held for held in member.holdings if held.queue == queue])
            except OTHER_GENERATION:
                return  # the next round uses the new generation
            else:
                member.ledger.know(queue, offset)
                member.pulse.ring()
