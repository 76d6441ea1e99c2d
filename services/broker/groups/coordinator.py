"""Members of groups: they join, are heard of, leave or die; queues and places follow.

The shell around ``membership`` and ``broadcasting``, which say what becomes of the queues: it
checks topics, keeps the time, gives every member its places (``sessions``) and tells held fetches.
Only groups with members take memory and time here. Each event is one step of the loop, from the
change of the members to that of all places, so nobody sees half of it.

Generations are the node's start count and a number that only grows (design 4), so one of before a
restart never fits. Before: ``calls``. After: ``fetch`` looks at the places, ``commits`` moves
offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.groups.broadcasting import Broadcasting
from services.broker.groups.configs import RETRY_PREFIX, GroupConfigs, checked
from services.broker.groups.deliveries import Deliveries, Delivery
from services.broker.groups.fetch import Fetched, Fetches, Reader
from services.broker.groups.membership import Membership
from services.broker.groups.offsets import Offsets
from services.broker.groups.requests import (
    QUEUES_PER_GROUP_MAX,
    FetchRequest,
    JoinRequest,
    Subscribed,
)
from services.broker.groups.roster import Change, Roster
from services.broker.groups.sessions import Session, Watching
from services.broker.groups.starts import Starts
from services.broker.held_pulls import Wake
from services.broker.pull import parse_tags
from services.broker.queue_offsets import Queue
from services.broker.topics import Topics
from shared.state.records import GroupConfig
from tidemark.clock import Clock
from tidemark.errors import (
    ConsumeDisabled,
    GroupInUse,
    NotAssigned,
    NotPermitted,
    Overloaded,
    StaleGeneration,
    UnknownMember,
)
from tidemark.formats.select import Wanted

log = logging.getLogger(__name__)

MEMBERS_PER_GROUP_MAX: Final = 1000
MEMBERS_MAX: Final = 20_000
"""Of all groups: each takes some kilobytes."""
POLL_S: Final = 0.1
"""How late a death is noticed at most."""


class Joined(NamedTuple):
    """What a member is told."""

    generation: int
    assignment: list[Queue]
    session_ms: int
    config: GroupConfig


class MemberView(NamedTuple):
    """A member as others see it."""

    member: str
    subscriptions: Sequence[Subscribed]
    assignment: Sequence[Queue]
    session_ms: int
    last_seen_ms: int
    """Since its last heartbeat."""


class Live:
    """A group that has members."""

    __slots__ = ("filters", "name", "roster", "sessions", "subscriptions")

    def __init__(self, name: str, roster: Roster) -> None:
        self.name = name
        self.roster = roster
        self.sessions: dict[str, Session] = {}
        self.subscriptions: dict[str, Mapping[str, str]] = {}
        """Member → topic → tags."""
        self.filters: dict[str, Mapping[str, Wanted | None]] = {}
        """The same, as it is looked for."""


class Coordinator:
    """The members of all groups of one node."""

    def __init__(
        self,
        configs: GroupConfigs,
        offsets: Offsets,
        topics: Topics,
        starts: Starts,
        fetches: Fetches,
        deliveries: Deliveries,
        watching: Watching,
        clock: Clock,
        *,
        start_count: Callable[[], int],
        members_max: int = MEMBERS_MAX,
        members_per_group_max: int = MEMBERS_PER_GROUP_MAX,
        queues_per_group_max: int = QUEUES_PER_GROUP_MAX,
    ) -> None:
        """start_count: how often this node, writable, has started; from its record in the log."""
        self._configs = configs
        self._offsets = offsets
        self._topics = topics
        self._starts = starts
        self._fetches = fetches
        self._deliveries = deliveries
        self._watching = watching
        self._clock = clock
        self._start_count = start_count
        self._members_max = members_max
        self._members_per_group_max = members_per_group_max
        self._queues_per_group_max = queues_per_group_max
        self._live: dict[str, Live] = {}
        self._member_count = 0
        self._numbers = 0
        self._due: list[tuple[int, str]] = []
        """Heap of when to look at a group's deadlines, which heartbeats only put off."""
        self._planned: dict[str, int] = {}
        """Group → its earliest time in the heap."""
        self._alone: dict[str, asyncio.Event] = {}
        """Groups that are being changed in a way that members must not meet."""
        self._topics_moved = False

    # -- asking ----------------------------------------------------------------------------------

    def members(self, group: str) -> list[MemberView]:
        """Everybody who is there; nobody in a group that is not known."""
        live = self._at_present(group)
        if live is None:
            return []
        now_ms = self._now_ms()
        return [
            MemberView(
                member.name,
                [Subscribed(*each) for each in live.subscriptions[member.name].items()],
                live.roster.assignment(member.name),
                member.session_ms,
                now_ms - (member.deadline_ms - member.session_ms),
            )
            for member in live.roster.members.values()
        ]

    def member_count(self, group: str) -> int:
        """How many are there."""
        live = self._at_present(group)
        return 0 if live is None else len(live.roster.members)

    def state(self, group: str) -> str:
        """``empty``, ``stable``, or ``rebalancing`` while queues wait for those who hold them."""
        live = self._at_present(group)
        if live is None:
            return "empty"
        return "rebalancing" if live.roster.in_transit else "stable"

    def generation(self, group: str) -> int | None:
        """Of the assignment; None in a group without members."""
        live = self._at_present(group)
        return None if live is None else live.roster.generation

    def owner(self, group: str, topic: str, queue: int) -> str | None:
        """The member that reads the queue; None while it is nobody's, or everybody's."""
        live = self._at_present(group)
        return None if live is None else live.roster.owner((topic, queue))

    def deliveries(self, group: str, topic: str, queue: int, queue_offset: int) -> Delivery | None:
        """To whom a message was handed out last; None if that is not known (any more)."""
        return self._deliveries.find(group, (topic, queue), queue_offset)

    def in_flight(self, group: str) -> dict[Queue, int]:
        """Messages handed out and not committed, of queues that members have."""
        live = self._at_present(group)
        if live is None or isinstance(live.roster, Broadcasting):
            return {}
        return {
            queue: max(0, place.handed_to - (self._offsets.get(group, *queue) or 0))
            for session in live.sessions.values()
            for queue, place in session.places.items()
        }

    def session_of(self, group: str, queue: Queue) -> Session | None:
        """Of the member that has the queue alone."""
        live = self._live.get(group)
        owner = None if live is None else live.roster.owner(queue)
        return None if live is None or owner is None else live.sessions.get(owner)

    def check_caller(self, group: str, member: str | None, generation: int | None) -> None:
        """Raise StaleGeneration or UnknownMember if what a caller says of itself is not so.

        None: the caller does not say.
        """
        live = self._at_present(group)
        current = None if live is None else live.roster.generation
        if generation is not None and generation != current:
            raise _stale(group, generation, current)
        if member is not None and (live is None or member not in live.roster.members):
            raise _unknown(group, member)

    def holds(self, group: str, member: str, queue: Queue) -> bool:
        """Whether the member may say how far it is in the queue."""
        live = self._at_present(group)
        return live is not None and live.roster.holds(member, queue)

    # -- events ----------------------------------------------------------------------------------

    async def join(self, group: str, member: str, request: JoinRequest) -> Joined:
        """A member joins, is still there, or wants other topics.

        Without a generation it joins: what it got and did not commit is handed out again. Raises
        UnknownMember (it names a generation, and is not there any more), UnknownGroup, BadName,
        ConsumeDisabled, UnknownTopic, NotPermitted, BadTags, Overloaded, and what an append raises.
        """
        retry_topic = RETRY_PREFIX + group
        while True:
            config = await self._configs.ensure(group)
            if (changing := self._alone.get(group)) is not None:
                await changing.wait()
            elif not config.broadcast and self._topics.find(retry_topic) is None:
                await self._configs.retry_topic(group)
            else:
                break
        # From here on one step of the loop: what was found above holds until the end.
        wanted = {each.topic: each.tags for each in request.subscriptions}
        if not config.broadcast:
            wanted.setdefault(retry_topic, "*")
        return self._join(config, member, wanted, request)

    def _join(
        self, config: GroupConfig, member: str, wanted: Mapping[str, str], request: JoinRequest
    ) -> Joined:
        group = config.name
        if not config.consume_enabled:
            raise ConsumeDisabled(
                f"group {group!r} is switched off: its members get nothing.",
                f'PUT /v1/groups/{group} with "consume_enabled": true switches it on.',
                group=group,
            )
        live = self._at_present(group)
        known = live is not None and member in live.roster.members
        if request.generation is not None and not known:
            raise _unknown(group, member)
        filters = {topic: parse_tags(tags) for topic, tags in wanted.items()}
        topics = {topic: self._queues_of(topic) for topic in wanted}
        self._check_room(group, live, topics, known=known)
        if not config.broadcast:
            known_queues = {} if live is None else live.roster.queues
            new = {
                topic: numbers
                for topic, numbers in topics.items()
                if known_queues.get(topic) != tuple(numbers)
            }
            self._starts.commit(config, new)
        begins = self._begins(config, live, member, topics, request)
        now_ms = self._now_ms()
        if live is None:
            live = self._live[group] = Live(group, self._roster(config))
        if not known:
            self._member_count += 1
            live.sessions[member] = Session(member, self._watching)
        session = live.sessions[member]
        if request.generation is None:
            session.heard()  # whoever it is now, it has nothing in its hands
        other_tags = live.subscriptions.get(member) != wanted
        live.subscriptions[member], live.filters[member] = wanted, filters
        change = live.roster.heartbeat(
            now_ms,
            member,
            topics,
            request.session_ms,
            holding=request.holding,
            knows=request.generation,
        )
        if known and request.generation is None:
            for queue in session.places:
                session.move(queue, begins(queue))
        if other_tags:
            for queue, place in session.places.items():
                place.tags = filters.get(queue[0])
        self._apply(live, change, begins)
        session.heard()
        self._plan_check(group, now_ms + request.session_ms)
        roster = live.roster
        return Joined(roster.generation, roster.assignment(member), request.session_ms, config)

    def leave(self, group: str, member: str) -> None:
        """A member goes; its queues are free at once. Raises UnknownGroup, UnknownMember."""
        self._configs.get(group)
        live = self._at_present(group)
        if live is None or member not in live.roster.members:
            raise _unknown(group, member)
        self._apply(live, live.roster.leave(self._now_ms(), member))

    async def fetch(
        self, group: str, member: str, request: FetchRequest, is_gone: Callable[[], bool]
    ) -> Fetched:
        """One long poll over all queues of a member.

        Raises UnknownGroup, UnknownMember, StaleGeneration, NotAssigned, ConsumeDisabled, and what
        a pull raises.
        """
        config = self._configs.get(group)
        live = self._at_present(group)
        if live is None or member not in live.roster.members:
            raise _unknown(group, member)
        if request.generation not in (None, live.roster.generation):
            raise _stale(group, request.generation, live.roster.generation)
        session, roster = live.sessions[member], live.roster
        for queue, _ in request.positions:
            if queue not in session.places:
                raise not_assigned(group, member, queue)
        for queue, offset in request.positions:
            session.move(queue, offset)

        def is_member() -> bool:
            return live.sessions.get(member) is session

        reader = Reader(
            group,
            session,
            config.order and not config.broadcast,
            generation=lambda: roster.generation,
            is_member=is_member,
            committed=self._committed_of(config),
            skip=lambda queue, offset: self._offsets.accept(group, {queue: offset}),
        )
        fetched = await self._fetches.fetch(reader, request, is_gone)
        if not is_member():
            raise _unknown(group, member)
        return fetched

    async def put(self, group: str, changes: Mapping[str, object]) -> GroupConfig:
        """Make a group or change one; durable on return.

        Raises BadName, BadRequest, Overloaded, what an append raises, and GroupInUse: what members
        have been told, order and broadcast, changes only while there are none.
        """
        known = self._configs.find(group) or GroupConfig(group)
        wanted = known._replace(**checked(changes))  # type: ignore[arg-type]
        if (wanted.order, wanted.broadcast) == (known.order, known.broadcast):
            return (await self._configs.put(group, changes)).group
        async with self.alone(group):
            return (await self._configs.put(group, changes)).group

    async def delete(self, group: str) -> None:
        """Delete a group with its offsets; durable on return.

        Raises BadName, UnknownGroup, GroupInUse, and what an append raises.
        """
        self._configs.get(group)
        async with self.alone(group):
            await self._configs.delete(group)
            self._deliveries.forget(group)

    def topics_changed(self) -> None:
        """Topics have come, gone or got queues: the groups that read them are looked at soon."""
        self._topics_moved = True

    @contextlib.asynccontextmanager
    async def alone(self, group: str) -> AsyncIterator[None]:
        """While a group without members is changed: whoever joins meanwhile waits.

        Raises GroupInUse if it has members, or is being changed by somebody else.
        """
        self.check_unused(group)
        if group in self._alone:
            raise GroupInUse(
                f"group {group!r} is being changed by another call. Nothing was changed.",
                "Try again.",
                group=group,
            )
        changed = self._alone[group] = asyncio.Event()
        try:
            yield
        finally:
            del self._alone[group]
            changed.set()

    def check_unused(self, group: str) -> None:
        """Raise GroupInUse if the group has members."""
        count = self.member_count(group)
        if count:
            raise GroupInUse(
                f"group {group!r} has {count} members. Nothing was changed.",
                "Stop its consumers first, or wait until their sessions have ended.",
                group=group,
                members=count,
            )

    # -- time ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Notice deaths and new queues, until stop."""
        while not stop.is_set():
            self.look()
            try:
                async with asyncio.timeout(POLL_S):
                    await stop.wait()
            except TimeoutError:
                continue

    def look(self) -> None:
        """Do what time and topics ask for; costs nothing while nothing is due."""
        now_ms = self._now_ms()
        while self._due and self._due[0][0] <= now_ms:
            at_ms, group = heapq.heappop(self._due)
            if self._planned.get(group) == at_ms:
                del self._planned[group]
                if (live := self._live.get(group)) is not None:
                    self._expire(live, now_ms)
        if self._topics_moved:
            self._topics_moved = False
            for live in list(self._live.values()):
                self._look_at_topics(live, now_ms)

    def _expire(self, live: Live, now_ms: int) -> None:
        before = set(live.roster.members)
        change = live.roster.expire(now_ms)
        dead = before - live.roster.members.keys()
        if dead:
            log.info(
                "members of a group were silent for their whole session; others take their queues",
                extra={
                    "event": "members-expired",
                    "group": live.name,
                    "members": sorted(dead)[:10],
                    "count": len(dead),
                },
            )
        self._apply(live, change)
        if (deadline_ms := live.roster.next_deadline_ms) is not None:
            self._planned.pop(live.name, None)
            self._plan_check(live.name, deadline_ms)

    def _look_at_topics(self, live: Live, now_ms: int) -> None:
        config = self._configs.find(live.name)
        topics: dict[str, Sequence[int]] = {}
        for topic in live.roster.queues:
            found = self._topics.find(topic)
            readable = found is not None and found.is_readable
            topics[topic] = self._topics.queue_numbers(found) if found and readable else ()
        if config is not None and not config.broadcast:
            try:
                self._starts.commit(config, topics)
            except Overloaded as error:
                log.warning(
                    "a group cannot begin with new queues",
                    extra={"event": "queues-not-begun", "group": live.name, "code": error.code},
                )
                return
        self._apply(live, live.roster.set_queues(now_ms, topics))

    def _plan_check(self, group: str, at_ms: int) -> None:
        """Look at the group's deadlines then, or before."""
        planned = self._planned.get(group)
        if planned is None or at_ms < planned:
            self._planned[group] = at_ms
            heapq.heappush(self._due, (at_ms, group))

    def _at_present(self, group: str) -> Live | None:
        """The group as of now: who should have died has. None if it has no members."""
        live = self._live.get(group)
        if live is not None:
            now_ms = self._now_ms()
            if self._planned[group] <= now_ms:
                self._expire(live, now_ms)
                live = self._live.get(group)
        return live

    # -- what follows ----------------------------------------------------------------------------

    def _apply(
        self, live: Live, change: Change, begins: Callable[[Queue], int] | None = None
    ) -> None:
        """Give and take places as the members' change says, and tell held fetches.

        begins: where who gets a queue begins; None: as committed, at the first message if nothing
        is, for a queue that is new to a known topic is read from there (``starts``).
        """
        if begins is None:
            begins = self._committed_or_first(live.name)
        for queue, name in change.revoked:
            if (session := live.sessions.get(name)) is not None:
                session.revoke(queue)
        for name in live.sessions.keys() - live.roster.members.keys():
            live.sessions.pop(name).close()
            del live.subscriptions[name], live.filters[name]
            self._member_count -= 1
        for queue, name in change.granted:
            tags = live.filters[name].get(queue[0])
            live.sessions[name].grant(queue, begins(queue), tags)
        if change.granted or change.revoked:
            for session in live.sessions.values():
                session.wake(Wake.CHANGED)
        if not live.roster.members:
            del self._live[live.name]

    def _begins(
        self,
        config: GroupConfig,
        live: Live | None,
        member: str,
        topics: Mapping[str, Sequence[int]],
        request: JoinRequest,
    ) -> Callable[[Queue], int]:
        """Where a member that joins begins with the queues that it gets.

        What has to be read from the store is read here, before anything is changed.
        """
        if not config.broadcast:
            return self._committed_or_first(config.name)
        if request.generation is not None and live is not None:
            topics = {
                topic: numbers
                for topic, numbers in topics.items()
                if topic not in live.subscriptions[member]
            }
        found = {
            (topic, number): self._starts.at(config.start, (topic, number))
            for topic, numbers in topics.items()
            for number in numbers
        }
        return lambda queue: found.get(queue, 0)

    def _committed_or_first(self, group: str) -> Callable[[Queue], int]:
        return lambda queue: self._offsets.get(group, *queue) or 0

    def _committed_of(self, config: GroupConfig) -> Callable[[Queue], int | None]:
        if config.broadcast:
            return lambda queue: None
        return lambda queue: self._offsets.get(config.name, *queue)

    def _roster(self, config: GroupConfig) -> Roster:
        kind = Broadcasting if config.broadcast else Membership
        return kind(self._next_generation)

    def _next_generation(self) -> int:
        self._numbers += 1
        return self._start_count() << 32 | self._numbers

    def _queues_of(self, topic: str) -> Sequence[int]:
        """The queues of a topic that can be read. Raises UnknownTopic, NotPermitted."""
        found = self._topics.get(topic)
        if not found.is_readable:
            raise NotPermitted(
                f"topic {topic!r} cannot be read: its perm {found.perm} lacks 4 (read).",
                f'PUT /v1/topics/{topic} with "perm": 6 allows reading and sending.',
                topic=topic,
                perm=found.perm,
            )
        return self._topics.queue_numbers(found)

    def _check_room(
        self,
        group: str,
        live: Live | None,
        topics: Mapping[str, Sequence[int]],
        *,
        known: bool,
    ) -> None:
        if not known:
            has = 0 if live is None else len(live.roster.members)
            if has >= self._members_per_group_max:
                raise Overloaded(
                    f"group {group!r} has {has} members, which is the limit.",
                    "Run fewer consumers with more concurrency each.",
                    limit=self._members_per_group_max,
                )
            if self._member_count >= self._members_max:
                raise Overloaded(
                    f"the groups of this node have {self._member_count} members, which is the "
                    "limit.",
                    "Run fewer consumers.",
                    limit=self._members_max,
                )
        queues = {**({} if live is None else live.roster.queues), **topics}
        count = sum(map(len, queues.values()))
        if count > self._queues_per_group_max:
            raise Overloaded(
                f"the members of group {group!r} would read {count} queues, "
                f"{self._queues_per_group_max} is the limit.",
                "Use several groups.",
                limit=self._queues_per_group_max,
            )

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _unknown(group: str, member: str) -> UnknownMember:
    return UnknownMember(
        f"group {group!r} has no member {member!r}: it never joined, has left, or was silent for "
        "its whole session.",
        "Join again: POST the same without a generation.",
        group=group,
        member=member,
    )


def _stale(group: str, generation: int | None, current: int | None) -> StaleGeneration:
    now = "it has no members now" if current is None else f"it is {current} now"
    return StaleGeneration(
        f"generation {generation} of group {group!r} is over: {now}. Nothing was changed.",
        "Send a heartbeat: its answer has the generation and the queues.",
        group=group,
        generation=generation,
        current=current,
    )


def not_assigned(group: str, member: str, queue: Queue) -> NotAssigned:
    """The error for a queue that is not the member's."""
    topic, number = queue
    return NotAssigned(
        f"queue {number} of topic {topic!r} is not assigned to member {member!r} of group "
        f"{group!r}. Nothing was changed.",
        "Send a heartbeat: its answer has the queues.",
        group=group,
        member=member,
        topic=topic,
        queue=number,
    )
