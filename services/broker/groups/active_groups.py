"""Groups that have members: their assignments, and the handling of expired members.

Only groups with members take memory and time. The deadlines of all groups are in one heap, with one
entry per group; heartbeats do not touch it. A change of members or queues is one step of the loop,
from the membership to the places of all sessions, so it is never half visible.

A generation consists of the node's start count and a number that only grows, so a
generation from before a restart is never valid again. Step before: ``joining``, time, topics.
After: ``sessions`` get other places, and held fetches are woken.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from services.broker.groups.broadcasting import Broadcasting
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.group_membership import Change, GroupMembership
from services.broker.groups.initial_offsets import InitialOffsets
from services.broker.groups.membership import Membership
from services.broker.groups.offsets import Offsets
from services.broker.groups.restored_claims import RestoredClaims
from services.broker.groups.sessions import Session
from services.broker.read.long_polls import Wake
from services.broker.schema.members import SESSION_MS_MAX
from services.broker.state.topics import Topics
from shared.state.records import GroupConfig
from tidemark.clock import Clock
from tidemark.errors import Overloaded
from tidemark.formats.select import Wanted
from tidemark.offsets import Queue

log = logging.getLogger(__name__)

NAMES_LOGGED_MAX: Final = 10


class Live:
    """A group that has members."""

    __slots__ = ("filters", "membership", "name", "sessions", "subscriptions")

    def __init__(self, name: str, membership: GroupMembership) -> None:
        self.name = name
        self.membership = membership
        self.sessions: dict[str, Session] = {}
        self.subscriptions: dict[str, Mapping[str, str]] = {}
        """Member → topic → tags."""
        self.filters: dict[str, Mapping[str, Wanted | None]] = {}
        """The same subscriptions as compiled tag filters."""


class ActiveGroups:
    """All groups of one node that have members."""

    def __init__(
        self,
        configs: GroupConfigs,
        offsets: Offsets,
        topics: Topics,
        initial_offsets: InitialOffsets,
        clock: Clock,
        *,
        start_count: Callable[[], int],
        queues_max: int,
        broker_group: str,
    ) -> None:
        """start_count: how often this node started as a writer, from its record in the log; in a
        group of nodes, the epoch. queues_max: bound of the queues that the members of one group
        read. broker_group: name of the node's group of nodes; other broker groups of a cluster have
        other names.
        """
        self._broker_group = broker_group
        self._configs = configs
        self._offsets = offsets
        self._topics = topics
        self._initial_offsets = initial_offsets
        self._clock = clock
        self._start_count = start_count
        self._queues_max = queues_max
        self._live: dict[str, Live] = {}
        self._numbers = 0
        self._due: list[tuple[int, str]] = []
        """Heap of the times at which to check a group's deadlines; heartbeats only postpone
        them."""
        self._planned: dict[str, int] = {}
        """Group → its earliest time in the heap."""
        self._changed_topics: set[str] = set()
        """Topics that changed since the last check."""
        self._said_full: set[str] = set()
        """Groups whose limit of queues was logged; ``""`` stands for the limit of the node."""
        self._waiting: set[str] = set()
        """Groups whose members read only a part of their topics' queues because of a limit."""
        self.member_count = 0
        """Members of all groups."""
        self._since_ms = self.now_ms()
        self._groups_before = set(offsets.groups())
        """Groups with offsets at the start of the broker, while their former members may be
        alive."""
        self._inherited: dict[str, RestoredClaims] = {}
        """Group → queues that its former members may hold; set when the first member joins."""

    def now_ms(self) -> int:
        """Return the time of sessions, which never steps back."""
        return int(self._clock.monotonic() * 1000)

    def find(self, group: str) -> Live | None:
        """Return the group after removing members whose sessions have expired; None without
        members."""
        live = self._live.get(group)
        if live is not None:
            now_ms = self.now_ms()
            if self._planned[group] <= now_ms:
                self._expire(live, now_ms)
                live = self._live.get(group)
        return live

    def opens(self) -> None:
        """Note that joins are accepted from now on: the wait for former members begins."""
        self._since_ms = self.now_ms()

    def restore_claims(self, config: GroupConfig) -> None:
        """Note what former members may hold, before a member joins.

        Call it before anything is committed for that member: a queue that has an offset by then
        counts as not new.
        """
        group = config.name
        if group in self._groups_before and group not in self._inherited and not config.broadcast:
            self._inherited[group] = RestoredClaims(
                self._offsets.of_group(group), self._since_ms, ordered=config.order
            )

    def moved(self, config: GroupConfig, queues: Iterable[Queue]) -> None:
        """Note that an operator has moved offsets of the group, which has no members."""
        self.restore_claims(config)
        if (inherited := self._inherited.get(config.name)) is not None:
            inherited.moved(queues)

    def forget(self, group: str) -> None:
        """Forget a deleted group: a later one of the same name is another group."""
        self._groups_before.discard(group)
        self._inherited.pop(group, None)

    def begin(self, config: GroupConfig) -> Live:
        """Create the group for its first member; ``apply`` and ``plan`` follow in the same step."""
        membership: GroupMembership
        if config.broadcast:
            membership = Broadcasting(self._next_generation)
        else:
            membership = Membership(
                self._next_generation,
                self._inherited.get(config.name),
                rotation=f"{self._broker_group}/{config.name}",
            )
        live = self._live[config.name] = Live(config.name, membership)
        return live

    def apply(
        self, live: Live, change: Change, begins: Callable[[Queue], int] | None = None
    ) -> None:
        """Give and take places according to a change of members, and wake held fetches.

        begins: where the next owner of a queue begins; None: at the committed offset, or at the
        first message if nothing is committed, because a queue that is new in a known topic is read
        from its first message (``initial_offsets``).
        """
        if begins is None:
            begins = self.committed_or_first(live.name)
        for queue, name in change.revoked:
            if (session := live.sessions.get(name)) is not None:
                session.revoke(queue)
        for name in live.sessions.keys() - live.membership.members.keys():
            live.sessions.pop(name).close()
            del live.subscriptions[name], live.filters[name]
            self.member_count -= 1
        for queue, name in change.granted:
            tags = live.filters[name].get(queue[0])
            live.sessions[name].grant(queue, begins(queue), tags)
        if change.granted or change.revoked:
            for session in live.sessions.values():
                session.wake(Wake.CHANGED)
        if not live.membership.members:
            del self._live[live.name]
            self._said_full.discard(live.name)
            self._waiting.discard(live.name)

    def begin_with(self, config: GroupConfig, topics: Mapping[str, Sequence[int]]) -> bool:
        """Commit the starting offsets of queues that are new to the group.

        Returns whether any was committed; it must be durable before members learn of it. Raises
        Overloaded with nothing committed. Queues that the group reads already are never refused.
        """
        live = self._live.get(config.name)
        had = {} if live is None else live.membership.queues
        new = {
            topic: numbers for topic, numbers in topics.items() if had.get(topic) != tuple(numbers)
        }
        if not new:
            return False
        count = sum(map(len, {**had, **new}.values()))
        if count > self._queues_max:
            raise Overloaded(
                f"the members of group {config.name!r} would read {count} queues, "
                f"{self._queues_max} is the limit.",
                "Use several groups.",
                group=config.name,
                limit=self._queues_max,
            )
        begun = not config.broadcast and self._initial_offsets.commit(config, new)
        self._said_full.discard(config.name)
        if begun:
            self._said_full.discard("")
        return begun

    def begin_or_wait(
        self, config: GroupConfig, live: Live, topics: Mapping[str, Sequence[int]]
    ) -> tuple[Mapping[str, Sequence[int]], bool]:
        """As ``begin_with``, for present members; return the queues that they read from now on.

        If a limit excludes some new queues of their topics, the members keep the queues that they
        read already. The new queues wait until a heartbeat, or a change of topics, finds room.
        Otherwise: 1. the node holds as many offsets as it can; 2. a topic grows; 3. every heartbeat
        is refused because of the new queues; 4. all members expire, and the old queues stall too.
        Raises Overloaded for a topic that no member has subscribed to yet.
        """
        try:
            begun = self.begin_with(config, topics)
            self._waiting.discard(live.name)
            return topics, begun
        except Overloaded as error:
            self._waiting.add(live.name)
            had = live.membership.queues
            begun = self.begin_with(
                config, {topic: numbers for topic, numbers in topics.items() if topic not in had}
            )
            self._say_full(live.name, error)
        kept: dict[str, Sequence[int]] = {
            topic: tuple(sorted(set(numbers).intersection(had.get(topic, numbers))))
            for topic, numbers in topics.items()
        }
        return kept, begun

    def _say_full(self, group: str, error: Overloaded) -> None:
        """Log a limit once until there is room again; for the node's limit, not once per group."""
        limit_of = group if "group" in error.facts else ""
        if limit_of not in self._said_full:
            self._said_full.add(limit_of)
            log.warning(
                "groups cannot begin with new queues",
                extra={"event": "queues-not-begun", "group": group, "code": error.code},
            )

    def committed_or_first(self, group: str) -> Callable[[Queue], int]:
        """Return a function from a queue to where its next owner begins: the committed offset, or
        the first message."""
        return lambda queue: self._offsets.get(group, *queue) or 0

    def plan(self, group: str, at_ms: int) -> None:
        """Check the group's deadlines at that time or before."""
        planned = self._planned.get(group)
        if planned is None or at_ms < planned:
            self._planned[group] = at_ms
            heapq.heappush(self._due, (at_ms, group))

    def topic_changed(self, topic: str) -> None:
        """Note that the topic was created, deleted or resized: the next check applies it to the
        groups that read it, and to those that wait for room."""
        self._changed_topics.add(topic)

    def check(self) -> None:
        """Handle expired deadlines and changed topics; it costs nothing while there are none."""
        now_ms = self.now_ms()
        if self._groups_before and now_ms >= self._since_ms + SESSION_MS_MAX:
            # No session is longer than this: no former member can be alive.
            self._groups_before.clear()
            self._inherited.clear()
        while self._due and self._due[0][0] <= now_ms:
            at_ms, group = heapq.heappop(self._due)
            if self._planned.get(group) == at_ms:
                del self._planned[group]
                if (live := self._live.get(group)) is not None:
                    self._expire(live, now_ms)
        if self._changed_topics:
            changed, self._changed_topics = self._changed_topics, set()
            for live in list(self._live.values()):
                # Only these groups, not all. Otherwise: 1. each of thousands of groups creates a
                # retry topic when its first member joins; 2. meanwhile every check compares the
                # queues of all groups, and blocks the loop for that long.
                if live.name in self._waiting or not changed.isdisjoint(live.membership.queues):
                    self._apply_topics(live, now_ms)

    def _expire(self, live: Live, now_ms: int) -> None:
        before = set(live.membership.members)
        change = live.membership.expire(now_ms)
        dead = before - live.membership.members.keys()
        if dead:
            log.info(
                "members of a group were silent for their whole session; others take their queues",
                extra={
                    "event": "members-expired",
                    "group": live.name,
                    "members": sorted(dead)[:NAMES_LOGGED_MAX],
                    "count": len(dead),
                },
            )
        self.apply(live, change)
        if (deadline_ms := live.membership.next_deadline_ms) is not None:
            self._planned.pop(live.name, None)
            self.plan(live.name, deadline_ms)

    def _apply_topics(self, live: Live, now_ms: int) -> None:
        config = self._configs.find(live.name)
        topics: dict[str, Sequence[int]] = {}
        for topic in live.membership.queues:
            found = self._topics.find(topic)
            readable = found is not None and found.is_readable
            topics[topic] = self._topics.queue_numbers(found) if found and readable else ()
        wanted: Mapping[str, Sequence[int]] = topics
        if config is not None:
            wanted, _ = self.begin_or_wait(config, live, topics)
        self.apply(live, live.membership.set_queues(now_ms, wanted))

    def _next_generation(self) -> int:
        self._numbers += 1
        return self._start_count() << 32 | self._numbers
