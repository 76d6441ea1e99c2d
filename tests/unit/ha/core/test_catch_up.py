"""The window of a slave that is far behind: small while others send lightly."""

from __future__ import annotations

from services.ha.core.catch_up import (
    GENTLE_SIZE,
    LIGHT_MAX,
    PERIOD_MS,
    STUCK_MS,
    WINDOW_SIZE,
    CatchUp,
)

FAR = 1 << 30
NEAR = WINDOW_SIZE


def after_a_period(grown: int) -> int:
    """The window of a slave with progress, after a period in which the log grew by that much."""
    copying = CatchUp(0)
    copying.window(end=FAR, appended=0, now_ms=0)
    return copying.window(end=FAR + grown, appended=1, now_ms=PERIOD_MS)


def test_begins_gently_before_it_knows_what_is_sent() -> None:
    assert CatchUp(0).window(end=FAR, appended=0, now_ms=1) == GENTLE_SIZE


def test_takes_all_where_nothing_is_sent() -> None:
    assert after_a_period(0) == WINDOW_SIZE


def test_is_gentle_to_those_who_send_lightly() -> None:
    assert after_a_period(1) == GENTLE_SIZE
    assert after_a_period(LIGHT_MAX) == GENTLE_SIZE


def test_hurries_where_much_is_sent() -> None:
    assert after_a_period(LIGHT_MAX + 1) == WINDOW_SIZE


def test_a_slave_that_is_nearly_there_takes_all() -> None:
    assert CatchUp(0).window(end=FAR, appended=FAR - NEAR, now_ms=1) == WINDOW_SIZE


def test_a_record_larger_than_what_is_given_gets_through() -> None:
    copying = CatchUp(0)
    assert copying.window(end=FAR, appended=5, now_ms=0) == GENTLE_SIZE
    assert copying.window(end=FAR, appended=5, now_ms=STUCK_MS - 1) == GENTLE_SIZE
    assert copying.window(end=FAR, appended=5, now_ms=STUCK_MS) == WINDOW_SIZE
    assert copying.window(end=FAR, appended=6, now_ms=STUCK_MS + 1) == GENTLE_SIZE


def test_is_judged_anew_each_period() -> None:
    copying = CatchUp(0)
    end = FAR
    copying.window(end=end, appended=0, now_ms=0)
    for period in range(1, 4):
        end += 1
        assert copying.window(end=end, appended=period, now_ms=period * PERIOD_MS) == GENTLE_SIZE
    assert copying.window(end=end, appended=9, now_ms=4 * PERIOD_MS) == WINDOW_SIZE
