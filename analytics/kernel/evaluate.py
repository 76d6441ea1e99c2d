"""From collected to computed tables: all rules, in the order of the data. Pure.

    positions ─► grid ─► lag ─► segments ─► age ─► progress ─► status ─► debounce ─► lag, rates
    pairs, logs ─► facts ──┘ stall ──────────────────┘           └─► pairs ─► drain ─► pair_lag
                                                                      └─► skew, stages, hidden lag

Results of a tick depend on the rows of the `history_s` before it and on the state, so they are the
same however time is cut into calls. Pairs (a group and a topic on one broker set) do not depend on
each other: how many are evaluated together is a matter of memory, and buckets of pairs need no
exchange.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import columns, results
from analytics.kernel.absence import excused, keeps_pace, unfinished
from analytics.kernel.age import BOUNDED, Heads, age_of, at_least
from analytics.kernel.clocks import clocks_of, widened
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.debounce import debounce
from analytics.kernel.drain import drain_of
from analytics.kernel.events import Found, series_events
from analytics.kernel.facts import Facts, facts_of, logs_of
from analytics.kernel.grid import (
    Known,
    Positions,
    Rows,
    Ticks,
    indexed,
    known_of,
    rows_within,
    ticks_of,
)
from analytics.kernel.hidden import hidden_lag
from analytics.kernel.lag import Lag, lag_of
from analytics.kernel.pair_rows import pair_lag, with_hidden
from analytics.kernel.pairs import roll_up, status_of
from analytics.kernel.progress import batches_of, not_due, progress_of
from analytics.kernel.relapse import relapsed
from analytics.kernel.results import Judged
from analytics.kernel.rules import Rules
from analytics.kernel.segments import motion_of
from analytics.kernel.stages import split
from analytics.kernel.stall import Learned, StallTimes, bin_ends
from analytics.kernel.state import Carried, ids_of, nothing, read, write
from analytics.kernel.status import RuleInputs, candidates, held_ticks
from analytics.kernel.window import STATUS_STATE, Evaluated, Window
from analytics.schema import (
    LAG,
    OFFSET_EVENTS,
    PAIR_LAG,
    RATES,
    STAGES,
    STATUS_CHANGES,
)
from analytics.statuses import Reason

PLACES_AT_ONCE: Final = 1 << 19
"""Ticks × series evaluated together: about 60 matrices of 4 MiB."""


def evaluate(
    window: Window, rules: Rules, state: pa.Table | None, after: datetime, until: datetime
) -> Evaluated:
    """Evaluate all series and pairs of the window at every tick in (after, until].

    state: result of the evaluation that ended at `after`, for the same pairs. None: the rows before
    `after` are evaluated first to build a state. Raises ValueError if the state belongs to rules
    with other windows.
    """
    window = window._replace(
        positions=_news(window.positions, "series_id"), pairs=_news(window.pairs, "pair_id")
    )
    ticks = ticks_of(rules, after, until)
    ids = ids_of(state)
    rows, tick = rows_within(window.positions, ticks, rules.period_us)
    row_ids, row_pairs = columns.ints(rows, "series_id"), columns.ints(rows, "pair_id")
    begins = np.append(True, row_ids[1:] != row_ids[:-1])[: row_ids.size]
    every, first = np.unique(np.concatenate([ids.series_id, row_ids[begins]]), return_index=True)
    pair_of = np.concatenate([ids.pair_of, row_pairs[begins]])[first]
    if ticks.first >= ticks.at.size or not every.size:
        return _nothing(state)
    known = known_of(every, pair_of, window, ids.names)
    by_id = np.argsort(known.series_id, kind="stable")
    series = by_id[indexed(row_ids, known.series_id[by_id])]
    shape = (ticks.at.size, known.series_id.size)
    grid = Rows(rows, tick, series, shape)
    carried = nothing(*shape[1:], known.pair_id.size, rules.drain_minutes, bin_ends(rules).size)
    if state is not None:
        read(state, carried, known.series_id, known.pair_id)
    begin = ticks.first if state is not None else 0
    gaps = _gaps(window.gaps, ticks, rules.period_us)
    done = []
    for pairs_from, pairs_to in _parts(known, ticks.at.size):
        part, of_series = known.part(pairs_from, pairs_to)
        own = carried.part(of_series, slice(pairs_from, pairs_to))
        done.append(_judge(grid.positions(of_series), part, window, ticks, begin, own, gaps, rules))
    rates, lag, pair_rows, changes, events = (
        pa.concat_tables(tables) for tables in zip(*done, strict=True)
    )
    end = int(ticks.at[-1])
    left = write(carried, known.series_id, known.pair, known.pair_id, known.names, end)
    hidden, stages = _with_logs(window, pair_rows, ticks, after, rules)
    return Evaluated(rates, lag, hidden, stages, changes, events, left)


def _news(rows: pa.Table, key: str) -> pa.Table:
    """Return the rows without repeated samples, which an earlier tick already had."""
    if not rows.num_rows:
        return rows
    ts, tick = columns.micros(rows, "ts"), columns.micros(rows, "tick")
    if _have_one_tick_each(ts, tick):
        return rows
    ids = columns.ints(rows, key)
    apart = np.diff(ids)
    order = None
    if not ((apart > 0) | ((apart == 0) & (np.diff(ts) >= 0))).all():
        order = np.lexsort((tick, ts, ids))
        ids, ts, tick = ids[order], ts[order], tick[order]
    again = (np.diff(ids) == 0) & (np.diff(ts) == 0) & (np.diff(tick) != 0)
    if not again.any():
        return rows
    new = np.ones(rows.num_rows, np.bool_)
    new[1:][again] = False
    if order is not None:
        new[order] = new.copy()
    return rows.filter(pa.array(new))


def _have_one_tick_each(ts: Ints, tick: Ints) -> bool:
    """Whether no time of a snapshot is at two ticks. All rows of a snapshot share both, so there
    are few different times."""
    encoded = pa.array(ts).dictionary_encode()
    at = encoded.indices.to_numpy()
    tick_of = np.empty(len(encoded.dictionary), np.int64)
    tick_of[at] = tick
    return bool((tick_of[at] == tick).all())


def _nothing(state: pa.Table | None) -> Evaluated:
    return Evaluated(
        RATES.empty_table(),
        LAG.empty_table(),
        PAIR_LAG.empty_table(),
        STAGES.empty_table(),
        STATUS_CHANGES.empty_table(),
        OFFSET_EVENTS.empty_table(),
        state if state is not None else STATUS_STATE.empty_table(),
    )


def _parts(known: Known, ticks: int) -> list[tuple[int, int]]:
    """Return ranges (from, to) of pairs, each with about PLACES_AT_ONCE cells of a matrix."""
    ends = np.append(known.starts[1:], known.series_id.size) * ticks
    parts, first = [], 0
    while first < ends.size:
        done = ends[first - 1] if first else 0
        end = max(first + 1, int(np.searchsorted(ends, done + PLACES_AT_ONCE, "right")))
        parts.append((first, end))
        first = end
    return parts


def _judge(
    grid: Positions,
    known: Known,
    window: Window,
    ticks: Ticks,
    begin: int,
    carried: Carried,
    gaps: tuple[str | None, ...],
    rules: Rules,
) -> tuple[pa.Table, ...]:
    """Evaluate some pairs; updates `carried` to the last tick. Returns rates, lag, pair_lag,
    status_changes and offset_events."""
    logs = logs_of(window.logs, ticks, known, rules.period_us)
    worked = _worked(grid.commit[begin:], carried.series["commit"], known)
    facts = facts_of(window.pairs, ticks, begin, known, carried.pairs, worked, rules)
    grid = _from_the_first(grid, carried.series["commit"], known)
    grid = _without_broadcasting(grid, facts, known, begin)
    segment_before = carried.series["segment"].copy()
    stall_times = StallTimes(carried.pairs, carried.gap_bins, rules)
    heard = series_events(window.events, grid, ticks, begin, known, rules.period_us)
    lag = lag_of(grid)
    motion, found = motion_of(
        grid, lag, heard, facts, logs, ticks, begin, known, carried.series, stall_times, rules
    )
    segment = _over_history(motion.segment, segment_before, ticks, begin)
    waiting = _over_history(motion.waiting, np.full(known.series_id.size, np.nan), ticks, begin)
    age = age_of(Heads(grid, lag, segment, waiting, logs, ticks, known), rules)
    clocks = clocks_of(
        window.pairs, window.replicas, logs, ticks, begin, known, carried.pairs, rules
    )
    age = widened(age, lag.lag, grid.ts, clocks, known.pair, begin)
    of, broker = known.pair, logs.of_pair[known.pair]
    stall = Learned(*(each[:, of] for each in motion.stall))
    batches = batches_of(grid, lag.lag, motion.still, stall.gap, rules)
    progress = progress_of(grid, lag.lag, age, segment, batches, stall.gap, ticks, begin, rules)
    age, by_ticks = at_least(age, lag.head, grid.commit, motion.unread, begin, rules.period_s)
    # A member that left will not commit the work that it had taken.
    now = ticks.at[begin:, None]
    left_work = (stall.learned == 0) & (facts.left[:, of] >= now - motion.still * SECOND)
    # Without a member no commit will come.
    no_member = facts.readers[:, of] == 0
    gap = np.where(no_member, 0.0, stall.gap)
    due = not_due(motion.still, motion.still, gap, stall.learned, rules)
    due_most = not_due(motion.still, motion.still_most, gap, stall.learned, rules)
    paused_ago = facts.paused_ago[:, of]
    # After an absence or a pause the next commit is due a gap after the return.
    back = _since_pause(np.fmin(motion.still, (now - facts.left[:, of]) / SECOND), paused_ago)
    # The commit interval is not known before one whole gap between two commits was seen.
    unseen = (stall.gap == 0) & (stall.learned == 0) & ~left_work & ~no_member
    patience = np.fmin(by_ticks.age, rules.stall_unlearned_s)
    usual = np.where(stall.gap > rules.period_s, stall.gap, 0.0)
    objective = facts.objective[:, of]
    absent = excused(
        facts.readers[:, of], by_ticks.age, facts.alone_most[:, of], usual, objective, rules
    )
    paused = facts.paused[:, of]
    in_time = by_ticks.age <= objective
    restart = rules.objective_slack(objective) + rules.grace_s
    relapses = relapsed(
        np.where(by_ticks.method == BOUNDED, np.nan, by_ticks.age),
        in_time | paused | ((motion.segment == now) & ~motion.rewound),
        motion.rewound,
        restart,
        carried.series,
    )
    # A pause is not an absence, but it explains a large age in the same way.
    pace_kept = keeps_pace(
        absent | paused,
        now,
        by_ticks.age,
        lag.lag[begin:],
        np.where(paused, np.inf, facts.alone_most[:, of]),
        not_due(back, back, stall.gap, stall.learned, rules),
        carried.series,
        rules,
    )
    # Members that were away begin their work anew; if commits are rare, the next is not due yet.
    short = left_work & ~(pace_kept & (stall.gap > rules.period_s))
    kept = np.where(logs.deletes, logs.age_of_oldest, np.nan)
    inputs = RuleInputs(
        lag=Lag._make(each[begin:] for each in lag),
        age=by_ticks,
        progress=progress,
        lost_ago=motion.lost_ago,
        objective=objective,
        members=facts.members[:, of],
        subscribed=facts.subscribed[:, of],
        recently_subscribed=facts.recently_subscribed[:, of],
        unfinished=unfinished(
            facts.subscribed[:, of], by_ticks.age - due > objective, carried.series
        ),
        paused=paused,
        alone=_since_pause(facts.alone, facts.paused_ago)[:, of],
        excused=absent,
        keeps_pace=pace_kept,
        relapsed=relapses,
        still=_since_pause(motion.still, paused_ago),
        still_most=_since_pause(motion.still_most, paused_ago),
        stall_after=np.where(short, np.minimum(stall.after, rules.grace_s), stall.after),
        not_due=due,
        not_due_most=np.where(unseen, patience, due_most),
        was_cut=~np.isnan(motion.cut_at),
        kept=kept[begin:, broker],
    )
    candidate = candidates(inputs, rules)
    debounced = debounce(
        candidate,
        held_ticks(candidate, inputs, rules),
        grid.present[begin:],
        motion.forgotten,
        ticks,
        begin,
        carried.series,
        rules,
    )
    rolled = roll_up(
        lag, age, motion, progress.progress, due, grid.ts, debounced, facts, known, ticks, begin
    )
    of_pairs = status_of(rolled, ticks, begin, carried.pairs, rules)
    drain = drain_of(rolled, ticks, begin, carried.pairs, carried.minutes, rules)
    judged = Judged(
        ticks,
        begin,
        known,
        grid,
        facts,
        motion,
        lag,
        age,
        progress,
        inputs,
        candidate,
        debounced,
        rolled,
        of_pairs,
        gaps,
        logs,
        rules,
    )
    return (
        results.rates(judged),
        results.lag(judged),
        pair_lag(judged, drain),
        results.changes(judged),
        _evaluated(found, ticks),
    )


def _since_pause(seconds: Floats, paused_ago: Floats) -> Floats:
    """Limit these times to the time since the last pause, in which the group had to read."""
    return np.where(paused_ago < seconds, paused_ago, seconds)


def _worked(commit: Floats, before: Floats, known: Known) -> Bools:
    """Return where a commit of a pair is higher than its last known one: matrix [tick, pair]."""
    last = before.copy()
    found = np.zeros((commit.shape[0], known.pair_id.size), np.bool_)
    for row, now in enumerate(commit):
        found[row] = np.logical_or.reduceat(now > last, known.starts)
        np.copyto(last, now, where=~np.isnan(now))
    return found


def _from_the_first(grid: Positions, before: Floats, known: Known) -> Positions:
    """Assume a commit at the first message of queues in which a group has not committed yet.

    A queue that a known topic gets later is read from its first message, so all its messages are
    unread, whichever member owns it. before: the last known commit of each series.
    """
    if Reason.NEVER_COMMITTED not in grid.reasons:
        return grid
    never = (grid.reason == grid.reasons.index(Reason.NEVER_COMMITTED)) & np.isnan(grid.commit)
    never &= ~np.isnan(grid.low)
    commit, begin = grid.commit.copy(), before.copy()
    met = np.logical_or.reduceat(~np.isnan(before), known.starts)
    for row, unread in enumerate(never):
        met |= np.logical_or.reduceat(~np.isnan(grid.commit[row]), known.starts)
        unread = unread & met[known.pair]
        np.copyto(begin, grid.low[row], where=unread & np.isnan(begin))
        np.copyto(commit[row], begin, where=unread)
    return grid._replace(commit=commit)


def _without_broadcasting(grid: Positions, facts: Facts, known: Known, begin: int) -> Positions:
    """Remove commits of broadcast groups, in which each member reads everything."""
    if not facts.broadcasting.any():
        return grid
    commit = grid.commit.copy()
    commit[begin:][facts.broadcasting[:, known.pair]] = np.nan
    return grid._replace(commit=commit)


def _over_history(evaluated: Floats, before: Floats, ticks: Ticks, begin: int) -> Floats:
    """Return a matrix of all ticks; ticks of the history get the value of the state."""
    history = np.broadcast_to(before, (begin, before.size))
    return np.concatenate([np.where(ticks.at[:begin, None] >= history, history, np.nan), evaluated])


def _evaluated(found: Found, ticks: Ticks) -> pa.Table:
    """Return the events of evaluated ticks only: those of earlier ticks are already written."""
    events = found.table()
    return events.filter(pa.array(columns.micros(events, "tick") >= ticks.at[ticks.first]))


def _gaps(gaps: pa.Table, ticks: Ticks, period: int) -> tuple[str | None, ...]:
    """Return for each tick why a source has no samples of it: the reason of the first gap there."""
    reasons: list[str | None] = [None] * ticks.at.size
    if not gaps.num_rows:
        return tuple(reasons)
    begin = columns.instants(gaps, "from_ts")
    end = columns.instants(gaps, "to_ts")
    low = np.nan_to_num(begin, nan=-np.inf)
    high = np.nan_to_num(end, nan=np.inf)
    near = np.flatnonzero((high >= ticks.at[0]) & (low < ticks.at[-1] + period))
    for gap, reason in zip(near, gaps.column("reason").take(pa.array(near)), strict=True):
        first, last = np.searchsorted(ticks.at, [low[gap] - period + 1, high[gap] + 1])
        for at in range(int(first), int(last)):
            reasons[at] = reasons[at] or reason.as_py()
    return tuple(reasons)


def _with_logs(
    window: Window, pair_rows: pa.Table, ticks: Ticks, after: datetime, rules: Rules
) -> tuple[pa.Table, pa.Table]:
    """Return rows of pair_lag with their hidden lag, and the stages."""
    pairs = rows_within(window.pairs, ticks, rules.period_us)[0]
    logs = rows_within(window.logs, ticks, rules.period_us)[0]
    if not pairs.num_rows:
        return pair_rows, STAGES.empty_table()
    hidden = hidden_lag(pairs, logs, after=after, window_s=rules.progress_window_s)
    pair_rows = with_hidden(pair_rows, hidden, ticks)
    stages = split(pairs, logs, pair_rows, period_s=rules.period_s, after=after)
    return pair_rows, stages
