"""Reads the last minutes of a table again and again, each file once.

At each tick, evaluation reads the rows of the last quarter of an hour, from one file per bucket
and batch. Nearly all of them were read for the tick before. A file never changes, so its path
stands for its rows. A worker keeps what it has read within a bound; which buckets it gets does not
matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import HOUR_US, to_us
from analytics.schema import TABLES
from analytics.tables.files import DataFile
from analytics.tables.layout import TIME_COLUMN
from analytics.tables.root import TableRoot

KEPT_BYTES_MAX: Final = 256 << 20
"""Rows that a worker keeps: a quarter of an hour of 30,000 queues."""
ENTRY_BYTES_MAX: Final = 16 << 20
"""Larger pieces are read by evaluations of whole hours, which come to each of them once."""
SPAN_MAX_US: Final = 2 * HOUR_US
"""Files of more time are those of a day that `compact` has sorted: kept from a time on, such a file
would be in memory up to the end of the day."""


class _Entry(NamedTuple):
    since_us: int
    """Rows of the file before it were left out."""
    rows: pa.Table
    size: int  # bytes


_kept: OrderedDict[str, _Entry] = OrderedDict()
"""By path or URI of a file, the least recently used first."""


def read_recent(
    root: TableRoot,
    table: str,
    since: datetime,
    before: datetime,
    buckets: Collection[int] | None = None,
) -> pa.Table:
    """Return what `TableRoot.read` returns, from memory as far as this process has read it."""
    files = root.files(table, since=since, before=before, buckets=buckets)
    pieces = [_within(_rows(root, file, since, before), file, since, before) for file in files]
    kept = sum(entry.size for entry in _kept.values())
    while kept > KEPT_BYTES_MAX:
        kept -= _kept.popitem(last=False)[1].size
    return pa.concat_tables([TABLES[table].empty_table(), *pieces])


def _rows(root: TableRoot, file: DataFile, since: datetime, before: datetime) -> pa.Table:
    """Return the rows of a file with since <= time < before, or more; those only, and unkept, if
    the file is large."""
    if file.last_us - file.first_us > SPAN_MAX_US or file.size > ENTRY_BYTES_MAX:
        return root.rows_of(file, since=since, before=before)
    name, since_us = root.location.child(f"{file.table}/{file.path}"), to_us(since)
    entry = _kept.pop(name, None)
    if entry is None or entry.since_us > since_us:
        rows = root.rows_of(file, since=since)
        entry = _Entry(since_us, rows, rows.nbytes)
    if entry.size <= ENTRY_BYTES_MAX:
        _kept[name] = entry
    return entry.rows


def _within(rows: pa.Table, file: DataFile, since: datetime, before: datetime) -> pa.Table:
    """Return the rows with since <= time < before; as they are if the file has no others."""
    since_us, before_us = to_us(since), to_us(before)
    if file.first_us >= since_us and file.last_us + 1000 <= before_us and not file.nulls:
        return rows
    times = pc.fill_null(rows.column(TIME_COLUMN[file.table]).cast(pa.int64()), 0)
    inside = pc.and_(pc.greater_equal(times, since_us), pc.less(times, before_us))
    return rows.filter(inside)
