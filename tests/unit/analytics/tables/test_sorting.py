from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from analytics.moments import HOUR
from analytics.tables import DataFile, TableRoot, sorting
from analytics.tables.sorting import sorted_files
from tests.unit.analytics.tables.test_root import START, TICK, path_of, positions, same

TICKS = 400  # from 9:50 to 11:30: three hours of the day


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path, buckets=1)


def by_ticks(root: TableRoot, rows: pa.Table) -> list[DataFile]:
    """Write the rows as a stream does, in files of forty ticks."""
    size = rows.num_rows // 10
    return [
        file
        for first in range(0, rows.num_rows, size)
        for file in root.write("positions", rows.slice(first, size))
    ]


def read(root: TableRoot, files: list[DataFile]) -> pa.Table:
    return pa.concat_tables(root.rows_of(file) for file in files)


def in_order(rows: pa.Table) -> bool:
    keys = ("series_id", "tick")
    values = list(zip(*(rows.column(name).to_pylist() for name in keys), strict=True))
    return values == sorted(values)


def test_small_hours_are_sorted_together_and_lose_no_row(root: TableRoot) -> None:
    rows = positions([1, 2, 3], TICKS)
    (file,) = sorted_files(root.location, by_ticks(root, rows), 1 << 30)
    assert same(read(root, [file]), rows)
    assert in_order(read(root, [file]))
    assert file.rows == rows.num_rows
    assert (file.first_us, file.last_us) == (
        pc.min(rows["tick"]).cast(pa.int64()).as_py(),
        pc.max(rows["tick"]).cast(pa.int64()).as_py(),
    )


def test_large_hours_are_row_groups_of_their_own(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "_PIECE_ROWS", 1)
    rows = positions([1, 2, 3], TICKS)
    (file,) = sorted_files(root.location, by_ticks(root, rows), 1 << 30)
    parquet = pq.ParquetFile(path_of(root, file))
    assert parquet.num_row_groups == 3
    for number in range(3):
        group = parquet.read_row_group(number)
        assert in_order(group)
        assert len({each.hour for each in group["tick"].to_pylist()}) == 1
    assert same(read(root, [file]), rows)


def test_an_hour_of_too_many_rows_is_sorted_in_parts(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "SORT_ROWS", 500)
    rows = positions([1, 2, 3], TICKS)
    (file,) = sorted_files(root.location, by_ticks(root, rows), 1 << 30)
    parquet = pq.ParquetFile(path_of(root, file))
    sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    assert max(sizes) <= 2 * 500
    assert len(sizes) > 3
    assert same(read(root, [file]), rows)


def test_a_pair_of_too_many_rows_is_sorted_in_parts(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shares before that of a large value had no rows, and no file can be written of none.
    monkeypatch.setattr(sorting, "SORT_ROWS", 239)
    rows = positions([1, 2, 3], TICKS)  # an hour has 480 of each, 240 of each series
    (file,) = sorted_files(root.location, by_ticks(root, rows), 1 << 30)
    parquet = pq.ParquetFile(path_of(root, file))
    groups = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    assert max(group.num_rows for group in groups) == 240
    assert all(in_order(group) for group in groups)
    assert same(read(root, [file]), rows)


def test_a_large_value_is_cut_from_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "SORT_ROWS", 4)
    column = pa.chunked_array([[2] * 13 + [1, 3, 3, 4, 4, 5]])
    assert [part.to_pylist() for part in sorting._cut(column)] == [[1], [2], [3, 4], [5]]
    assert not list(sorting._cut(column[:0]))


def test_a_file_that_is_large_enough_is_followed_by_another(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "_PIECE_ROWS", 1)
    rows = positions([1, 2, 3], TICKS)
    files = sorted_files(root.location, by_ticks(root, rows), 1)
    assert len(files) == 3
    assert same(read(root, files), rows)


def test_a_reader_opens_only_the_hours_that_it_asks_for(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "_PIECE_ROWS", 1)
    rows = positions([1, 2], TICKS)
    files = sorted_files(root.location, by_ticks(root, rows), 1 << 30)
    root.commit("positions", batch="made", files=files)
    read_groups: list[int] = []
    real = pq.ParquetFile.read_row_groups

    def counted(self: pq.ParquetFile, groups: list[int], *rest: object, **more: object) -> pa.Table:
        read_groups.extend(groups)
        return real(self, groups, *rest, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    ten = START.replace(minute=0) + HOUR
    found = root.read("positions", since=ten, before=ten + TICK)
    assert read_groups == [1]
    assert set(found["tick"].to_pylist()) == {ten}
    read_groups.clear()
    assert root.read("positions", since=ten - TICK, before=ten + TICK).num_rows == 2 * 4
    assert read_groups == [0, 1]
    assert root.read("positions", before=START - timedelta(days=1)).num_rows == 0


def test_store_times_come_back_as_they_were(root: TableRoot) -> None:
    rows = positions([1], 3)
    place = rows.column_names.index("head_store_ts")
    times = pa.array([START + timedelta(milliseconds=7 * n) for n in range(5)] + [None])
    rows = rows.set_column(
        place, rows.schema.field(place), [times.cast(rows.schema.field(place).type)]
    )
    (file,) = root.write("positions", rows)
    assert pq.read_schema(path_of(root, file)).field("head_store_ts").type.unit == "ms"
    assert same(read(root, [file]), rows)
