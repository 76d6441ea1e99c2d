"""Layout of a table on disk: time column, order, partitions, encodings. Pure.

``ROOT/<table>/date=YYYY-MM-DD/[bucket=N/]<name>.parquet``. The partition columns ``date`` and, in
tables with pairs, ``bucket`` are those of the Delta table. All series of a pair share a bucket, so
a job that works bucket by bucket never moves a row (docs/analytics.md). Jobs write files that do
not span two hours; compaction merges those of a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import HOUR_US, from_us
from analytics.schema import TABLES

_LAYOUT: Final[Mapping[str, tuple[str, str]]] = {
    "samples": ("ts", "target metric labels group topic queue"),
    "series": ("last_seen", "series_id"),
    "positions": ("tick", "pair_id series_id"),
    "logs": ("tick", "cluster broker replica"),
    "pairs": ("tick", "pair_id"),
    "replicas": ("tick", "cluster broker replica peer"),
    "counters": ("ts", "target metric labels"),
    "offset_events": ("tick", "series_id"),
    "messages": ("store_ts", "broker physical_offset"),
    "gaps": ("from_ts", "source subject"),
    "rates": ("tick", "pair_id series_id"),
    "lag": ("tick", "pair_id series_id"),
    "pair_lag": ("tick", "pair_id"),
    "status_changes": ("tick", "pair_id series_id"),
    "stages": ("tick", "pair_id"),
    "capacity": ("day", "cluster group topic"),
    "forecasts": ("issued_at", "subject kind at"),
    "anomalies": ("ts", "subject signal"),
    "rollup": ("bucket_start", "pair_id series_id grain_seconds"),
    "runs": ("finished_at", "job fact subject"),
}
"""By table: the column of its time, and the columns that its rows are sorted by before it."""
TIME_COLUMN: Final[Mapping[str, str]] = {table: time for table, (time, _) in _LAYOUT.items()}
"""The column that determines the hour of a row and the range of reads; null counts as 1970. It is
`tick` where there is one: it identifies the snapshot of a row, `ts` the time of its values."""

_REPEATED: Final = frozenset({"series_id", "pair_id", "ts"})
"""Numbers and times that recur in runs or in every series: a dictionary has each once."""
_STORE_TIMES: Final = frozenset(
    {"head_store_ts", "oldest_undelivered_ts", "oldest_uncommitted_ts", "awaiting_delivery_ts"}
)
"""Store times of messages, which are whole milliseconds. Files have them in this unit, so that
their differences need ten bits less. Readers get the table's unit."""

BUCKETED: Final = frozenset(name for name, schema in TABLES.items() if "pair_id" in schema.names)
"""Tables that are also partitioned by bucket: those with rows of pairs."""


class Place(NamedTuple):
    """Partition of a row: an hour [microseconds since 1970, whole hours] and a bucket, if any."""

    hour_us: int
    bucket: int | None


def sort_keys(table: str) -> list[tuple[str, str]]:
    """Sort order of a file's rows: similar rows are adjacent, then by time."""
    time, order = _LAYOUT[table]
    leading = order.split()
    return [(name, "ascending") for name in (*leading, *(() if time in leading else (time,)))]


def bucket_of(pair_id: int, buckets: int) -> int:
    """Return the bucket of an id, 0 … buckets - 1; also for a negative id."""
    return pair_id % buckets


def partition_columns(table: str) -> list[str]:
    """Names of the partition columns of a table."""
    return ["date", "bucket"] if table in BUCKETED else ["date"]


def partition_of(place: Place) -> dict[str, str | None]:
    """Return the values of the partition columns, as Delta's log has them."""
    values: dict[str, str | None] = {"date": f"{from_us(place.hour_us):%Y-%m-%d}"}
    return values if place.bucket is None else values | {"bucket": str(place.bucket)}


def directory(place: Place) -> str:
    """Return the directory of a place, relative to that of its table."""
    return "/".join(f"{name}={value}" for name, value in partition_of(place).items())


def whole_schema(table: str) -> pa.Schema:
    """Columns of a table with its partition columns, which its files do not contain."""
    kinds = {"date": pa.date32(), "bucket": pa.int32()}
    fields = [pa.field(name, kinds[name], nullable=False) for name in partition_columns(table)]
    return pa.schema([*TABLES[table], *fields])


def placed(table: str, rows: pa.Table, buckets: int) -> Iterator[tuple[Place, pa.Table]]:
    """Cut rows by hour and bucket, each piece sorted; by hour, then bucket."""
    if not rows.num_rows:
        return
    times = rows.column(TIME_COLUMN[table]).cast(pa.int64())
    hours = np.asarray(pc.fill_null(times, 0)) // HOUR_US
    if table in BUCKETED:
        slots = np.asarray(rows.column("pair_id")) % buckets
    else:
        slots = np.zeros(len(hours), dtype=np.int64)
    keys = hours * buckets + slots
    found = np.unique(keys)
    for key in found:
        chosen = rows if len(found) == 1 else rows.filter(pa.array(keys == key))
        hour, bucket = divmod(int(key), buckets)
        place = Place(hour * HOUR_US, bucket if table in BUCKETED else None)
        yield place, in_order(chosen, table)


def in_order(rows: pa.Table, table: str) -> pa.Table:
    """Return the rows in the table's order; as they are if evaluation has made them in it."""
    keys = sort_keys(table)
    return rows if _is_sorted(rows, [name for name, _ in keys]) else rows.sort_by(keys)


def _is_sorted(rows: pa.Table, names: Sequence[str]) -> bool:
    """Whether the rows are known to be sorted by these columns; False if one has texts or nulls."""
    equal = np.ones(max(rows.num_rows - 1, 0), np.bool_)
    for name in names:
        column = rows.column(name)
        if column.null_count or pa.types.is_string(column.type):
            return False
        values = np.asarray(column.cast(pa.int64()))
        if (equal & (values[1:] < values[:-1])).any():
            return False
        equal &= values[1:] == values[:-1]
    return True


def as_stored(rows: pa.Table) -> pa.Table:
    """Return rows as files have them: store times in milliseconds."""
    fields = [
        pa.field(field.name, pa.timestamp("ms", tz="UTC"), nullable=field.nullable)
        if field.name in _STORE_TIMES
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields), safe=False)


def parquet_options(table: str, level: int = 3) -> dict[str, Any]:
    """Options of pyarrow's writer: zstd, deltas for whole numbers and times, dictionaries for
    names, ids and decimals. Spark reads no other encoding that is smaller. level: of zstd."""
    repeated, deltas = [], {}
    for field in TABLES[table]:
        is_number = pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
        if is_number and field.name not in _REPEATED:
            deltas[field.name] = "DELTA_BINARY_PACKED"
        else:
            repeated.append(field.name)
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": repeated,
        "column_encoding": deltas,
        "write_statistics": True,
    }
