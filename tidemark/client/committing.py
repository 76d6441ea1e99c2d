"""Commits what is done: one request at a time, with all that moved since the last.

The shell around ``commits``. A commit whose generation is refused waits for the next heartbeat and
leaves again under the new one, for the queues that are still ours; one that does not get through is
repeated. Nothing is lost by a commit that never arrives: the messages are delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidemark import errors
from tidemark.client.commits import Queue
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.pulse import Pulse
from tidemark.client.retries import is_transient

OTHER_GENERATION: Final = (errors.StaleGeneration, errors.UnknownMember, errors.MemberRequired)
"""What a call of a generation meets that is over."""


NOT_OURS: Final = (
    errors.NotAssigned,
    errors.UnknownTopic,
    errors.UnknownQueue,
    errors.OffsetBeyondEnd,
)
"""What the commit of a queue meets that another member has, or that was deleted with its topic."""


class Committing:
    """Commits the positions of a member's queues."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._has_moved = False
        self._moved, self._hurried = Pulse(), Pulse()
        self._is_urgent = self._is_over = False

    def end(self) -> None:
        """The group is left: a commit that does not get through is not repeated any more."""
        self._is_over = True

    def moved(self) -> None:
        """A position may have moved. Called for every message: it does next to nothing."""
        if not self._has_moved:
            self._has_moved = True
            self._moved.ring()

    def hurry(self) -> None:
        """What has moved leaves now and not at the end of the interval."""
        self._is_urgent = True
        self._hurried.ring()
        self.moved()

    async def run(self) -> None:
        """Commit for ever; not for a broadcast group, which has nothing to commit."""
        failed = 0
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
                try:
                    await self._commit()
                    failed = 0
                except errors.TidemarkError as error:
                    if not is_transient(error):
                        raise
                    failed += 1
                    await self._member.calls.connection.pause(failed, error)

    async def settle(self, queues: Iterable[HeldQueue] | None = None) -> None:
        """Wait until all that is done of these queues, or of all, is committed, or they are lost.

        Runs beside ``run``, which does the work.
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
        """Commit what is done now; ``disk``: return when the record of it is on disk.

        Waits for a broker that does not answer.
        """
        await self.settle()
        member = self._member
        if ack == "accepted" or member.joined.broadcast:
            return
        failed = 0
        while True:
            offsets = {
                held.queue: offset
                for held in member.holdings.of(Hold.OWNED, Hold.LEAVING)
                if (offset := member.ledger.acknowledged(held.queue)) is not None
            }
            generation = member.generation
            try:
                if offsets:
                    await member.calls.commit(offsets, generation=generation, ack=ack)
                return
            except OTHER_GENERATION:
                await member.until_other_than(generation)
            except errors.TidemarkError as error:
                if not is_transient(error) or self._is_over:
                    raise
                failed += 1
                await member.calls.connection.pause(failed, error)

    async def committed(self) -> Mapping[Queue, int]:
        """What the group has committed, asked for until the broker answers."""
        failed = 0
        while True:
            try:
                return await self._member.calls.committed()
            except errors.TidemarkError as error:
                if not is_transient(error):
                    raise
                failed += 1
                await self._member.calls.connection.pause(failed, error)

    def _offer(self) -> None:
        ledger = self._member.ledger
        for held in self._member.holdings.of(Hold.OWNED, Hold.LEAVING):
            position = held.progress.position
            if position is not None:
                ledger.offer(held.queue, position)

    async def _commit(self) -> None:
        """One request. Raises what it meets except that it came under an old generation."""
        member, generation = self._member, self._member.generation
        offsets = member.ledger.take(member.clock())
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
        """One of several queues is not ours: commit them one by one to find out which."""
        member = self._member
        for queue, offset in offsets.items():
            try:
                await member.calls.commit({queue: offset}, generation=generation)
            except NOT_OURS:
                member.lose([held for held in member.holdings if held.queue == queue])
            except OTHER_GENERATION:
                return  # the next round has the new one
            else:
                member.ledger.know(queue, offset)
                member.pulse.ring()
