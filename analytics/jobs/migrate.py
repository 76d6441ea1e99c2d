"""migrate: copies tables of the format before Delta Lake, once, into new ones.

Those tables have Parquet files by hour and a JSON file with the valid ones. A run that was killed
is started again: a table that was copied is left alone. The old tables are only read. Step after:
`collect` and `evaluate` on new checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pyarrow.parquet as pq

from analytics.errors import TablesDamaged, TablesMissing
from analytics.jobs.options import LocalPath, tables_option
from analytics.moments import from_us
from analytics.schema import TABLES
from analytics.tables import Batch, DataFile, TableRoot

_BATCH: Final = Batch("migrate", 0)


def run(old: Path, tables: str | Path) -> dict[str, int]:
    """Copy every table of a directory; return the number of rows by table. Raises TablesMissing,
    TablesDamaged, and TablesDiffer for new tables with another number of buckets."""
    facts = old / "_root.json"
    try:
        buckets = int(json.loads(facts.read_bytes())["buckets"])
    except FileNotFoundError:
        raise TablesMissing(str(old)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise TablesDamaged(str(facts), str(error)) from error
    root = TableRoot.create(tables, buckets=buckets)
    copied = {}
    for path in sorted((old / "_manifests").glob("*.json")):
        table = path.stem
        if table in TABLES and not root.has_batch(table, _BATCH):
            copied[table] = _copy(old, path, root)
    return copied


def _copy(old: Path, manifest: Path, root: TableRoot) -> int:
    """Copy one table in one commit; return the number of its rows."""
    table = manifest.stem
    try:
        found = json.loads(manifest.read_bytes())
        paths = list(_paths(table, found))
        watermark = found["watermark"]
    except (ValueError, KeyError, TypeError) as error:
        raise TablesDamaged(str(manifest), str(error)) from error
    files: list[DataFile] = []
    for path in paths:
        rows = pq.read_table(old / path, partitioning=None)
        files += root.write(
            table, rows.select([n for n in TABLES[table].names if n in rows.column_names])
        )
    mark = None if watermark is None else from_us(watermark)
    root.commit(table, batch=_BATCH, files=files, watermark=mark)
    return sum(file.rows for file in files)


def _paths(table: str, manifest: dict[str, Any]) -> Iterator[str]:
    """Paths of the valid files, relative to the directory of the tables."""
    names = manifest["columns"]
    for values in manifest["files"]:
        file = dict(zip(names, values, strict=True))
        hour = from_us(file["hour"])
        place = f"{table}/dt={hour:%Y-%m-%d}/hr={hour:%H}"
        if table in ("series", "positions", "pairs", "rates", "lag"):
            place += f"/bucket={file['bucket']:03d}"
        yield f"{place}/{file['batch']}-{file['part']:05d}.parquet"


@click.command("migrate")
@click.option(
    "--from",
    "old",
    required=True,
    type=LocalPath(exists=True, file_okay=False, path_type=Path),
    help="Directory of the old tables.",
)
@tables_option
def command(old: Path, tables: str) -> None:
    """Copy tables of the format before Delta Lake into new ones."""
    copied = run(old, tables)
    rows = ", ".join(f"{table} {count}" for table, count in copied.items())
    click.echo(f"Copied: {rows}." if copied else "Nothing to copy: all tables are there already.")
