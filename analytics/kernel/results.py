"""From matrices to tables: rows of rates, lag and status changes. Pure; contains no rule."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.age import EXACT, MARKED, METHODS, Age
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.debounce import NEVER, Debounced
from analytics.kernel.evidence import EXPLAINED, evidence
from analytics.kernel.facts import Facts, Logs
from analytics.kernel.grid import Known, Positions, Ticks
from analytics.kernel.lag import Lag, delivered
from analytics.kernel.pairs import PairStatus, Rolled
from analytics.kernel.progress import Progress
from analytics.kernel.rules import Rules
from analytics.kernel.segments import Motion
from analytics.kernel.status import CODE, STATUSES, UNCLEAR, Codes, RuleInputs
from analytics.schema import LAG, RATES, STATUS_CHANGES
from analytics.statuses import TABLE, Level, Reason, Status

LEVELS: Final = [TABLE[status].level for status in STATUSES]


class Judged(NamedTuple):
    """Results of some pairs. Matrices of `grid`, `lag` and `age` have all ticks; the others begin
    at tick number `begin`."""

    ticks: Ticks
    begin: int
    known: Known
    grid: Positions
    facts: Facts
    motion: Motion
    lag: Lag
    age: Age
    progress: Progress
    inputs: RuleInputs
    candidate: Codes
    debounced: Debounced
    rolled: Rolled
    pair_status: PairStatus
    gaps: tuple[str | None, ...]
    """For each of all ticks, why a source has no samples of it."""
    logs: Logs
    rules: Rules

    @property
    def row(self) -> int:
        """First evaluated row of matrices that begin at `begin`."""
        return self.ticks.first - self.begin


class Places(NamedTuple):
    """Rows to write: ticks as indices into matrices from `begin`, and series."""

    row: Ints
    series: Ints


def places(where: Bools, first: int) -> Places:
    """Places that are set in `where`, from row number `first` on: by series, then tick."""
    series, row = np.nonzero(where[first:].T)
    return Places(row + first, series)


def rates(judged: Judged) -> pa.Table:
    """Rows of RATES: one for each sample with a previous sample."""
    motion = judged.motion
    at = places(~np.isnan(motion.dt), judged.row)
    return pa.table(
        [
            *_keys(judged, at),
            columns.nullable_times(motion.segment[at]),
            columns.nullable(motion.dt[at]),
            columns.nullable(motion.produced[at], pa.int64()),
            columns.nullable(motion.consumed[at], pa.int64()),
        ],
        schema=RATES,
    )


def lag(judged: Judged) -> pa.Table:
    """Rows of LAG: one for each sample, and for each tick at which a series is silent."""
    debounced = judged.debounced
    at = places(debounced.reported, judged.row)
    full = Places(at.row + judged.begin, at.series)
    amounts, age = judged.lag, judged.age
    if np.isnan(judged.grid.pull).all():
        in_flight = ready = pa.nulls(at.row.size, pa.int64())
    else:
        grid = judged.grid
        taken = delivered(amounts.head[full], grid.pull[full], grid.high[full])
        in_flight, ready = (columns.nullable(each, pa.int64()) for each in taken)
    status = debounced.status[at]
    mark = len(METHODS) * age.clock[full].astype(np.int64)
    seconds, low, high = age.age[full], age.low[full], age.high[full]
    # An exact age is its own bounds. They are not repeated, or they would triple its size on disk.
    exact = (age.method[full] == EXACT) & (mark == 0) & (low == seconds) & (high == seconds)
    tick, series_id, pair_id = _keys(judged, at)
    return pa.table(
        [
            tick,
            columns.nullable_times(judged.grid.ts[full]),
            series_id,
            pair_id,
            columns.nullable(amounts.lag[full], pa.int64()),
            columns.nullable(amounts.lost[full], pa.int64()),
            columns.nullable(amounts.ahead[full], pa.int64()),
            in_flight,
            ready,
            columns.nullable(columns.thousandths(seconds)),
            columns.nullable(columns.thousandths(np.where(exact, np.nan, low))),
            columns.nullable(columns.thousandths(np.where(exact, np.nan, high))),
            columns.words(MARKED, age.method[full] + mark),
            columns.nullable(columns.thousandths(judged.progress.progress[at])),
            columns.words(STATUSES, status.astype(np.int64)),
            columns.nullable_times(debounced.since[at]),
            reasons(judged, at),
            _evidence(judged, judged.debounced, at),
        ],
        schema=LAG,
    )


def reasons(judged: Judged, at: Places) -> pa.Array:
    """Return why a value of a row is not known; null if all are known."""
    given = judged.grid.reasons
    gaps = sorted({gap for gap in judged.gaps if gap is not None})
    gap_of = np.array([gaps.index(gap) + 1 if gap else 0 for gap in judged.gaps], np.int64)
    full = Places(at.row + judged.begin, at.series)
    reason = judged.grid.reason[full]
    no_sample = np.isnan(judged.grid.ts[full])
    # The broker has sent a snapshot, but without news of the queue.
    answers = judged.logs.heard[full.row, judged.logs.of_pair[judged.known.pair[at.series]]]
    unknown = (judged.debounced.status[at] == CODE[Status.UNKNOWN]) & (reason == 0)
    broadcasting = judged.facts.broadcasting[at.row, judged.known.pair[at.series]]
    cases = {
        Reason.NO_SNAPSHOT: no_sample & ~answers,
        Reason.NOTHING_NEW: no_sample,
        Reason.BROADCASTING: unknown & broadcasting,
        Reason.OFFSETS_UNKNOWN: unknown & np.isnan(judged.lag.lag[full]),
        Reason.MISSED_TICKS: unknown
        & (judged.candidate[at] == UNCLEAR)
        & ~judged.progress.young[at],
        Reason.SETTLING: unknown,
    }
    words = [*given, *cases, *(f"{Reason.NO_SNAPSHOT}: {gap}" for gap in gaps)]
    codes = [np.full(at.row.size, len(given) + place, np.int64) for place in range(len(cases))]
    explained = gap_of[full.row] > 0
    codes[0][explained] = len(given) + len(cases) - 1 + gap_of[full.row][explained]
    return columns.words(words, np.select(list(cases.values()), codes, reason))


def changes(judged: Judged) -> pa.Table:
    """Rows of STATUS_CHANGES, by tick, pair and series; a pair's own row comes first. A commit that
    moved without a request gives its own row of level ticket."""
    debounced = judged.debounced
    at = places(_changed(debounced.status, debounced.before), judged.row)
    events = places(judged.motion.alarming, judged.row)
    of_pairs = judged.pair_status
    at_pair = places(_changed(of_pairs.status, of_pairs.before), judged.row)
    parts = [
        _changes(judged, debounced, at, _evidence(judged, debounced, at)),
        _changes(judged, debounced, events, pa.array(['{"event":"unrequested"}'] * events.row.size))
        .drop_columns("level")
        .append_column("level", pa.array([Level.TICKET] * events.row.size, pa.string()))
        .select(STATUS_CHANGES.names),
        _changes(judged, of_pairs, at_pair, pa.nulls(at_pair.row.size, pa.string())),
    ]
    together = pa.concat_tables([part.cast(STATUS_CHANGES) for part in parts])
    keys = [("tick", "ascending"), ("pair_id", "ascending"), ("series_id", "ascending")]
    return together.sort_by([*keys, ("level", "ascending")]).combine_chunks()


def _changed(status: Codes, before: Codes) -> Bools:
    """Return the places at which a status changes. The first row of a series counts as a change
    unless it is OK or not evaluated yet."""
    quiet = (before == NEVER) & ((status == CODE[Status.OK]) | (status == CODE[Status.UNKNOWN]))
    news: Bools = (status != before) & (status != NEVER) & ~quiet
    return news


def _changes(judged: Judged, of: Debounced | PairStatus, at: Places, why: pa.Array) -> pa.Table:
    now = judged.ticks.at[at.row + judged.begin]
    before, status = of.before[at].astype(np.int64), of.status[at].astype(np.int64)
    known = judged.known
    if isinstance(of, Debounced):
        series_id = pa.array(known.series_id[at.series])
        pair_id = pa.array(known.pair_id[known.pair[at.series]])
    else:
        series_id = pa.nulls(at.row.size, pa.int64())
        pair_id = pa.array(known.pair_id[at.series])
    return pa.table(
        [
            columns.times(now),
            series_id,
            pair_id,
            columns.words([*STATUSES, None], np.where(before < 0, len(STATUSES), before)),
            columns.words(STATUSES, status),
            columns.words(LEVELS, status),
            why.cast(pa.string()),
            columns.nullable((now - of.before_since[at]) / columns.SECOND),
        ],
        names=STATUS_CHANGES.names,
    )


def _keys(judged: Judged, at: Places) -> tuple[pa.Array, pa.Array, pa.Array]:
    known = judged.known
    return (
        columns.times(judged.ticks.at[at.row + judged.begin]),
        pa.array(known.series_id[at.series]),
        pa.array(known.pair_id[known.pair[at.series]]),
    )


def _evidence(judged: Judged, debounced: Debounced, at: Places) -> pa.Array:
    """Evidence of each row; only the numbers of rows that have any are gathered."""
    status = debounced.status[at]
    some = np.flatnonzero(np.isin(status, EXPLAINED))
    texts = evidence(status[some], _numbers(judged, Places(at.row[some], at.series[some])))
    where = np.full(status.size, -1, np.int64)
    where[some] = np.arange(some.size)
    return texts.take(pa.array(where, mask=where < 0))


def _numbers(judged: Judged, at: Places) -> dict[str, Floats]:
    """Numbers of each row that evidence may use."""
    full = Places(at.row + judged.begin, at.series)
    inputs, grid = judged.inputs, judged.grid
    return {
        "age_seconds": judged.age.age[full],
        "objective_seconds": inputs.objective[at],
        "lag": judged.lag.lag[full],
        "lost": judged.lag.lost[full],
        "lost_lately": judged.motion.lost_sum[at],
        "lost_seconds_ago": judged.motion.lost_ago[at],
        "ahead": judged.lag.ahead[full],
        "commit_offset": grid.commit[full],
        "max_offset": grid.high[full],
        "min_offset": grid.low[full],
        "members": inputs.members[at],
        "alone_seconds": inputs.alone[at],
        "still_seconds": inputs.still[at],
        "stall_after_seconds": inputs.stall_after[at],
        "progress": judged.progress.progress[at],
        "kept_seconds": inputs.kept[at],
    }
