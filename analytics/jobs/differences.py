"""Compares a refilled hour with the previous rows of the tables. Runs on executors.

Rows are compared by their key and by all values: a row is the same, changed, gone or new. Tasks
return only counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import from_us
from analytics.schema import TABLES
from analytics.tables import DataFile, TableRoot
from analytics.tables.parts import Writer

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "positions": ("series_id", "tick"),
    "pairs": ("pair_id", "tick"),
    "logs": ("cluster", "broker", "replica", "tick"),
    "replicas": ("cluster", "broker", "replica", "peer", "tick"),
    "counters": ("target", "metric", "labels", "group", "topic", "ts"),
    "series": ("series_id",),
    "gaps": ("source", "subject", "from_ts"),
}


class Comparison(NamedTuple):
    """The files of one table, hour and bucket, before and after."""

    table: str
    hour_us: int
    bucket: int | None
    old: tuple[DataFile, ...]
    new: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Numbers of unchanged, changed, missing and new rows of one table and hour."""

    table: str
    hour: str
    old: int
    new: int
    same: int
    changed: int  # same key, other values
    gone: int
    came: int

    def __str__(self) -> str:
        return (
            f"{self.table} {self.hour}: {self.old} rows before, {self.new} now; {self.same} same, "
            f"{self.changed} changed, {self.gone} gone, {self.came} new"
        )


def comparisons(old: Iterable[DataFile], new: Iterable[DataFile]) -> list[Comparison]:
    """Files to compare: by table, hour and bucket of the directory."""
    sides: dict[tuple[str, int, int | None], tuple[list[DataFile], list[DataFile]]] = {}
    for side, files in enumerate((old, new)):
        for file in files:
            key = (file.table, file.hour_us, file.bucket)
            sides.setdefault(key, ([], []))[side].append(file)
    return [Comparison(*key, tuple(a), tuple(b)) for key, (a, b) in sorted(sides.items(), key=str)]


def compare(root: TableRoot, task: Comparison, writer: Writer) -> None:
    """Count the differences; on an executor."""
    nothing = TABLES[task.table].empty_table()
    old, new = (
        pa.concat_tables([nothing, *map(root.rows_of, files)]) for files in (task.old, task.new)
    )
    counted = difference(old, new, KEYS[task.table])
    writer.facts |= {"table": task.table, "hour": f"{from_us(task.hour_us):%Y-%m-%dT%H}", **counted}


def difference(old: pa.Table, new: pa.Table, keys: Sequence[str]) -> dict[str, int]:
    """Count the rows that are the same, changed, gone and new. Pure; the columns are equal."""
    whole = _sides(old, new, old.column_names)
    same = _count(whole, pc.and_(pc.greater(whole["old"], 0), pc.greater(whole["new"], 0)))
    by_key = _sides(old, new, keys)
    in_both = _count(by_key, pc.and_(pc.greater(by_key["old"], 0), pc.greater(by_key["new"], 0)))
    gone = _count(by_key, pc.equal(by_key["new"], 0))
    came = _count(by_key, pc.equal(by_key["old"], 0))
    return {
        "old": old.num_rows,
        "new": new.num_rows,
        "same": same,
        "changed": in_both - same,
        "gone": gone,
        "came": came,
    }


def _sides(old: pa.Table, new: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Number of old and of new rows with each distinct value of the columns."""
    both = []
    for rows, is_old in ((old, 1), (new, 0)):
        chosen = rows.select(list(columns))
        ones = pa.array([is_old] * rows.num_rows, pa.int64())
        both.append(chosen.append_column("old", ones).append_column("new", pc.subtract(1, ones)))
    grouped = pa.concat_tables(both).group_by(list(columns), use_threads=False)
    found = grouped.aggregate([("old", "sum"), ("new", "sum")])
    return found.select(["old_sum", "new_sum"]).rename_columns(["old", "new"])


def _count(rows: pa.Table, mask: pa.ChunkedArray) -> int:
    return int(rows.filter(mask).num_rows)
