"""One Parquet file of a table. It is valid once a commit to the table's Delta log names it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from analytics.moments import HOUR_US, from_us, to_us
from analytics.schema import TABLES, fit, part_of
from analytics.tables.layout import (
    TIME_COLUMN,
    Place,
    as_stored,
    directory,
    parquet_options,
    partition_of,
    placed,
)
from analytics.tables.location import Location

_ROW_GROUP = 1 << 20  # rows: a group has an hour of 4,000 series
_MS_US = 1000
_DAY_US = 24 * HOUR_US


class DataFile(NamedTuple):
    """A file and the bounds by which readers skip it. Times in microseconds since 1970."""

    table: str
    path: str  # relative to the directory of the table
    day_us: int
    bucket: int | None  # null: the table has none
    rows: int
    size: int  # bytes
    first_us: int  # of the table's time column, in whole milliseconds, as Delta's log has them
    last_us: int
    nulls: int  # rows without a time; they count as of 1970

    @property
    def hours(self) -> range:
        """The hours that its rows may be of [microseconds since 1970, whole hours]."""
        return range(self.first_us // HOUR_US * HOUR_US, self.last_us + 1, HOUR_US)

    def may_hold(self, since_us: int | None, before_us: int | None) -> bool:
        """Whether it may have rows with since <= time < before."""
        return (since_us is None or self.last_us + _MS_US > since_us) and (
            before_us is None or self.first_us < before_us
        )

    @property
    def partition(self) -> dict[str, str | None]:
        """Values of the partition columns."""
        return partition_of(Place(self.day_us, self.bucket))

    def added(self, now_ms: int, *, is_new: bool = True) -> AddAction:
        """Return the action of Delta's log that adds it to its table. is_new: its rows are new,
        and not those of other files, sorted."""
        time = TIME_COLUMN[self.table]
        stats = {
            "numRecords": self.rows,
            "minValues": {time: _text(self.first_us)},
            "maxValues": {time: _text(self.last_us)},
            "nullCount": {time: self.nulls},
        }
        return AddAction(self.path, self.size, self.partition, now_ms, is_new, json.dumps(stats))

    def removed(self, now_ms: int, *, is_gone: bool = True) -> RemoveAction:
        """Return the action of Delta's log that removes it from its table. is_gone: its rows go,
        and are not in other files."""
        return RemoveAction(self.path, is_gone, now_ms, self.size, self.partition)


class Span(NamedTuple):
    """Rows with since <= time < before, of one bucket or of all. Times in microseconds since
    1970."""

    since_us: int
    before_us: int
    bucket: int | None = None

    def meets(self, file: DataFile) -> bool:
        """Whether the file may have such rows."""
        return self._is_of(file) and file.may_hold(self.since_us, self.before_us)

    def covers(self, file: DataFile) -> bool:
        """Whether all rows of the file are such rows."""
        return (
            self._is_of(file)
            and self.since_us <= file.first_us
            and file.last_us + _MS_US <= self.before_us
        )

    def _is_of(self, file: DataFile) -> bool:
        return self.bucket is None or self.bucket == file.bucket


def spans_of(hours: Iterable[datetime]) -> list[Span]:
    """Return the spans of these hours; consecutive hours are one span."""
    found: list[Span] = []
    for hour_us in sorted({to_us(hour) for hour in hours}):
        if found and found[-1].before_us == hour_us:
            found[-1] = found[-1]._replace(before_us=hour_us + HOUR_US)
        else:
            found.append(Span(hour_us, hour_us + HOUR_US))
    return found


def files_of(table: str, actions: pa.Table) -> Iterator[DataFile]:
    """Return the files that Delta's log names, from its flattened add actions.

    A file without statistics of its times may have rows of its whole day.
    """
    time, count = TIME_COLUMN[table], actions.num_rows

    def column(name: str) -> list[Any]:
        if name not in actions.column_names:
            return [None] * count
        return list(actions.column(name).to_pylist())

    for path, day, bucket, rows, size, first, last, nulls in zip(
        column("path"),
        column("partition.date"),
        column("partition.bucket"),
        column("num_records"),
        column("size_bytes"),
        column(f"min.{time}"),
        column(f"max.{time}"),
        column(f"null_count.{time}"),
        strict=True,
    ):
        day_us = to_us(datetime(day.year, day.month, day.day, tzinfo=UTC))
        yield DataFile(
            table,
            path,
            day_us,
            bucket,
            rows or 0,
            size,
            day_us if first is None else to_us(first),
            day_us + _DAY_US - 1 if last is None else to_us(last),
            nulls or 0,
        )


def added_file(table: str, action: Mapping[str, Any]) -> DataFile:
    """Return the file that an add action of Delta's log names."""
    time, day = TIME_COLUMN[table], action["partitionValues"]["date"]
    bucket = action["partitionValues"].get("bucket")
    stats = json.loads(action.get("stats") or "{}")
    first, last = (stats.get(name, {}).get(time) for name in ("minValues", "maxValues"))
    day_us = to_us(datetime.fromisoformat(day).replace(tzinfo=UTC))
    return DataFile(
        table,
        action["path"],
        day_us,
        None if bucket is None else int(bucket),
        stats.get("numRecords", 0),
        action["size"],
        day_us if first is None else to_us(datetime.fromisoformat(first)),
        day_us + _DAY_US - 1 if last is None else to_us(datetime.fromisoformat(last)),
        stats.get("nullCount", {}).get(time, 0),
    )


def write_files(root: Location, table: str, rows: pa.Table, *, buckets: int) -> list[DataFile]:
    """Write rows as files, one for each hour and bucket. They are invisible until a commit.

    Raises ValueError if rows do not fit the table's schema.
    """
    rows = fit(rows, TABLES[table])
    return [
        write_file(root, table, place, [piece]) for place, piece in placed(table, rows, buckets)
    ]


def write_file(
    root: Location,
    table: str,
    place: Place,
    pieces: Iterable[pa.Table],
    *,
    level: int = 3,
    size_max: int | None = None,
) -> DataFile:
    """Write one file of a place, one row group or more for each piece; invisible until a commit.

    pieces: rows in the table's order, of the schema of the table; at least one. level: of zstd.
    size_max: takes no more pieces from this size on [bytes].
    """
    path = f"{directory(place)}/{from_us(place.hour_us):%H}-{uuid4().hex}.parquet"
    facts: list[tuple[int, int, int, int]] = []

    def fill(out: BinaryIO) -> None:
        writer: pq.ParquetWriter | None = None
        for piece in pieces:
            stored, times = as_stored(piece), piece.column(TIME_COLUMN[table])
            facts.append((*_bounds(times), piece.num_rows, times.null_count))
            if writer is None:
                writer = pq.ParquetWriter(out, stored.schema, **parquet_options(table, level))
            writer.write_table(stored, row_group_size=_ROW_GROUP)
            if size_max is not None and out.tell() >= size_max:
                break
        assert writer is not None, "a file has rows"
        writer.close()

    size = root.put(f"{table}/{path}", fill)
    first, last, rows, nulls = zip(*facts, strict=True)
    day_us = place.hour_us // _DAY_US * _DAY_US
    return DataFile(
        table, path, day_us, place.bucket, sum(rows), size, min(first), max(last), sum(nulls)
    )


def row_groups(
    root: Location,
    file: DataFile,
    columns: Sequence[str],
    *,
    since_us: int | None = None,
    before_us: int | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of one file a row group at a time, so that a file of a day fits into memory.

    Row groups without rows of since <= time < before are left out. Raises FileNotFoundError if the
    file is gone.
    """
    wanted = part_of(file.table, columns)
    with root.open(f"{file.table}/{file.path}") as source:
        parquet = pq.ParquetFile(source)
        there = [name for name in wanted.names if name in parquet.schema_arrow.names]
        for number in _groups_within(parquet, TIME_COLUMN[file.table], since_us, before_us):
            rows = parquet.read_row_group(number, columns=there, use_threads=False)
            yield fit(rows.select(there), wanted)


def _groups_within(
    parquet: pq.ParquetFile, time: str, since_us: int | None, before_us: int | None
) -> list[int]:
    """Return the numbers of the row groups that may have rows with since <= time < before."""
    every = range(parquet.num_row_groups)
    names = [parquet.schema.column(place).path for place in range(len(parquet.schema))]
    if time not in names or (since_us is None and before_us is None):
        return list(every)
    place, found = names.index(time), []
    for number in every:
        stats = parquet.metadata.row_group(number).column(place).statistics
        if stats is not None and stats.has_min_max and stats.null_count == 0:
            is_early = since_us is not None and to_us(stats.max) < since_us
            if is_early or (before_us is not None and to_us(stats.min) >= before_us):
                continue
        found.append(number)
    return found


def read_file(
    root: Location,
    file: DataFile,
    *,
    columns: Sequence[str] | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    pair_ids: pa.Array | None = None,
) -> pa.Table:
    """Return the rows of one file with since <= time < before and, if given, of these pairs.

    A column that the table got after the file was written is null. Raises FileNotFoundError if the
    file is gone.
    """
    wanted, time = part_of(file.table, columns), TIME_COLUMN[file.table]
    ranged = since is not None or before is not None
    needed = [
        *wanted.names,
        *([time] if ranged else []),
        *(["pair_id"] if pair_ids is not None else []),
    ]
    since_us = None if since is None else to_us(since)
    before_us = None if before is None else to_us(before)
    with root.open(f"{file.table}/{file.path}") as source:
        parquet = pq.ParquetFile(source)
        groups = _groups_within(parquet, time, since_us, before_us)
        rows = parquet.read_row_groups(groups, list(dict.fromkeys(needed)), use_threads=False)
    mask = np.ones(rows.num_rows, dtype=bool)
    if ranged:
        times = np.asarray(pc.fill_null(rows.column(time).cast(pa.int64()), 0))
        if since_us is not None:
            mask &= times >= since_us
        if before_us is not None:
            mask &= times < before_us
    if pair_ids is not None:
        mask &= np.asarray(pc.is_in(rows.column("pair_id"), value_set=pair_ids))
    if not mask.all():
        rows = rows.filter(pa.array(mask))
    return fit(rows.select([name for name in wanted.names if name in rows.column_names]), wanted)


def _bounds(times: pa.ChunkedArray) -> tuple[int, int]:
    """Smallest and largest time [microseconds since 1970, whole milliseconds]; a null counts
    as 0."""
    known = np.asarray(pc.fill_null(times.cast(pa.int64()), 0))
    return int(known.min()) // _MS_US * _MS_US, int(known.max()) // _MS_US * _MS_US


def _text(us: int) -> str:
    """Write a time as statistics of Delta's log have it: truncated to milliseconds."""
    return from_us(us).isoformat(timespec="milliseconds").replace("+00:00", "Z")
