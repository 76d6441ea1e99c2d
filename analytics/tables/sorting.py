"""Sorts the files of one day and bucket into as few as possible, with the same rows.

Rows are sorted by hour, then by series or pair, then by time, so the values of a series are
adjacent, and a row group has whole hours, by which readers skip it. At most SORT_ROWS rows are in
memory at a time, whatever the day holds. Step before: `upkeep` picks the files. Step after: it
commits those that replace them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

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


def _shares(root: Location, files: Sequence[DataFile], hour_us: int) -> Iterator[pa.Array | None]:
    """Yield values of the first sort key, each with at most about SORT_ROWS rows of the hour; null
    alone if the whole hour has no more."""
    if sum(file.rows for file in files) > SORT_ROWS:
        key = sort_keys(files[0].table)[0][0]
        found = _rows(root, files, hour_us, None, [key, TIME_COLUMN[files[0].table]])
        counts = found.column(key).value_counts()
        values = counts.field("values")
        order = pc.array_sort_indices(values)
        before = np.cumsum(counts.field("counts").take(order).to_numpy()) - 1
        for share in range(int(before[-1]) // SORT_ROWS + 1 if before.size else 0):
            yield values.take(order.filter(pa.array(before // SORT_ROWS == share)))
        return
    yield None


def _rows(
    root: Location,
    files: Sequence[DataFile],
    hour_us: int,
    chosen: pa.Array | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the rows of an hour; of the first sort key only these values, if given."""
    table = files[0].table
    names, key, end_us = columns or TABLES[table].names, sort_keys(table)[0][0], hour_us + HOUR_US
    pieces = [part_of(table, names).empty_table()]
    for file in files:
        for rows in row_groups(root, file, names, since_us=hour_us, before_us=end_us):
            times = np.asarray(pc.fill_null(rows.column(TIME_COLUMN[table]).cast(pa.int64()), 0))
            wanted = pa.array((times >= hour_us) & (times < end_us))
            if chosen is not None:
                wanted = pc.and_(wanted, pc.is_in(rows.column(key), value_set=chosen))
            pieces.append(rows.filter(wanted))
    return pa.concat_tables(pieces)
