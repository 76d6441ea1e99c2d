"""The tables of lag analytics: Delta Lake tables below one location.

Executors write Parquet files; the driver commits them to a table's Delta log in one transaction,
through delta-rs. So every reader of Delta Lake reads them: Spark, DuckDB, pandas, Trino. Step
before: a job has rows. Step after: a job, the report or another reader.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from analytics.errors import (
    TableBusy,
    TableFileMissing,
    TablesDamaged,
    TablesDiffer,
    TablesMissing,
    TableUnreadable,
)
from analytics.moments import HOUR_US, from_us, to_us
from analytics.schema import TABLES, part_of
from analytics.tables.files import DataFile, Span, files_of, read_file, row_groups, write_files
from analytics.tables.layout import TIME_COLUMN, bucket_of, partition_columns, whole_schema
from analytics.tables.location import Location, sync
from shared.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS: Final = 8
"""Default number of buckets: twice the cores of a machine of four."""
_FORMAT: Final = 2
_FACTS: Final = "_root.json"
_WATERMARK: Final = "watermark"
"""Application id of the transactions whose version is a table's watermark [microseconds]."""
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""Time travel reaches back a day; the log names a week of commits."""
_WITH_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_TRIES: Final = 30
"""How often a commit is tried while others commit to the same table."""
_PAUSE_S: Final = 0.02
"""Longest pause before the second try; it grows with each try."""


class Batch(NamedTuple):
    """The name of a batch and its number within its writer."""

    writer: str  # permanent for a stream: job and query id
    number: int | None = None  # increased by the writer; null: the writer is the name

    def __str__(self) -> str:
        return self.writer if self.number is None else f"{self.writer}-{self.number:08d}"


class TableRoot:
    """Tables below one location. Has only a name and a number, so it can be sent to executors."""

    def __init__(self, place: str | Path) -> None:
        """Open existing tables. place: a path or a URI. Raises TablesMissing, TablesDamaged, or
        TablesDiffer for tables of another format."""
        self.location = Location.of(place)
        facts = self.location.read(_FACTS)
        if facts is None:
            raise TablesMissing(self.location.uri)
        try:
            found = json.loads(facts)
            made_with, self.buckets = int(found["format"]), int(found["buckets"])
        except (ValueError, KeyError, TypeError) as error:
            raise TablesDamaged(self.location.child(_FACTS), str(error)) from error
        if made_with != _FORMAT:
            raise TablesDiffer(self.uri, "the format", found=made_with, wanted=_FORMAT)

    @classmethod
    def create(cls, place: str | Path, *, buckets: int | None = None) -> TableRoot:
        """Create tables, or open them if they exist.

        buckets: number of buckets, best about twice the cores of the largest job; null: as existing
        tables, else 8. Too few leave cores idle, too many make files of a few rows. Raises
        TablesDiffer if existing tables have another number.
        """
        location = Location.of(place)
        if location.read(_FACTS) is None:
            text = json.dumps({"format": _FORMAT, "buckets": buckets or BUCKETS}).encode()
            location.put(_FACTS, lambda out: out.write(text))
        root = cls(location.uri)
        if buckets is not None and buckets != root.buckets:
            raise TablesDiffer(
                root.uri, "the number of buckets", found=root.buckets, wanted=buckets
            )
        return root

    @property
    def uri(self) -> str:
        """The location as an absolute path or a URI."""
        return self.location.uri

    # -- reading ----------------------------------------------------------------------------------

    def delta(self, table: str) -> DeltaTable | None:
        """Return the present version of a table; None if it was never written. Raises
        TableUnreadable."""
        try:
            return DeltaTable(self.location.child(table))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise TableUnreadable(table, self.location.child(table), str(error)) from error

    def tables(self) -> list[str]:
        """Names of the tables that exist."""
        return [each for each in TABLES if DeltaTable.is_deltatable(self.location.child(each))]

    def version(self, table: str) -> int:
        """Number of commits to the table so far; it only grows."""
        found = self.delta(table)
        return 0 if found is None else int(found.version()) + 1

    def has(self, table: str) -> bool:
        """Whether the table has rows."""
        return bool(self.files(table))

    def has_batch(self, table: str, batch: Batch) -> bool:
        """Whether the table has a numbered batch, or a later one of its writer."""
        found = self.delta(table)
        return found is not None and _is_committed(found, batch)

    def span(self, table: str) -> tuple[datetime, datetime] | None:
        """The first and last time in the table, to the millisecond; None if it is empty."""
        files = self.files(table)
        if not files:
            return None
        first, last = min(f.first_us for f in files), max(f.last_us for f in files)
        return from_us(first), from_us(last)

    def watermark(self, table: str) -> datetime | None:
        """Return the tick up to which the writer has finished, even if it had no rows."""
        found = self.delta(table)
        mark = None if found is None else found.transaction_version(_WATERMARK)
        return None if mark is None else from_us(mark)

    def files(
        self,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        buckets: Collection[int] | None = None,
    ) -> list[DataFile]:
        """The files that may hold rows with since <= time < before of these buckets, by time."""
        found = self.delta(table)
        return [] if found is None else _files(found, table, since, before, buckets)

    def hours(
        self, table: str, *, since: datetime | None = None, before: datetime | None = None
    ) -> set[datetime]:
        """The hours of which files with rows in since <= time < before have rows. The times of
        files of several hours are read for it."""
        found: set[int] = set()
        for file in self.files(table, since=since, before=before):
            if len(file.hours) == 1:
                found.update(file.hours)
                continue
            for rows in self._row_groups(file, [TIME_COLUMN[table]]):
                found.update(pc.unique(_hours(rows, table)).to_pylist())
        return {from_us(hour) for hour in found}

    def buckets_by_rows(self, table: str, *, since: datetime, before: datetime) -> list[int]:
        """Return all buckets, those with most rows in the files of that time first."""
        rows = [0] * self.buckets
        for file in self.files(table, since=since, before=before):
            if file.bucket is not None:
                rows[file.bucket] += file.rows
        return sorted(range(self.buckets), key=rows.__getitem__, reverse=True)

    def read(
        self,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        buckets: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        pair_ids: Collection[int] | None = None,
    ) -> pa.Table:
        """Rows with since <= time < before; by file, within a file in the table's order.
        pair_ids, buckets: only these. columns: only these, in this order. Raises TableFileMissing
        if a file that the table's log names is gone."""
        pieces = self.scan(
            table, since=since, before=before, buckets=buckets, columns=columns, pair_ids=pair_ids
        )
        return pa.concat_tables([part_of(table, columns).empty_table(), *pieces])

    def scan(
        self,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        buckets: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        pair_ids: Collection[int] | None = None,
    ) -> Iterator[pa.Table]:
        """Like `read`, but yields one file after the other, with one in memory at a time; nothing
        of a file without such rows."""
        ids = None if pair_ids is None else pa.array(sorted(pair_ids), pa.int64())
        if pair_ids is not None:
            of_pairs = {bucket_of(pair, self.buckets) for pair in pair_ids}
            buckets = of_pairs if buckets is None else of_pairs & set(buckets)
        for file in self.files(table, since=since, before=before, buckets=buckets):
            rows = self.rows_of(file, columns=columns, since=since, before=before, pair_ids=ids)
            if rows.num_rows:
                yield rows

    def rows_of(
        self,
        file: DataFile,
        *,
        columns: Sequence[str] | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        pair_ids: pa.Array | None = None,
    ) -> pa.Table:
        """Rows of one file of a table. Raises TableFileMissing."""
        with self._names_missing(file):
            return read_file(
                self.location, file, columns=columns, since=since, before=before, pair_ids=pair_ids
            )

    def _row_groups(self, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self._names_missing(file):
            yield from row_groups(self.location, file, columns)

    @contextmanager
    def _names_missing(self, file: DataFile) -> Iterator[None]:
        """Raise TableFileMissing for a file that is gone."""
        try:
            yield
        except FileNotFoundError:
            path = self.location.child(f"{file.table}/{file.path}")
            raise TableFileMissing(file.table, path) from None

    def frame(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """The same rows as a Spark DataFrame, read by Delta Lake's own source."""
        from analytics.tables.frames import frame  # only for Spark jobs

        return frame(spark, self, table, since=since, before=before, columns=columns)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, table: str, rows: pa.Table) -> list[DataFile]:
        """Write rows as files that are invisible until `commit`; on the driver or an executor."""
        return write_files(self.location, table, rows, buckets=self.buckets)

    def commit(
        self,
        table: str,
        *,
        batch: Batch | str,
        files: Collection[DataFile] = (),
        clears: Collection[Span] = (),
        watermark: datetime | None = None,
    ) -> bool:
        """Make files visible, and the present rows of some spans invisible, at one instant.

        watermark: an earlier one than the table has changes nothing. Returns
        False, and changes nothing, if the numbered batch was committed already. Raises TableBusy
        if others commit to the same files all the time.
        """
        name = Batch(batch) if isinstance(batch, str) else batch
        cut: dict[str, list[DataFile]] = {}
        for tried in range(_TRIES):
            time.sleep(random.uniform(0, _PAUSE_S * tried))  # others shall finish theirs
            try:
                found = self._open_or_create(table)
            except CommitFailedError:
                continue  # another writer created the table, or added its columns
            if _is_committed(found, name):
                return False
            if tried and files and _holds(found, table, files):
                return True  # an earlier try was committed, and its answer got lost
            kept, gone = self._cleared(found, table, clears, cut)
            now_ms = SystemClock().wall_ms()
            actions: list[AddAction | RemoveAction] = [
                *(file.added(now_ms) for file in (*files, *kept)),
                *(file.removed(now_ms) for file in gone),
            ]
            marks = []
            if name.number is not None:
                marks.append(Transaction(name.writer, name.number))
            if watermark is not None:
                known = found.transaction_version(_WATERMARK)
                marks.append(Transaction(_WATERMARK, max(to_us(watermark), known or 0)))
            if not actions and not marks:
                return False
            # A try that clears spans must see what others have added to them meanwhile.
            retries = 0 if clears else None
            try:
                found.create_write_transaction(
                    actions,
                    "append",
                    found.schema(),
                    partition_columns(table),
                    commit_properties=CommitProperties({"batch": str(name)}, retries, marks),
                )
            except CommitFailedError:
                continue  # another writer was faster
            self._synced(found)
            return True
        raise TableBusy(table, self.location.child(table), tries=_TRIES)

    def _cleared(
        self,
        found: DeltaTable,
        table: str,
        clears: Collection[Span],
        cut: dict[str, list[DataFile]],
    ) -> tuple[list[DataFile], list[DataFile]]:
        """Return new files with the rows that stay, and the files that go, if spans are cleared.

        cut: by path of a file, the new files with its rows that stay. It is kept over all tries:
        files of a whole day take longer to write again than others need for their next commit.
        """
        if not clears:
            return [], []
        kept, gone = [], []
        low, high = (min(s.since_us for s in clears), max(s.before_us for s in clears))
        for file in _files(found, table, from_us(low), from_us(high), None):
            spans = [span for span in clears if span.meets(file)]
            if not spans:
                continue
            gone.append(file)
            if any(span.covers(file) for span in spans):
                continue
            if file.path not in cut:
                new = []
                for rows in self._row_groups(file, TABLES[table].names):
                    new += self.write(table, rows.filter(_outside(rows, table, spans)))
                cut[file.path] = new
            kept += cut[file.path]
        return kept, gone

    def _open_or_create(self, table: str) -> DeltaTable:
        """Return a table, which is created if it is missing and gets columns that it lacks."""
        found = self.delta(table)
        if found is None:
            DeltaTable.create(
                self.location.child(table),
                whole_schema(table),
                mode="ignore",
                partition_by=partition_columns(table),
                # Readers prune files by the statistics of a column. delta-rs finds no rows at all
                # where those of some column are missing, as they are if it has an infinite value.
                configuration=_CONFIGURATION | {_WITH_STATISTICS: TIME_COLUMN[table]},
                description="docs/analytics.md",
            )
            return self._open_or_create(table)
        there = {field.name for field in found.schema().fields}
        missing = [field for field in TABLES[table] if field.name not in there]
        if missing:
            found.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            return self._open_or_create(table)
        return found

    def _synced(self, before: DeltaTable) -> None:
        """Make the commits after a version survive a power failure, in a local directory."""
        if not self.location.is_local:
            return
        log = Path(before.table_uri.removeprefix("file://")) / "_delta_log"
        for path in log.glob("*.json"):
            if path.stem.isdigit() and int(path.stem) > before.version():
                sync(path)
        sync(log)


def _outside(rows: pa.Table, table: str, spans: Collection[Span]) -> pa.Array:
    """Where a row is in none of the spans, whose buckets were compared before; a null time counts
    as 1970."""
    times = np.asarray(pc.fill_null(rows.column(TIME_COLUMN[table]).cast(pa.int64()), 0))
    is_inside = np.zeros(rows.num_rows, bool)
    for span in spans:
        is_inside |= (times >= span.since_us) & (times < span.before_us)
    return pa.array(~is_inside)


def _hours(rows: pa.Table, table: str) -> pa.ChunkedArray:
    """The hour of each row [microseconds since 1970]; a null time counts as 1970."""
    times = pc.fill_null(rows.column(TIME_COLUMN[table]).cast(pa.int64()), 0)
    return pc.multiply(pc.divide(times, HOUR_US), HOUR_US)


def _holds(found: DeltaTable, table: str, files: Collection[DataFile]) -> bool:
    """Whether the table has all of these files."""
    there = {file.path for file in _files(found, table, None, None, None)}
    return all(file.path in there for file in files)


def _is_committed(found: DeltaTable, batch: Batch) -> bool:
    """Whether a numbered batch is committed."""
    if batch.number is None:
        return False
    last = found.transaction_version(batch.writer)
    return last is not None and last >= batch.number


def _files(
    found: DeltaTable,
    table: str,
    since: datetime | None,
    before: datetime | None,
    buckets: Collection[int] | None,
) -> list[DataFile]:
    """Return the files of one version of a table, by time."""
    low = None if since is None else to_us(since)
    high = None if before is None else to_us(before)
    files = [
        file
        for file in files_of(table, pa.table(found.get_add_actions(flatten=True)))
        if file.may_hold(low, high)
        and (buckets is None or file.bucket is None or file.bucket in buckets)
    ]
    return sorted(files, key=lambda file: (file.first_us, file.path))
