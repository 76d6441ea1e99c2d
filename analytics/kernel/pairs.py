"""From queues to pairs: sums, the oldest age, and the worst status that counts. Pure.

One queue is enough for a status of level page, which no traffic explains; for one of level ticket
the pair as a whole must be late. Queues of which nothing is known are counted and are in no sum, no
mean and no order: the pair is UNKNOWN if all of them are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.age import BOUNDED, EXACT, INTERPOLATED, Age
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.facts import Facts
from analytics.kernel.grid import Known, Ticks
from analytics.kernel.lag import Lag
from analytics.kernel.rules import Rules
from analytics.kernel.segments import Motion
from analytics.kernel.status import CODE, STATUSES, Codes
from analytics.kernel.steady import NEVER, Steady
from analytics.statuses import BY_SEVERITY, TABLE, Level, Status

SHARE_LATE: Final = 0.1
QUEUES_LATE: Final = 2
TICKETS: Final = [CODE[status] for status, row in TABLE.items() if row.level is Level.TICKET]


class Rolled(NamedTuple):
    """Matrices [tick, pair], from the first tick that is gone through. NaN: not known."""

    said: Bools
    """One of its queues has something to say."""
    queues: Floats
    lag_sum: Floats
    lag_max: Floats
    lost: Floats
    age_max: Floats
    age_p50: Floats
    age_p95: Floats
    dated: Bools
    """The oldest age is measured or interpolated, and no queue was cut at this tick."""
    ts: Floats
    produce_rate: Floats
    consume_rate: Floats
    progress: Floats
    """Of the oldest queue."""
    late: Floats
    """Queues older than the objective, also those that were and whose age is bounded now."""
    counts: Floats
    """[tick, pair, status]: queues."""


def roll_up(
    lag: Lag,
    age: Age,
    motion: Motion,
    progress: Floats,
    ts: Floats,
    steady: Steady,
    facts: Facts,
    known: Known,
    ticks: Ticks,
    begin: int,
) -> Rolled:
    """Put the queues of each pair together. lag, age and ts are matrices of all ticks."""
    starts, said = known.starts, steady.said
    ages = np.where(said, age.age[begin:], np.nan)
    oldest = np.fmax.reduceat(ages, starts, axis=1)
    is_oldest = ages == oldest[:, known.pair]
    dated = (age.method[begin:] == EXACT) | (age.method[begin:] == INTERPOLATED)
    cut = motion.segment == ticks.at[begin:, None]
    at_fault = (is_oldest & ~dated) | (said & cut)
    objective = facts.objective[:, known.pair]
    # An age that is only bounded is the least that it may be. A queue that is said to be late stays
    # late while its age may be: else each look with a bounded age takes the pair's status back.
    bounded = said & (age.method[begin:] == BOUNDED) & (age.high[begin:] > objective)
    late = (ages > objective) | (bounded & np.isin(steady.status, TICKETS))
    p50, p95 = _quantiles(ages, oldest, starts)
    return Rolled(
        np.logical_or.reduceat(said, starts, axis=1),
        _count(said, starts),
        _sum(lag.lag[begin:], said, starts),
        np.fmax.reduceat(np.where(said, lag.lag[begin:], np.nan), starts, axis=1),
        _sum(lag.lost[begin:], said, starts),
        oldest,
        p50,
        p95,
        ~np.logical_or.reduceat(at_fault, starts, axis=1),
        np.fmax.reduceat(ts[begin:], starts, axis=1),
        _sum(motion.produce_rate, said, starts),
        _sum(motion.consume_rate, said, starts),
        np.fmin.reduceat(np.where(is_oldest, progress, np.nan), starts, axis=1),
        _count(late, starts),
        _by_status(steady, known),
    )


def _count(claims: Bools, starts: Ints) -> Floats:
    return np.add.reduceat(claims.astype(np.float64), starts, axis=1)


def _sum(values: Floats, said: Bools, starts: Ints) -> Floats:
    """Of what is known; NaN where nothing is."""
    there = said & ~np.isnan(values)
    total = np.add.reduceat(np.where(there, values, 0.0), starts, axis=1)
    return np.where(np.logical_or.reduceat(there, starts, axis=1), total, np.nan)


def _by_status(steady: Steady, known: Known) -> Floats:
    """How many queues of each pair have each status."""
    pairs, kinds = known.pair_id.size, len(STATUSES)
    size = (steady.status.shape[0], pairs, kinds)
    row, series = np.nonzero(steady.said & (steady.status != NEVER))
    flat = (row * pairs + known.pair[series]) * kinds + steady.status[row, series]
    return np.bincount(flat, minlength=int(np.prod(size))).reshape(size).astype(np.float64)


def _quantiles(ages: Floats, oldest: Floats, starts: Ints) -> tuple[Floats, Floats]:
    """Median and 95th percentile of the known ages of each pair's queues."""
    sizes = np.diff(np.append(starts, ages.shape[1]))
    # Where the oldest age is 0, or unknown, all are.
    p50, p95 = oldest.copy(), oldest.copy()
    for size in np.unique(sizes[sizes > 1]):
        row, at = np.nonzero((oldest > 0) & (sizes == size))
        in_order = np.sort(ages[row[:, None], starts[at][:, None] + np.arange(size)], axis=1)
        last = (~np.isnan(in_order)).sum(axis=1) - 1
        number = np.arange(row.size)
        for share, out in ((0.5, p50), (0.95, p95)):
            place = share * last
            below = place.astype(np.int64)
            low, high = in_order[number, below], in_order[number, np.minimum(below + 1, last)]
            out[row, at] = low + (high - low) * (place - below)
    return p50, p95


class PairStatus(NamedTuple):
    """Matrices [tick, pair], from the first tick that is gone through."""

    status: Codes
    since: Floats
    before: Codes
    before_since: Floats


def status_of(
    rolled: Rolled,
    ticks: Ticks,
    begin: int,
    carried: dict[str, Floats],
    rules: Rules,
) -> PairStatus:
    """The status of each pair; `carried` is brought forward. Its queues' have held already."""
    worst = _worst(rolled, rules)
    shape = worst.shape
    out = PairStatus(
        np.empty(shape, np.int8), np.empty(shape), np.empty(shape, np.int8), np.empty(shape)
    )
    status = np.nan_to_num(carried["status"], nan=float(NEVER)).astype(np.int8)
    since = carried["since"]
    for row in range(shape[0]):
        out.before[row], out.before_since[row] = status, since
        new = np.where(rolled.said[row], worst[row], status)
        np.copyto(since, float(ticks.at[begin + row]), where=new != status)
        status = new
        out.status[row], out.since[row] = status, since
    carried["status"][:] = np.where(status == NEVER, np.nan, status)
    return out


def _worst(rolled: Rolled, rules: Rules) -> Codes:
    """The worst status of the queues that counts for the pair."""

    def any_is(status: Status) -> Bools:
        found: Bools = rolled.counts[:, :, CODE[status]] > 0
        return found

    several = (rolled.late >= QUEUES_LATE) | (rolled.late >= SHARE_LATE * rolled.queues)
    losing = rolled.progress < rules.keeps_pace_above
    late = (rolled.late > 0) & (losing | several)
    choices = [
        (any_is(status) & (late | (TABLE[status].level is not Level.TICKET)), status)
        for status in reversed(BY_SEVERITY)
        if TABLE[status].is_known and status is not Status.OK
    ]
    all_unknown = rolled.counts[:, :, CODE[Status.UNKNOWN]] >= rolled.queues
    choices.append((all_unknown, Status.UNKNOWN))
    codes = [CODE[status] for _, status in choices]
    return np.select([held for held, _ in choices], codes, CODE[Status.OK]).astype(np.int8)
