"""Looks at all groups for their gauges: each pair of group and topic, queues summed up.

Others have their turn every few looks; bounds of a queue that many groups read are taken once, and
a group without members that has read everything costs next to nothing. The rules are ``lag``'s and
``pairs``'. Before: ``metrics`` refreshes. After: it writes down what was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from services.broker.groups.lag import Reason, nothing_known
from services.broker.groups.pairs import OTHER, Movement, Pair, QueueSample, fold, pair
from services.broker.groups.queue_looks import Bounds
from services.broker.groups.sources import (
    OBJECTIVE_MS,
    Queue,
    Sources,
    queues_read,
)
from shared.state.values import GroupConfig
from tidemark.formats.send_back import RETRY_PREFIX

LOOKS_AT_ONCE: Final = 64
"""Groups and queues looked at between two turns of the loop."""


class Found(NamedTuple):
    """What one look found."""

    pairs: Sequence[Pair]
    members: Mapping[str, int]
    objectives_s: Mapping[str, float]


def found_of(
    pairs: Sequence[Pair],
    members: Mapping[str, int],
    objectives_s: Mapping[str, float],
    series_max: int,
) -> Found:
    """Bound what is shown: pairs as ``fold`` does, groups with members first, then by name."""
    names = sorted(members, key=lambda name: (not members[name], name))
    kept = names[:series_max]
    rest = sum(members[name] for name in names[series_max:])
    return Found(
        fold(pairs, series_max),
        {**{name: members[name] for name in kept}, **({OTHER: rest} if rest else {})},
        {name: objectives_s[name] for name in kept},
    )


class Pass:
    """One look at all groups. Bounds of a queue that many groups read are taken once."""

    def __init__(
        self, sources: Sources, movements: Mapping[tuple[str, str, int], Movement]
    ) -> None:
        """movements: of the look before."""
        self._sources = sources
        self._before = movements
        self.movements: dict[tuple[str, str, int], Movement] = {}
        self._bounds: dict[Queue, Bounds | None] = {}
        """None: the topic is not there."""
        self._queue_counts: dict[str, int] = {}
        self._looks = 0

    async def pairs_of(self, config: GroupConfig) -> list[Pair]:
        """The pairs of one group: the topics that members read, and those it has offsets in."""
        await self._turn()
        if config.broadcast:
            return []
        sources = self._sources
        if not sources.members.member_count(config.name) and self._has_read_all(config.name):
            return [*map(partial(_idle, config.name), self._topics_of(config.name))]
        members = sources.members.members(config.name)
        subscribed = {each.topic for member in members for each in member.subscriptions}
        retry = RETRY_PREFIX + config.name
        queues = queues_read(config, subscribed, sources.committed, sources.looks)
        pairs: list[Pair] = []
        in_flight = sources.members.in_flight(config.name)
        for topic, numbers in queues.items():
            samples: list[QueueSample] = []
            for queue in numbers:
                await self._turn()
                sample = self._sample(config, topic, queue, has_members=bool(members))
                held = in_flight.get((topic, queue))
                samples.append(sample._replace(lag=sample.lag._replace(in_flight=held)))
            is_retry = topic == retry
            pairs.append(
                pair(
                    config.name,
                    topic,
                    "retry" if is_retry else "main",
                    samples,
                    objective_s=(config.lag_objective_ms or OBJECTIVE_MS) / 1000,
                    subscribed=topic in subscribed or (is_retry and bool(members)),
                )
            )
        return pairs

    def _has_read_all(self, group: str) -> bool:
        """Whether all that the group ever committed is the end of its queue, of all queues.

        That is so of nearly all groups without members, and by far the cheapest to find out.
        """
        offsets = self._sources.committed.of_group(group)
        for (topic, queue), committed in offsets.items():
            bounds = self._bounds_of(topic, queue, committed)
            if bounds is None or committed != bounds.max_offset:
                return False
        return sum(map(self._queue_count, self._topics_of(group))) == len(offsets)

    def _topics_of(self, group: str) -> set[str]:
        return {topic for topic, _ in self._sources.committed.of_group(group)}

    def _queue_count(self, topic: str) -> int:
        count = self._queue_counts.get(topic)
        if count is None:
            count = self._queue_counts[topic] = len(self._sources.looks.queues_of(topic))
        return count

    async def _turn(self) -> None:
        """Let others have theirs, every now and then."""
        self._looks += 1
        if self._looks % LOOKS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _sample(
        self, config: GroupConfig, topic: str, queue: int, *, has_members: bool
    ) -> QueueSample:
        sources = self._sources
        committed = sources.committed.get(config.name, topic, queue)
        bounds = self._bounds_of(topic, queue, committed)
        if bounds is None:
            return QueueSample(nothing_known(Reason.UNKNOWN_TOPIC))
        lag = sources.looks.lag(topic, queue, committed, bounds, sources.clock.wall_ms())
        if not lag.messages or committed is None:
            return QueueSample(lag)
        now_s, key = sources.clock.monotonic(), (config.name, topic, queue)
        before = self._before.get(key)
        movement = Movement(committed, now_s) if before is None else before.seen(committed, now_s)
        self.movements[key] = movement
        stuck = has_members and movement.is_stuck(now_s)
        return QueueSample(lag, now_s - movement.moved_at_s, stuck)

    def _bounds_of(self, topic: str, queue: int, committed: int | None) -> Bounds | None:
        """A queue's bounds; of an earlier group's look if they are not older than the commit."""
        key, looks = (topic, queue), self._sources.looks
        known = self._bounds.get(key)
        if known is None and key in self._bounds:
            return None
        if known is None or (committed is not None and committed > known.max_offset):
            found = looks.bounds(topic, queue) if looks.is_known(topic) else None
            known = self._bounds[key] = found
        return known


def _idle(group: str, topic: str) -> Pair:
    """A pair whose queues are all read, of a group without members."""
    kind = "retry" if topic == RETRY_PREFIX + group else "main"
    return Pair(group, topic, kind, 0, 0.0, 0, 0, 0.0, 0, 0, 0, 0, subscribed=False)
