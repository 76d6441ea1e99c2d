"""One Parquet file of a table, written whole under another name, synced, then renamed.

The name consists of table, hour, bucket, batch and part. A batch that runs again writes the same
names and overwrites its first attempt. A file is valid once the table's manifest names it
(manifest.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.moments import from_us, to_us
from analytics.schema import TABLES, fit, part_of
from analytics.tables.layout import BUCKETED, TIME_COLUMN, Place, directory, parquet_options, placed

_ROW_GROUP = 1 << 20  # rows: a group has an hour of 4,000 series


class DataFile(NamedTuple):
    """A file and the bounds by which readers skip it. Times in microseconds since 1970."""

    table: str
    batch: str
    part: int
    hour_us: int
    bucket: int | None  # of all its rows; null: any
    rows: int
    size: int  # bytes
    first_us: int  # of the table's time column; both ends included
    last_us: int

    @property
    def path(self) -> str:
        """Path relative to the root of the tables."""
        bucket = self.bucket if self.table in BUCKETED else None
        below = directory(self.table, Place(self.hour_us, bucket))
        return f"{below}/{self.batch}-{self.part:05d}.parquet"

    @property
    def hour(self) -> str:
        """Hour as text, like 2026-01-31T09."""
        return f"{from_us(self.hour_us):%Y-%m-%dT%H}"


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> int:
    """Write a file that exists whole or not at all, even after a power failure; return its size
    [bytes].
    fill: writes the content. Missing parent directories are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as out:
            fill(out)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    sync_directory(path.parent)
    return size


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_files(
    root: Path,
    table: str,
    rows: pa.Table,
    *,
    batch: str,
    part: int,
    buckets: int,
    bucket: int | None = None,
) -> list[DataFile]:
    """Write rows as files of a batch, one for each hour and bucket.

    part: number within the batch; each task has its own. bucket: the bucket of all rows, if the
    caller knows it, for tables without a directory by bucket. Nothing becomes visible yet. Raises
    ValueError if rows do not fit the table's schema.
    """
    rows = fit(rows, TABLES[table])
    written = []
    for place, piece in placed(table, rows, buckets):
        low, high = _bounds(piece.column(TIME_COLUMN[table]))
        owner = bucket if place.bucket is None else place.bucket
        file = DataFile(table, batch, part, place.hour_us, owner, piece.num_rows, 0, low, high)

        def fill(out: BinaryIO, piece: pa.Table = piece) -> None:
            pq.write_table(piece, out, row_group_size=_ROW_GROUP, **parquet_options(table))

        written.append(file._replace(size=write_whole(root / file.path, fill)))
    return written


def read_file(
    path: Path,
    table: str,
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
    wanted, time = part_of(table, columns), TIME_COLUMN[table]
    ranged = since is not None or before is not None
    needed = [
        *wanted.names,
        *([time] if ranged else []),
        *(["pair_id"] if pair_ids is not None else []),
    ]
    with path.open("rb") as source:
        rows = pq.ParquetFile(source).read(columns=list(dict.fromkeys(needed)), use_threads=False)
    mask = np.ones(rows.num_rows, dtype=bool)
    if ranged:
        times = np.asarray(pc.fill_null(rows.column(time).cast(pa.int64()), 0))
        if since is not None:
            mask &= times >= to_us(since)
        if before is not None:
            mask &= times < to_us(before)
    if pair_ids is not None:
        mask &= np.asarray(pc.is_in(rows.column("pair_id"), value_set=pair_ids))
    if not mask.all():
        rows = rows.filter(pa.array(mask))
    return fit(rows.select([name for name in wanted.names if name in rows.column_names]), wanted)


def _bounds(times: pa.ChunkedArray) -> tuple[int, int]:
    """Smallest and largest time [microseconds since 1970]; a null counts as 0."""
    known = np.asarray(pc.fill_null(times.cast(pa.int64()), 0))
    return int(known.min()), int(known.max())
