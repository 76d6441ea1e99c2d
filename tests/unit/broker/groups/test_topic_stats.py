"""Bounds of queues, updated by appends: always equal to what reading the files would give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.broker.groups.queue_stats import NO_MESSAGE, Bounds, Extent, QueueStats
from services.broker.groups.topic_stats import TopicStats
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.topics import RESERVE_TIME
from shared.runtime.clock import SystemClock
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from shared.state.records import TopicConfig
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

SIZE = 10
"""Of every record of the modelled log."""
HOST = Host(b"\x7f\0\0\1", 10911)
NAMES = ["a", "b", "kept"]


class Model:
    """A log of records of one size, its queues, and what reading their files would give."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, int]] = []
        self.offsets = QueueOffsets({})
        self.dispatched = self.start = 0
        self.topics: dict[str, TopicConfig] = {}
        self.floors: dict[tuple[str, int], int] = {}
        self.look_ups = 0

    def names(self) -> Iterable[str]:
        return [*self.topics, *self.topics]

    def find(self, name: str) -> TopicConfig | None:
        return self.topics.get(name)

    def queue_numbers(self, topic: TopicConfig) -> tuple[int, ...]:
        return tuple(range(topic.queues))

    def append(self, topic: str, queue: int) -> None:
        numbered = self.offsets.number([Run(topic, queue, b"", 1, HOST, HOST)])
        self.records.append((topic, queue, numbered.firsts[0]))
        self.offsets.commit(numbered, PhysicalOffset(len(self.records) * SIZE))

    def extent(self, topic: str, queue: int) -> Extent:
        self.look_ups += 1
        return self.truth(topic, queue)

    def truth(self, topic: str, queue: int) -> Extent:
        floor = self.floors.get((topic, queue), 0)
        seen = [
            (number, at * SIZE)
            for at, (its_topic, its_queue, number) in enumerate(self.records)
            if (its_topic, its_queue) == (topic, queue) and (at + 1) * SIZE <= self.dispatched
        ]
        end = max(seen[-1][0] + 1 if seen else 0, floor)
        kept = [(number, at) for number, at in seen if at >= self.start and number >= floor]
        next_offset = max(self.offsets.next_of((topic, queue)), end)
        if not kept:
            return Extent(Bounds(end, end, next_offset), NO_MESSAGE)
        return Extent(Bounds(kept[0][0], end, next_offset), kept[0][1])

    def extents(self, queues_max: int = 1000) -> TopicStats:
        return TopicStats(
            self,
            self.offsets,
            cast(QueueStats, self),
            log_start=lambda: PhysicalOffset(self.start),
            dispatched=lambda: PhysicalOffset(self.dispatched),
            queues_max=queues_max,
        )


def follow(extents: TopicStats) -> set[str]:
    return asyncio.run(extents.follow(TimeSlicer(SystemClock(), Pauses(), extents.begin)))


class Machine(RuleBasedStateMachine):
    """Appends, dispatch, expiry, changes of topics, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.extents = self.model.extents()
        self.model.topics["kept"] = TopicConfig("kept", 2, 2)
        self.reported: dict[str, list[Bounds]] = {}

    def now(self) -> dict[str, list[Bounds]]:
        """Every topic with the bounds of its queues."""
        return {
            name: [self.model.truth(name, queue).bounds for queue in range(topic.queues)]
            for name, topic in self.model.topics.items()
        }

    @rule(topic=st.sampled_from(NAMES), queue=st.integers(0, 1))
    def append(self, topic: str, queue: int) -> None:
        found = self.model.topics.get(topic)
        if found is not None and queue < found.queues:
            self.model.append(topic, queue)

    @rule(records=st.integers(1, 9))
    def dispatch(self, records: int) -> None:
        end = len(self.model.records) * SIZE
        self.model.dispatched = min(end, self.model.dispatched + records * SIZE)

    @rule(records=st.integers(1, 5))
    def expire(self, records: int) -> None:
        self.model.start = min(self.model.dispatched, self.model.start + records * SIZE)

    @rule(name=st.sampled_from(NAMES[:2]), queues=st.integers(1, 2))
    def make_topic(self, name: str, queues: int) -> None:
        self.model.topics[name] = TopicConfig(name, queues, queues)

    @rule(name=st.sampled_from(NAMES[:2]))
    def delete_topic(self, name: str) -> None:
        topic = self.model.topics.pop(name, None)
        if topic is not None:
            for queue in range(2):
                next_offset = int(self.model.offsets.next_of((name, queue)))
                self.model.floors[name, queue] = next_offset

    @precondition(lambda self: self.model.dispatched > 0)
    @rule()
    def dispatch_begins_anew(self) -> None:
        self.model.dispatched = self.model.start

    @rule()
    def follow(self) -> None:
        moved = follow(self.extents)
        now, reported = self.now(), self.reported
        assert moved >= {name for name in {*now, *reported} if now.get(name) != reported.get(name)}
        self.reported = now
        for sums in self.extents.sums():
            name = sums.config.name
            each = [self.model.truth(name, queue).bounds for queue in sums.numbers]
            assert sums.is_whole
            assert sums.max_offsets == sum(bounds.max_offset for bounds in each)
            assert sums.min_offsets == sum(bounds.min_offset for bounds in each)
        assert {sums.config.name for sums in self.extents.sums()} == self.model.topics.keys()

    @invariant()
    def bounds_are_those_of_the_files(self) -> None:
        self.extents.begin()
        for name in NAMES:
            numbers = self.extents.numbers(name)
            assert (numbers is None) == (name not in self.model.topics)
            for queue in numbers or ():
                assert self.extents.bounds(name, queue) == self.model.truth(name, queue).bounds


TestExtents = Machine.TestCase
TestExtents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def made(queues: int = 3) -> tuple[Model, TopicStats]:
    model = Model()
    model.topics["t"] = TopicConfig("t", queues, queues)
    for queue in range(queues):
        model.append("t", queue)
    model.dispatched = len(model.records) * SIZE
    extents = model.extents()
    assert follow(extents) == {"t"}
    return model, extents


def test_a_queue_is_looked_up_once_and_then_costs_nothing() -> None:
    model, extents = made()
    assert model.look_ups == 3
    for _ in range(5):
        model.append("t", 1)
        model.dispatched += SIZE
        assert follow(extents) == {"t"}
    assert follow(extents) == set()
    assert model.look_ups == 3
    assert extents.bounds("t", 1) == Bounds(0, 6, 6)


def test_a_queue_that_never_had_a_message_is_not_looked_up() -> None:
    model = Model()
    model.topics["t"] = TopicConfig("t", 4, 4)
    extents = model.extents()
    follow(extents)
    assert (model.look_ups, extents.bounds("t", 3)) == (0, Bounds(0, 0, 0))


def test_queues_of_a_topic_that_time_moves_are_looked_up_once_each_time() -> None:
    model, extents = made()
    model.topics["t"] = model.topics["t"]._replace(attributes={RESERVE_TIME: "60000"})
    follow(extents)
    for _ in range(3):
        before = model.look_ups
        follow(extents)
        assert model.look_ups == before + model.topics["t"].queues


def test_only_queues_whose_first_message_went_with_a_file_are_looked_up_again() -> None:
    model, extents = made()
    model.start = SIZE
    assert follow(extents) == {"t"}
    assert model.look_ups == 4
    assert extents.bounds("t", 0) == Bounds(1, 1, 1)


def test_queues_beyond_the_bound_are_returned_and_not_cached() -> None:
    model = Model()
    for name in ("a", "b"):
        model.topics[name] = TopicConfig(name, 2, 2)
        for queue in range(2):
            model.append(name, queue)
    model.dispatched = len(model.records) * SIZE
    extents = model.extents(queues_max=3)
    follow(extents)
    assert [sums.is_whole for sums in extents.sums()] == [True, False]
    assert extents.bounds("b", 1) == Bounds(0, 1, 1)
    look_ups = model.look_ups
    follow(extents)
    assert model.look_ups == look_ups, "an uncached queue is not looked up again and again"


def test_a_queue_that_a_topic_does_not_have_is_in_no_sum() -> None:
    model, extents = made()
    model.offsets.raise_to(("t", 7), QueueOffset(4))
    assert extents.bounds("t", 7) == Bounds(0, 0, 4)
    (sums,) = extents.sums()
    assert (sums.known, sums.max_offsets) == (3, 3)
