"""Members of groups: one interface for calls, nacks, views and traces.

It delegates to ``joining`` (who may be a member), ``active_groups`` (present members and their
queues) and ``fetch`` (what a member receives). Step before: ``group_calls``. Step after: ``fetch``
reads the queues of a member; ``commits`` moves offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from services.broker.groups.active_groups import ActiveGroups
from services.broker.groups.broadcasting import Broadcasting
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.deliveries import Deliveries, Delivery
from services.broker.groups.fetch import Fetched, Fetches, Reader
from services.broker.groups.joining import Joined, Joining
from services.broker.groups.offsets import Offsets
from services.broker.groups.refusals import (
    check_enabled,
    half_named,
    member_required,
    not_assigned,
    stale_generation,
    unknown_member,
)
from services.broker.groups.sessions import Place, Session
from services.broker.schema.groups import GroupConfig as Changes
from services.broker.schema.members import Fetch, Join, Subscription
from shared.state.records import GroupConfig
from tidemark.offsets import Queue

__all__ = ["Coordinator", "MemberView", "not_assigned"]

POLL_S: Final = 0.1
"""Upper bound of the time until the death of a member is noticed."""
HANDED_OUT_OFTEN: Final = 2
"""Deliveries that did not end in a commit after which a message counts as a crash loop. A single
one is a message that was in hand when its member died, or when the queue changed its owner."""
IDLE_POLL_S: Final = 0.5
"""Interval while there is no member: half of the shortest session."""


class MemberView(NamedTuple):
    """A member as the API shows it."""

    member: str
    subscriptions: Sequence[Subscription]
    assignment: Sequence[Queue]
    session_ms: int
    last_seen_ms: int
    """Time since its last heartbeat."""


class Coordinator:
    """The members of all groups of one node."""

    def __init__(
        self,
        live: ActiveGroups,
        joining: Joining,
        fetches: Fetches,
        configs: GroupConfigs,
        offsets: Offsets,
        deliveries: Deliveries,
    ) -> None:
        self._live = live
        self._joining = joining
        self._fetches = fetches
        self._configs = configs
        self._offsets = offsets
        self._deliveries = deliveries

    # -- asking ----------------------------------------------------------------------------------

    def members(self, group: str) -> list[MemberView]:
        """Return the members of a group; none if the group is unknown."""
        live = self._live.find(group)
        if live is None:
            return []
        now_ms = self._live.now_ms()
        return [
            MemberView(
                member.name,
                [Subscription(*each) for each in live.subscriptions[member.name].items()],
                live.membership.assignment(member.name),
                member.session_ms,
                now_ms - (member.deadline_ms - member.session_ms),
            )
            for member in live.membership.members.values()
        ]

    def member_count(self, group: str) -> int:
        """Return the number of members of a group."""
        live = self._live.find(group)
        return 0 if live is None else len(live.membership.members)

    def state(self, group: str) -> str:
        """Return ``empty``, ``stable``, or ``rebalancing`` while queues are in transit."""
        live = self._live.find(group)
        if live is None:
            return "empty"
        return "rebalancing" if live.membership.in_transit else "stable"

    def generation(self, group: str) -> int | None:
        """Return the generation of the assignment; None if the group has no members."""
        live = self._live.find(group)
        return None if live is None else live.membership.generation

    def owner(self, group: str, topic: str, queue: int) -> str | None:
        """Owner of the queue; None if it is unassigned or the group broadcasts."""
        live = self._live.find(group)
        return None if live is None else live.membership.owner((topic, queue))

    def holder(self, group: str, topic: str, queue: int) -> str | None:
        """Return the member that may still commit messages of the queue: its owner, or the previous
        owner while the queue is in transit."""
        live = self._live.find(group)
        if live is None:
            return None
        membership, key = live.membership, (topic, queue)
        owner = membership.owner(key)
        if owner is not None or not membership.in_transit:
            return owner
        return next((name for name in membership.members if membership.holds(name, key)), None)

    def deliveries(
        self, group: str, topic: str, queue: int, queue_offset: int
    ) -> Sequence[Delivery]:
        """Return the deliveries of a message, oldest first, as far as they are remembered."""
        return self._deliveries.find(group, (topic, queue), queue_offset)

    def in_flight(self, group: str) -> dict[Queue, int]:
        """Return the number of messages handed out and not committed, for each queue with an
        owner."""
        live = self._live.find(group)
        if live is None or isinstance(live.membership, Broadcasting):
            return {}
        return {
            queue: max(0, place.handed_to - (self._offsets.get(group, *queue) or 0))
            for session in live.sessions.values()
            for queue, place in session.places.items()
        }

    def topics_read(self, group: str) -> Collection[str]:
        """Return the topics that members subscribe to: a view, to be used before the next await."""
        live = self._live.find(group)
        return () if live is None else live.membership.queues.keys()

    def holder_numbers(self, group: str) -> Callable[[Queue], int | None] | None:
        """Return a function from a queue to its holder's number
        (``GroupMembership.holder_number``).

        It is valid as long as the group has members without a break. None if it has none.
        """
        live = self._live.find(group)
        return None if live is None else live.membership.holder_number

    def place_of(self, group: str, queue: Queue) -> tuple[int, int] | None:
        """Return two queue offsets: after the last message handed out, and of the next one to hand
        out. None while the queue has no owner."""
        session = self.session_of(group, queue)
        place = None if session is None else session.places.get(queue)
        return None if place is None else (place.handed_to, place.next_offset)

    def busy_holders(self, group: str, now_s: float) -> Callable[[Queue], bool]:
        """Return a function that says whether a queue's next messages wait for processing and not
        for delivery.

        They wait for processing in three cases. First, the member has messages in hand and is not
        fetching. Second, the group is ordered and the last batch of the queue is not committed.
        Third, the next message to commit was handed out at least twice before, as in a crash loop;
        then it does not matter whether the next member is absent, idle or fetching. A member's
        fetches are judged once, whatever its number of queues. now_s: on the monotonic clock.
        """
        config = self._configs.find(group)
        is_ordered = config is not None and config.order
        known: dict[str, bool] = {}

        def is_in_hand(place: Place) -> bool:
            return place.handed_to > (self._offsets.get(group, *place.queue) or 0)

        def is_busy(queue: Queue) -> bool:
            session = self.session_of(group, queue)
            place = None if session is None else session.places.get(queue)
            in_hand = place is not None and is_in_hand(place)
            if in_hand and is_ordered:
                return True
            head = self._offsets.get(group, *queue)
            if place is not None and not in_hand:
                head = place.next_offset
            if head is not None:
                failed = len(self._deliveries.find(group, queue, head)) - in_hand
                if failed >= HANDED_OUT_OFTEN:
                    return True
            if session is None or place is None:
                return False
            found = known.get(session.member)
            if found is None:
                found = not session.asking.is_frequent(now_s)
                found = found and any(is_in_hand(each) for each in session.places.values())
                known[session.member] = found
            return found

        return is_busy

    def session_of(self, group: str, queue: Queue) -> Session | None:
        """Return the session of the queue's owner."""
        live = self._live.find(group)
        owner = None if live is None else live.membership.owner(queue)
        return None if live is None or owner is None else live.sessions.get(owner)

    def check_caller(self, group: str, member: str | None, generation: int | None) -> None:
        """Check the sender of a call that only members may make while the group has members.

        Raises MemberRequired, StaleGeneration or UnknownMember unless the caller is a member of the
        group, or the group has no members and the caller is (None, None).
        """
        live = self._live.find(group)
        if (member is None) != (generation is None):
            raise half_named(group)
        if member is None and (count := self.member_count(group)) > 0:
            raise member_required(group, count)
        current = None if live is None else live.membership.generation
        if generation is not None and generation != current:
            raise stale_generation(group, generation, current)
        if member is not None and (live is None or member not in live.membership.members):
            raise unknown_member(group, member)

    def holds(self, group: str, member: str, queue: Queue) -> bool:
        """Return whether the member may commit offsets of the queue."""
        live = self._live.find(group)
        return live is not None and live.membership.holds(member, queue)

    # -- events ----------------------------------------------------------------------------------

    async def join(self, group: str, member: str, request: Join) -> Joined:
        """Let a member join, prolong its session or change its topics; see ``Joining.join``."""
        return await self._joining.join(group, member, request)

    def leave(self, group: str, member: str, incarnation: str | None = None) -> None:
        """Remove a member; its queues are free at once. Raises UnknownGroup, UnknownMember."""
        self._joining.leave(group, member, incarnation)

    async def fetch(
        self,
        group: str,
        member: str,
        request: Fetch,
        is_gone: Callable[[], bool],
        check_reads: Callable[[], None],
        *,
        divides_batches: bool = False,
    ) -> Fetched:
        """Run one long poll over all queues of a member; is_gone, check_reads and divides_batches:
        see ``Fetches``.

        Raises UnknownGroup, UnknownMember, StaleGeneration, NotAssigned, ConsumeDisabled, and what
        check_reads and a pull raise.
        """
        config = self._configs.get(group)
        check_enabled(config)
        live = self._live.find(group)
        if live is None or member not in live.membership.members:
            raise unknown_member(group, member)
        if request.generation not in (None, live.membership.generation):
            raise stale_generation(group, request.generation, live.membership.generation)
        session, membership = live.sessions[member], live.membership
        if request.sequence is not None:
            # 1. A member gives a fetch up and sends the next on another connection; 2. the broker
            # reads the later one first; 3. the earlier one would take messages that no member gets.
            if request.sequence < session.sequence:
                return Fetched(membership.generation, [], session)
            session.sequence = request.sequence
        for position in request.positions:
            if position.place not in session.places:
                raise not_assigned(group, member, position.place)
        session.pause(request.paused)
        for position in request.positions:
            session.move(position.place, position.offset)

        def is_member() -> bool:
            return live.sessions.get(member) is session

        reader = Reader(
            group,
            session,
            config.order and not config.broadcast,
            config.broadcast,
            generation=lambda: membership.generation,
            is_member=is_member,
            committed=self._committed_of(config),
            commit=lambda queue, offset: self._offsets.accept(group, {queue: offset}),
        )
        fetched = await self._fetches.fetch(
            reader, request, is_gone, check_reads, divides_batches=divides_batches
        )
        if not is_member():
            raise unknown_member(group, member)
        return fetched

    async def put(self, group: str, changes: Changes) -> GroupConfig:
        """Create or change a group; durable on return.

        Raises BadName, Overloaded, what an append raises, and GroupInUse: order and
        broadcast, on which members rely, can be changed only while there are none.
        """
        known = self._configs.find(group) or GroupConfig(group)
        wanted = known._replace(**changes.given())
        if (wanted.order, wanted.broadcast) == (known.order, known.broadcast):
            return (await self._configs.put(group, changes)).group
        async with self._joining.alone(group):
            return (await self._configs.put(group, changes)).group

    async def delete(self, group: str) -> None:
        """Delete a group with its offsets; durable on return.

        Raises BadName, UnknownGroup, GroupInUse, and what an append raises.
        """
        self._configs.get(group)
        async with self._joining.alone(group):
            await self._configs.delete(group)
            self._deliveries.forget(group)
            self._live.forget(group)

    def check_unused(self, group: str) -> None:
        """Raise GroupInUse if the group has members."""
        self._joining.check_unused(group)

    def moved(self, group: GroupConfig, queues: Iterable[Queue]) -> None:
        """Note that an operator has reset these queues of a group without members.

        Members from before the start then get the new offsets, whatever they claim.
        """
        self._live.moved(group, queues)

    def topic_changed(self, topic: str) -> None:
        """Note a topic that was created, deleted or resized: ``ActiveGroups.topic_changed``."""
        self._live.topic_changed(topic)

    # -- time ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deaths of members and new queues, until stop; begins when joins are accepted."""
        self._live.opens()
        while not stop.is_set():
            self._live.check()
            try:
                async with asyncio.timeout(POLL_S if self._live.member_count else IDLE_POLL_S):
                    await stop.wait()
            except TimeoutError:
                continue

    def _committed_of(self, config: GroupConfig) -> Callable[[Queue], int | None]:
        if config.broadcast:
            return lambda queue: None
        return lambda queue: self._offsets.get(config.name, *queue)
