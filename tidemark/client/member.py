"""One member of one group: joins, sends heartbeats, joins again when the broker forgot it.

The shell around ``holdings`` (which queues, in which state) and ``lease`` (until when). A broker
that restarts, a connection that breaks, an answer that is lost: the member goes on trying for
ever, says so once in the log, and hands out nothing while its lease is over. What ends it is an
error that the same call would meet again, such as a topic that is gone: the heartbeats' task dies
of it, and ``subscription`` raises it where the program asks for messages.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidemark import errors
from tidemark.client.commits import CommitLedger, Queue
from tidemark.client.group_calls import GroupCalls, Joined
from tidemark.client.holdings import HeldQueue, Hold, Holdings
from tidemark.client.lease import Lease
from tidemark.client.pulse import Pulse
from tidemark.client.retries import is_transient

LOGGED_FAILURE: Final = 2
"""The first may be a connection that was just being closed: repeated at once, it goes through."""

log = logging.getLogger(__name__)


class Member:
    """What the parts of a subscription share: queues, lease, generation, and a pulse."""

    def __init__(
        self,
        calls: GroupCalls,
        subscriptions: Mapping[str, str],
        *,
        session_ms: int,
        ledger: CommitLedger,
        clock: Callable[[], float],
    ) -> None:
        """subscriptions: topic to tag expression. clock: milliseconds since boot."""
        self.calls, self.ledger, self.clock = calls, ledger, clock
        self.holdings = Holdings()
        self.lease = Lease()
        self.pulse = Pulse()
        """Rings when queues, lease, generation, commits or buffered messages have changed."""
        self.joined = Joined(0, [], session_ms, order=False, broadcast=False, retry_max=0)
        """The last answer."""
        self._subscriptions = subscriptions
        self._session_ms = session_ms
        self._is_known = False
        """Whether the broker has the member, as far as we know."""
        self._is_urgent = False
        self._ours_until_ms = -math.inf
        """Until when our queues are certainly nobody else's, once the broker has forgotten us."""
        self._lost: list[HeldQueue] = []

    @property
    def generation(self) -> int:
        """The group's generation as last heard of in a heartbeat."""
        return self.joined.generation

    @property
    def may_hand_out(self) -> bool:
        """Whether the lease is held now."""
        return self.lease.is_held(self.clock())

    async def join(self) -> None:
        """Become a member. Raises what the broker answers, Unreachable if it does not."""
        sent_at_ms = self.clock()
        joined = await self._call(generation=None, holding=[])
        self._take(joined, sent_at_ms)
        self.holdings.assign(joined.assignment)
        self._is_known = True

    async def beat(self) -> None:
        """Send heartbeats for ever; one at a time, so that answers come in order."""
        failed, failure = 0, errors.TidemarkError("")
        while True:
            if failed:
                at_most_s = self._session_ms / 3000
                await self.calls.connection.pause(failed, failure, at_most_s=at_most_s)
            else:
                await self._until_due()
            self._is_urgent = False
            try:
                if self._is_known:
                    await self._heartbeat()
                else:
                    async with self.calls.connection.joining():
                        await self._rejoin()
            except errors.UnknownMember:
                self._is_known = False
                self._ours_until_ms = self.lease.ends_at_ms
                self.lease.ended()
                self._is_urgent = True
                log.warning(
                    "the broker does not have %s any more; it joins again",
                    self.calls,
                    extra={"event": "member-forgotten", **self._facts()},
                )
            except errors.TidemarkError as error:
                if not is_transient(error):
                    raise
                failed, failure = failed + 1, error
                if failed == LOGGED_FAILURE:
                    log.warning(
                        "no heartbeat of %s gets through; it goes on trying: %s",
                        self.calls,
                        error,
                        extra={"event": "heartbeat-failed", "reason": str(error), **self._facts()},
                    )
            else:
                if failed >= LOGGED_FAILURE:
                    log.info(
                        "heartbeats of %s get through again",
                        self.calls,
                        extra={"event": "heartbeat-again", **self._facts()},
                    )
                failed = 0
            self.pulse.ring()

    def hurry(self) -> None:
        """The next heartbeat is due now: something is to be said, or to be heard."""
        self._is_urgent = True
        self.pulse.ring()

    def heard_of(self, generation: int) -> None:
        """The broker spoke of this generation; if it is another than ours, ask what changed."""
        if generation != self.generation:
            self.hurry()

    async def until_other_than(self, generation: int) -> None:
        """The broker refused this generation: wait until a heartbeat has brought another."""
        if generation == self.generation:
            self.hurry()
        while generation == self.generation:
            await self.pulse.wait()

    def lose(self, gone: Iterable[HeldQueue]) -> None:
        """The broker says that these are not ours: the program will be told."""
        lost = self.holdings.lose(gone)
        self.ledger.forget(held.queue for held in lost)
        self._lost += lost
        self.hurry()

    def take_lost(self) -> list[HeldQueue]:
        """Queues lost since the last time."""
        lost, self._lost = self._lost, []
        return lost

    async def _until_due(self) -> None:
        while not self._is_urgent:
            wait_ms = self.lease.heartbeat_in_ms(self.clock())
            if wait_ms <= 0:
                return
            await self.pulse.wait(wait_ms)

    async def _heartbeat(self) -> None:
        sent_at_ms = self.clock()
        joined = await self._call(generation=self.generation, holding=self.holdings.holding())
        self._take(joined, sent_at_ms)
        self.holdings.assign(joined.assignment)

    async def _rejoin(self) -> None:
        """Join anew, and keep the queues that nobody else can have had in hand meanwhile.

        A broker that has just started gives a queue to the member that names it: this is to be done
        only while our lease would still run, for another may have had the queue after that.
        """
        sent_at_ms = self.clock()
        is_ours = sent_at_ms < self._ours_until_ms
        claims = [held.queue for held in self.holdings.of(Hold.OWNED)] if is_ours else []
        joined = await self._join_again(claims)
        held = list(self.holdings)
        untouched: set[Queue] = {each.queue for each in held}
        committed: Mapping[Queue, int] = {}
        if held and not joined.broadcast:
            committed = await self.calls.committed()
            untouched = {
                each.queue
                for each in held
                if self._is_untouched(
                    each, committed.get(each.queue), is_kept=each.queue in joined.kept
                )
            }
        # No await from here on: nobody sees the new generation with the old queues.
        self._take(joined, sent_at_ms)
        change = self.holdings.rejoined(joined.assignment, untouched)
        self.ledger.forget(each.queue for each in change.lost)
        for each in self.holdings.of(Hold.OWNED):
            if each.queue in committed:
                self.ledger.know(each.queue, committed[each.queue])
                if each.progress.position is not None:
                    self.ledger.offer(each.queue, each.progress.position)
        self._lost += change.lost
        self._is_known = True
        log.info(
            "%s is there again; it lost %d queues",
            self.calls,
            len(change.lost),
            extra={"event": "member-again", "queues_lost": len(change.lost), **self._facts()},
        )

    async def _join_again(self, claims: list[Queue]) -> Joined:
        """Join without the topics that were deleted meanwhile, unless none is left.

        Heartbeats name all topics: one that is made again is read again.
        """
        wanted = dict(self._subscriptions)
        while True:
            try:
                return await self._call(generation=None, holding=claims, subscriptions=wanted)
            except errors.UnknownTopic as error:
                topic = error.facts.get("topic")
                if not isinstance(topic, str) or wanted.keys() <= {topic} or topic not in wanted:
                    raise
                del wanted[topic]
                log.warning(
                    "topic %s was deleted; %s goes on with the others",
                    topic,
                    self.calls,
                    extra={"event": "topic-gone", "topic": topic, **self._facts()},
                )

    def _is_untouched(self, held: HeldQueue, committed: int | None, *, is_kept: bool) -> bool:
        """Whether what is committed can only be our own commit.

        Above our position, another has worked on the queue; below what we know to be committed, it
        was reset, or the broker lost what it had not written yet: then it starts from there. Unless
        the broker says that the queue is kept: it was not reset, and we commit the same again.
        """
        position, ours = held.progress.position, self.ledger.acknowledged(held.queue)
        if committed is None or position is None or ours is None:
            return False
        return committed <= position and (is_kept or ours <= committed)

    async def _call(
        self,
        *,
        generation: int | None,
        holding: list[Queue],
        subscriptions: Mapping[str, str] | None = None,
    ) -> Joined:
        return await self.calls.heartbeat(
            self._subscriptions if subscriptions is None else subscriptions,
            session_ms=self._session_ms,
            holding=holding,
            generation=generation,
            # An answer that takes longer than half a session leaves no time for another try.
            timeout_s=None if generation is None else self._session_ms / 2000,
        )

    def _take(self, joined: Joined, sent_at_ms: float) -> None:
        self.joined = joined
        self.lease.answered(sent_at_ms, joined.session_ms)

    def _facts(self) -> dict[str, object]:
        return {"group": self.calls.group, "member": self.calls.member}
