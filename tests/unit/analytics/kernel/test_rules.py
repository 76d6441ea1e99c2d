"""Windows are lengths of time: a shorter period gives more samples, and no shorter wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.kernel.rules import Rules
from analytics.statuses import Status


def test_a_shorter_period_needs_more_ticks_for_the_same_time() -> None:
    assert Rules().raise_ticks(Status.FALLING_BEHIND) == 4
    assert Rules(period_s=5).raise_ticks(Status.FALLING_BEHIND) == 12
    assert Rules(period_s=60).raise_ticks(Status.STALLED) == 1
    # The slope at one sample is not held for a minute.
    assert Rules(period_s=60).raise_ticks(Status.FALLING_BEHIND) == 2
    assert Rules(period_s=5).raise_ticks(Status.LOST) == 1


@given(st.floats(0.01, 3))
def test_scaled_rules_count_the_same_ticks(by: float) -> None:
    rules, scaled = Rules(), Rules().scaled(by)
    assert scaled.period_s == pytest.approx(15 * by)
    for status in Status:
        assert scaled.raise_ticks(status) == rules.raise_ticks(status)
    for name in ("history_s", "interpolation_s", "progress_window_s", "grace_s", "minute_s"):
        assert scaled.ticks(getattr(scaled, name)) == rules.ticks(getattr(rules, name))


def test_windows_that_reach_beyond_the_history_are_refused() -> None:
    with pytest.raises(ValueError, match="together longer than history_s"):
        Rules(history_s=800)
    with pytest.raises(ValueError, match="must be above 0"):
        Rules(period_s=0)
