"""The questions of docs/analytics-questions.md, the answers that the page shows, and engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from analytics.session import views
from analytics.tables import TableRoot

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/analytics-questions.md"
_QUESTION: Final = re.compile(r"```sql\n-- (\w+)\n(.*?)```\n+((?:\|[^\n]*\|\n)*)", re.DOTALL)

Answer = list[dict[str, Any]]
Ask = Callable[[str], Answer]
"""Takes SQL, returns rows."""


def questions() -> dict[str, str]:
    """SQL by the name in its first line."""
    return {name: sql for name, sql, _ in _QUESTION.findall(PAGE.read_text())}


def shown() -> dict[str, str]:
    """By name the answer that the page shows, as a table of Markdown."""
    return {name: table for name, _, table in _QUESTION.findall(PAGE.read_text())}


def in_spark(spark: SparkSession, root: TableRoot) -> Ask:
    """Ask Spark about the tables."""
    views(spark, root)
    return lambda sql: _rows(spark.sql(sql).toArrow())


def in_duckdb(duckdb: Any, root: TableRoot) -> Ask:
    """Ask DuckDB, as the page describes. duckdb: the module."""
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    for log in Path(root.uri).glob("*/_delta_log"):
        connection.register(log.parent.name, DeltaTable(log.parent).to_pyarrow_dataset())
    return lambda sql: _rows(connection.sql(sql).to_arrow_table())


def _rows(table: pa.Table) -> Answer:
    """Rows with whole numbers as int: DuckDB has sums of whole numbers as decimals."""
    return [
        {name: int(value) if isinstance(value, Decimal) else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def as_markdown(answer: Sequence[Mapping[str, Any]]) -> str:
    """An answer as the page shows it."""
    heads = list(answer[0])
    lines = [heads, ["---"] * len(heads), *([_cell(row[head]) for head in heads] for row in answer)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "null"
        case datetime():
            return f"{value:%m-%d %H:%M}"
        case float():
            return f"{value:.4g}"
    return str(value)
