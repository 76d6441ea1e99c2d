"""From offsets to rates: uncut segments, produced and consumed messages, events. Pure.

Max offsets and commits are positions, not counters: they can go back. A *segment* ends at a change
of epoch, at an event and at every decrease, and no rate spans its end. A decrease without a known
event creates an event. Skipped messages never count as consumed: for each series, produced =
consumed + skipped + change of lag.

Step before: the grid and the lag. Step after: age, progress and status, which do not use samples
before a cut.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.events import Found, Seen, SeriesEvents
from analytics.kernel.facts import Facts, Logs
from analytics.kernel.grid import Known, Positions, Ticks
from analytics.kernel.lag import Lag, effective
from analytics.kernel.rules import Rules
from analytics.kernel.stall import Learned, StallTimes
from analytics.kernel.state import SERIES_FIELDS, STATUS_FIELDS, ZERO_FIELDS

STEPS: Final = ("dt", "produced", "consumed", "produce_rate", "consume_rate")
STANDINGS: Final = (
    "segment",
    "cut_at",
    "still",
    "still_most",
    "waiting",
    "unread",
    "lost_ago",
    "lost_sum",
)


class Motion(NamedTuple):
    """Matrices [tick, series], from tick number `begin` on."""

    dt: Floats
    """Seconds since the previous row; NaN at the first."""
    produced: Floats
    consumed: Floats
    produce_rate: Floats
    consume_rate: Floats
    segment: Floats
    """The tick at which the segment began [microseconds]."""
    still: Floats
    """For how long the commit has certainly stood still with unread messages [s]."""
    still_most: Floats
    """For how long it may have stood still, holes included [s]."""
    cut_at: Floats
    """The tick of the last cut [microseconds]; NaN: none."""
    waiting: Floats
    """When the head was first seen unread [microseconds]; NaN without unread messages."""
    unread: Floats
    """For how long the message at the commit has been seen unread, by ticks [s]."""
    lost_ago: Floats
    """Time since retention last deleted unread messages of the group [s]; NaN: never."""
    lost_sum: Floats
    """Number of messages deleted unread since the group is LOST."""
    forgotten: Bools
    """No source reports the series any more: its state is dropped."""
    alarming: Bools
    """This row is the first after an event without a request."""
    rewound: Bools
    """The commit went back without a request."""
    stall: Learned


def motion_of(
    grid: Positions,
    lag: Lag,
    has_event: SeriesEvents,
    facts: Facts,
    logs: Logs,
    ticks: Ticks,
    begin: int,
    known: Known,
    carried: dict[str, Floats],
    stall: StallTimes,
    rules: Rules,
) -> tuple[Motion, Found]:
    """Process the rows tick by tick from number `begin` on; updates `carried`."""
    shape = (ticks.at.size - begin, known.series_id.size)
    out = {name: np.full(shape, np.nan) for name in (*STEPS, *STANDINGS)}
    alarming, rewound = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    learned = Learned(*(np.empty((shape[0], known.pair_id.size)) for _ in Learned._fields))
    found = Found(known)
    forgotten = np.zeros(shape, np.bool_)
    tracker = _SeriesTracker(carried, known, logs.of_pair, rules, found)
    present = grid.present
    for row in range(shape[0]):
        at = begin + row
        now = int(ticks.at[at])
        tracker.note_events(has_event, at)
        forgotten[row] = tracker.forget(present[at], now, logs.heard[at])
        if present[at].any():
            counters = (facts.expired[row], facts.reset_forward[row], facts.reset_backward[row])
            left = facts.left_before[row, known.pair]
            step = tracker.step(grid, lag, at, now, present[at], counters, left, stall)
            for name in STEPS:
                out[name][row] = getattr(step, name)
            alarming[row], rewound[row] = step.alarming, step.rewound
        out["segment"][row] = carried["segment"]
        out["still"][row] = (now - carried["still"]) / SECOND
        out["still_most"][row] = (now - carried["still_first"]) / SECOND
        out["cut_at"][row] = carried["cut_at"]
        out["waiting"][row] = carried["waiting"]
        out["unread"][row] = (now - carried["unread_tick"]) / SECOND
        out["lost_ago"][row] = (now - carried["lost_tick"]) / SECOND
        out["lost_sum"][row] = carried["lost_sum"]
        for part, values in zip(learned, stall.times(facts.stall_given[row]), strict=True):
            part[row] = values
    motion = Motion(**out, forgotten=forgotten, alarming=alarming, rewound=rewound, stall=learned)
    # Events after the last sample are kept for the next evaluation.
    tracker.note_events(has_event, ticks.at.size)
    return motion, found


class _Step(NamedTuple):
    dt: Floats
    produced: Floats
    consumed: Floats
    produce_rate: Floats
    consume_rate: Floats
    alarming: Bools
    rewound: Bools


class _SeriesTracker:
    """Compares each row of a series with its previous row, tick by tick."""

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

    def note_events(self, has_event: SeriesEvents, at: int) -> None:
        """Store the events whose first row is at tick number `at`."""
        here = has_event.at == at
        if not here.any():
            return
        series = has_event.series[here]
        flags = self._last["pending"].astype(np.int64)
        np.bitwise_or.at(flags, series, has_event.flags[here])
        self._last["pending"][:] = flags
        np.add.at(self._last["pending_delta"], series, has_event.delta[here])

    def forget(self, here: Bools, now: int, heard: Bools) -> Bools:
        """Drop series that had no samples for long; sooner if their broker reports others."""
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
        amounts: Lag,
        at: int,
        now: int,
        here: Bools,
        counters: tuple[Floats, Floats, Floats],
        left: Floats,
        stall: StallTimes,
    ) -> _Step:
        """Compare the rows of one tick with the previous ones, and update the state."""
        last, rules, found, pair = self._last, self._rules, self._found, self._pair
        ts, low, high, commit = grid.ts[at], grid.low[at], grid.high[at], grid.commit[at]
        epoch = grid.epoch[at]
        none = np.zeros(self._size, np.bool_)
        expired, forward, backward = (each[pair] for each in counters)

        flags = np.where(here, last["pending"], 0.0).astype(np.int64)
        has_event = flags != 0
        truncate_event = (flags & int(Seen.TRUNCATE)) != 0
        event_delta = np.where(flags & int(Seen.DISTANCE_UNKNOWN), np.nan, last["pending_delta"])
        new_epoch = here & (np.abs(epoch - last["epoch"]) > 0)
        truncated = here & (high < last["high"])
        back = here & (commit < last["commit"])

        produced = np.where(new_epoch | truncated | truncate_event, np.nan, high - last["high"])
        head, head_before = amounts.head[at], self._head_before()
        ahead = (commit > high) | (last["commit"] > last["high"])
        moved_by = np.where(has_event, commit - last["commit"] - event_delta, head - head_before)
        consumed = np.where(new_epoch | back & ~has_event | ahead, np.nan, moved_by)

        # Expiry: retention deleted messages before the group had read them.
        comparable = here & ~has_event & ~new_epoch & ~back & ~ahead
        from_, skipped = self._expired(low, commit, head_before, expired, comparable)
        gone = skipped > 0
        self._lose(now, np.where(comparable, low - commit, np.nan), expired, skipped)
        consumed = np.where(gone, consumed - skipped, consumed)

        # A forward reset that only the pair's counter shows; exact if one queue moved.
        reset = none
        if np.any(forward > 0):
            reset = comparable & ~gone & (forward > 0) & (commit > last["commit"])
            alone = np.bincount(pair[reset], minlength=counters[1].size)[pair] == 1
            to = np.where(alone, np.minimum(last["commit"] + forward, commit), commit)
            consumed = np.where(reset, np.where(alone, commit - to, np.nan), consumed)
            found.add("reset_forward", reset, ts, now, last["commit"], to, ~none)
        consumed[consumed < 0] = np.nan

        cut = new_epoch | truncated | back | has_event | gone | reset
        rewound = back & ~has_event
        asked = rewound & (backward > 0)
        unordered = rewound & ~asked & ~new_epoch
        found.add("expire", gone, ts, now, from_, from_ + skipped, none)
        torn = truncated & ~truncate_event
        found.add("truncate", torn, ts, now, last["high"], high, none)
        found.add("reset_backward", asked, ts, now, last["commit"], commit, asked)
        found.add("rewind", rewound & ~asked, ts, now, last["commit"], commit, none)
        # After a rebalance a recent offset is committed again; that raises no alarm.
        recommit = rewound & (commit >= last["older_commit"])
        unasked = (flags & int(Seen.UNREQUESTED)) != 0
        alarming = unasked | torn | (unordered & ~recommit)

        dt = np.where(here, (ts - last["ts"]) / SECOND, np.nan)
        produce_rate = _rate(produced, ts - last["high_ts"], cut)
        consume_rate = _rate(consumed, ts - last["commit_ts"], cut)

        lag = amounts.lag[at]
        self._stand_still(here, now, ts, commit, lag, cut, left, stall)
        self._remember(here, now, ts, epoch, low, high, commit, lag, cut, rules)
        return _Step(dt, produced, consumed, produce_rate, consume_rate, alarming, unordered)

    def _head_before(self) -> Floats:
        last = self._last
        return effective(last["low"], last["high"], last["commit"])

    def _expired(
        self, low: Floats, commit: Floats, head_before: Floats, counted: Floats, where: Bools
    ) -> tuple[Floats, Floats]:
        """First offset and number of the messages that retention deleted unread since the last row.

        They are visible at once if the commit is below the min offset. If the group continued after
        the deleted messages, only the broker's counter of expired messages shows how many it lost.
        Without the counter, none of the deleted range counts as read.
        """
        last = self._last
        lost_now, lost_before = commit < low, last["commit"] < last["low"]
        read = np.maximum(commit - head_before, 0)
        still_lost = where & lost_now
        resumed = where & lost_before & ~lost_now
        passed = where & ~lost_before & ~lost_now & (last["commit"] < low)
        jumped = np.minimum(low, commit) - head_before
        seen = np.where(still_lost, low - head_before - read, 0.0)
        seen = np.where(resumed & np.isnan(counted), jumped, seen)
        seen = np.nan_to_num(np.maximum(seen, 0.0))
        room = np.select([still_lost, resumed | passed], [read, jumped], 0.0)
        room = np.where(counted > 0, np.nan_to_num(np.maximum(room, 0.0)), 0.0)
        skipped = seen + self._shared(counted, seen, room) if room.any() else seen
        return np.where(lost_now, low - skipped, head_before), skipped

    def _shared(self, counted: Floats, known: Floats, room: Floats) -> Floats:
        """Distribute over a pair's queues the lost messages that it counts but no queue shows.
        counted: the pair's count, repeated for each of its queues. The counter has no queue, so
        each queue gets the same share of its possible loss, in whole messages."""
        pair, size = self._pair, int(self._pair[-1]) + 1
        left = np.nan_to_num(counted) - np.bincount(pair, weights=known, minlength=size)[pair]
        whole = np.bincount(pair, weights=room, minlength=size)[pair]
        share = np.zeros(pair.size)
        np.divide(np.clip(left, 0.0, whole), whole, out=share, where=whole > 0)
        so_far = np.cumsum(room)
        first = np.searchsorted(pair, pair)
        before = np.where(first > 0, so_far[first - 1], 0.0)
        end, begin = so_far - before, so_far - before - room
        shared: Floats = np.rint(end * share) - np.rint(begin * share)
        return shared

    def _lose(self, now: int, passed: Floats, counted: Floats, skipped: Floats) -> None:
        """Note which queues have lost messages now.

        passed: min offset minus commit of each queue. A broker counts messages in flight later,
        when the commit may be above the min offset. Such a loss is attributed to the queue whose
        commit is nearest to its min offset.
        """
        last, pair = self._last, self._pair
        size = int(pair[-1]) + 1
        shown = np.bincount(pair, weights=skipped, minlength=size)[pair] > 0
        hidden = np.where((counted > 0) & ~shown, np.nan_to_num(passed, nan=-np.inf), -np.inf)
        nearest = np.full(size, -np.inf)
        np.maximum.at(nearest, pair, hidden)
        of_pair = np.isfinite(hidden) & (hidden == nearest[pair])
        lost = (skipped > 0) | of_pair
        if not lost.any():
            return
        goes_on = now - last["lost_tick"] < self._rules.lost_for_s * SECOND
        more = np.where(skipped > 0, skipped, np.nan_to_num(counted))
        np.copyto(last["lost_sum"], np.where(goes_on, last["lost_sum"], 0.0) + more, where=lost)
        np.copyto(last["lost_tick"], now, where=lost)

    def _stand_still(
        self,
        here: Bools,
        now: int,
        ts: Floats,
        commit: Floats,
        lag: Floats,
        cut: Bools,
        left: Floats,
        stall: StallTimes,
    ) -> None:
        """Update since when the commit stands still with unread messages; learn the usual gaps."""
        last = self._last
        hole = here & (now - last["tick"] > self._rules.period_us)
        moved = here & ~np.isnan(commit) & (commit != last["commit"])
        # If nothing was unread at the previous sample, the gap is at most a period.
        usual = moved & ~cut & ~np.isnan(last["still"])
        # A gap that was open at the first sample has an unknown length. A gap without a member does
        # not show how often members commit.
        clear = usual & ~hole & (last["still"] == last["still_first"]) & ~(left >= last["still"])
        clear &= last["still"] > last["segment"]
        stall.learn(now, self._pair, (now - last["still"]) / SECOND, clear)

        begins = moved | (here & ~(lag > 0))
        earliest = np.where(hole, last["tick"] + self._rules.period_us, now)
        np.copyto(last["still"], now, where=begins)
        np.copyto(last["still_first"], earliest, where=begins)
        waits = here & (lag > 0)
        np.copyto(last["waiting"], np.nan, where=here & ~waits)
        np.copyto(last["waiting"], ts, where=waits & (moved | cut | np.isnan(last["waiting"])))
        np.copyto(last["unread_tick"], np.nan, where=here & ~waits)
        np.copyto(last["unread_tick"], now, where=waits & (moved | np.isnan(last["unread_tick"])))

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
        """Store this row as the last one; missing offsets keep their previous values."""
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
        # There are two marks of the commit, so that one is always at least recommit_s old.
        old = knows_commit & ~(now - last["recent_tick"] < rules.recommit_s * SECOND)
        np.copyto(last["older_commit"], last["recent_commit"], where=old)
        np.copyto(last["recent_commit"], commit, where=old)
        np.copyto(last["recent_tick"], now, where=old)


def _rate(count: Floats, microseconds: Floats, cut: Bools) -> Floats:
    """Rate per second; NaN across a cut and where no time passed."""
    rate = np.full(count.size, np.nan)
    np.divide(count * SECOND, microseconds, out=rate, where=(microseconds > 0) & ~cut)
    return rate
