"""Any subset of ticks may be missing: counts stay right, and no status is false for long."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.kernel.rules import Rules
from tests.analytics.truth.judged import (
    ALARMS,
    Columns,
    judge,
    judged_case,
    of_pair,
    of_series,
    truth_of,
)
from tests.truth import answers
from tests.truth.steps import SECOND, Ints

SLACK_S = 120.0
"""The longest raise time: how much later a status may come for every reason but missing ticks."""
TICK_S = 15.0
"""Between two samples."""
HELD_S = SLACK_S + Rules().lost_for_s
"""How long a loss is shown at most after it was seen."""
WINDOW_S = Rules().progress_window_s
LATE_OF_PAIRS = frozenset({"UNKNOWN", "FALLING_BEHIND", "LAGGING"})
"""Taken back from a pair at once when no age of it is above the objective."""
NAMES = (
    "slow_consumer",
    "draining",
    "stuck_after_stop",
    "old_bulk_load",
    "reset_forward",
    "expiry",
    "ahead",
    "poison_of_sixteen",
    "heads_half_known",
)


@st.composite
def removals(draw: st.DrawFn, ticks: list[int]) -> set[int]:
    """Single ticks at random, and runs of them as when a monitor is blind."""
    share = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7]))
    seed = draw(st.integers(0, 2**32 - 1))
    chosen = np.random.default_rng(seed).random(len(ticks)) < share
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, len(ticks) - 1))
        chosen[first : first + draw(st.integers(1, 30))] = True
    chosen[draw(st.integers(0, len(ticks) - 1))] = False
    return {tick for tick, gone in zip(ticks, chosen, strict=True) if gone}


def with_missing(missing: Ints, tick: float, seconds: float) -> float:
    """A time before a tick, plus the time of the samples that are missing in it [s]."""
    lost = 0.0
    while True:
        since = tick - (seconds + lost) * SECOND
        found = np.count_nonzero((missing > since) & (missing <= tick)) * TICK_S
        if found == lost:
            return seconds + lost
        lost = found


def allowed(full: Columns, missing: Ints, tick: float, slack_s: float = SLACK_S) -> set[str]:
    """Statuses of the workload of late: as much earlier as ticks are missing."""
    ticks = full["tick"]
    # Ticks that are missing put off every count of ticks in a row by as many.
    since = tick - with_missing(missing, tick, slack_s) * SECOND
    recent = (ticks >= since) & (ticks <= tick)
    return set(full.words("status")[recent].tolist()) | {"UNKNOWN"}


@functools.cache
def catching_up(name: str) -> frozenset[float]:
    """Ticks at which a group truly gains on its topic, whatever the last five minutes were."""
    found: set[float] = set()
    truth = truth_of(name)
    for reading in truth.pairs[0].readings:
        answer = answers.series(truth, reading)
        behind = answer.lag[1:] > 0
        gained = np.diff(answer.head_time) > 1.05 * np.diff(answer.ts)
        found |= set(answer.tick[1:][gained & behind].astype(np.float64).tolist())
    return frozenset(found)


@functools.cache
def in_time(name: str) -> frozenset[float]:
    """Ticks at which every queue is within the objective in truth, with nothing lost or ahead."""
    truth = truth_of(name)
    pair = truth.pairs[0]
    found = set(truth.ticks().astype(np.float64).tolist())
    for reading in pair.readings:
        answer = answers.series(truth, reading)
        fine = (answer.age_seconds <= pair.objective_seconds) & (answer.ahead == 0)
        fine &= answer.lost == 0
        found &= set(answer.tick[fine].astype(np.float64).tolist())
    return frozenset(found)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(NAMES))
def test_missing_ticks_change_no_sum_and_make_no_status_that_was_not(
    data: st.DataObject, name: str
) -> None:
    """Sums are those of the offsets, whatever samples are missing.

    At each sample a status is one of these and no other:
    - UNKNOWN;
    - one that all samples together gave within the slack, plus the time of the missing samples;
    - OK of a pair some of whose queues are unknown;
    - OK where the group is within its objective in truth and no alarm stood: behind a hole it is
      raised at once, while with all samples CATCHING_UP stood for a minute more;
    - OK of a pair that is within its objective in truth and was FALLING_BEHIND or LAGGING: a pair
      is neither without an age above its objective, while its queues are for a minute more;
    - CATCHING_UP where the group gains on its topic in truth;
    - FALLING_BEHIND of a commit that stands still, until the stall time that holds before gaps
      are learned is over: gaps between commits in which samples are missing are not learned from;
    - LOST for its whole time after the loss was seen: as much later as samples are missing in it;
    - STALLED one sample early, where all samples give it at the next one: the stall time is learned
      from the gaps that were seen;
    - LAGGING of a group that is FALLING_BEHIND, while samples of the progress window are missing;
    - an alarm that stood before, while samples of the progress window are missing and the workload
      is still late. It never outlasts an OK.
    """
    truth = truth_of(name)
    removed = data.draw(removals(truth.ticks().tolist()))
    thinned = truth.without(removed)
    judged = judge(thinned)
    missing = np.array(sorted(removed), np.int64)
    pair = truth.pairs[0]
    gaining, fine = catching_up(name), in_time(name)
    for reading in pair.readings:
        queue = reading.queue.queue
        answer = answers.series(thinned, reading)
        rates = of_series(judged.rates, truth, queue=queue)
        for column in ("produced", "consumed"):
            if column == "consumed" and name == "ahead":
                continue  # a commit beyond the end does not show what was read
            expected = int(getattr(answer, column)[1:].sum())
            assert np.nansum(rates[column]) == expected, column
    for rows, full, lets_go in (
        (of_series(judged.lag, truth), of_series(judged_case(name).lag, truth), {"UNKNOWN"}),
        (
            of_pair(judged.pair_lag, truth),
            of_pair(judged_case(name).pair_lag, truth),
            LATE_OF_PAIRS,
        ),
    ):
        stood = "UNKNOWN"
        unknown = rows["unknown"] if "unknown" in rows.table.column_names else rows["tick"] * 0
        for tick, status, unsure in zip(rows["tick"], rows.words("status"), unknown, strict=True):
            may = allowed(full, missing, tick)
            is_late = bool(may - {"OK", "UNKNOWN"})
            may |= {"OK"} if unsure else set()
            may |= {"OK"} if tick in fine and stood in lets_go else set()
            may |= {"CATCHING_UP"} if tick in gaining else set()
            if "STALLED" in may:
                patient = allowed(full, missing, tick, SLACK_S + Rules().stall_unlearned_s)
                may |= {"FALLING_BEHIND"} if patient - {"STALLED", "UNKNOWN"} else set()
            dark = (missing > tick - WINDOW_S * SECOND) & (missing < tick)
            may |= {"LAGGING"} if "FALLING_BEHIND" in may and dark.any() else set()
            may |= {stood} if is_late and dark.any() else set()
            soon = allowed(full, missing, tick + TICK_S * SECOND, 0.0)
            may |= soon & {"STALLED"} if dark.any() else set()
            unseen = with_missing(missing, tick, HELD_S) - HELD_S
            may |= allowed(full, missing, tick, SLACK_S + unseen) & {"LOST"}
            stood = status if status in ALARMS else stood if status == "UNKNOWN" else "UNKNOWN"
            assert status in may, (tick, (tick - truth.start) / SECOND, status, may)


def test_a_pair_stays_late_while_the_age_of_its_queue_is_only_bounded() -> None:
    # Behind a hole every other sample knows the store time of the head. At the others the age was
    # bounded from below by 0 s, and the pair was OK at every second sample, its queue behind.
    truth = truth_of("heads_half_known")
    hole = truth.ticks()[(truth.ticks() >= truth.start + 900 * SECOND)][:45]
    judged = judge(truth.without(hole.tolist()))
    for rows in (of_series(judged.lag, truth), of_pair(judged.pair_lag, truth)):
        after = rows["tick"] > hole[-1]
        assert after.sum() > 5
        assert set(rows.words("status")[after].tolist()) == {"FALLING_BEHIND"}


@settings(max_examples=12, deadline=None)
@given(st.data(), st.sampled_from(("swinging", "trickle", "failover")))
def test_missing_ticks_never_raise_an_alarm(data: st.DataObject, name: str) -> None:
    truth = truth_of(name)
    removed = data.draw(removals(truth.ticks().tolist()))
    judged = judge(truth.without(removed))
    given = set(of_series(judged.lag, truth).words("status").tolist())
    assert given <= {"OK", "UNKNOWN", "CATCHING_UP"}
    loud = pc.is_in(judged.status_changes["level"], pa.array(["ticket", "page"]))
    raised = judged.status_changes.filter(loud).to_pylist()
    # Messages that a failover cut off are reported once; not if by the next sample more have come.
    assert len(raised) <= (1 if name == "failover" else 0), raised
