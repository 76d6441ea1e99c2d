"""Calls that could not be held retry one after another, and not all at once."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from services.broker.read.long_polls import POLL_AFTER_MIN_S, POLLS_PER_S, Polls

START_S = 1000.0


def calls_within(seconds: float, callers: int, wait_s: float) -> int:
    """Return how often callers with nothing to read call within that time, if all begin at once."""
    polls, calls = Polls(), 0
    due = [START_S] * callers
    while due[0] < START_S + seconds:
        now = heapq.heappop(due)
        calls += 1
        heapq.heappush(due, now + polls.after_s(now, wait_s))
    return calls


def test_few_callers_beyond_the_bound_call_twice_a_second_at_most() -> None:
    assert calls_within(10.0, 3, 15.0) <= 3 * (10 / POLL_AFTER_MIN_S + 1)


def test_thousands_together_call_as_often_as_one_rate_allows() -> None:
    for callers in (100, 400, 700):
        assert calls_within(60.0, callers, 15.0) <= callers + 60 * POLLS_PER_S + 1


def test_more_than_that_call_no_sooner_than_they_wanted_to_be_held() -> None:
    assert calls_within(60.0, 20_000, 15.0) <= 20_000 * 60 / 15 + 60 * POLLS_PER_S + 20_000


def test_no_two_callers_of_one_moment_get_the_same_turn() -> None:
    polls = Polls()
    turns = [polls.after_s(START_S, 15.0) for _ in range(700)]
    late = [turn for turn in turns if turn > POLL_AFTER_MIN_S]
    assert len(set(late)) == len(late) > 600


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 60)), min_size=1, max_size=200))
def test_no_caller_waits_longer_than_it_wanted_to_be_held(calls: list[tuple[float, float]]) -> None:
    polls, now = Polls(), START_S
    for later_s, wait_s in calls:
        now += later_s
        assert 0 < polls.after_s(now, wait_s) <= wait_s
