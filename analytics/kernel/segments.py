"""Offsets to rates: stretches that nothing cuts, what was produced and consumed, events. Pure.

Max offsets and commits are positions, not counters: they go back. A *segment* ends at a change of
epoch, at an event and at every decrease, and no rate reaches across its end. A decrease that no
event explains makes one. Messages that are skipped are never counted as consumed: for each series
what was produced is what was consumed, plus what was skipped, plus the change of its lag.

Step before: the grid. After: age, progress and status, which never look across a cut.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.events import Found, Seen, Told
from analytics.kernel.facts import Facts, Logs
from analytics.kernel.grid import Known, Positions, Ticks
from analytics.kernel.rules import Rules
from analytics.kernel.stall import Learned, StallTimes
from analytics.kernel.state import SERIES_FIELDS, STATUS_FIELDS, ZERO_FIELDS

STEPS: Final = ("dt", "produced", "consumed", "produce_rate", "consume_rate")
STANDINGS: Final = ("segment", "cut_at", "still", "still_most", "waiting")


class Motion(NamedTuple):
    """Matrices [tick, series], from the first tick that is gone through."""

    dt: Floats
    """Seconds since the row before; NaN at the first."""
    produced: Floats
    consumed: Floats
    produce_rate: Floats
    consume_rate: Floats
    segment: Floats
    """The tick at which the segment began [microseconds]."""
    still: Floats
    """For how long the commit certainly stands still with work to do [s]."""
    still_most: Floats
    """For how long it may: a hole in the ticks leaves that open."""
    cut_at: Floats
    """The tick of the last cut [microseconds]; NaN: none since the series was first seen."""
    waiting: Floats
    """When the head was first seen to wait [microseconds]; NaN with nothing to read."""
    forgotten: Bools
    """Nobody reports the series any more: as if it had never been seen."""
    alarming: Bools
    """An event that nobody asked for, first shown by this row."""
    stall: Learned


def effective(low: Floats, high: Floats, commit: Floats) -> Floats:
    """Where the group reads on: the commit within what is stored; NaN where that is not known."""
    within: Floats = np.minimum(np.fmax(commit, low), high)
    within[np.isnan(commit)] = np.nan
    return within


def motion_of(
    grid: Positions,
    told: Told,
    facts: Facts,
    logs: Logs,
    ticks: Ticks,
    begin: int,
    known: Known,
    carried: dict[str, Floats],
    stall: StallTimes,
    rules: Rules,
) -> tuple[Motion, Found]:
    """Go through the rows tick by tick from number `begin` on; `carried` is brought forward."""
    shape = (ticks.at.size - begin, known.series_id.size)
    out = {name: np.full(shape, np.nan) for name in (*STEPS, *STANDINGS)}
    alarming = np.zeros(shape, np.bool_)
    learned = Learned(*(np.empty((shape[0], known.pair_id.size)) for _ in Learned._fields))
    found = Found(known)
    forgotten = np.zeros(shape, np.bool_)
    walk = _Walk(carried, known, logs.of_pair, rules, found)
    present = grid.present
    for row in range(shape[0]):
        at = begin + row
        now = int(ticks.at[at])
        walk.hear(told, at)
        forgotten[row] = walk.forget(present[at], now, logs.heard[at])
        if present[at].any():
            counters = (facts.expired[row], facts.reset_forward[row], facts.reset_backward[row])
            step = walk.step(grid, at, now, present[at], counters, stall)
            for name in STEPS:
                out[name][row] = getattr(step, name)
            alarming[row] = step.alarming
        out["segment"][row] = carried["segment"]
        out["still"][row] = (now - carried["still"]) / SECOND
        out["still_most"][row] = (now - carried["still_first"]) / SECOND
        out["cut_at"][row] = carried["cut_at"]
        out["waiting"][row] = carried["waiting"]
        for part, values in zip(learned, stall.times(facts.stall_given[row]), strict=True):
            part[row] = values
    motion = Motion(**out, forgotten=forgotten, alarming=alarming, stall=learned)
    # What came after the last look is told to the next evaluation.
    walk.hear(told, ticks.at.size)
    return motion, found


class _Step(NamedTuple):
    dt: Floats
    produced: Floats
    consumed: Floats
    produce_rate: Floats
    consume_rate: Floats
    alarming: Bools


class _Walk:
    """One tick after another: what each row says beside the row before it of its series."""

    def __init__(
        self,
        carried: dict[str, Floats],
        known: Known,
        broker_of_pair: Ints,
        rules: Rules,
        found: Found,
    ) -> None:
        self._broker = broker_of_pair[known.pair]
        self._last = carried
        self._pair = known.pair
        self._rules = rules
        self._found = found
        self._size = known.series_id.size

    def hear(self, told: Told, at: int) -> None:
        """Take note of the events that a row of tick number `at` can show first."""
        here = told.at == at
        if not here.any():
            return
        series = told.series[here]
        flags = self._last["pending"].astype(np.int64)
        np.bitwise_or.at(flags, series, told.flags[here])
        self._last["pending"][:] = flags
        np.add.at(self._last["pending_delta"], series, told.delta[here])

    def forget(self, here: Bools, now: int, heard: Bools) -> Bools:
        """Drop series that nobody has reported for long; sooner if their broker reports others."""
        last, rules = self._last, self._rules
        silent = np.where(here, 0.0, (now - last["tick"]) / SECOND)
        limit = np.where(heard[self._broker], rules.history_s, rules.forget_after_s)
        gone: Bools = silent > limit
        if gone.any():
            for name in SERIES_FIELDS:
                if name not in STATUS_FIELDS:
                    last[name][gone] = 0.0 if name in ZERO_FIELDS else np.nan
        return gone

    def step(
        self,
        grid: Positions,
        at: int,
        now: int,
        here: Bools,
        counters: tuple[Floats, Floats, Floats],
        stall: StallTimes,
    ) -> _Step:
        """Compare one tick's rows with those before, and bring the state forward."""
        last, rules, found, pair = self._last, self._rules, self._found, self._pair
        ts, low, high, commit = grid.ts[at], grid.low[at], grid.high[at], grid.commit[at]
        epoch = grid.epoch[at]
        none = np.zeros(self._size, np.bool_)
        expired, forward, backward = (each[pair] for each in counters)

        flags = np.where(here, last["pending"], 0.0).astype(np.int64)
        told = flags != 0
        truncate_told = (flags & int(Seen.TRUNCATE)) != 0
        told_delta = np.where(flags & int(Seen.DISTANCE_UNKNOWN), np.nan, last["pending_delta"])
        new_epoch = here & (np.abs(epoch - last["epoch"]) > 0)
        truncated = here & (high < last["high"])
        back = here & (commit < last["commit"])

        produced = np.where(new_epoch | truncated | truncate_told, np.nan, high - last["high"])
        head, head_before = effective(low, high, commit), self._head_before()
        ahead = (commit > high) | (last["commit"] > last["high"])
        moved_by = np.where(told, commit - last["commit"] - told_delta, head - head_before)
        consumed = np.where(new_epoch | back & ~told | ahead, np.nan, moved_by)

        # Expiry: retention took messages before the group had read them.
        tellable = here & ~told & ~new_epoch & ~back & ~ahead
        from_, skipped = self._expired(low, commit, head_before, expired, tellable)
        gone = skipped > 0
        consumed = np.where(gone, consumed - skipped, consumed)

        # A forward reset that only the pair's counter tells of: exact where one queue moved.
        reset = none
        if np.any(forward > 0):
            reset = tellable & ~gone & (forward > 0) & (commit > last["commit"])
            alone = np.bincount(pair[reset], minlength=counters[1].size)[pair] == 1
            to = np.where(alone, np.minimum(last["commit"] + forward, commit), commit)
            consumed = np.where(reset, np.where(alone, commit - to, np.nan), consumed)
            found.add("reset_forward", reset, ts, now, last["commit"], to, ~none)
        consumed[consumed < 0] = np.nan

        cut = new_epoch | truncated | back | told | gone | reset
        rewound = back & ~told
        asked = rewound & (backward > 0)
        found.add("expire", gone, ts, now, from_, from_ + skipped, none)
        torn = truncated & ~truncate_told
        found.add("truncate", torn, ts, now, last["high"], high, none)
        found.add("reset_backward", asked, ts, now, last["commit"], commit, asked)
        found.add("rewind", rewound & ~asked, ts, now, last["commit"], commit, none)
        # A rebalance commits again what was committed a moment ago; nobody needs to look at it.
        recommit = rewound & (commit >= last["older_commit"])
        unasked = (flags & int(Seen.UNREQUESTED)) != 0
        alarming = unasked | torn | (rewound & ~asked & ~recommit & ~new_epoch)

        dt = np.where(here, (ts - last["ts"]) / SECOND, np.nan)
        produce_rate = _rate(produced, ts - last["high_ts"], cut)
        consume_rate = _rate(consumed, ts - last["commit_ts"], cut)

        lag = high - head
        self._stand_still(here, now, ts, commit, lag, cut, stall)
        self._remember(here, now, ts, epoch, low, high, commit, lag, cut, rules)
        return _Step(dt, produced, consumed, produce_rate, consume_rate, alarming)

    def _head_before(self) -> Floats:
        last = self._last
        return effective(last["low"], last["high"], last["commit"])

    def _expired(
        self, low: Floats, commit: Floats, head_before: Floats, counted: Floats, where: Bools
    ) -> tuple[Floats, Floats]:
        """From which offset on and how many messages retention took unread, since the last row.

        Seen at once where the commit is below the min offset. Where the group had already gone on
        from there, the broker's counter of expired messages is needed to tell it from reading.
        """
        last = self._last
        lost_now, lost_before = commit < low, last["commit"] < last["low"]
        read = np.maximum(commit - head_before, 0)
        still_lost = where & lost_now
        from_ = np.where(lost_now, head_before + read, head_before)
        skipped = np.where(still_lost, low - from_, 0.0)
        resumed = where & lost_before & ~lost_now
        skipped = np.where(resumed, np.minimum(low, commit) - head_before, skipped)
        passed = where & ~lost_before & ~lost_now & (counted > 0) & (last["commit"] < low)
        skipped = np.where(passed, np.minimum(counted, low - last["commit"]), skipped)
        return from_, np.nan_to_num(np.maximum(skipped, 0.0))

    def _stand_still(
        self,
        here: Bools,
        now: int,
        ts: Floats,
        commit: Floats,
        lag: Floats,
        cut: Bools,
        stall: StallTimes,
    ) -> None:
        """Since when nothing is committed although there is work; learn what gaps are usual."""
        last = self._last
        hole = here & (now - last["tick"] > self._rules.period_us)
        moved = here & ~np.isnan(commit) & (commit != last["commit"])
        # Where there was nothing to do at the look before, the gap is a period at most.
        usual = moved & ~cut & ~np.isnan(last["still"])
        clear = usual & ~hole & (last["still"] == last["still_first"])
        stall.learn(now, self._pair, (now - last["still"]) / SECOND, clear)

        begins = moved | (here & ~(lag > 0))
        earliest = np.where(hole, last["tick"] + self._rules.period_us, now)
        np.copyto(last["still"], now, where=begins)
        np.copyto(last["still_first"], earliest, where=begins)
        waits = here & (lag > 0)
        np.copyto(last["waiting"], np.nan, where=here & ~waits)
        np.copyto(last["waiting"], ts, where=waits & (moved | cut | np.isnan(last["waiting"])))

    def _remember(
        self,
        here: Bools,
        now: int,
        ts: Floats,
        epoch: Floats,
        low: Floats,
        high: Floats,
        commit: Floats,
        lag: Floats,
        cut: Bools,
        rules: Rules,
    ) -> None:
        """This row is the last one now; offsets that it does not tell stay as they were."""
        last = self._last
        first = here & np.isnan(last["tick"])
        np.copyto(last["segment"], now, where=first | cut)
        np.copyto(last["cut_at"], now, where=cut)
        knows_high, knows_commit = here & ~np.isnan(high), here & ~np.isnan(commit)
        np.copyto(last["epoch"], epoch, where=here & ~np.isnan(epoch))
        np.copyto(last["low"], low, where=here & ~np.isnan(low))
        np.copyto(last["high"], high, where=knows_high)
        np.copyto(last["high_ts"], ts, where=knows_high)
        np.copyto(last["commit"], commit, where=knows_commit)
        np.copyto(last["commit_ts"], ts, where=knows_commit)
        np.copyto(last["lag"], lag, where=here)
        np.copyto(last["tick"], now, where=here)
        np.copyto(last["ts"], ts, where=here)
        np.copyto(last["pending"], 0.0, where=here)
        np.copyto(last["pending_delta"], 0.0, where=here)
        # Two marks of the commit, so that one is always at least recommit_s old.
        old = knows_commit & ~(now - last["recent_tick"] < rules.recommit_s * SECOND)
        np.copyto(last["older_commit"], last["recent_commit"], where=old)
        np.copyto(last["recent_commit"], commit, where=old)
        np.copyto(last["recent_tick"], now, where=old)


def _rate(count: Floats, microseconds: Floats, cut: Bools) -> Floats:
    """Per second; NaN across a cut and where no time passed."""
    rate = np.full(count.size, np.nan)
    np.divide(count * SECOND, microseconds, out=rate, where=(microseconds > 0) & ~cut)
    return rate
