"""Reads tables for the report, in bounded batches, by time and by pair.

Only this module knows files. Step before: the jobs wrote tables. Step after: ``gather`` sums up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from analytics.schema import TABLES
from analytics.tables import TableRoot


class Tables(Protocol):
    """Tables by name, as ``analytics.schema`` has them."""

    def scan(
        self,
        table: str,
        *,
        start: datetime | None,
        end: datetime | None,
        columns: Sequence[str],
        pair_ids: Collection[int] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield rows with start ≤ time < end, a bounded number at a time; nothing for an empty
        table.
        pair_ids: only these pairs; None: all."""
        ...


class RootTables:
    """Tables below a root on disk, one file in memory at a time."""

    def __init__(self, root: TableRoot) -> None:
        self._root = root

    def newest(self, table: str) -> datetime | None:
        """The last time in a table; None if it is empty."""
        span = self._root.span(table)
        return None if span is None else span[1]

    def scan(
        self,
        table: str,
        *,
        start: datetime | None,
        end: datetime | None,
        columns: Sequence[str],
        pair_ids: Collection[int] | None = None,
    ) -> Iterator[pa.Table]:
        """See the protocol. Raises TableFileMissing if a file of the manifest is gone."""
        for batch in self._root.scan(
            table, since=start, before=end, columns=columns, pair_ids=pair_ids
        ):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


def kept(
    rows: pa.Table,
    time: str,
    start: datetime | None,
    end: datetime | None,
    pair_ids: Collection[int] | None,
) -> pa.Table:
    """Return the rows of a time range and of some pairs."""
    mask = None
    kind = rows.schema.field(time).type
    for bound, compare in ((start, pc.greater_equal), (end, pc.less)):
        if bound is not None:
            one = compare(rows[time], pa.scalar(bound, kind))
            mask = one if mask is None else pc.and_(mask, one)
    if pair_ids is not None:
        one = pc.is_in(rows["pair_id"], pa.array(sorted(pair_ids), pa.int64()))
        mask = one if mask is None else pc.and_(mask, one)
    # A row without a time is kept only if no bounds are given.
    return rows if mask is None else rows.filter(mask)


def whole(
    tables: Tables,
    table: str,
    *,
    start: datetime | None,
    end: datetime | None,
    columns: Sequence[str],
    pair_ids: Collection[int] | None = None,
) -> pa.Table:
    """All rows of a scan in one table: for small tables or few pairs."""
    schema = pa.schema([TABLES[table].field(name) for name in columns])
    found = [
        piece.cast(schema)
        for piece in tables.scan(table, start=start, end=end, columns=columns, pair_ids=pair_ids)
    ]
    return pa.concat_tables(found) if found else schema.empty_table()
