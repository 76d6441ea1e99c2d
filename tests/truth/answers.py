"""What must be computed from a workload: exact, by look-up and not by estimate. Pure.

Closed formulas of a case (its pace, its time to drain) stand with the case; here is what holds of
every workload: lag, age, what was produced and consumed, and the stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.truth.reading import pair_sample, position, stages, totals
from tests.truth.steps import ABSENT, SECOND, Floats, Ints
from tests.truth.workload import Pair, Reading, Truth


class SeriesAnswer(NamedTuple):
    """Answers for one queue of a group, at each tick with a sample. ABSENT and NaN are null."""

    tick: Ints
    ts: Ints
    lag: Ints
    lost: Ints
    ahead: Ints
    age_seconds: Floats
    head_time: Ints
    """Where the group stands, in store time; with nothing unread, the time of the sample."""
    produced: Ints
    """Since the sample before, of the same era of the queue; ABSENT across a cut and at the
    first."""
    consumed: Ints
    """Since the sample before; skipped messages not counted."""


def series(truth: Truth, reading: Reading) -> SeriesAnswer:
    """The answers for one queue of a group."""
    sample_times = truth.sample_times()
    at = position(reading, sample_times)
    known = at.commit != ABSENT
    lag = np.where(known, at.max_offset - at.head, ABSENT)
    head_time = np.where(known & (lag == 0), sample_times, at.head_time)
    age = np.where(known, (sample_times - head_time) / SECOND, np.nan)
    produced = np.full(len(sample_times), ABSENT, np.int64)
    consumed = produced.copy()
    if len(sample_times) > 1:
        since = np.array([era.since for era in reading.queue.eras])
        era = np.searchsorted(since, sample_times, "right")
        same = era[1:] == era[:-1]
        produced[1:] = np.where(same, np.diff(at.max_offset), ABSENT)
        both = same & known[1:] & known[:-1]
        consumed[1:] = np.where(both, np.diff(totals(reading, sample_times).consumed), ABSENT)
    return SeriesAnswer(
        truth.ticks(),
        sample_times,
        lag,
        np.where(known, np.maximum(at.min_offset - at.commit, 0), ABSENT),
        np.where(known, np.maximum(at.commit - at.max_offset, 0), ABSENT),
        age,
        head_time,
        produced,
        consumed,
    )


class StagesAnswer(NamedTuple):
    """Answers for one pair, at each tick with a sample, in seconds; NaN is null."""

    tick: Ints
    replication: Floats
    dispatch: Floats
    delivery: Floats
    processing: Floats
    idle: Floats
    """Since anything was stored."""


def split(truth: Truth, pair: Pair) -> StagesAnswer:
    """Where the messages of a pair wait."""
    sample_times = truth.sample_times()
    log = stages(truth.broker(pair.broker), sample_times)
    sample = pair_sample(truth, pair, sample_times)

    def between(later: Ints, earlier: Ints) -> Floats:
        known = (later != ABSENT) & (earlier != ABSENT)
        return np.where(known, (later - earlier) / SECOND, np.nan)

    return StagesAnswer(
        truth.ticks(),
        between(log.t_max, log.t_confirm),
        between(log.t_confirm, log.t_dispatched),
        between(log.t_dispatched, sample.awaiting_delivery),
        between(sample.awaiting_delivery, sample.oldest_uncommitted),
        between(sample_times, log.t_max),
    )
