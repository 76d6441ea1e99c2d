"""Joining and leaving: who may be a member, with which topics, and where it begins.

Topics, tags and limits are checked, and everything needed from the store is read, before anything
is changed; the change itself is one step of the loop.
Step before: ``group_calls``. Step after: ``active_groups`` gives the member its places.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.groups.active_groups import ActiveGroups, Live
from services.broker.groups.configs import GroupConfigs, check_group_name
from services.broker.groups.initial_offsets import InitialOffsets
from services.broker.groups.refusals import check_enabled, member_fenced, unknown_member
from services.broker.groups.sessions import Session, Watching
from services.broker.read.pull import parse_tags
from services.broker.schema.members import Join
from services.broker.schema.offsets import QUEUES_PER_GROUP_MAX
from services.broker.state.topics import Topics, check_consumed
from shared.state.records import GroupConfig
from tidemark.errors import GroupInUse, NotPermitted, Overloaded
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.offsets import Queue

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """Limits of groups and members."""

    members: int = 20_000
    """Members of all groups: each takes some kilobytes."""
    members_per_group: int = 1000
    queues_per_group: int = QUEUES_PER_GROUP_MAX


BOUNDS: Final = Bounds()


class Joined(NamedTuple):
    """The response to a join."""

    generation: int
    assignment: list[Queue]
    session_ms: int
    config: GroupConfig
    kept: Sequence[Queue] = ()
    """Queues of the assignment that the member held before the start, without a break."""


class Joining:
    """Lets members join and leave."""

    def __init__(
        self,
        live: ActiveGroups,
        configs: GroupConfigs,
        topics: Topics,
        initial_offsets: InitialOffsets,
        watching: Watching,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._live = live
        self._configs = configs
        self._topics = topics
        self._initial_offsets = initial_offsets
        self._watching = watching
        self._bounds = bounds
        self._alone: dict[str, asyncio.Event] = {}
        """Groups under a change during which members must not join."""

    async def join(self, group: str, member: str, request: Join) -> Joined:
        """Let a member join, prolong its session, or change its topics.

        Without a generation the member joins: what it received and did not commit is handed out
        again. With one it prolongs its session, even if its topics have more queues now than the
        limit allows (``ActiveGroups.begin_or_wait``). Raises UnknownMember (a generation was given,
        but the member no longer exists), UnknownGroup, BadName, ConsumeDisabled, UnknownTopic,
        NotPermitted, BadTags, Overloaded, and what an append raises.
        """
        retry_topic = RETRY_PREFIX + group
        if self._configs.find(group) is None:
            check_group_name(group)
            if request.generation is not None:  # a heartbeat must not create a deleted group again
                raise unknown_member(group, member)
            for each in request.subscriptions:  # checked before a group is created
                parse_tags(each.tags)
                if each.topic != retry_topic:
                    self._queues_of(each.topic)
        while True:
            config = await self._configs.ensure(group)
            if (changing := self._alone.get(group)) is not None:
                await changing.wait()
            elif not config.broadcast and self._topics.find(retry_topic) is None:
                await self._configs.retry_topic(group)
            else:
                break
        # From here on it is one step of the loop, so what was found above still holds at the end.
        wanted = {each.topic: each.tags for each in request.subscriptions}
        if not config.broadcast:
            wanted.setdefault(retry_topic, "*")
        joined, begun = self._join(config, member, wanted, request)
        if begun:
            await self._initial_offsets.durable()
        return joined

    def _join(
        self, config: GroupConfig, member: str, wanted: Mapping[str, str], request: Join
    ) -> tuple[Joined, bool]:
        """Join, and return also whether offsets were committed for new queues, which must be
        durable before the response."""
        group = config.name
        check_enabled(config)
        live = self._live.find(group)
        known = live is not None and member in live.membership.members
        if request.generation is not None and not known:
            raise unknown_member(group, member)
        said = request.incarnation
        before = live.sessions[member].incarnation if live is not None and known else None
        is_other = said is not None and before is not None and said != before
        if is_other and request.generation is not None:
            raise member_fenced(group, member)
        filters = {topic: parse_tags(tags) for topic, tags in wanted.items()}
        topics: Mapping[str, Sequence[int]] = (
            self._queues_left(group, wanted)
            if known and request.generation is not None
            else {topic: self._queues_of(topic) for topic in wanted}
        )
        if not known:
            self._check_room(group, live)
        if live is None:
            self._live.restore_claims(config)
        if live is None or request.generation is None:
            begun = self._live.begin_with(config, topics)
        else:
            topics, begun = self._live.begin_or_wait(config, live, topics)
        begins = self._begins(config, live, member, topics, request)
        now_ms = self._live.now_ms()
        if live is None:
            live = self._live.begin(config)
        if not known:
            self._live.member_count += 1
            live.sessions[member] = Session(member, self._watching)
        session = live.sessions[member]
        if is_other:
            # Two programs under one name would hand out the same messages, each with a valid name
            # and generation. The later one replaces the earlier one.
            live.membership.fence()
            log.warning(
                "another program has joined under a member's name; the earlier one is fenced",
                extra={"event": "member-fenced", "group": group, "member": member},
            )
        # Without an incarnation on both sides it may or may not be the same program.
        counts_anew = said is None or said != before
        session.incarnation = said or session.incarnation
        if request.generation is None:
            session.begin_anew()  # in either case it has no messages in hand
            if counts_anew:
                session.sequence = 0  # another program numbers its fetches from the beginning
        other_tags = live.subscriptions.get(member) != wanted
        live.subscriptions[member], live.filters[member] = wanted, filters
        change = live.membership.heartbeat(
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
        self._live.apply(live, change, begins)
        session.assignment_received()
        membership = live.membership
        self._live.plan(group, now_ms + request.session_ms)
        if not known and (deadline_ms := membership.next_deadline_ms) is not None:
            self._live.plan(group, deadline_ms)
        assignment = membership.assignment(member)
        session_ms = request.session_ms
        return Joined(membership.generation, assignment, session_ms, config, change.kept), begun

    def leave(self, group: str, member: str, incarnation: str | None = None) -> None:
        """Remove a member; its queues are free at once. Raises UnknownGroup, UnknownMember.

        incarnation: if another program has taken over the name, this one is no longer a member.
        """
        self._configs.get(group)
        live = self._live.find(group)
        if live is None or member not in live.membership.members:
            raise unknown_member(group, member)
        if incarnation is not None and live.sessions[member].incarnation != incarnation:
            raise unknown_member(group, member)
        self._live.apply(live, live.membership.leave(self._live.now_ms(), member))

    @contextlib.asynccontextmanager
    async def alone(self, group: str) -> AsyncIterator[None]:
        """Hold a group without members for a change: joins wait until it is done.

        Raises GroupInUse if the group has members or is held by another change.
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
        live = self._live.find(group)
        count = 0 if live is None else len(live.membership.members)
        if count:
            raise GroupInUse(
                f"group {group!r} has {count} member{'s'[: count != 1]}. Nothing was changed.",
                "Stop its consumers first, or wait until their sessions have ended.",
                group=group,
                members=count,
            )

    def _begins(
        self,
        config: GroupConfig,
        live: Live | None,
        member: str,
        topics: Mapping[str, Sequence[int]],
        request: Join,
    ) -> Callable[[Queue], int]:
        """Return where a joining member begins with the queues that it gets.

        Everything needed from the store is read here, before anything is changed.
        """
        if not config.broadcast:
            return self._live.committed_or_first(config.name)
        if request.generation is not None and live is not None:
            topics = {
                topic: numbers
                for topic, numbers in topics.items()
                if topic not in live.subscriptions[member]
            }
        found = {
            (topic, number): self._initial_offsets.at(config.start, (topic, number))
            for topic, numbers in topics.items()
            for number in numbers
        }
        return lambda queue: found.get(queue, 0)

    def _queues_left(self, group: str, wanted: Mapping[str, str]) -> dict[str, Sequence[int]]:
        """Return the queues of an existing member's topics; a deleted topic has none.

        The member keeps the other topics, and gets the deleted one back once it exists again.
        Raises UnknownTopic if none is left.
        """
        own = [topic for topic in wanted if topic != RETRY_PREFIX + group]
        if own and not any(self._topics.find(topic) for topic in own):
            self._topics.get(own[0])
        return {
            topic: () if self._topics.find(topic) is None else self._queues_of(topic)
            for topic in wanted
        }

    def _queues_of(self, topic: str) -> Sequence[int]:
        """Return the readable queues of a topic. Raises UnknownTopic, NotPermitted."""
        check_consumed(topic)
        found = self._topics.get(topic)
        if not found.is_readable:
            raise NotPermitted(
                f"topic {topic!r} cannot be read: its perm {found.perm} lacks 4 (read).",
                f'PUT /v1/topics/{topic} with "perm": 6 allows reading and sending.',
                topic=topic,
                perm=found.perm,
            )
        return self._topics.queue_numbers(found)

    def _check_room(self, group: str, live: Live | None) -> None:
        """Raise Overloaded if the limit of members is reached."""
        has = 0 if live is None else len(live.membership.members)
        if has >= self._bounds.members_per_group:
            raise Overloaded(
                f"group {group!r} has {has} members, which is the limit.",
                "Run fewer consumers with more concurrency each.",
                limit=self._bounds.members_per_group,
            )
        if self._live.member_count >= self._bounds.members:
            raise Overloaded(
                f"the groups of this node have {self._live.member_count} members, which is the "
                "limit.",
                "Run fewer consumers.",
                limit=self._bounds.members,
            )
