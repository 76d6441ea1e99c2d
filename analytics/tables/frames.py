"""A table as a Spark DataFrame. Needs Spark; other modules of the package do not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from analytics.moments import to_us
from analytics.schema import part_of
from analytics.tables.layout import TIME_COLUMN

if TYPE_CHECKING:
    from analytics.tables.root import TableRoot

_KINDS: list[tuple[pa.DataType, t.DataType]] = [
    (pa.string(), t.StringType()),
    (pa.int64(), t.LongType()),
    (pa.int32(), t.IntegerType()),
    (pa.float64(), t.DoubleType()),
    (pa.bool_(), t.BooleanType()),
    (pa.timestamp("us", tz="UTC"), t.TimestampType()),
]


def spark_schema(schema: pa.Schema) -> t.StructType:
    """Spark's names of column types. Raises KeyError for a type that no table has."""
    fields = []
    for field in schema:
        kind = next((spark for arrow, spark in _KINDS if arrow == field.type), None)
        if kind is None:
            raise KeyError(f"column {field.name} has type {field.type}, which no table has")
        fields.append(t.StructField(field.name, kind, field.nullable))
    return t.StructType(fields)


def frame(
    spark: SparkSession,
    root: TableRoot,
    table: str,
    *,
    since: datetime | None,
    before: datetime | None,
    columns: Sequence[str] | None,
) -> DataFrame:
    """Rows of a table with since <= time < before."""
    wanted = part_of(table, columns)
    if root.delta(table) is None:
        return spark.createDataFrame([], spark_schema(wanted))
    rows = spark.read.format("delta").load(f"{root.location.for_spark}/{table}")
    time = f.col(TIME_COLUMN[table])
    if since is not None:
        rows = rows.where(time >= _moment(since))
    if before is not None:
        rows = rows.where(time < _moment(before))
    return rows.select(*wanted.names)


def _moment(at: datetime) -> Column:
    """A literal that does not depend on the session's time zone."""
    return f.timestamp_micros(f.lit(to_us(at)))
