"""Compare the tables of a root with their expected contents: equal bytes after sorting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analytics.kernel.shape import shape
from analytics.schema import TABLES
from analytics.tables import TableRoot


def sorted_rows(rows: pa.Table) -> pa.Table:
    """The rows sorted by all columns, so that their order makes no difference."""
    return rows.sort_by([(name, "ascending") for name in rows.column_names]).combine_chunks()


def assert_same(found: pa.Table, wanted: pa.Table, name: str) -> None:
    """The same rows in the wanted columns, each as often. NaN equals NaN; -0.0 does not equal
    0.0."""
    assert found.num_rows == wanted.num_rows, f"{name}: {found.num_rows}, not {wanted.num_rows}"
    ours, theirs = sorted_rows(found.select(wanted.column_names)), sorted_rows(wanted)
    for column in wanted.column_names:
        # Not ==: a NaN is unequal to itself, and this is about bytes.
        assert _ipc(ours.select([column])) == _ipc(theirs.select([column])), f"{name}.{column}"


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)
    return bytes(sink.getvalue())


def shaped(directory: Path, period_s: float) -> Mapping[str, pa.Table]:
    """What recorded samples must become, each file shaped for itself without Spark."""
    pieces: dict[str, list[pa.Table]] = {name: [] for name in ("positions", "logs", "pairs")}
    for path in sorted(directory.glob("*.parquet")):
        made = shape(pq.read_table(path, partitioning=None), period_s, counters=())
        for name, tables in pieces.items():
            tables.append(made[name])
    return {
        name: pa.concat_tables([TABLES[name].empty_table(), *tables])
        for name, tables in pieces.items()
    }


def assert_collected(root: TableRoot, directory: Path, period_s: float) -> None:
    """All recorded positions, logs and pairs are in the tables, each once."""
    for name, wanted in shaped(directory, period_s).items():
        assert_same(root.read(name), wanted, name)
