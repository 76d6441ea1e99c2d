"""One member of one group: joins, sends heartbeats, rejoins when the broker has forgotten it.

This is the shell around ``holdings`` (queues and states) and ``session_limit`` (time limit). If a
broker restarts, a connection breaks or an answer is lost, the member retries forever, logs it once,
and delivers nothing once its session may have expired. Only an error that the same call would meet
again ends it, such as a deleted topic. Then the heartbeat task fails, and ``subscription`` raises
the error where the program asks for messages.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidemark import errors
from tidemark.client.commits import CommitLedger
from tidemark.client.group_calls import GroupCalls, Joined
from tidemark.client.holdings import HeldQueue, Hold, Holdings
from tidemark.client.pulse import Pulse
from tidemark.client.queue_names import Queue
from tidemark.client.retries import is_transient
from tidemark.client.session_limit import SessionLimit

LOGGED_FAILURE: Final = 2
"""The first failure is not logged: its connection may just have been closed; a retry succeeds."""

log = logging.getLogger(__name__)


class Member:
    """State that the parts of a subscription share: queues, session limit, generation, pulse."""

    def __init__(
        self,
        calls: GroupCalls,
        subscriptions: Mapping[str, str],
        *,
        session_ms: int,
        ledger: CommitLedger,
        holdings: Holdings,
        clock: Callable[[], float],
        pulse: Pulse,
    ) -> None:
        """subscriptions: maps a topic to its tag expression. clock: milliseconds since boot."""
        self.calls, self.ledger, self.holdings = calls, ledger, holdings
        self.clock, self.pulse = clock, pulse
        self.session_limit = SessionLimit()
        self.joined = Joined(0, [], session_ms, order=False, broadcast=False, retry_max=0)
        """The last answer to a join or heartbeat."""
        self._subscriptions = subscriptions
        self._session_ms = session_ms
        self._is_joined = False
        """Whether it has joined before; a broker group may lack topics from the start."""
        self._is_known = False
        """Whether the broker knows the member, as of the last answer."""
        self._is_urgent = False
        self._ours_until_ms = -math.inf
        """Until when our queues certainly have no other owner after the broker forgot us."""
        self._lost: list[HeldQueue] = []

    @property
    def generation(self) -> int:
        """The group's generation as of the last heartbeat."""
        return self.joined.generation

    @property
    def may_deliver(self) -> bool:
        """Whether messages may be delivered now: the session has certainly not expired."""
        return self.session_limit.may_deliver(self.clock())

    async def join(self) -> None:
        """Join the group. Raises the broker's error, Unreachable if there is no answer.

        In a cluster, the broker group may lack some of the topics.
        """
        sent_at_ms = self.clock()
        if self.calls.names.broker_group is None:
            joined = await self._call(generation=None, holding=[])
        else:
            joined = await self._join_again([])
        self._take(joined, sent_at_ms)
        self.holdings.assign(joined.assignment)
        self._is_joined = self._is_known = True

    async def beat(self) -> None:
        """Send heartbeats forever, one at a time, so that answers arrive in order."""
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
                self._ours_until_ms = self.session_limit.ends_at_ms
                self.session_limit.ended()
                self._is_urgent = True
                log.warning(
                    "the broker does not know %s any more; the member joins again",
                    self.calls,
                    extra={"event": "member-forgotten", **self._facts()},
                )
            except errors.TidemarkError as error:
                if not is_transient(error):
                    raise
                failed, failure = failed + 1, error
                if failed == LOGGED_FAILURE:
                    log.warning(
                        "no heartbeat of %s succeeds; the member keeps trying: %s",
                        self.calls,
                        error,
                        extra={"event": "heartbeat-failed", "reason": str(error), **self._facts()},
                    )
            else:
                if failed >= LOGGED_FAILURE:
                    log.info(
                        "heartbeats of %s succeed again",
                        self.calls,
                        extra={"event": "heartbeat-again", **self._facts()},
                    )
                failed = 0
            self.pulse.ring()

    def hurry(self) -> None:
        """Make the next heartbeat due now, to report or to learn a change."""
        self._is_urgent = True
        self.pulse.ring()

    def check_generation(self, generation: int) -> None:
        """Send a heartbeat now if the generation of an answer differs from the member's."""
        if generation != self.generation:
            self.hurry()

    async def until_other_than(self, generation: int) -> None:
        """Wait until a heartbeat has brought a generation other than this rejected one."""
        if generation == self.generation:
            self.hurry()
        while generation == self.generation:
            await self.pulse.wait()

    def lose(self, gone: Iterable[HeldQueue]) -> None:
        """Drop queues that are not assigned to the member any more; later notify the program."""
        lost = self.holdings.lose(gone)
        self.ledger.forget(held.queue for held in lost)
        self._lost += lost
        self.hurry()

    def take_lost(self) -> list[HeldQueue]:
        """Return the queues lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    async def _until_due(self) -> None:
        while not self._is_urgent:
            wait_ms = self.session_limit.heartbeat_in_ms(self.clock())
            if wait_ms <= 0:
                return
            await self.pulse.wait(wait_ms)

    async def _heartbeat(self) -> None:
        sent_at_ms = self.clock()
        joined = await self._call(generation=self.generation, holding=self.holdings.holding())
        self._take(joined, sent_at_ms)
        self.holdings.assign(joined.assignment)

    async def _rejoin(self) -> None:
        """Join anew, and keep the queues that cannot have had another owner meanwhile.

        A broker that has just started assigns a queue to the member that claims it. The member may
        claim only while its old session would still run: after that, another may have owned the
        queue.
        """
        sent_at_ms = self.clock()
        is_ours = sent_at_ms < self._ours_until_ms
        mine = self.holdings.of(Hold.OWNED, Hold.LEAVING) if is_ours else []
        claims = [held.queue for held in mine]
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
        # No await from here on, so that no task sees the new generation with the old queues.
        self._take(joined, sent_at_ms)
        change = self.holdings.rejoined(joined.assignment, untouched)
        self.ledger.forget(each.queue for each in change.lost)
        for each in self.holdings.of(Hold.OWNED, Hold.LEAVING):
            if each.queue in committed:
                self.ledger.know(each.queue, committed[each.queue])
                if each.progress.position is not None:
                    self.ledger.offer(each.queue, each.progress.position)
        self._lost += change.lost
        self._is_known = True
        log.info(
            "%s has joined again; it lost %d queues",
            self.calls,
            len(change.lost),
            extra={"event": "member-again", "queues_lost": len(change.lost), **self._facts()},
        )

    async def _join_again(self, claims: list[Queue]) -> Joined:
        """Join without the topics that do not exist now, unless none is left.

        Heartbeats contain all topics, so a topic that is created again is read again.
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
                if self._is_joined:
                    log.warning(
                        "topic %s was deleted; %s continues with the others",
                        topic,
                        self.calls,
                        extra={"event": "topic-gone", "topic": topic, **self._facts()},
                    )

    def _is_untouched(self, held: HeldQueue, committed: int | None, *, is_kept: bool) -> bool:
        """Whether the committed offset can only be this member's own commit.

        If it is above the member's position, another member has processed the queue. If it is
        below the acknowledged offset, it was reset, or the broker lost an unwritten commit, and the
        queue starts from there. If the broker reports the queue as kept, it was not reset, and the
        member commits the same again.
        """
        position, acknowledged = held.progress.position, self.ledger.acknowledged(held.queue)
        if committed is None or position is None or acknowledged is None:
            return False
        return committed <= position and (is_kept or acknowledged <= committed)

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
            # An answer after more than half a session leaves no time for another attempt.
            timeout_s=None if generation is None else self._session_ms / 2000,
        )

    def _take(self, joined: Joined, sent_at_ms: float) -> None:
        self.joined = joined
        self.session_limit.answered(sent_at_ms, joined.session_ms)

    def _facts(self) -> dict[str, object]:
        return {"group": self.calls.group, "member": self.calls.member}
