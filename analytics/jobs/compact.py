"""compact: merges the many small files of an hour into one sorted file per bucket.

Each batch of a few seconds leaves a file per bucket; a reader of a day would open tens of
thousands. Each task sorts one bucket of one hour into a new file. One switch of the manifest
exchanges the files, so that a reader sees either the old hour or the new one. Files that a reader
may have open stay on disk. Rows past their retention are removed. Step before: `collect`,
`evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs.options import pairs, spark_options, started, tables_option
from analytics.moments import hour_of, to_us
from analytics.schema import TABLES
from analytics.tables import Batch, DataFile, TableRoot
from analytics.tables.layout import BUCKETED
from analytics.tables.parts import Writer, commit_all, run_parts
from analytics.tables.retention import Removed, clean_up
from analytics.ticks.window import merged_series
from shared.runtime.clock import SystemClock

LEFT_ALONE: Final = frozenset({"offset_events"})
"""Not compacted: evaluation separates its own events from collected ones by file name."""
_SETTLE: Final = timedelta(minutes=5)  # after its end an hour may still get files


class Piece(NamedTuple):
    """The files of one table, hour and bucket, which are merged into one."""

    table: str
    files: tuple[DataFile, ...]


class Compacted(NamedTuple):
    """Result of a run."""

    files_before: int
    files_after: int
    rows: int
    removed: Removed


def pieces(table: str, files: Iterable[DataFile], closed_us: int) -> list[Piece]:
    """Return the hours before closed_us that have more than one file, with these files. Pure."""
    found: dict[tuple[int, int | None], list[DataFile]] = {}
    for file in files:
        if file.hour_us < closed_us:
            bucket = file.bucket if table in BUCKETED else None
            found.setdefault((file.hour_us, bucket), []).append(file)
    return [Piece(table, tuple(group)) for group in found.values() if len(group) > 1]


def run(
    spark: SparkSession,
    tables: Path,
    keep_days: Mapping[str, int],
    now: datetime | None = None,
) -> Compacted:
    """Compact hours that ended at least five minutes before now, then remove files that no reader
    uses. keep_days: retention by table, where it is not the usual one."""
    root = TableRoot(tables)
    now = now or datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    closed_us = to_us(hour_of(now - _SETTLE))
    names = [table for table in root.tables() if table not in LEFT_ALONE]
    with runs.run(root.path, "compact") as noted:
        manifests = {table: root.manifest(table) for table in names}
        # Versions only grow, so only a run that never committed has used the name before.
        batch = Batch(f"compact-{sum(each.version for each in manifests.values()):010d}")
        tasks = [
            piece
            for table, manifest in manifests.items()
            for piece in pieces(table, manifest.files, closed_us)
        ]
        replaces: dict[str, list[DataFile]] = {}
        for piece in tasks:
            replaces.setdefault(piece.table, []).extend(piece.files)
        written = run_parts(spark, root, batch, tasks, rewrite, commit=False)
        commit_all(root, batch, written, replaces=replaces)
        noted.wrote(written.counts())
        removed = clean_up(root, now, keep_days)
    return Compacted(
        files_before=sum(len(piece.files) for piece in tasks),
        files_after=sum(len(files) for files in written.files.values()),
        rows=sum(written.counts().values()),
        removed=removed,
    )


def rewrite(root: TableRoot, piece: Piece, writer: Writer) -> None:
    """Merge the files of a piece into one; on an executor."""
    rows = pa.concat_tables([root.rows_of(file) for file in piece.files])
    owners = {file.bucket for file in piece.files}
    if piece.table == "series":
        rows = merged_series(rows)
    writer.write(piece.table, rows, bucket=owners.pop() if len(owners) == 1 else None)


@click.command("compact")
@tables_option
@click.option("--keep", multiple=True, help="TABLE=DAYS that rows are kept; repeatable.")
@spark_options
def command(**given: Any) -> None:
    """Compact hours that have ended; remove what is past its retention."""
    kept = days_by_table(given["keep"])
    spark = started("tidemark compact", given, TableRoot(given["tables"]).buckets)
    done = run(spark, given["tables"], kept)
    click.echo(
        f"{done.files_before} files became {done.files_after} with {done.rows} rows; "
        f"{done.removed.expired} expired, {done.removed.files} removed from disk "
        f"({done.removed.orphans} left by killed jobs)."
    )


def days_by_table(values: tuple[str, ...]) -> dict[str, int]:
    """Days by table. Raises BadOption."""
    found = {}
    for table, days in pairs(values, "--keep").items():
        if table not in TABLES:
            raise BadOption(
                f"--keep names table {table!r}, which does not exist.", ", ".join(TABLES)
            )
        if not days.isdigit() or not 1 <= int(days) <= 3650:
            raise BadOption(f"--keep {table}={days}: days must be from 1 to 3650.", "")
        found[table] = int(days)
    return found
