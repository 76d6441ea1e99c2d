"""The offset of a peer's clock and its error."""

from __future__ import annotations

from random import Random

import pytest

from services.ha.wire.peer_clock import DRIFT_MS, ROUNDING_MS, SAMPLES_MAX, PeerClock, Skew
from tests.support.for_each import for_each

OWN_AHEAD_MS = 1_700_000_000_000
"""Own wall clock minus own boot clock."""


def asked(clock: PeerClock, at_ms: int, *, there_ms: int, back_ms: int, ahead_ms: int) -> None:
    """A request that takes there_ms to a peer whose wall clock is ahead_ms ahead."""
    seen = at_ms + there_ms
    clock.answered(
        asked_ms=at_ms, answered_ms=seen + back_ms, wall_ms=seen + OWN_AHEAD_MS + ahead_ms
    )


def known(clock: PeerClock) -> Skew:
    skew = clock.skew(OWN_AHEAD_MS)
    assert skew is not None
    return skew


def test_nothing_is_known_before_an_answer_or_without_the_own_wall_clock() -> None:
    clock = PeerClock()
    assert clock.skew(OWN_AHEAD_MS) is None
    asked(clock, 1000, there_ms=1, back_ms=1, ahead_ms=0)
    assert clock.skew(None) is None
    clock.forget()
    assert clock.skew(OWN_AHEAD_MS) is None


def test_a_quick_exchange_measures_it_exactly() -> None:
    clock = PeerClock()
    asked(clock, 1000, there_ms=0, back_ms=0, ahead_ms=-2500)
    assert known(clock) == Skew(-2500, ROUNDING_MS)


def test_the_quickest_exchange_counts() -> None:
    clock = PeerClock()
    for at_ms, there_ms in enumerate((40, 3, 90, 25)):
        asked(clock, 1000 * (1 + at_ms), there_ms=there_ms, back_ms=3, ahead_ms=700)
    assert known(clock) == Skew(700, 3 + ROUNDING_MS)


@for_each("seed", range(100))
def test_it_is_never_more_wrong_than_it_says(seed: int) -> None:
    random, clock = Random(seed), PeerClock()
    ahead_ms, now_ms = random.randint(-100_000, 100_000), 1000
    for _ in range(60):
        there_ms, back_ms = random.choice((0, 1, 30, 2000)), random.randint(0, 300)
        asked(clock, now_ms, there_ms=there_ms, back_ms=back_ms, ahead_ms=ahead_ms)
        skew = known(clock)
        assert abs(skew.ahead_ms - ahead_ms) <= skew.error_ms
        now_ms += random.randint(1, 1000)


def test_a_clock_that_is_set_shows_with_the_next_answer() -> None:
    clock = PeerClock()
    for at_ms in range(1000, 9000, 1000):
        asked(clock, at_ms, there_ms=1, back_ms=1, ahead_ms=0)
    asked(clock, 9000, there_ms=5, back_ms=5, ahead_ms=3600_000)
    assert known(clock).ahead_ms == 3600_000


def test_a_slow_answer_does_not_make_the_quick_ones_untrue() -> None:
    clock = PeerClock()
    asked(clock, 1000, there_ms=1, back_ms=1, ahead_ms=50)
    asked(clock, 2000, there_ms=900, back_ms=1, ahead_ms=50 + int(DRIFT_MS))
    assert known(clock) == Skew(50, 1 + ROUNDING_MS)


def test_a_step_of_the_own_clock_shows_at_once() -> None:
    clock = PeerClock()
    asked(clock, 1000, there_ms=1, back_ms=1, ahead_ms=0)
    skew = clock.skew(OWN_AHEAD_MS + 5000)
    assert skew is not None
    assert skew.ahead_ms == -5000


def test_old_answers_go() -> None:
    clock = PeerClock()
    asked(clock, 1000, there_ms=0, back_ms=0, ahead_ms=0)
    for at_ms in range(2000, 2000 + SAMPLES_MAX):
        asked(clock, at_ms, there_ms=20, back_ms=20, ahead_ms=0)
    assert known(clock).error_ms == 20 + ROUNDING_MS


@pytest.mark.parametrize(
    ("asked_ms", "answered_ms", "wall_ms"),
    [(0, 1000, 5), (1001, 1000, 5), (900, 1000, 0), (-1, 1000, 5)],
)
def test_an_answer_that_says_no_time_or_one_of_the_future_is_none(
    asked_ms: int, answered_ms: int, wall_ms: int
) -> None:
    clock = PeerClock()
    clock.answered(asked_ms=asked_ms, answered_ms=answered_ms, wall_ms=wall_ms)
    assert clock.skew(OWN_AHEAD_MS) is None
