"""The stage in which messages spend most time: four exact terms, and the blamed one
(docs/analytics-methods.md, "Stages"). Pure.

The store times of one snapshot split a group's distance from the newest record into terms, whose
sum is the distance. Together with the time since the last store it is the age. A stage is blamed if
it leads at three of the last four ticks in the given rows; there is no state.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.logs_of import PairsWithLogs, logs_of
from analytics.kernel.stage_detail import details
from analytics.moments import to_us
from analytics.schema import STAGES, Stage

TICKS, TICKS_NEEDED = 4, 3
BLAME_MIN_S: Final = 1.0  # shorter delays blame no stage
OBJECTIVE_SHARE: Final = 0.25
OBJECTIVE_S: Final = 60.0  # of a group without an objective of its own
HALF: Final = 0.5
LEAD: Final = 1.25  # without half of the total: a quarter more than the next stage,
LEAD_SHARE_MIN: Final = 1 / 3  # and at least half of the sum of the others
APPEND_WAIT_MIN_S: Final = 1.0

TERMS: Final = (Stage.REPLICATION, Stage.DISPATCH, Stage.DELIVERY, Stage.PROCESSING)
MIXED, APPEND, NOTHING = 4, 5, 6
BLAMED: Final = (*TERMS, Stage.MIXED, Stage.APPEND, None)


class _Split(NamedTuple):
    """Seconds by row of pair and tick; terms has one row per stage, in the order of TERMS."""

    terms: Floats
    idle: Floats


def split(
    pairs: pa.Table,
    logs: pa.Table,
    ages: pa.Table,
    *,
    period_s: float,
    after: datetime,
) -> pa.Table:
    """Split each pair's delay over the stages of a message, and blame one.

    pairs, logs: rows of PAIRS and LOGS from three ticks before `after` on, for the blame. ages:
    tick, pair_id, lag_sum, age_max_seconds and, if known, skew_kind, as in rows of PAIR_LAG.
    period_s: time between ticks. Returns rows of STAGES for ticks later than `after`, by tick and
    pair. Terms are never negative: a difference to ages of another source, or a decrease of store
    times, is in residual_seconds.
    """
    if pairs.num_rows == 0:
        return STAGES.empty_table()
    rows = logs_of(pairs, logs)
    parts = _split(rows)
    objective = np.nan_to_num(columns.floats(rows.pairs, "objective_seconds"), nan=OBJECTIVE_S)
    bound = np.maximum(BLAME_MIN_S, OBJECTIVE_SHARE * objective)
    append = columns.floats(rows.logs, "put_wait_seconds") >= APPEND_WAIT_MIN_S
    blamed = _blame(rows, parts.terms, bound, append, round(period_s * SECOND))
    aged = _ages_beside(rows, ages)
    residual = _residual(parts, aged)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = parts.terms / parts.terms.sum(axis=0)
    confidence = np.where(
        blamed < MIXED,
        shares[np.minimum(blamed, 3), np.arange(blamed.size)],
        np.where(blamed == MIXED, np.max(shares, axis=0), np.nan),
    )
    table = rows.pairs.select(["tick", "pair_id", "cluster", "broker", "group", "topic"])
    for stage, term in zip(TERMS, parts.terms, strict=True):
        table = table.append_column(f"{stage}_seconds", columns.nullable(columns.thousandths(term)))
    table = table.append_column("idle_seconds", columns.nullable(columns.thousandths(parts.idle)))
    table = table.append_column("residual_seconds", columns.nullable(columns.thousandths(residual)))
    table = table.append_column("blamed", columns.words(BLAMED, blamed))
    table = table.append_column("confidence", columns.nullable(columns.thousandths(confidence)))
    detail = details(rows, blamed, BLAMED, aged.skew_kind, residual, period_s)
    table = table.append_column("detail", detail).cast(STAGES)
    wanted = np.flatnonzero(rows.tick > to_us(after))
    return table.take(pa.array(wanted[np.lexsort((rows.pair[wanted], rows.tick[wanted]))]))


def _split(rows: PairsWithLogs) -> _Split:
    """The four terms and the idle time, from store times of one snapshot.

    Store times do not decrease along the log, so each of the five is at most the previous one. If a
    clock stepped back and one is larger, the previous one is used; the sum is then too small by the
    difference.
    """
    newest = columns.instants(rows.logs, "t_max")
    confirmed = np.minimum(columns.instants(rows.logs, "t_confirm"), newest)
    dispatched = np.minimum(columns.instants(rows.logs, "t_dispatched"), confirmed)
    delivered = columns.instants(rows.pairs, "awaiting_delivery_ts")
    # An older broker does not export this time; the oldest undelivered message of all queues is
    # used instead.
    undelivered = columns.instants(rows.pairs, "oldest_undelivered_ts")
    delivered = np.minimum(np.where(np.isnan(delivered), undelivered, delivered), dispatched)
    committed = np.minimum(columns.instants(rows.pairs, "oldest_uncommitted_ts"), delivered)
    sampled_at = columns.instants(rows.pairs, "ts")
    marks = np.stack([newest, confirmed, dispatched, delivered, committed])
    terms = (marks[:-1] - marks[1:]) / SECOND
    return _Split(terms, np.maximum(sampled_at - newest, 0) / SECOND)


class _Ages(NamedTuple):
    """Values of each row's pair over its queues: lag [messages], age [s], kind of skew."""

    lag: Floats
    age: Floats
    skew_kind: pa.Array


def _ages_beside(rows: PairsWithLogs, ages: pa.Table) -> _Ages:
    """Return the values of ages in the order of rows; NaN or null for missing ones."""
    size = rows.tick.size
    kinds = pa.nulls(size, pa.string())
    if ages.num_rows == 0:
        return _Ages(np.full(size, np.nan), np.full(size, np.nan), kinds)
    tick, pair = columns.micros(ages, "tick"), columns.ints(ages, "pair_id")
    order = np.lexsort((tick, pair))
    at = columns.places(pair[order], tick[order], rows.pair, rows.tick)
    taken = columns.beside(ages.take(pa.array(order)), at)
    if "skew_kind" in taken.column_names:
        kinds = taken.column("skew_kind").combine_chunks().cast(pa.string())
    return _Ages(columns.floats(taken, "lag_sum"), columns.floats(taken, "age_max_seconds"), kinds)


def _residual(parts: _Split, ages: _Ages) -> Floats:
    """Age by the queues minus age by the stages [s]; NaN if either is unknown.

    A group without lag has age 0 and nothing in delivery or processing. Replication and dispatch
    may still hold messages, which is no defect.
    """
    visible = ages.age - (parts.terms.sum(axis=0) + parts.idle)
    caught_up: Floats = -(parts.terms[2] + parts.terms[3])
    return np.where(ages.lag == 0, caught_up, visible)


def _blame(rows: PairsWithLogs, terms: Floats, bound: Floats, append: Bools, period: int) -> Ints:
    """Index into BLAMED of each row: the stage of three of the last four ticks. NOTHING if the
    delay is short or not known. period: time between ticks [microseconds]."""
    total = terms.sum(axis=0)
    in_order = np.sort(np.nan_to_num(terms), axis=0)
    largest, second = in_order[-1], in_order[-2]
    leads = (largest >= HALF * total) | (
        (largest >= LEAD * second) & (largest >= LEAD_SHARE_MIN * total)
    )
    clear = leads & (largest >= bound) & ~np.isnan(total)
    candidate = np.where(clear, np.argmax(np.nan_to_num(terms, nan=-1.0), axis=0), NOTHING)
    # The window has rows of the same pair within the last four ticks; missing ticks do not count.
    numbers = np.cumsum(np.append(False, rows.pair[1:] != rows.pair[:-1]))
    window = TICKS * period
    span = int(rows.tick.max() - rows.tick.min()) + window + 1
    key = numbers * span + (rows.tick - rows.tick.min())
    first = np.searchsorted(key, np.maximum(key - window + 1, numbers * span))

    def often(claims: Bools) -> Bools:
        counted = np.append(0, np.cumsum(claims))
        agreed: Bools = counted[1:] - counted[first] >= TICKS_NEEDED
        return agreed

    blamed = np.full(rows.pair.size, NOTHING, dtype=np.int64)
    blamed[often((total >= bound) & ~np.isnan(total))] = MIXED
    blamed[often(append) & ~np.isin(blamed, range(MIXED))] = APPEND
    for stage in range(len(TERMS)):
        blamed[often(candidate == stage)] = stage
    return blamed
