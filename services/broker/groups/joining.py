"""Joining and leaving: who may be a member, of what, and where it begins.

Topics, tags and bounds are judged, and everything that has to be read from the store is read,
before anything is changed; the change itself is one step of the loop.
Before: ``calls``. After: ``live_groups`` gives the places that follow from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.groups.configs import GroupConfigs, check_group_name
from services.broker.groups.live_groups import Live, LiveGroups
from services.broker.groups.refusals import check_enabled, member_fenced, unknown_member
from services.broker.groups.requests import QUEUES_PER_GROUP_MAX, JoinRequest
from services.broker.groups.sessions import Session, Watching
from services.broker.groups.starts import Starts
from services.broker.log.queue_offsets import Queue
from services.broker.read.pull import parse_tags
from services.broker.state.topics import Topics, check_consumed
from shared.state.records import GroupConfig
from tidemark.errors import GroupInUse, NotPermitted, Overloaded
from tidemark.formats.nack import RETRY_PREFIX

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """How many there may be."""

    members: int = 20_000
    """Of all groups: each takes some kilobytes."""
    members_per_group: int = 1000
    queues_per_group: int = QUEUES_PER_GROUP_MAX


BOUNDS: Final = Bounds()


class Joined(NamedTuple):
    """What a member is told."""

    generation: int
    assignment: list[Queue]
    session_ms: int
    config: GroupConfig
    kept: Sequence[Queue] = ()
    """Of the assignment: what it had before the broker started, and nobody else since."""


class Joining:
    """Lets members in and out."""

    def __init__(
        self,
        live: LiveGroups,
        configs: GroupConfigs,
        topics: Topics,
        starts: Starts,
        watching: Watching,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._live = live
        self._configs = configs
        self._topics = topics
        self._starts = starts
        self._watching = watching
        self._bounds = bounds
        self._alone: dict[str, asyncio.Event] = {}
        """Groups that are being changed in a way that members must not meet."""

    async def join(self, group: str, member: str, request: JoinRequest) -> Joined:
        """A member joins, is still there, or wants other topics.

        Without a generation it joins: what it got and did not commit is handed out again. With one
        it is still there, and stays, even if its topics have got more queues than there is room
        for (``LiveGroups.begin_or_wait``). Raises UnknownMember (it names a generation, and is not
        there any more), UnknownGroup, BadName, ConsumeDisabled, UnknownTopic, NotPermitted,
        BadTags, Overloaded, and what an append raises.
        """
        retry_topic = RETRY_PREFIX + group
        if self._configs.find(group) is None:
            check_group_name(group)
            if request.generation is not None:  # a heartbeat does not bring back a deleted group
                raise unknown_member(group, member)
            for topic, tags in request.subscriptions:  # a mistake in them leaves no group behind
                parse_tags(tags)
                if topic != retry_topic:
                    self._queues_of(topic)
        while True:
            config = await self._configs.ensure(group)
            if (changing := self._alone.get(group)) is not None:
                await changing.wait()
            elif not config.broadcast and self._topics.find(retry_topic) is None:
                await self._configs.retry_topic(group)
            else:
                break
        # From here on one step of the loop: what was found above holds until it is done.
        wanted = {each.topic: each.tags for each in request.subscriptions}
        if not config.broadcast:
            wanted.setdefault(retry_topic, "*")
        joined, begun = self._join(config, member, wanted, request)
        if begun:
            await self._starts.durable()
        return joined

    def _join(
        self, config: GroupConfig, member: str, wanted: Mapping[str, str], request: JoinRequest
    ) -> tuple[Joined, bool]:
        """Also says whether the group has begun with a queue, which is to be on disk first."""
        group = config.name
        check_enabled(config)
        live = self._live.find(group)
        known = live is not None and member in live.roster.members
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
            self._live.look_back(config)
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
            # Two that run under one name would hand out the same messages, each with the right
            # name and generation: the later one has them alone.
            live.roster.fence()
            log.warning(
                "another program has joined under a member's name; the earlier one is fenced",
                extra={"event": "member-fenced", "group": group, "member": member},
            )
        # Without an incarnation on both sides nothing proves that it is the same program.
        counts_anew = said is None or said != before
        session.incarnation = said or session.incarnation
        if request.generation is None:
            session.begin_anew()  # whoever it is now, it has nothing in its hands
            if counts_anew:
                session.sequence = 0  # another program counts its fetches from the beginning
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
        self._live.apply(live, change, begins)
        session.heard()
        roster = live.roster
        self._live.plan(group, now_ms + request.session_ms)
        if not known and (deadline_ms := roster.next_deadline_ms) is not None:
            self._live.plan(group, deadline_ms)
        assignment = roster.assignment(member)
        session_ms = request.session_ms
        return Joined(roster.generation, assignment, session_ms, config, change.kept), begun

    def leave(self, group: str, member: str, incarnation: str | None = None) -> None:
        """A member goes; its queues are free at once. Raises UnknownGroup, UnknownMember.

        incarnation: that of a program whose name another has taken is no member any more.
        """
        self._configs.get(group)
        live = self._live.find(group)
        if live is None or member not in live.roster.members:
            raise unknown_member(group, member)
        if incarnation is not None and live.sessions[member].incarnation != incarnation:
            raise unknown_member(group, member)
        self._live.apply(live, live.roster.leave(self._live.now_ms(), member))

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
        live = self._live.find(group)
        count = 0 if live is None else len(live.roster.members)
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
        request: JoinRequest,
    ) -> Callable[[Queue], int]:
        """Where a member that joins begins with the queues that it gets.

        What has to be read from the store is read here, before anything is changed.
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
            (topic, number): self._starts.at(config.start, (topic, number))
            for topic, numbers in topics.items()
            for number in numbers
        }
        return lambda queue: found.get(queue, 0)

    def _queues_left(self, group: str, wanted: Mapping[str, str]) -> dict[str, Sequence[int]]:
        """The queues of the topics of a member that is there: none of one that was deleted.

        It goes on with the others, and with the topic once that is made again. Raises UnknownTopic
        if none is left.
        """
        own = [topic for topic in wanted if topic != RETRY_PREFIX + group]
        if own and not any(self._topics.find(topic) for topic in own):
            self._topics.get(own[0])
        return {
            topic: () if self._topics.find(topic) is None else self._queues_of(topic)
            for topic in wanted
        }

    def _queues_of(self, topic: str) -> Sequence[int]:
        """The queues of a topic that can be read. Raises UnknownTopic, NotPermitted."""
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
        """Raise Overloaded if there is no room for one more member."""
        has = 0 if live is None else len(live.roster.members)
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
