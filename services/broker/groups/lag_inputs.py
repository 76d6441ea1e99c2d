"""What lag is made of: who is in a group, what it committed, which queues it reads.

Seams to the parts that know: ``coordinator``, ``offsets``, ``configs``. The names of what a view
and the gauges have in common. After: ``views`` and ``lag_collector`` ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from services.broker.groups.queue_stats import QueueLooks
from services.broker.groups.topic_stats import QueueExtents
from shared.state.values import GroupConfig
from tidemark.clock import Clock
from tidemark.formats.nack import RETRY_PREFIX

OBJECTIVE_MS: Final = 60_000
"""The lag objective of a group whose configuration has none."""

Queue = tuple[str, int]


class Subscribed(Protocol):
    """One topic that a member takes."""

    @property
    def topic(self) -> str:
        """Its name."""
        ...

    @property
    def tags(self) -> str:
        """The expression, ``*`` for all."""
        ...


class Member(Protocol):
    """What a view shows of a member."""

    @property
    def member(self) -> str:
        """Its name."""
        ...

    @property
    def subscriptions(self) -> Sequence[Subscribed]:
        """What it takes."""
        ...

    @property
    def assignment(self) -> Sequence[Queue]:
        """The queues that are its own."""
        ...

    @property
    def session_ms(self) -> int:
        """It is gone after so long without a heartbeat."""
        ...

    @property
    def last_seen_ms(self) -> int:
        """Since its last heartbeat."""
        ...


class Members(Protocol):
    """Who is in a group (``coordinator.Coordinator``)."""

    def members(self, group: str) -> Sequence[Member]:
        """Everybody who is there; nobody in a group that is not known."""
        ...

    def member_count(self, group: str) -> int:
        """How many are there."""
        ...

    def state(self, group: str) -> str:
        """``empty``, ``stable``, or ``rebalancing`` while queues wait for those who hold them."""
        ...

    def owner(self, group: str, topic: str, queue: int) -> str | None:
        """The member that reads the queue; None while it is nobody's."""
        ...

    def generation(self, group: str) -> int | None:
        """Of the assignment; None in a group without members."""
        ...

    def in_flight(self, group: str) -> Mapping[Queue, int]:
        """Messages handed out and not committed, of queues that members read."""
        ...


class Committed(Protocol):
    """Committed offsets (``offsets.Offsets``)."""

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """The next queue offset to consume; None if the group never committed there."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """All of a group's."""
        ...


class Configs(Protocol):
    """Configurations (``configs.GroupConfigs``)."""

    def get(self, name: str) -> GroupConfig:
        """Raises UnknownGroup."""
        ...


Expiring = Callable[[str], Mapping[Queue, int]]
"""Group → unread messages of each queue that the next deletion of a log file would take."""


class WatchedConfigs(Protocol):
    """Configurations (``configs.GroupConfigs``)."""

    def all(self) -> Collection[GroupConfig]:
        """Every group there is; cheap, and a copy."""
        ...


class WatchedOffsets(Protocol):
    """Committed offsets (``offsets.Offsets``)."""

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """The next queue offset to consume; None if the group never committed there."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """All of a group's."""
        ...

    def take_moved(self) -> Collection[str]:
        """Groups whose offsets have changed since the last call."""
        ...


class WatchedMembers(Protocol):
    """Who is in a group (``coordinator.Coordinator``)."""

    def member_count(self, group: str) -> int:
        """How many are there."""
        ...

    def topics_read(self, group: str) -> Collection[str]:
        """Topics that a member subscribes to."""
        ...

    def holder_numbers(self, group: str) -> Callable[[Queue], int | None] | None:
        """What says of a queue the number of the member that holds it, 0 if nobody does, None if
        that is not known; None for a group without members."""
        ...

    def place_of(self, group: str, queue: Queue) -> tuple[int, int] | None:
        """Queue offsets behind the last message handed out, and of the next one to be; None while
        the queue is nobody's."""
        ...

    def busy_holders(self, group: str, now_s: float) -> Callable[[Queue], bool]:
        """Whether a queue's next messages wait for processing, as of now_s on the monotonic clock;
        also for a group without members."""
        ...


class Watched(NamedTuple):
    """What a look at all groups looks at."""

    configs: WatchedConfigs
    committed: WatchedOffsets
    members: WatchedMembers
    looks: QueueLooks
    extents: QueueExtents
    clock: Clock


def queues_read(
    config: GroupConfig, subscribed: Iterable[str], committed: Committed, looks: QueueLooks
) -> dict[str, list[int]]:
    """Topic → queues that the group reads, or has read a queue beside of.

    A queue that it has committed is there even if its topic is gone: so is its offset.
    """
    offsets = committed.of_group(config.name)
    topics = {*subscribed, *(topic for topic, _ in offsets)}
    retry = RETRY_PREFIX + config.name
    if not config.broadcast and looks.is_known(retry):
        topics.add(retry)
    found = {topic: set(looks.queues_of(topic)) for topic in topics}
    for topic, queue in offsets:
        found[topic].add(queue)
    return {topic: sorted(queues) for topic, queues in found.items()}
