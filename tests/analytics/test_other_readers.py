"""DuckDB, pandas and Spark read every table without our code, also after compaction and expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from analytics.moments import EPOCH
from analytics.schema import TABLES, fit
from analytics.tables import TIME_COLUMN, TableRoot
from analytics.tables.upkeep import keep_up
from tests.support.spark import spark

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
BATCHES = 6
"""Of each table, twelve hours apart: the last is of the day in progress."""


def rows_of(table: str, batch: int) -> pa.Table:
    """Three rows with a value in every column, and one with as many nulls as may be."""
    schema, at = TABLES[table], NOW - batch * timedelta(hours=12)
    kinds = {pa.string(): "x", pa.bool_(): True, pa.int64(): 3, pa.int32(): 2, pa.float64(): 0.5}
    whole: dict[str, Any] = {f.name: kinds.get(f.type, at) for f in schema}
    rows = []
    for number in range(3):
        changed = {n: v + number for n, v in whole.items() if isinstance(v, int) and v is not True}
        rows.append(whole | changed)
    needed = {f.name for f in schema if not f.nullable} | {TIME_COLUMN[table]}
    rows.append({name: value for name, value in whole.items() if name in needed})
    fields = [pa.field(f.name, f.type) for f in schema]
    return fit(pa.Table.from_pylist(rows, schema=pa.schema(fields)), schema)


def in_order(rows: pa.Table, table: str) -> list[dict[str, Any]]:
    """Rows of the table's own columns, with times as microseconds, in an order of all columns."""

    def plain(value: Any) -> Any:
        return (value - EPOCH) // timedelta(microseconds=1) if hasattr(value, "tzinfo") else value

    chosen = rows.select(TABLES[table].names).to_pylist()
    return sorted(({n: plain(v) for n, v in row.items()} for row in chosen), key=repr)


def check(root: TableRoot, spark: SparkSession) -> None:
    """Check that every reader sees the rows that we read."""
    for table in TABLES:
        place, wanted = root.location.child(table), in_order(root.read(table), table)
        assert wanted
        dataset = DeltaTable(place).to_pyarrow_dataset()
        with duckdb.connect() as connection:
            connection.register("rows", dataset)
            found = connection.sql("SELECT * FROM rows").to_arrow_table()
        assert in_order(found, table) == wanted, f"{table} in DuckDB"
        assert len(DeltaTable(place).to_pandas()) == len(wanted), f"{table} in pandas"
        through_spark = spark.read.format("delta").load(place).toArrow()
        assert in_order(through_spark, table) == wanted, f"{table} in Spark"


@pytest.mark.timeout(900)
def test_every_table_has_the_same_rows_for_every_reader(
    tmp_path: Path, spark: SparkSession
) -> None:
    root = TableRoot.create(tmp_path / "tables", buckets=2)
    for table in TABLES:
        for batch in range(BATCHES):
            files = root.write(table, rows_of(table, batch))
            root.commit(table, batch="made", files=files)
    check(root, spark)
    before = {table: root.read(table) for table in TABLES}
    for table, rows in before.items():
        kept = keep_up(root, table, NOW, keep_days=400)
        assert kept.after < kept.before, table
        assert in_order(root.read(table), table) == in_order(rows, table), table
    check(root, spark)
    for table, rows in before.items():
        keep_up(root, table, NOW, keep_days=1)
        assert 0 < root.read(table).num_rows < rows.num_rows, table
    check(root, spark)
    version = DeltaTable(root.location.child("lag"), version=BATCHES)
    assert version.to_pyarrow_table().num_rows == before["lag"].num_rows, "time travel"
