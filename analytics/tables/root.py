"""The tables of lag analytics in one directory: read by time and bucket, written in batches.

Readers find files through manifests, never by listing directories. Step before: a job has rows.
Step after: a job, the report or another reader of Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from analytics.errors import ManifestDamaged, TableFileMissing, TablesDiffer, TablesMissing
from analytics.local_path import local
from analytics.moments import from_us, to_us
from analytics.schema import TABLES, part_of
from analytics.tables.files import DataFile, read_file, write_files, write_whole
from analytics.tables.layout import TIME_COLUMN, bucket_of, sort_keys
from analytics.tables.manifest import Batch, Change, Manifest, ManifestStore, changed
from shared.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS: Final = 8
"""Default number of buckets: twice the cores of a machine of four."""
_FORMAT: Final = 1


class TableRoot:
    """A directory of tables. Has only a path and a number, so it can be sent to executors."""

    def __init__(self, path: str | Path) -> None:
        """Open existing tables. Raises TablesMissing without any, NotLocal for a URI."""
        self.path = local(path).absolute()
        facts = self.path / "_root.json"
        try:
            found = json.loads(facts.read_bytes())
            made_with, self.buckets = int(found["format"]), int(found["buckets"])
        except FileNotFoundError:
            raise TablesMissing(self.path) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestDamaged(facts, str(error)) from error
        if made_with != _FORMAT:
            raise TablesDiffer(self.path, "the format", found=made_with, wanted=_FORMAT)

    @classmethod
    def create(cls, path: str | Path, *, buckets: int | None = None) -> TableRoot:
        """Create the directory, or open it if it exists.

        buckets: number of buckets, best about twice the cores of the largest job; null: as existing
        tables, else 8. Too few leave cores idle, too many make files of a few rows. Raises
        TablesDiffer if existing tables have another number.
        """
        path = local(path).absolute()
        if not (path / "_root.json").exists():
            text = json.dumps({"format": _FORMAT, "buckets": buckets or BUCKETS}).encode()
            write_whole(path / "_root.json", lambda out: out.write(text))
        root = cls(path)
        if buckets is not None and buckets != root.buckets:
            raise TablesDiffer(path, "the number of buckets", found=root.buckets, wanted=buckets)
        return root

    # -- reading ----------------------------------------------------------------------------------

    def manifest(self, table: str) -> Manifest:
        """The present files of the table."""
        return ManifestStore(self.path).read(table)

    def tables(self) -> list[str]:
        """Names of the tables that exist."""
        return ManifestStore(self.path).tables()

    def has(self, table: str) -> bool:
        """Whether the table has rows."""
        return bool(self.manifest(table).files)

    def span(self, table: str) -> tuple[datetime, datetime] | None:
        """The first and last time in the table; None if it is empty."""
        files = self.manifest(table).files
        if not files:
            return None
        first, last = min(f.first_us for f in files), max(f.last_us for f in files)
        return from_us(first), from_us(last)

    def watermark(self, table: str) -> datetime | None:
        """Return the tick up to which the writer has finished, even if it had no rows."""
        mark = self.manifest(table).watermark_us
        return None if mark is None else from_us(mark)

    def files(
        self,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        buckets: Collection[int] | None = None,
    ) -> tuple[DataFile, ...]:
        """The files that may hold rows with since <= time < before of these buckets."""
        low = None if since is None else to_us(since)
        high = None if before is None else to_us(before)
        return tuple(
            file
            for file in self.manifest(table).files
            if (low is None or file.last_us >= low)
            and (high is None or file.first_us < high)
            and (buckets is None or file.bucket is None or file.bucket in buckets)
        )

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
        if a file that the manifest names is gone."""
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
        path = self.path / file.path
        try:
            return read_file(
                path, file.table, columns=columns, since=since, before=before, pair_ids=pair_ids
            )
        except FileNotFoundError:
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
        """The same rows as a Spark DataFrame with explicit files and schema."""
        from analytics.tables.frames import frame  # only for Spark jobs

        files = self.files(table, since=since, before=before)
        paths = [str(self.path / file.path) for file in files]
        return frame(spark, table, paths, since=since, before=before, columns=columns)

    # -- writing ----------------------------------------------------------------------------------

    def write(
        self,
        table: str,
        rows: pa.Table,
        *,
        batch: Batch | str,
        part: int = 0,
        bucket: int | None = None,
    ) -> list[DataFile]:
        """Write rows as files that are invisible until `commit`; on the driver or an executor.
        part: number within the batch; each writer has its own. bucket: of all rows, if known."""
        return write_files(
            self.path,
            table,
            rows,
            batch=str(batch),
            part=part,
            buckets=self.buckets,
            bucket=bucket,
        )

    def commit(
        self,
        table: str,
        *,
        batch: Batch | str,
        files: Collection[DataFile] = (),
        replaces: Collection[DataFile] = (),
        watermark: datetime | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> bool:
        """Make the files of a batch visible and the replaced ones invisible, at one instant.

        Files of an earlier attempt of the same batch are also replaced. Returns False, and changes
        nothing, if the batch was committed already.
        """
        name = Batch(batch) if isinstance(batch, str) else batch
        mark = None if watermark is None else to_us(watermark)
        store = ManifestStore(self.path)
        with store.writing(table) as manifest:
            now_us = SystemClock().wall_ms() * 1000
            change = Change(files, replaces, mark, seen or {})
            after = changed(manifest, name, change, now_us)
            if after is manifest:
                return False
            self._describe(table)
            store.put(after)
        return True

    def _describe(self, table: str) -> None:
        """Write a description of the table's columns, for other readers. A version with other
        columns replaces it; older files lack the new columns."""
        columns = [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in TABLES[table]
        ]
        order = [name for name, _ in sort_keys(table)]
        facts: dict[str, Any] = {
            "table": table,
            "columns": columns,
            "time_column": TIME_COLUMN[table],
            "sorted_by": order,
            "buckets": self.buckets,
            "bucket": "pair_id mod buckets",
            "files": f"_manifests/{table}.json",
        }
        text = json.dumps(facts, indent=1).encode()
        path = self.path / table / "_schema.json"
        if not path.exists() or path.read_bytes() != text:
            write_whole(path, lambda out: out.write(text))
