"""The restated rules of Burrow, one by one: it must be judged fairly."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.burrow import Verdict, partition
from tests.truth.closed import constant, queue
from tests.truth.paces import at
from tests.truth.scenario import Commits

STORED = constant(10.0, 1200.0)
EVERY_MINUTE = np.array([at(60.0 * minute) for minute in range(1, 11)])


def verdict(offsets: list[int], now: float = 605.0) -> Verdict:
    """Verdict on a partition with 10 messages a second and a commit at the end of each minute."""
    commits = Commits(EVERY_MINUTE[: len(offsets)], np.array(offsets))
    (found,) = partition(queue(STORED), commits, np.array([at(now)]))
    return Verdict(int(found))


ENDS = [600 * minute + 1 for minute in range(1, 11)]
"""End of the partition at each commit."""


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        # Behind by fifty, and never by less; by less once.
        ([end - 50 - 10 * i for i, end in enumerate(ENDS)], Verdict.WARN),
        ([end - 50 - (10 * i if i != 5 else 0) for i, end in enumerate(ENDS)], Verdict.OK),
        # Without lag once.
        ([end - (50 + 10 * i if i != 2 else 0) for i, end in enumerate(ENDS)], Verdict.OK),
        # The same offset, again and again.
        ([300] * 10, Verdict.STALL),
        # Back by a hundred, and not yet where it had been.
        ([100, 200, 300, 400, 500, 600, 700, 600, 620, 640], Verdict.REWIND),
    ],
)
def test_ten_commits_are_judged_by_their_offsets_and_lags(
    offsets: list[int], expected: Verdict
) -> None:
    assert verdict(offsets) is expected


def test_a_rewind_that_was_made_good_is_none() -> None:
    assert verdict([100, 200, 300, 250, 400, 500, 600, 700, 800, 900]) is not Verdict.REWIND


def test_it_has_stopped_once_more_time_has_passed_than_its_commits_cover() -> None:
    offsets = [end - 50 for end in ENDS[:3]]
    # Commits at 60, 120 and 180 s cover two minutes.
    assert verdict(offsets, now=295.0) is not Verdict.STOP
    assert verdict(offsets, now=305.0) is Verdict.STOP


def test_who_was_at_the_end_a_short_while_ago_has_not_stopped() -> None:
    commits = Commits(EVERY_MINUTE[:1], np.array([ENDS[0]]))
    times = np.array([at(seconds) for seconds in (70.0, 140.0, 150.0, 170.0)])
    found = [Verdict(int(each)) for each in partition(queue(STORED), commits, times)]
    assert found == [Verdict.OK, Verdict.OK, Verdict.OK, Verdict.STOP]


def test_before_the_first_commit_nothing_is_known() -> None:
    commits = Commits(EVERY_MINUTE[:0], np.empty(0, np.int64))
    (found,) = partition(queue(STORED), commits, np.array([at(100.0)]))
    assert Verdict(int(found)) is Verdict.OK
