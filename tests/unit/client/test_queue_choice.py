"""Messages go round all queues; a key always has the same queue; failures leave groups out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.test_routes import routes
from tidemark.client.queue_choice import (
    OUTAGE_FIRST_S,
    OUTAGE_MAX_S,
    GroupQueue,
    Outages,
    alternating,
    in_turn,
    queue_of_key,
    writable_queues,
)
from tidemark.client.routes import Routes

QUEUES = st.dictionaries(st.sampled_from(["g0", "g1", "g2"]), st.integers(1, 6), min_size=1)


def of(counts: dict[str, int]) -> Routes:
    found = routes(*sorted(counts))
    groups = tuple(each._replace(queues=counts[each.broker_group]) for each in found.groups)
    return found._replace(groups=groups)


def test_queues_are_sorted_by_broker_group_and_those_of_a_drained_one_are_left_out() -> None:
    found = of({"g0": 2, "g1": 1, "g2": 3})
    drained = found.groups[2]._replace(writable=False)
    found = found._replace(groups=(*found.groups[:2], drained))
    assert writable_queues(found) == (("g0", 0), ("g0", 1), ("g1", 0))


# The test vectors of docs/client.md.
@pytest.mark.parametrize(
    ("key", "queue"),
    [
        ("", ("g0", 0)),
        ("order-1", ("g0", 0)),
        ("order-2", ("g2", 1)),
        ("customer-4711", ("g0", 0)),
        ("Müller", ("g1", 2)),
    ],
)
def test_a_key_has_the_queue_of_the_documented_vectors(key: str, queue: tuple[str, int]) -> None:
    assert queue_of_key(writable_queues(of({"g0": 4, "g1": 4, "g2": 2})), key) == queue


@given(QUEUES, st.text(max_size=20))
def test_a_key_has_one_of_the_queues_and_always_the_same(counts: dict[str, int], key: str) -> None:
    queues = writable_queues(of(counts))
    assert queue_of_key(queues, key) in queues
    assert queue_of_key(queues, key) == queue_of_key(list(queues), key)


@given(QUEUES)
def test_each_broker_group_has_as_many_turns_as_queues(counts: dict[str, int]) -> None:
    assert Counter(alternating(writable_queues(of(counts)))) == counts


def test_turns_of_broker_groups_are_spread() -> None:
    queues = [GroupQueue("g0", 0), GroupQueue("g0", 1), GroupQueue("g1", 0), GroupQueue("g1", 1)]
    assert alternating(queues) == ("g0", "g1", "g0", "g1")


@given(QUEUES, st.integers(0, 1000), st.sets(st.sampled_from(["g0", "g1", "g2"])))
def test_a_message_tries_every_broker_group_once_and_failed_ones_last(
    counts: dict[str, int], turn: int, failed: set[str]
) -> None:
    outages = Outages()
    for name in failed:
        outages.failed(name, 10.0)
    order = alternating(writable_queues(of(counts)))
    tried = in_turn(order, turn, outages, 10.1)
    assert sorted(tried) == sorted(counts)
    assert [name in failed for name in tried] == sorted(name in failed for name in tried)
    if order[turn % len(order)] not in failed:
        assert tried[0] == order[turn % len(order)]


def test_a_broker_group_is_left_out_longer_with_each_failure_in_a_row_up_to_a_maximum() -> None:
    outages, now_s = Outages(), 0.0
    lengths: list[float] = []
    for _ in range(7):
        outages.failed("g0", now_s)
        outages.failed("g0", now_s)  # another call that was on its way
        began = now_s
        while outages.is_out("g0", now_s):
            now_s += OUTAGE_FIRST_S / 4
        lengths.append(now_s - began)
    assert lengths == [0.5, 1.0, 2.0, 4.0, OUTAGE_MAX_S, OUTAGE_MAX_S, OUTAGE_MAX_S]
    outages.answered("g0")
    outages.failed("g0", now_s)
    assert not outages.is_out("g0", now_s + OUTAGE_FIRST_S)
    assert not outages.is_out("g1", now_s)
