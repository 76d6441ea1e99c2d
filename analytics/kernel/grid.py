"""Collected rows as matrices, one row per tick and one column per series. Pure.

Step before: tables of a Window. Step after: rules, which work on whole rows or matrices, never on
single values. A tick without samples is NaN. Offsets and times [microseconds since 1970] are
doubles, exact below 2**53, so that unknown can be NaN. Series are sorted by pair_id, then
series_id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.moments import to_us

NAMES: Final = ("cluster", "broker", "group", "topic")


class Ticks(NamedTuple):
    """The ticks of an evaluation."""

    at: Ints
    """Microseconds since 1970, each tick from after − history_s to until."""
    first: int
    """Index of the first tick to evaluate; those before it are history."""

    @property
    def evaluated(self) -> Ints:
        """Times of the ticks to evaluate."""
        return self.at[self.first :]


class Known(NamedTuple):
    """The series and pairs of an evaluation."""

    pair_id: Ints
    """Ascending."""
    names: tuple[tuple[str, ...], ...]
    """Cluster, broker, group and topic of each pair."""
    series_id: Ints
    """Sorted by pair, then by id."""
    pair: Ints
    """Index of each series' pair."""
    queue: Floats
    """Queue number of each series; NaN if the table of series lacks it."""
    starts: Ints
    """Index of each pair's first series; every pair has at least one."""

    def part(self, first: int, end: int) -> tuple[Known, slice]:
        """Return the pairs from number first to end, and the slice of their series."""
        stop = int(self.starts[end]) if end < self.starts.size else self.series_id.size
        series = slice(int(self.starts[first]), stop)
        part = Known(
            self.pair_id[first:end],
            self.names[first:end],
            self.series_id[series],
            self.pair[series] - first,
            self.queue[series],
            self.starts[first:end] - self.starts[first],
        )
        return part, series


class Positions(NamedTuple):
    """Columns of the table positions, each as a matrix [tick, series]."""

    ts: Floats
    epoch: Floats
    low: Floats
    high: Floats
    commit: Floats
    pull: Floats
    head: Floats
    """Store time of the oldest message without a commit."""
    head_error: Floats
    reason: Ints
    """Index into `reasons`; 0: none."""
    reasons: tuple[str | None, ...]
    member: Floats
    """Number of the member that owns the queue; 0: none."""

    @property
    def present(self) -> Bools:
        """Where a series has a sample."""
        return ~np.isnan(self.ts)


def ticks_of(rules: Rules, after: datetime, until: datetime) -> Ticks:
    """Return all ticks needed to evaluate (after, until]."""
    period = rules.period_us
    begin, end = to_us(after), to_us(until)
    history = begin - round(rules.history_s * columns.SECOND)
    at = np.arange(history // period + 1, end // period + 1, dtype=np.int64) * period
    return Ticks(at, int(np.searchsorted(at, begin, "right")))


def rows_within(table: pa.Table, ticks: Ticks, period: int) -> tuple[pa.Table, Ints]:
    """Return the rows whose tick is in ticks, and the index of each row's tick there."""
    index = columns.micros(table, "tick") // period - (
        ticks.at[0] // period if ticks.at.size else 0
    )
    inside = (index >= 0) & (index < ticks.at.size)
    if inside.all():
        return table, index
    return table.filter(pa.array(inside)), index[inside]


def rows_of_pairs(
    pairs: pa.Table, ticks: Ticks, begin: int, known: Known, period: int
) -> tuple[pa.Table, Ints, Ints]:
    """Return the rows of known pairs from tick number `begin` on, with the number of each row's
    tick, counted from there, and pair."""
    rows, tick = rows_within(pairs, ticks, period)
    pair = indexed(columns.ints(rows, "pair_id"), known.pair_id)
    there = (pair >= 0) & (tick >= begin)
    return rows.filter(pa.array(there)), tick[there] - begin, pair[there]


def sets_of(rows: pa.Table, known: Known) -> tuple[list[tuple[str, ...]], Ints]:
    """The broker sets of the known pairs, and the number of each row's set; −1: a set without known
    pairs."""
    sets = sorted({names[:2] for names in known.names})
    keys = pa.array(["\x1f".join(each) for each in sets], pa.string())
    found = pc.index_in(columns.joined(rows, "cluster", "broker"), value_set=keys)
    return sets, np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)


def place(
    tick: Ints, column: Ints, shape: tuple[int, int], rank: tuple[Floats | Ints, ...]
) -> Ints:
    """Return the row for each place of a matrix of that shape; −1 where there is none.
    rank: of several rows with the same place, the one with the highest rank wins; the last array
    counts first. Around a change of master two nodes may both report a pair."""
    where = np.full(shape, -1, dtype=np.int64)
    where[tick, column] = np.arange(tick.size)
    if np.count_nonzero(where >= 0) < tick.size:
        order = np.lexsort(rank)
        where[tick[order], column[order]] = order
    return where


def taken(values: Floats, where: Ints) -> Floats:
    """Values of the rows at each place, NaN where there is none."""
    if not values.size or np.isnan(values).all():
        return np.broadcast_to(np.float64(np.nan), where.shape)
    found: Floats = np.append(values, np.nan)[where]
    return found


def indexed(ids: Ints, among: Ints) -> Ints:
    """Return the index of each id in an ascending list; −1 if it is not there. Tables are sorted,
    so equal ids are adjacent and only the first of them is searched."""
    if not ids.size or not among.size:
        return np.full(ids.size, -1, dtype=np.int64)
    begins = np.append(True, ids[1:] != ids[:-1])
    heads = ids[begins]
    at = np.minimum(np.searchsorted(among, heads), among.size - 1)
    found = np.where(among[at] == heads, at, -1).astype(np.int64)
    each: Ints = found[np.cumsum(begins) - 1]
    return each


class Rows:
    """Rows of positions as columns, with the place of each; parts of them become matrices."""

    def __init__(self, rows: pa.Table, tick: Ints, series: Ints, shape: tuple[int, int]) -> None:
        """rows: rows of the table positions. tick, series: place of each row in these matrices."""
        ts = columns.instants(rows, "ts")
        epoch = columns.floats(rows, "epoch")
        self._where = place(tick, series, shape, (ts, np.nan_to_num(epoch, nan=-1.0)))
        self._columns = [
            ts,
            epoch,
            *(columns.floats(rows, f"{name}_offset") for name in ("min", "max", "commit", "pull")),
            columns.instants(rows, "head_store_ts"),
            columns.floats(rows, "head_error_seconds"),
            columns.floats(rows, "member"),
        ]
        self._reasons: tuple[str | None, ...] = (None,)
        self._reason = np.zeros(0, np.int64)
        if "reason" in rows.column_names and rows.column("reason").null_count < rows.num_rows:
            encoded = rows.column("reason").combine_chunks().dictionary_encode()
            self._reasons = (None, *encoded.dictionary.to_pylist())
            codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
            self._reason = np.append(np.asarray(codes, np.int64) + 1, 0)

    def positions(self, part: slice) -> Positions:
        """The matrices of some neighbouring series."""
        where = self._where[:, part]
        ts, epoch, low, high, commit, pull, head, head_error, member = (
            taken(column, where) for column in self._columns
        )
        reason = self._reason[where] if self._reason.size else np.zeros(where.shape, np.int64)
        return Positions(
            ts, epoch, low, high, commit, pull, head, head_error, reason, self._reasons, member
        )


def known_of(
    series_id: Ints, pair_of: Ints, window: Window, names: dict[int, tuple[str, ...]]
) -> Known:
    """Order series by pair, and name their pairs.
    series_id, pair_of: each series once, and its pair. names: names of pairs in the state; the
    tables of the window take precedence."""
    order = np.lexsort((series_id, pair_of))
    series_id, pair_of = series_id[order], pair_of[order]
    pair_id, starts, pair = np.unique(pair_of, return_index=True, return_inverse=True)
    named = dict(names)
    for table in (window.series, window.pairs):
        named.update(_names_in(table, pair_id))
    queue = np.full(series_id.size, np.nan)
    listed = window.series
    if listed.num_rows:
        by_id = np.argsort(series_id, kind="stable")
        at = indexed(columns.ints(listed, "series_id"), series_id[by_id])
        queue[by_id[at[at >= 0]]] = columns.floats(listed, "queue")[at >= 0]
    nameless = ("", "", "", "")
    return Known(
        pair_id,
        tuple(named.get(int(each), nameless) for each in pair_id),
        series_id,
        pair.reshape(-1).astype(np.int64),
        queue,
        starts.astype(np.int64),
    )


def _names_in(table: pa.Table, pair_id: Ints) -> dict[int, tuple[str, ...]]:
    """Return the names of these pairs that are in the table."""
    if not table.num_rows:
        return {}
    ids, first = np.unique(columns.ints(table, "pair_id"), return_index=True)
    wanted = first[np.isin(ids, pair_id)]
    few = table.select(["pair_id", *NAMES]).take(pa.array(wanted)).to_pylist()
    return {row["pair_id"]: tuple(row[name] or "" for name in NAMES) for row in few}
