from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from analytics.schema import TABLES, fit
from analytics.tables import DataFile, TableRoot, spans_of, upkeep
from analytics.tables.upkeep import FILE_SIZE, Kept, keep_up, to_sort
from tests.unit.analytics.tables.test_root import TICK, path_of, positions, same

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path, buckets=2)


def gap(root: TableRoot, at: datetime) -> None:
    row = {"source": "s", "subject": "t", "reason": "down", "detail": "", "from_ts": at}
    rows = fit(pa.Table.from_pylist([row]), TABLES["gaps"])
    root.commit("gaps", batch="made", files=root.write("gaps", rows))


def hashed(rows: pa.Table) -> pa.Table:
    """Give rows ids of series that are spread over all values, as hashes are."""
    at = rows.column_names.index("series_id")
    spread = rows["series_id"].to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return rows.set_column(at, rows.schema.field(at), [pa.array(spread.view(np.int64))])


def by_minutes(root: TableRoot, rows: pa.Table) -> None:
    """Write rows as a stream does: batches of four ticks."""
    size = rows.num_rows // 25
    for first in range(0, rows.num_rows, size):
        files = root.write("positions", rows.slice(first, size))
        root.commit("positions", batch="made", files=files)


def test_a_day_that_has_ended_becomes_one_sorted_file_per_bucket(root: TableRoot) -> None:
    rows = hashed(positions([1, 2, 3], 100))
    by_minutes(root, rows)
    kept = keep_up(root, "positions", NOW, keep_days=14)
    assert kept == Kept(before=50, after=2, expired=0, removed=0, sorted=["2026-03-01"])
    assert same(root.read("positions"), rows)
    for file in root.files("positions"):
        found = pq.read_table(path_of(root, file), partitioning=None)
        series = found["series_id"].to_numpy()
        assert np.count_nonzero(np.diff(series)) == np.unique(series).size - 1, "together"
        (group,) = [pq.read_metadata(path_of(root, file)).row_group(0)]
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(14)}
        assert columns["tick"].compression == "ZSTD"
        assert "DELTA_BINARY_PACKED" in columns["max_offset"].encodings
    version = root.version("positions")
    keep_up(root, "positions", NOW, keep_days=14, are_sorted=kept.sorted)
    assert root.version("positions") - version <= 2, "only notes of the vacuum"
    assert len(root.files("positions")) == 2


def test_files_of_the_day_in_progress_are_merged(root: TableRoot) -> None:
    rows = positions([1, 2, 3], 100)
    by_minutes(root, rows)
    kept = keep_up(root, "positions", NOW - DAY, keep_days=14)
    assert (kept.before, kept.after) == (50, 2)
    assert same(root.read("positions"), rows)
    assert root.read("positions", since=NOW, before=NOW + TICK).num_rows == 0


@pytest.mark.parametrize("now", [NOW - DAY, NOW], ids=["merged", "sorted"])
def test_files_that_a_job_replaces_meanwhile_are_left_to_the_next_run(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    by_minutes(root, positions([1, 2, 3], 100))
    new, opened = positions([5], 3), upkeep._opened

    def replaced(root: TableRoot, table: str) -> DeltaTable:
        found = opened(root, table)
        files = [*root.write(table, new.slice(0, 2)), *root.write(table, new.slice(2))]
        root.commit(table, batch="again", files=files, clears=spans_of(root.hours(table)))
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(upkeep, "_opened", replaced)
        assert keep_up(root, "positions", now, keep_days=14).sorted == []
    assert same(root.read("positions"), new)


def test_every_table_can_be_compacted(root: TableRoot) -> None:
    for table, schema in TABLES.items():
        fields = [pa.field(field.name, field.type) for field in schema]
        values = {
            pa.string(): "x", pa.bool_(): True, pa.int64(): 3, pa.int32(): 2, pa.float64(): 0.5,
        }  # fmt: skip
        row = {field.name: values.get(field.type, NOW - 2 * DAY) for field in fields}
        for _ in range(2):
            rows = fit(pa.Table.from_pylist([row], schema=pa.schema(fields)), schema)
            root.commit(table, batch="made", files=root.write(table, rows))
        before = root.read(table)
        assert keep_up(root, table, NOW, keep_days=14).after == 1, table
        assert root.read(table).equals(before), table


def test_rows_of_days_past_their_retention_go(root: TableRoot) -> None:
    for days in (0, 1, 2, 3):
        gap(root, NOW - days * DAY)
    assert keep_up(root, "gaps", NOW, keep_days=90).expired == 0
    assert keep_up(root, "gaps", NOW, keep_days=2).expired == 1
    assert sorted(root.read("gaps")["from_ts"].to_pylist()) == [NOW - 2 * DAY, NOW - DAY, NOW]


def test_files_go_from_disk_a_day_after_no_version_names_them(root: TableRoot) -> None:
    rows = positions([1], 100)
    by_minutes(root, rows)
    (killed,) = root.write("positions", positions([3], 1))
    assert keep_up(root, "positions", NOW, keep_days=14).removed == 0
    assert path_of(root, killed).exists(), "it may be of a batch in progress"
    half = path_of(root, killed).with_suffix(".parquet.17.half")
    half.write_bytes(b"PAR1")
    old = time.time() - 25 * 3600
    for path in (path_of(root, killed), half):
        os.utime(path, (old, old))
    assert keep_up(root, "positions", NOW, keep_days=14).removed == 2
    assert not path_of(root, killed).exists()
    assert not half.exists()
    assert same(root.read("positions"), rows)


def test_a_day_is_sorted_once_it_has_ended_and_again_when_rows_came_later() -> None:
    def file(day: int, bucket: int, size: int) -> DataFile:
        return DataFile(
            "lag", f"{day}{bucket}{size}", day * 86_400_000_000, bucket, 1, size, 0, 0, 0
        )

    whole, small = FILE_SIZE, 1000
    files = [
        *(file(1, 0, whole), file(1, 0, whole + 1), file(1, 0, small)),  # sorted, with the rest
        *(file(1, 1, whole), file(1, 1, small), file(1, 1, small + 1)),  # something came later
        *(file(2, 0, small), file(2, 1, small), file(2, 1, small + 1)),
        *(file(3, 0, small), file(3, 0, small + 1)),  # in progress
    ]
    days = {"1970-01-02", "1970-01-03"}
    assert to_sort(files, "1970-01-04", days) == {"1970-01-02": [1], "1970-01-03": [1]}
    assert to_sort(files, "1970-01-04", {"1970-01-02"})["1970-01-03"] == [0, 1]
    assert to_sort(files[:3], "1970-01-05", ()) == {}, "too long ago to be in progress"
