"""Offsets of a topic's queues: batches touch, share fairly and never go back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.errors import BadOption
from analytics.sources.topic.offsets import QueuePart, advance, begin, cut, end_of, to_wire
from analytics.sources.topic.options import TopicOptions, offsets_of

offset_maps = st.dictionaries(st.integers(0, 6), st.integers(0, 1000), max_size=6)
RANGES = {0: (3, 10), 1: (0, 0), 2: (7, 9)}


def options(**named: object) -> TopicOptions:
    return TopicOptions(urls=("http://a",), topic="orders", **named)  # type: ignore[arg-type]


@given(start=offset_maps, ends=offset_maps, most=st.none() | st.integers(1, 2000))
def test_a_batch_goes_as_far_as_it_may_and_no_queue_goes_back(
    start: dict[int, int], ends: dict[int, int], most: int | None
) -> None:
    reached = advance(start, ends, most)
    waiting = {queue: max(0, ends.get(queue, 0) - start.get(queue, 0)) for queue in {*start, *ends}}
    steps = {queue: reached[queue] - start.get(queue, 0) for queue in reached}
    assert reached.keys() == {*start, *ends}
    assert all(0 <= steps[queue] <= waiting[queue] for queue in steps)
    wanted = sum(waiting.values())
    assert sum(steps.values()) == (wanted if most is None else min(most, wanted))
    if most is not None and steps:
        held = [step for queue, step in steps.items() if step < waiting[queue]]
        assert not held or max(steps.values()) <= max(held) + 1, "equal shares but for one message"


@given(start=offset_maps, ends=offset_maps, most=st.integers(1, 50), split=st.integers(1, 70))
def test_batches_one_after_another_cover_every_offset_once(
    start: dict[int, int], ends: dict[int, int], most: int, split: int
) -> None:
    seen: list[tuple[int, int]] = []
    at = start
    while (reached := advance(at, ends, most)) != advance(at, {}, None):
        for part in cut(at, reached, split):
            assert 0 < part.high - part.low <= split
            seen += [(part.queue, offset) for offset in range(part.low, part.high)]
        at = reached
    expected = [
        (queue, offset)
        for queue in sorted({*start, *ends})
        for offset in range(start.get(queue, 0), ends.get(queue, 0))
    ]
    assert sorted(seen) == expected


def test_where_a_read_begins_and_ends() -> None:
    assert begin(options(), RANGES) == {0: 3, 1: 0, 2: 7}
    assert begin(options(first="last"), RANGES) == {0: 10, 1: 0, 2: 9}
    assert begin(options(first={2: 1}), RANGES) == {0: 3, 1: 0, 2: 1}
    assert end_of(options(), RANGES) == {0: 10, 1: 0, 2: 9}
    assert end_of(options(end={0: 4}), RANGES) == {0: 4, 1: 0, 2: 9}
    assert list(cut({0: 3}, {0: 10, 4: 2}, 5)) == [
        QueuePart(0, 3, 8),
        QueuePart(0, 8, 10),
        QueuePart(4, 0, 2),
    ]


def test_offsets_survive_sparks_texts() -> None:
    assert offsets_of(to_wire({2: 5, 0: 1})) == {0: 1, 2: 5}
    assert to_wire({10: 1, 2: 5}) == {"2": 5, "10": 1}


def test_options_come_as_texts() -> None:
    made = TopicOptions.of(
        {
            "URL": "http://a:1, http://b:2",
            "topic": "orders",
            "from": '{"0": 17}',
            "to": "last",
            "queues": "0,3",
            "columns": "body,gap",
            "retry_seconds": "2.5",
        }
    )
    assert made.urls == ("http://a:1", "http://b:2")
    assert (made.first, made.end, made.queues) == ({0: 17}, "last", frozenset({0, 3}))
    assert made.schema.names == ["body", "gap"]
    assert made.retry_seconds == 2.5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"topic": ""}, "needs the options"),
        ({"url": " "}, "needs the options"),
        ({"from": "newest"}, "not queue offsets"),
        ({"from": '{"0": -1}'}, "not queue offsets"),
        ({"from": '{"0": true}'}, "not queue offsets"),
        ({"to": "first"}, "nothing lies before it"),
        ({"columns": "payload"}, "payload"),
        ({"max_messages": "0"}, "at least 1"),
        ({"split_messages": "many"}, "no whole number"),
        ({"retry_seconds": "soon"}, "no number"),
        ({"queue": "0"}, "no option queue"),
    ],
)
def test_options_that_cannot_be_used_are_refused(more: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        TopicOptions.of({"url": "http://a:1", "topic": "orders", **more})
