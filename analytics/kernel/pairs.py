"""From queues to pairs: sums, the oldest age, and the status. Pure.

A *pair* is a consumer group and a topic on one broker set. One queue with a status of level page
gives the pair that status; for level ticket the pair as a whole must be late. Unknown queues are
counted, but are in no sum, mean or order. The pair is UNKNOWN if all its queues are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.age import BOUNDED, EXACT, INTERPOLATED, Age
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.debounce import ALARMING, NEVER, Debounced
from analytics.kernel.facts import Facts
from analytics.kernel.grid import Known, Ticks
from analytics.kernel.lag import Lag
from analytics.kernel.rules import Rules
from analytics.kernel.segments import Motion
from analytics.kernel.status import CODE, STATUSES, Codes
from analytics.statuses import BY_SEVERITY, TABLE, Level, Status

SHARE_LATE: Final = 0.1
QUEUES_LATE: Final = 2
TICKETS: Final = [CODE[status] for status, row in TABLE.items() if row.level is Level.TICKET]


class Rolled(NamedTuple):
    """Matrices [tick, pair], from tick number `begin` on. NaN: not known."""

    reported: Bools
    """One of its queues has a row."""
    queues: Floats
    lag_sum: Floats
    lag_max: Floats
    lost: Floats
    age_max: Floats
    dated: Bools
    """The oldest age is measured or interpolated, and no queue was cut at this tick."""
    ts: Floats
    produce_rate: Floats
    consume_rate: Floats
    progress: Floats
    """Progress of the oldest queue."""
    late: Floats
    """Queues older than the objective, apart from what is usual between two commits; also those
    that were and have only a bounded age now."""
    counts: Floats
    """Number of queues by [tick, pair, status]."""


def roll_up(
    lag: Lag,
    age: Age,
    motion: Motion,
    progress: Floats,
    not_due: Floats,
    ts: Floats,
    debounced: Debounced,
    facts: Facts,
    known: Known,
    ticks: Ticks,
    begin: int,
) -> Rolled:
    """Summarise the queues of each pair. lag, age and ts are matrices of all ticks."""
    starts, reported = known.starts, debounced.reported
    ages = np.where(reported, age.age[begin:], np.nan)
    oldest = np.fmax.reduceat(ages, starts, axis=1)
    is_oldest = ages == oldest[:, known.pair]
    dated = (age.method[begin:] == EXACT) | (age.method[begin:] == INTERPOLATED)
    cut = motion.segment == ticks.at[begin:, None]
    at_fault = (is_oldest & ~dated) | (reported & cut)
    objective = facts.objective[:, known.pair]
    # A bounded age is a lower bound. A queue with a late status stays late while its age may exceed
    # the objective; otherwise each sample with a bounded age would end the pair's status.
    bounded = reported & (age.method[begin:] == BOUNDED) & (age.high[begin:] > objective)
    late = (ages - not_due > objective) | (bounded & np.isin(debounced.status, TICKETS))
    return Rolled(
        np.logical_or.reduceat(reported, starts, axis=1),
        _count(reported, starts),
        _sum(lag.lag[begin:], reported, starts),
        np.fmax.reduceat(np.where(reported, lag.lag[begin:], np.nan), starts, axis=1),
        _sum(lag.lost[begin:], reported, starts),
        oldest,
        ~np.logical_or.reduceat(at_fault, starts, axis=1),
        np.fmax.reduceat(ts[begin:], starts, axis=1),
        _sum(motion.produce_rate, reported, starts),
        _sum(motion.consume_rate, reported, starts),
        np.fmin.reduceat(np.where(is_oldest, progress, np.nan), starts, axis=1),
        _count(late, starts),
        _by_status(debounced, known),
    )


def _count(claims: Bools, starts: Ints) -> Floats:
    return np.add.reduceat(claims.astype(np.float64), starts, axis=1)


def _sum(values: Floats, reported: Bools, starts: Ints) -> Floats:
    """Sum of the known values; NaN if there is none."""
    there = reported & ~np.isnan(values)
    total = np.add.reduceat(np.where(there, values, 0.0), starts, axis=1)
    return np.where(np.logical_or.reduceat(there, starts, axis=1), total, np.nan)


def _by_status(debounced: Debounced, known: Known) -> Floats:
    """Number of queues of each pair by status."""
    pairs, kinds = known.pair_id.size, len(STATUSES)
    size = (debounced.status.shape[0], pairs, kinds)
    row, series = np.nonzero(debounced.reported & (debounced.status != NEVER))
    flat = (row * pairs + known.pair[series]) * kinds + debounced.status[row, series]
    return np.bincount(flat, minlength=int(np.prod(size))).reshape(size).astype(np.float64)


class PairStatus(NamedTuple):
    """Matrices [tick, pair], from tick number `begin` on."""

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
    """Return the status of each pair from the debounced ones of its queues; updates `carried`."""
    worst, lasting = (_worst(rolled, rules, stands=stands) for stands in (False, True))
    shape = worst.shape
    out = PairStatus(
        np.empty(shape, np.int8), np.empty(shape), np.empty(shape, np.int8), np.empty(shape)
    )
    status = np.nan_to_num(carried["status"], nan=float(NEVER)).astype(np.int8)
    since, alarmed = carried["since"], carried["alarmed"]
    for row in range(shape[0]):
        out.before[row], out.before_since[row] = status, since
        now = np.where(alarmed == 1, lasting[row], worst[row])
        new = np.where(rolled.reported[row], now, status)
        in_time = rolled.reported[row] & (rolled.late[row] == 0) & (new != CODE[Status.UNKNOWN])
        np.copyto(alarmed, ALARMING[new].astype(np.float64), where=ALARMING[new] | in_time)
        np.copyto(since, float(ticks.at[begin + row]), where=new != status)
        status = new
        out.status[row], out.since[row] = status, since
    carried["status"][:] = np.where(status == NEVER, np.nan, status)
    return out


def _worst(rolled: Rolled, rules: Rules, *, stands: bool) -> Codes:
    """Worst status of the queues that applies to the pair.
    stands: the pair has had an alarm since it was last in time; then one late queue is enough."""

    def any_is(status: Status) -> Bools:
        found: Bools = rolled.counts[:, :, CODE[status]] > 0
        return found

    several = (rolled.late >= QUEUES_LATE) | (rolled.late >= SHARE_LATE * rolled.queues)
    losing = (rolled.progress < rules.keeps_pace_above) | any_is(Status.FALLING_BEHIND)
    late = (rolled.late > 0) & (losing | several | stands)
    choices = [
        (any_is(status) & (late | (TABLE[status].level is not Level.TICKET)), status)
        for status in reversed(BY_SEVERITY)
        if TABLE[status].is_known and status is not Status.OK
    ]
    all_unknown = rolled.counts[:, :, CODE[Status.UNKNOWN]] >= rolled.queues
    choices.append((all_unknown, Status.UNKNOWN))
    codes = [CODE[status] for _, status in choices]
    return np.select([held for held, _ in choices], codes, CODE[Status.OK]).astype(np.int8)
