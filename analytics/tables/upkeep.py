"""Upkeep of a table: expire, compact, vacuum.

Each batch of a few seconds leaves a file per bucket; a reader of a day would open tens of
thousands. Files of today are merged as they are; those of a day that has ended are sorted as well
(`sorting`). A reader keeps the version that it has opened: files go from disk a day after they
became invisible.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from analytics.moments import from_us
from analytics.schema import TABLES
from analytics.tables.files import DataFile, files_of
from analytics.tables.layout import parquet_options, partition_columns
from analytics.tables.root import TableRoot
from analytics.tables.sorting import sorted_files
from shared.runtime.clock import SystemClock

KEEP_DAYS: Final[Mapping[str, int]] = {
    **dict.fromkeys(TABLES, 14),
    **dict.fromkeys(("pair_lag", "stages", "status_changes", "offset_events", "gaps"), 90),
    **dict.fromkeys(("rollup", "capacity", "forecasts", "anomalies"), 400),
}
"""Retention of rows: full detail for two weeks, tables bounded by pairs for a season."""
FILE_SIZE: Final = 256 << 20
"""Size of a sorted file [bytes], if its day and bucket have that much."""
OPEN_FILE_SIZE: Final = 16 << 20
"""Size up to which files of a day that has not ended are merged [bytes]."""
_SETTLE: Final = timedelta(hours=1)  # after its end a day may still get files
_VACUUM_HOURS: Final = 24
LATELY: Final = timedelta(days=2)
"""Days that ended longer ago are taken for sorted."""

log = logging.getLogger("tidemark.analytics")


class Kept(NamedTuple):
    """Result of the upkeep of one table: numbers of files, and the days that were sorted."""

    before: int
    after: int
    expired: int
    removed: int  # from disk
    sorted: list[str]  # like 2026-01-31


def keep_up(
    root: TableRoot, table: str, now: datetime, keep_days: int, are_sorted: Container[str] = ()
) -> Kept:
    """Expire rows of whole days, compact, and remove files that no version of a day ago names.

    are_sorted: days that were sorted earlier, as far as that is known.
    """
    before = root.files(table)
    expire_before = now - timedelta(days=keep_days)
    _opened(root, table).delete(f"date < '{expire_before:%Y-%m-%d}'")
    files = root.files(table)
    today = f"{now - _SETTLE:%Y-%m-%d}"
    todo = to_sort(files, today, are_sorted)
    done: list[str] = []
    for day, buckets in todo.items():
        with _left_if_replaced(table):
            _sort(root, table, day, buckets)
            done.append(day)
    if any(day >= today for day in map(_day, files)):
        with _left_if_replaced(table):
            _opened(root, table).optimize.compact(
                partition_filters=[("date", ">=", today)],
                target_size=OPEN_FILE_SIZE,
                writer_properties=_writing(table),
            )
    removed = _opened(root, table).vacuum(_VACUUM_HOURS, dry_run=False, full=True)
    expired, after = len(before) - len(files), len(root.files(table))
    return Kept(len(files), after, expired, len(removed), sorted(done))


@contextmanager
def _left_if_replaced(table: str) -> Iterator[None]:
    """Leave files as they are if a job replaced some of them meanwhile; the next run merges them.

    Example: `rollup` writes its open hour again each minute, while `compact` merges that day.
    """
    try:
        yield
    except CommitFailedError as error:
        log.warning("files of %s were replaced by a job, so they were not merged: %s", table, error)


def to_sort(
    files: Sequence[DataFile], today: str, are_sorted: Container[str]
) -> dict[str, list[int | None]]:
    """Return the buckets to sort, by day, of the days before today. Pure.

    A sorted bucket has at most one file that is much smaller than FILE_SIZE. If it has more, rows
    came later. Days older than LATELY were sorted when they ended.
    """
    lately = f"{datetime.fromisoformat(today) - LATELY:%Y-%m-%d}"
    small: dict[tuple[str, int | None], int] = {}
    for file in files:
        if (day := _day(file)) < today:
            place = day, file.bucket
            small[place] = small.get(place, 0) + (file.size < FILE_SIZE // 2)
    found: dict[str, list[int | None]] = {}
    for (day, bucket), count in small.items():
        if count > 1 or (day >= lately and day not in are_sorted):
            found.setdefault(day, []).append(bucket)
    return found


def _sort(root: TableRoot, table: str, day: str, buckets: Sequence[int | None]) -> None:
    """Sort these buckets of a day in one commit. Raises CommitFailedError if a job replaced some of
    their files meanwhile."""
    found = _opened(root, table)
    old = [
        file
        for file in files_of(table, pa.table(found.get_add_actions(flatten=True)))
        if _day(file) == day and file.bucket in buckets
    ]
    new = []
    for bucket in buckets:
        of_bucket = [file for file in old if file.bucket == bucket]
        if of_bucket:
            new += sorted_files(root.location, of_bucket, FILE_SIZE)
    now_ms = SystemClock().wall_ms()
    found.create_write_transaction(
        [
            *(file.added(now_ms, is_new=False) for file in new),
            *(file.removed(now_ms, is_gone=False) for file in old),
        ],
        "append",
        found.schema(),
        partition_columns(table),
    )


def _opened(root: TableRoot, table: str) -> DeltaTable:
    found = root.delta(table)
    assert found is not None, "only existing tables are kept up"
    return found


def _day(file: DataFile) -> str:
    return f"{from_us(file.day_us):%Y-%m-%d}"


def _writing(table: str) -> WriterProperties:
    """Return the options of `parquet_options` for delta-rs."""
    deltas = parquet_options(table)["column_encoding"]
    delta = ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
    return WriterProperties(
        compression="ZSTD",
        compression_level=3,
        column_properties=dict.fromkeys(deltas, delta),
    )
