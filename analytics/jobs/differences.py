"""Compares a refilled hour with the previous rows of the tables. Runs on executors.

Rows are compared by their key and by all values: a row is the same, changed, gone or new. Tasks
return only counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import HOUR, from_us
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
    old: list[DataFile]
    new: list[DataFile]


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


def comparisons(
    old: Iterable[DataFile], new: Iterable[DataFile], hours: Container[int]
) -> list[Comparison]:
    """Files to compare: by table, hour and bucket, of these hours [microseconds since 1970]."""
    found: dict[tuple[str, int, int | None], Comparison] = {}
    for is_new, files in enumerate((old, new)):
        for file in files:
            for hour in file.hours:
                if hour in hours:
                    key = (file.table, hour, file.bucket)
                    task = found.setdefault(key, Comparison(*key, [], []))
                    (task.new if is_new else task.old).append(file)
    return [found[key] for key in sorted(found, key=str)]


def compare(root: TableRoot, task: Comparison, writer: Writer) -> None:
    """Count the differences; on an executor."""
    hour, nothing = from_us(task.hour_us), TABLES[task.table].empty_table()
    old, new = (
        pa.concat_tables(
            [nothing, *(root.rows_of(file, since=hour, before=hour + HOUR) for file in files)]
        )
        for files in (task.old, task.new)
    )
    counted = difference(old, new, KEYS[task.table])
    writer.facts |= {"table": task.table, "hour": f"{hour:%Y-%m-%dT%H}", **counted}


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
