"""The inputs of lag: members of groups, committed offsets, queues that groups read.

Interfaces of ``coordinator``, ``offsets`` and ``configs``, and names that views and gauges share.
Step after: ``views`` and ``lag_collector``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from services.broker.groups.queue_stats import QueueStats
from services.broker.groups.topic_stats import TopicStats
from shared.state.values import GroupConfig
from tidemark.clock import Clock
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.offsets import Queue

OBJECTIVE_MS: Final = 60_000
"""The lag objective of a group whose configuration has none."""


class Subscribed(Protocol):
    """One topic that a member subscribes to."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def tags(self) -> str:
        """Tag expression, ``*`` for all."""
        ...


class Member(Protocol):
    """A member as a view shows it."""

    @property
    def member(self) -> str:
        """Name of the member."""
        ...

    @property
    def subscriptions(self) -> Sequence[Subscribed]:
        """Subscriptions of the member."""
        ...

    @property
    def assignment(self) -> Sequence[Queue]:
        """Queues that the member owns."""
        ...

    @property
    def session_ms(self) -> int:
        """Time without a heartbeat after which the member is removed."""
        ...

    @property
    def last_seen_ms(self) -> int:
        """Time since the member's last heartbeat."""
        ...


class Members(Protocol):
    """The members of groups (implemented by ``coordinator.Coordinator``)."""

    def members(self, group: str) -> Sequence[Member]:
        """Return the members of a group; none if the group is unknown."""
        ...

    def member_count(self, group: str) -> int:
        """Return the number of members of a group."""
        ...

    def state(self, group: str) -> str:
        """Return ``empty``, ``stable``, or ``rebalancing`` while queues are in transit."""
        ...

    def owner(self, group: str, topic: str, queue: int) -> str | None:
        """Owner of the queue; None if it is unassigned."""
        ...

    def generation(self, group: str) -> int | None:
        """Return the generation of the assignment; None if the group has no members."""
        ...

    def in_flight(self, group: str) -> Mapping[Queue, int]:
        """Return the number of messages handed out and not committed, by queue with an owner."""
        ...


class Committed(Protocol):
    """Committed offsets (implemented by ``offsets.Offsets``)."""

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Return the next queue offset to consume; None if the group committed none."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """Return all offsets of a group."""
        ...


class Configs(Protocol):
    """Configurations of groups (implemented by ``configs.GroupConfigs``)."""

    def get(self, name: str) -> GroupConfig:
        """Return a group's configuration. Raises UnknownGroup."""
        ...


Expiring = Callable[[str], Mapping[Queue, int]]
"""Group → unread messages of each queue that the next deletion of a log file would remove."""


class ConfigInputs(Protocol):
    """Configurations of groups (implemented by ``configs.GroupConfigs``)."""

    def all(self) -> Collection[GroupConfig]:
        """Return a copy of all groups; cheap."""
        ...


class OffsetInputs(Protocol):
    """Committed offsets (implemented by ``offsets.Offsets``)."""

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Return the next queue offset to consume; None if the group committed none."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """Return all offsets of a group."""
        ...

    def take_moved(self) -> Collection[str]:
        """Return the groups whose offsets have changed since the last call."""
        ...


class MemberInputs(Protocol):
    """The members of groups (implemented by ``coordinator.Coordinator``)."""

    def member_count(self, group: str) -> int:
        """Return the number of members of a group."""
        ...

    def topics_read(self, group: str) -> Collection[str]:
        """Return the topics that members subscribe to."""
        ...

    def holder_numbers(self, group: str) -> Callable[[Queue], int | None] | None:
        """Return a function from a queue to the number of the member that holds it: 0 if no member
        does, None if it is unknown. None for a group without members."""
        ...

    def place_of(self, group: str, queue: Queue) -> tuple[int, int] | None:
        """Return two queue offsets: after the last message handed out, and of the next one to hand
        out. None while the queue has no owner."""
        ...

    def busy_holders(self, group: str, now_s: float) -> Callable[[Queue], bool]:
        """Return a function that says whether a queue's next messages wait for processing at now_s
        on the monotonic clock, even for a group without members."""
        ...


class LagInputs(NamedTuple):
    """What a sample of all groups reads."""

    configs: ConfigInputs
    committed: OffsetInputs
    members: MemberInputs
    queue_stats: QueueStats
    topic_stats: TopicStats
    clock: Clock


def queues_read(
    config: GroupConfig, subscribed: Iterable[str], committed: Committed, queue_stats: QueueStats
) -> dict[str, list[int]]:
    """Return topic → queues that the group reads or has an offset in.

    A queue with an offset is included even if its topic was deleted.
    """
    offsets = committed.of_group(config.name)
    topics = {*subscribed, *(topic for topic, _ in offsets)}
    retry = RETRY_PREFIX + config.name
    if not config.broadcast and queue_stats.is_known(retry):
        topics.add(retry)
    found = {topic: set(queue_stats.queues_of(topic)) for topic in topics}
    for topic, queue in offsets:
        found[topic].add(queue)
    return {topic: sorted(queues) for topic, queues in found.items()}
