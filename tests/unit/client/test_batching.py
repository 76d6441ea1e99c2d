from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.batching import Decision, Limits, Verdict, cut, decide, take

LIMITS = Limits(count_max=4, size_max=100, linger_ms=10, in_flight_max=1)
SIZES = st.lists(st.integers(0, 150), max_size=40)


def test_an_empty_batch_is_never_sent() -> None:
    for in_flight in (0, 1):
        decision = decide(count=0, size=0, age_ms=99, in_flight=in_flight, limits=LIMITS)
        assert decision.verdict is Verdict.EMPTY


def test_a_batch_leaves_when_it_is_full_by_count_or_size_or_old_enough() -> None:
    for count, size, age_ms in ((4, 0, 0), (1, 100, 0), (1, 1, 10)):
        decision = decide(count=count, size=size, age_ms=age_ms, in_flight=0, limits=LIMITS)
        assert decision.verdict is Verdict.SEND


def test_a_batch_that_may_still_grow_waits_for_the_rest_of_its_linger() -> None:
    decision = decide(count=1, size=1, age_ms=4, in_flight=0, limits=LIMITS)
    assert decision == Decision(Verdict.WAIT_FOR_TIME, 6)


def test_nothing_leaves_while_as_many_requests_as_allowed_are_in_flight() -> None:
    decision = decide(count=9, size=999, age_ms=99, in_flight=1, limits=LIMITS)
    assert decision.verdict is Verdict.WAIT_FOR_ANSWER


def test_without_linger_a_lone_message_leaves_at_once() -> None:
    decision = decide(count=1, size=1, age_ms=0, in_flight=0, limits=LIMITS._replace(linger_ms=0))
    assert decision.verdict is Verdict.SEND


@given(SIZES)
def test_cutting_keeps_every_message_once_in_order_within_the_bounds(sizes: list[int]) -> None:
    parts = list(cut(sizes, LIMITS))
    assert [index for part in parts for index in part] == list(range(len(sizes)))
    for part in parts:
        assert 1 <= len(part) <= LIMITS.count_max
        assert len(part) == 1 or sum(sizes[index] for index in part) <= LIMITS.size_max


@given(SIZES)
def test_no_two_neighbouring_requests_could_have_been_one(sizes: list[int]) -> None:
    parts = list(cut(sizes, LIMITS))
    for part, following in itertools.pairwise(parts):
        joined = sum(sizes[index] for index in part) + sizes[following.start]
        assert len(part) == LIMITS.count_max or joined > LIMITS.size_max


def test_one_message_is_always_taken_however_large() -> None:
    assert take([10**9], LIMITS) == 1
