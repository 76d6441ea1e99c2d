"""Layout of a table on disk: time column, order, buckets, encodings. Pure.

``ROOT/<table>/dt=YYYY-MM-DD/hr=HH/[bucket=NNN/]<batch>-<part>.parquet``. A file never spans two
hours, so replacing an hour replaces whole files. All series of a pair share a bucket, so a job that
works bucket by bucket never moves a row (docs/analytics.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.schema import TABLES

HOUR: Final = timedelta(hours=1)
HOUR_US: Final = 3_600_000_000  # [microseconds]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TIME_COLUMN: Final[Mapping[str, str]] = {
    "samples": "ts",
    "series": "last_seen",
    "positions": "tick",
    "logs": "tick",
    "pairs": "tick",
    "replicas": "tick",
    "counters": "ts",
    "offset_events": "tick",
    "messages": "store_ts",
    "gaps": "from_ts",
    "rates": "tick",
    "lag": "tick",
    "pair_lag": "tick",
    "status_changes": "tick",
    "stages": "tick",
    "capacity": "day",
    "forecasts": "issued_at",
    "anomalies": "ts",
    "rollup": "bucket_start",
}
"""The column that determines the hour of a row and the range of reads; null counts as 1970. It is
`tick` where there is one: it identifies the snapshot of a row, `ts` the time of its values."""

BUCKETED: Final = frozenset({"series", "positions", "pairs", "rates", "lag"})
"""Tables with a directory for each bucket: those with a row for each series or pair and tick."""

_LEADING_SORT: Final[Mapping[str, tuple[str, ...]]] = {
    "series": ("series_id",),
    "positions": ("series_id",),
    "rates": ("series_id",),
    "lag": ("series_id",),
    "offset_events": ("series_id",),
    "status_changes": ("pair_id", "series_id"),
    "pairs": ("pair_id",),
    "pair_lag": ("pair_id",),
    "stages": ("pair_id",),
    "logs": ("cluster", "broker", "replica"),
    "replicas": ("cluster", "broker", "replica", "peer"),
    "counters": ("target", "metric", "labels"),
    "samples": ("target", "metric", "labels", "group", "topic", "queue"),
    "messages": ("broker", "physical_offset"),
    "gaps": ("source", "subject"),
    "capacity": ("cluster", "group", "topic"),
    "forecasts": ("subject", "kind", "at"),
    "anomalies": ("subject", "signal"),
    "rollup": ("pair_id", "series_id", "grain_seconds"),
}


class Place(NamedTuple):
    """Partition of a row: an hour [microseconds since 1970, whole hours] and a bucket, if any."""

    hour_us: int
    bucket: int | None


def sort_keys(table: str) -> list[tuple[str, str]]:
    """Sort order of a file's rows: similar rows are adjacent, then by time."""
    leading = _LEADING_SORT[table]
    time = "ts" if "ts" in TABLES[table].names else TIME_COLUMN[table]
    return [(name, "ascending") for name in (*leading, *(() if time in leading else (time,)))]


def hour_of(moment: datetime) -> datetime:
    """The whole hour that holds the moment."""
    return EPOCH + (moment - EPOCH) // HOUR * HOUR


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exactly. moment: with a zone."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def from_us(microseconds: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)


def bucket_of(pair_id: int, buckets: int) -> int:
    """Return the bucket of an id, 0 … buckets - 1; also for a negative id."""
    return pair_id % buckets


def directory(table: str, place: Place) -> str:
    """Return the directory of a place, relative to the root of the tables."""
    hour = from_us(place.hour_us)
    below = f"{table}/dt={hour:%Y-%m-%d}/hr={hour:%H}"
    return below if place.bucket is None else f"{below}/bucket={place.bucket:03d}"


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
        yield place, chosen.sort_by(sort_keys(table))


def parquet_options(table: str) -> dict[str, Any]:
    """Options of pyarrow's writer: zstd, deltas for whole numbers and times, dictionaries for
    names."""
    names, deltas = [], {}
    for field in TABLES[table]:
        if pa.types.is_string(field.type) or pa.types.is_boolean(field.type):
            names.append(field.name)
        elif pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type):
            deltas[field.name] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": names,
        "column_encoding": deltas,
        "write_statistics": True,
    }
