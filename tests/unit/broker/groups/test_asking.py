"""The share of the last seconds in which a member had a fetch open: a table, and random events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.sessions import ASKING_WINDOW_S, Asking


def asked(*fetches: tuple[float, float]) -> Asking:
    """State after fetches that began and ended at these times."""
    found = Asking()
    for begin_s, end_s in fetches:
        found.begins(begin_s)
        found.ends(end_s)
    return found


@pytest.mark.parametrize(
    ("fetches", "now_s", "is_frequent"),
    [
        ([], 100.0, False),
        ([(0.0, 15.0), (15.0, 30.0)], 30.5, True),  # waits for messages, and is given one at times
        ([(0.0, 0.001)], 30.0, False),  # took a batch, and has been silent since
        ([(second, second + 0.01) for second in range(30)], 30.0, False),  # slow, small batches
        ([(second, second + 0.9) for second in range(30)], 30.0, True),
        ([(0.0, 60.0)], 63.0, True),
        ([(0.0, 60.0)], 60.0 + 2 * ASKING_WINDOW_S, False),
    ],
)
def test_a_member_asks_if_a_fetch_was_open_for_half_of_the_last_seconds(
    fetches: list[tuple[float, float]], now_s: float, is_frequent: bool
) -> None:
    assert asked(*fetches).is_frequent(now_s) is is_frequent


def test_a_fetch_that_is_held_counts_while_it_is_open() -> None:
    found = Asking()
    found.begins(0.0)
    assert found.is_frequent(14.0)
    found.begins(14.0)  # a later one ends an earlier one, a moment later
    found.ends(14.1)
    assert found.is_frequent(29.0)


@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8)), min_size=1, max_size=40),
    st.sets(st.integers(0, 40), max_size=5),
)
def test_constant_behaviour_is_recognised_whatever_came_before_and_however_often_it_is_looked_at(
    spans: list[tuple[float, float]], checks: set[int]
) -> None:
    silent, now_s = Asking(), 0.0
    for number, (pause_s, open_s) in enumerate(spans):
        silent.begins(now_s + pause_s)
        if number in checks:
            silent.is_frequent(now_s + pause_s + open_s / 2)
        now_s += pause_s + open_s
        silent.ends(now_s)
    steps = [now_s + step for step in range(1, 1 + 2 * round(ASKING_WINDOW_S) + 1)]
    for number, at_s in enumerate(steps):
        if number in checks:
            silent.is_frequent(at_s)
    assert not silent.is_frequent(steps[-1])
    silent.begins(steps[-1])
    assert silent.is_frequent(steps[-1] + 2 * ASKING_WINDOW_S)
