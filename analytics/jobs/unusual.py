"""Finds anomalies of all pairs, topics, brokers and clusters: a part of `forecast`.

One executor does it, because topics, brokers and clusters are sums over buckets, and an anomaly is
compared with its parents. It reads roll-ups of pairs and logs only, no series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.jobs.counted import repeated, slow_puts
from analytics.jobs.foreseen_pairs import cells, per_second
from analytics.kernel import columns, robust
from analytics.kernel.anomaly import Usual, anomalies, raised, ranked, scores, usual_week
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.rollup import MINUTE, QUARTER
from analytics.moments import HOUR, steps, to_us
from analytics.schema import ANOMALIES
from analytics.tables import TableRoot
from analytics.tables.parts import Writer

WARM: Final = 6 * HOUR  # read before the range, for the moving mean
HISTORY: Final = timedelta(weeks=4)
_NAMES: Final = ("cluster", "broker", "topic", "group")
_STEP: Final = timedelta(seconds=MINUTE)

Gather = Callable[[Floats], Floats]


class Signal(NamedTuple):
    """A signal, and the function that combines children to their parent: [row × step] to one
    row."""

    name: str
    unit: float
    together: Gather


def _sum(rows: Floats) -> Floats:
    known = ~np.isnan(rows)
    return np.where(known.any(axis=0), np.where(known, rows, 0.0).sum(axis=0), np.nan)


def _middle(rows: Floats) -> Floats:
    return robust.median(rows.T)


def _most(rows: Floats) -> Floats:
    known = ~np.isnan(rows)
    return np.where(known.any(axis=0), np.where(known, rows, -np.inf).max(axis=0), np.nan)


PRODUCE: Final = Signal("produce_per_second", 1.0, _sum)
CONSUME: Final = Signal("consume_per_second", 1.0, _sum)
AGE: Final = Signal("age_seconds", 1.0, _middle)
DISPATCH: Final = Signal("dispatch_seconds", 1.0, _most)
REPLICATION: Final = Signal("replica_lag_seconds", 1.0, _most)
PUT: Final = Signal("put_p99_seconds", 0.1, _most)
REPEATED: Final = Signal("redelivered_share", 0.05, _middle)


class Tree(NamedTuple):
    """Subjects from clusters down; each parent comes before its children."""

    subjects: Sequence[str]
    parents: Ints  # row of each parent; −1: none
    leaves: Ints  # rows of the measured subjects, in the order of the given names


def tree_of(leaves: Sequence[tuple[str, ...]], keys: Sequence[str]) -> Tree:
    """Return the tree of the leaves and all their ancestors.
    leaves: names of several parts. keys: the label of each part, such as topic."""
    every = sorted({leaf[:depth] for leaf in leaves for depth in range(1, len(keys) + 1)})
    every.sort(key=len)
    at = {path: row for row, path in enumerate(every)}
    subjects = [" ".join(f"{k}={v}" for k, v in zip(keys, path, strict=False)) for path in every]
    parents = np.array([at.get(path[:-1], -1) for path in every], dtype=np.int64)
    return Tree(subjects, parents, np.array([at[leaf] for leaf in leaves], dtype=np.int64))


def grown(tree: Tree, measured: Floats, together: Gather) -> Floats:
    """Return the values of all subjects: those of leaves, and sums of their children for others."""
    values = np.full((len(tree.subjects), measured.shape[1]), np.nan)
    values[tree.leaves] = measured
    inner = np.unique(tree.parents[tree.parents >= 0])
    for row in inner[::-1]:  # in reverse: children come after their parents
        values[row] = together(values[tree.parents == row])
    return values


def find_unusual(root: TableRoot, since: datetime, before: datetime, writer: Writer) -> None:
    """Write the anomalies with since <= time < before, at most 1,000 an hour.

    The time of an anomaly is that of its third step. Each hour is compared only with the hours
    before it, so the result does not depend on the number of runs. since: a whole hour.
    """
    begin = since - WARM
    measured = [*_of_pairs_and_topics(root, begin, since, before), *_of_nodes(root, begin, before)]
    usual: dict[tuple[str, datetime], Usual | None] = {}
    for hour in steps(since, before):
        end, day = min(hour + HOUR, before), hour.replace(hour=0)
        found, weights = [ANOMALIES.empty_table()], [np.empty(0)]
        for one in measured:
            key = (one.signal.name, day)
            if key not in usual:
                usual[key] = _usual(root, one, day)
            first, last = ((each - WARM - begin) // _STEP for each in (hour, end + WARM))
            table, weight = _judge(one, usual[key], slice(first, last), hour - WARM)
            found.append(table)
            weights.append(weight)
        writer.write("anomalies", ranked(pa.concat_tables(found), np.concatenate(weights)))


class Measured(NamedTuple):
    """Values of one signal for all subjects."""

    signal: Signal
    tree: Tree
    values: Floats  # [subject × minute]
    rates: Floats  # usual messages per second of each subject; NaN unknown
    pairs: Sequence[Ints]  # rows of pairs below each leaf; empty: the signal is not of pairs
    ids: Ints


def _judge(
    one: Measured, usual: Usual | None, steps: slice, begin: datetime
) -> tuple[pa.Table, Floats]:
    """Return the anomalies of one signal in one hour, and the message rate of each subject.
    steps: the steps of the hour, preceded by those for the moving mean; begin: time of the first
    step."""
    signal, start = one.signal, to_us(begin)
    values = one.values[:, steps]
    scored = scores(values, start=start, step_s=MINUTE, unit=signal.unit, usual=usual)
    what = raised(scored, one.tree.parents, first=WARM // _STEP)
    table = anomalies(
        scored, what, one.tree.subjects, signal.name, start=start, step_s=MINUTE, unit=signal.unit
    )
    return table, one.rates[what.subject]


def _usual(root: TableRoot, one: Measured, day: datetime) -> Usual | None:
    """Usual values of each hour of the week, from the weeks before the day; None without
    history."""
    if not one.pairs:
        return None
    quarters = _of_pairs(root, one.ids, QUARTER, day - HISTORY, day)[one.signal.name]
    if np.isnan(quarters).all():
        return None
    history = grown(one.tree, _gathered(quarters, one.pairs), one.signal.together)
    start = to_us(day - HISTORY)
    return usual_week(history, start=start, step_s=QUARTER, unit=one.signal.unit)


def _of_pairs_and_topics(
    root: TableRoot, begin: datetime, since: datetime, before: datetime
) -> list[Measured]:
    """Rates of topics, rates of pairs and ages of pairs."""
    names = _pair_names(root, since, before)
    if not names:
        return []
    ids = np.array(sorted(names), dtype=np.int64)
    values = _of_pairs(root, ids, MINUTE, begin, before)
    places = [names[pair] for pair in ids.tolist()]
    measured = []
    # All groups of a topic have the same input, so they are one subject, with the largest value.
    for signal, cut in ((PRODUCE, 3), (CONSUME, 4), (AGE, 4)):
        tree = tree_of(sorted({place[:cut] for place in places}), _NAMES[:cut])
        below = _leaf_rows(places, cut)
        grown_values = grown(tree, _gathered(values[signal.name], below), signal.together)
        rates = robust.median(grown(tree, _gathered(values[PRODUCE.name], below), _sum))
        measured.append(Measured(signal, tree, grown_values, rates, below, ids))
    return measured


def _pair_names(
    root: TableRoot, since: datetime, before: datetime
) -> dict[int, tuple[str, str, str, str]]:
    """Names of the pairs that were evaluated in the range, in the order of the tree."""
    named: dict[int, tuple[str, str, str, str]] = {}
    for rows in root.scan("pair_lag", since=since, before=before, columns=["pair_id", *_NAMES]):
        rows = rows.group_by(["pair_id", *_NAMES], use_threads=False).aggregate([])
        for row in rows.to_pylist():
            named[row["pair_id"]] = (row["cluster"], row["broker"], row["topic"], row["group"])
    return named


def _leaf_rows(places: Sequence[tuple[str, ...]], cut: int) -> list[Ints]:
    """Rows of the pairs below each leaf, leaves in order."""
    below: dict[tuple[str, ...], list[int]] = {}
    for row, place in enumerate(places):
        below.setdefault(place[:cut], []).append(row)
    return [np.array(below[leaf], dtype=np.int64) for leaf in sorted(below)]


def _gathered(values: Floats, rows: Sequence[Ints]) -> Floats:
    return np.vstack([_most(values[each]) for each in rows])


def _of_pairs(
    root: TableRoot, ids: Ints, grain_s: int, since: datetime, before: datetime
) -> dict[str, Floats]:
    """Rates and ages of pairs, [pair × bucket of time], by the signal's name."""
    size = max((before - since) // timedelta(seconds=grain_s), 1)
    made = {
        name: np.full((ids.size, size), np.nan) for name in (PRODUCE.name, CONSUME.name, AGE.name)
    }
    for rows, at, step in cells(root, ids, grain_s, since, before):
        made[PRODUCE.name][at, step] = per_second(rows, "produced")
        made[CONSUME.name][at, step] = per_second(rows, "consumed")
        made[AGE.name][at, step] = columns.floats(rows, "age_max_seconds")
    return made


def _of_nodes(root: TableRoot, since: datetime, before: datetime) -> list[Measured]:
    """Largest delay of dispatch, replicas and sends per node and minute; repeats per pair."""
    names = ("cluster", "broker", "replica", "peer")
    logs = root.read(
        "logs",
        since=since,
        before=before,
        columns=["tick", *names[:3], "t_confirm", "t_dispatched"],
    )
    waits = columns.instants(logs, "t_confirm") - columns.instants(logs, "t_dispatched")
    replicas = root.read(
        "replicas", since=since, before=before, columns=["tick", *names, "lag_seconds"]
    )
    behind = columns.floats(replicas, "lag_seconds")
    return [
        *_of_rows(DISPATCH, logs, names[:3], waits / SECOND, since, before),
        *_of_rows(REPLICATION, replicas, names, behind, since, before),
        *_of_rows(PUT, *_named(slow_puts(root, since, before)), since, before),
        *_of_rows(REPEATED, *_named(repeated(root, since, before)), since, before),
    ]


def _named(found: tuple[pa.Table, Floats]) -> tuple[pa.Table, Sequence[str], Floats]:
    """Return the rows, the columns that name their subject, and the values."""
    rows, values = found
    return rows, [name for name in rows.column_names if name != "tick"], values


def _of_rows(
    signal: Signal,
    rows: pa.Table,
    names: Sequence[str],
    values: Floats,
    since: datetime,
    before: datetime,
) -> list[Measured]:
    """Return the largest value of each minute and node; no rows if no value is known."""
    known = np.flatnonzero(~np.isnan(values))
    if not known.size:
        return []
    rows, values = rows.take(pa.array(known)), values[known]
    step = (columns.micros(rows, "tick") - to_us(since)) // (MINUTE * SECOND)
    node, leaves = columns.named(rows, *names)
    matrix = np.full((len(leaves), -(-(before - since) // _STEP)), np.nan)
    order = np.argsort(values, kind="stable")  # the largest value is written last
    matrix[node[order], step[order]] = values[order]
    tree = tree_of(leaves, names)
    grown_values = grown(tree, matrix, signal.together)
    none = np.full(len(tree.subjects), np.nan)
    return [Measured(signal, tree, grown_values, none, (), np.empty(0, dtype=np.int64))]
