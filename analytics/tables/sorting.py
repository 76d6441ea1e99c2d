"""Sorts the files of one day and bucket into as few as possible, with the same rows.

Rows are sorted by hour, then by series or pair, then by time, so the values of a series are
adjacent, and a row group has whole hours, by which readers skip it. At most SORT_ROWS rows are in
memory at a time, whatever the day holds. Step before: `upkeep` picks the files. Step after: it
commits those that replace them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import HOUR_US
from analytics.schema import TABLES, part_of
from analytics.tables.files import DataFile, row_groups, write_file
from analytics.tables.layout import TIME_COLUMN, Place, in_order, sort_keys
from analytics.tables.location import Location

SORT_ROWS: Final = 1 << 21
"""Largest number of rows that are sorted together: a few hundred megabytes."""
_PIECE_ROWS: Final = 1 << 16
"""Hours are sorted together up to this number of rows, so that small tables have few row groups."""
_LEVEL: Final = 9
"""Of zstd: 3 % smaller than level 3; a day is sorted once."""


class _Share(NamedTuple):
    """A part of the rows of an hour."""

    first: pa.Array
    """Their values of the first sort key."""
    second: pa.Array | None = None
    """Their values of the second one; null: all."""


def sorted_files(root: Location, files: Sequence[DataFile], size_max: int) -> list[DataFile]:
    """Write the rows of these files, which are of one day and bucket, as sorted files of about
    size_max bytes. They are invisible until a commit. Raises FileNotFoundError if a file is gone.
    """
    first = files[0]
    place, pieces, written = Place(first.day_us, first.bucket), _pieces(root, files), []
    for piece in pieces:
        rest = itertools.chain([piece], pieces)  # the next file goes on where this one is full
        written.append(write_file(root, first.table, place, rest, level=_LEVEL, size_max=size_max))
    return written


def _pieces(root: Location, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """Yield sorted pieces of one or more whole hours, or of a part of one large hour."""
    table = files[0].table
    pending: list[pa.Table] = []
    for hour_us in sorted({hour_us for file in files for hour_us in file.hours}):
        inside = [file for file in files if file.may_hold(hour_us, hour_us + HOUR_US)]
        for chosen in _shares(root, inside, hour_us):
            pending.append(_rows(root, inside, hour_us, chosen))
            if chosen is not None or sum(each.num_rows for each in pending) >= _PIECE_ROWS:
                yield in_order(pa.concat_tables(pending), table)
                pending = []
    if pending:
        yield in_order(pa.concat_tables(pending), table)


def _shares(root: Location, files: Sequence[DataFile], hour_us: int) -> Iterator[_Share | None]:
    """Yield shares of an hour's rows, each with at most SORT_ROWS if the second sort key divides
    them so far; null alone if the whole hour has no more."""
    if sum(file.rows for file in files) <= SORT_ROWS:
        yield None
        return
    first, second = _keys(files[0].table)
    found = _rows(root, files, hour_us, None, [first, second])
    for values in _cut(found.column(first)):
        rows = found.filter(pc.is_in(found.column(first), value_set=values))
        if rows.num_rows <= SORT_ROWS:
            yield _Share(values)
        else:
            yield from (_Share(values, part) for part in _cut(rows.column(second)))


def _cut(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the values of a column in order, as many at a time as have SORT_ROWS rows; at least
    one."""
    counts = column.value_counts()
    order = pc.array_sort_indices(counts.field("values"))
    values = counts.field("values").take(order)
    ends = np.cumsum(counts.field("counts").take(order).to_numpy())
    begin, done = 0, 0
    while begin < ends.size:
        end = max(begin + 1, int(np.searchsorted(ends, done + SORT_ROWS, side="right")))
        yield values[begin:end]
        begin, done = end, int(ends[end - 1])


def _keys(table: str) -> tuple[str, str]:
    """The first two columns that a table is sorted by."""
    (first, _), (second, _), *_ = sort_keys(table)
    return first, second


def _rows(
    root: Location,
    files: Sequence[DataFile],
    hour_us: int,
    chosen: _Share | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the rows of an hour, or of a share of it. columns: only these."""
    table = files[0].table
    time, (first, second), end_us = TIME_COLUMN[table], _keys(table), hour_us + HOUR_US
    names = list(dict.fromkeys([*(columns or TABLES[table].names), time]))
    pieces = [part_of(table, names).empty_table()]
    for file in files:
        for rows in row_groups(root, file, names, since_us=hour_us, before_us=end_us):
            times = np.asarray(pc.fill_null(rows.column(time).cast(pa.int64()), 0))
            wanted = pa.array((times >= hour_us) & (times < end_us))
            if chosen is not None:
                wanted = pc.and_(wanted, pc.is_in(rows.column(first), value_set=chosen.first))
                if chosen.second is not None:
                    is_of = pc.is_in(rows.column(second), value_set=chosen.second)
                    wanted = pc.and_(wanted, is_of)
            pieces.append(rows.filter(wanted))
    return pa.concat_tables(pieces)
