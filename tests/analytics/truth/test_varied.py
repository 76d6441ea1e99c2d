"""Groups drawn at random for comparisons of detectors: they are what their names say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.support.lag_drawn import broken_at, late_seconds
from tests.truth import drawn, varied
from tests.truth.behaviour import Random
from tests.truth.drawn import Drawn
from tests.truth.reading import position
from tests.truth.steps import ABSENT, SECOND

SEEDS = (1, 2, 3)
WELL = (
    varied.bursts,
    varied.nights,
    varied.few_messages,
    varied.rebalances,
    varied.dispatch_pauses,
)
FAULTY = (
    varied.hangs,
    varied.slows,
    varied.slows_in_holes,
    varied.slow_queue_of_many,
    varied.slow_member,
    varied.poison,
    varied.dispatch_behind,
    varied.replication_behind,
)


@pytest.mark.parametrize("make", WELL)
def test_a_group_that_is_well_never_breaks_its_objective(make: Callable[[Random], Drawn]) -> None:
    for seed in SEEDS:
        found = make(np.random.default_rng(seed))
        assert found.faulty is None
        assert not late_seconds(found).any()


def test_while_the_broker_is_away_nothing_is_stored_and_only_then_is_the_group_late() -> None:
    for seed in SEEDS:
        found = varied.broker_away(np.random.default_rng(seed))
        truth = replace(found.truth, period=SECOND)
        (broker,) = truth.brokers
        moments = truth.sample_times()
        away = broker.master(moments) == ABSENT
        assert 20 <= away.sum() <= 240
        assert (broker.master(broker.log.stored) != ABSENT).all()
        soon_after = np.convolve(away, np.ones(30))[: len(away)] > 0
        assert not late_seconds(found)[: len(away)][~soon_after].any()


@pytest.mark.parametrize("make", FAULTY)
def test_a_fault_breaks_the_objective_and_nothing_does_before_it(
    make: Callable[[Random], Drawn],
) -> None:
    for seed in SEEDS:
        found = make(np.random.default_rng(seed))
        assert found.faulty is not None
        begin, _ = found.faulty
        late = late_seconds(found)
        assert not late[: int(begin)].any()
        assert broken_at(late, begin) is not None


def test_an_operator_rewinds_every_queue_and_the_group_reads_it_to_the_end() -> None:
    truth = varied.rewound(np.random.default_rng(1)).truth
    for reading in truth.pairs[0].readings:
        (reset,) = reading.resets
        at_reset, at_end = reading.commit(np.array([reset.at, truth.end]))
        assert at_reset == reset.to_offset < reset.from_offset < at_end


def test_members_hold_all_that_is_visible_while_they_are_there() -> None:
    truth = varied.handed_out(drawn.dies(np.random.default_rng(1)).truth)
    moments = truth.sample_times()
    there = truth.pairs[0].members(moments) > 0
    assert set(there.tolist()) == {True, False}
    for reading in truth.pairs[0].readings:
        at = position(reading, moments)
        np.testing.assert_array_equal(at.pull, np.where(there, at.max_offset, at.head))
