from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.errors import ManifestDamaged, TableFileMissing, TablesDiffer, TablesMissing
from analytics.schema import LAG, POSITIONS, TABLES, fit
from analytics.tables import TIME_COLUMN, Batch, TableRoot
from analytics.tables.layout import BUCKETED, sort_keys

START = datetime(2026, 3, 1, 9, 50, tzinfo=UTC)
TICK = timedelta(seconds=15)


def positions(pairs: list[int], ticks: int) -> pa.Table:
    """Two series for each pair, one row for each series and tick."""
    rows = [
        {
            "ts": START + tick * TICK + timedelta(milliseconds=7),
            "tick": START + tick * TICK,
            "series_id": pair * 10 + queue,
            "pair_id": pair,
            "replica": "n0",
            "max_offset": tick,
            "head_method": "none",
        }
        for tick in range(ticks)
        for pair in pairs
        for queue in range(2)
    ]
    return fit(pa.Table.from_pylist(rows), POSITIONS)


def same(one: pa.Table, other: pa.Table) -> bool:
    keys = [("series_id", "ascending"), ("ts", "ascending")]
    return bool(one.sort_by(keys).combine_chunks().equals(other.sort_by(keys).combine_chunks()))


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path / "tables", buckets=4)


def test_every_table_has_a_time_and_an_order_of_its_own_columns() -> None:
    for name, schema in TABLES.items():
        assert TIME_COLUMN[name] in schema.names
        assert {key for key, _ in sort_keys(name)} <= set(schema.names)
        assert name not in BUCKETED or "pair_id" in schema.names


def test_what_is_committed_is_read_back_and_what_is_only_written_is_not(root: TableRoot) -> None:
    rows = positions([-3, -2, 5, 8], 100)  # crosses an hour
    files = root.write("positions", rows, batch="a")
    assert root.read("positions").num_rows == 0
    assert root.commit("positions", batch="a", files=files)
    assert same(root.read("positions"), rows)
    assert {file.hour for file in files} == {"2026-03-01T09", "2026-03-01T10"}
    assert {file.bucket for file in files} == {0, 1, 2}  # 5 and -3 share one
    assert json.loads((root.path / "positions/_schema.json").read_text())["buckets"] == 4


def test_buckets_are_ordered_by_their_rows_in_a_time(root: TableRoot) -> None:
    hour = START.replace(minute=0)
    for batch, pairs, ticks in (("a", [0], 9), ("b", [1, 5], 9), ("c", [3], 100)):
        root.commit(
            "positions",
            batch=batch,
            files=root.write("positions", positions(pairs, ticks), batch=batch),
        )
    assert root.buckets_by_rows("positions", since=hour, before=hour + TICK) == [0, 1, 2, 3]
    assert root.buckets_by_rows("positions", since=START, before=START + TICK) == [3, 1, 0, 2]
    later = START + timedelta(minutes=20)
    assert root.buckets_by_rows("positions", since=later, before=later + TICK) == [3, 0, 1, 2]


def test_a_column_that_came_later_is_null_in_files_of_before(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = positions([1], 3)
    with monkeypatch.context() as before:
        before.setitem(TABLES, "positions", POSITIONS.remove(POSITIONS.get_field_index("member")))
        files = root.write("positions", rows.drop_columns(["member"]), batch="a")
        root.commit("positions", batch="a", files=files)
    (old,) = files
    assert "member" not in pq.read_schema(root.path / old.path).names
    described = root.path / "positions/_schema.json"
    assert '"member"' not in described.read_text()
    assert same(root.read("positions"), rows)
    assert root.read("positions", columns=["member", "ts"])["member"].null_count == 6
    members = pa.array([0, 1] * 3, pa.int64())
    later = rows.set_column(POSITIONS.get_field_index("member"), "member", members)
    root.commit("positions", batch="b", files=root.write("positions", later, batch="b"))
    found = root.read("positions")["member"].to_pylist()
    assert sorted(found, key=str) == [0] * 3 + [1] * 3 + [None] * 6
    assert '"member"' in described.read_text()


def test_files_are_pruned_by_time_and_bucket_and_rows_by_time(root: TableRoot) -> None:
    rows = positions([1, 2, 3, 4], 100)
    root.commit("positions", batch="a", files=root.write("positions", rows, batch="a"))
    ten = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert len(root.files("positions")) == 8
    assert len(root.files("positions", since=ten)) == 4
    assert len(root.files("positions", before=ten, buckets=[1])) == 1
    found = root.read(
        "positions", since=ten, before=ten + TICK, pair_ids=[2], columns=["max_offset"]
    )
    assert found.to_pydict() == {"max_offset": [40, 40]}


def test_a_file_is_sorted_by_series_and_time_with_deltas_and_zstd(root: TableRoot) -> None:
    (file,) = root.write("positions", positions([4, 8], 40), batch="a")
    rows = pq.read_table(root.path / file.path, partitioning=None)
    keys = list(zip(*(rows.column(name).to_pylist() for name in ("series_id", "ts")), strict=True))
    assert keys == sorted(keys)
    group = pq.read_metadata(root.path / file.path).row_group(0)
    of_column = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert of_column["ts"].compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in of_column["max_offset"].encodings
    assert "RLE_DICTIONARY" in of_column["replica"].encodings


def test_a_batch_that_runs_again_is_in_once(root: TableRoot) -> None:
    rows = positions([1], 3)
    for _ in range(2):
        files = root.write("positions", rows, batch=Batch("collect-ab", 7))
        root.commit("positions", batch=Batch("collect-ab", 7), files=files)
    assert root.read("positions").num_rows == 6
    assert root.manifest("positions").version == 1


def test_a_batch_that_runs_again_after_compaction_is_in_once(root: TableRoot) -> None:
    rows, batch = positions([1], 3), Batch("collect-ab", 7)
    files = root.write("positions", rows, batch=batch)
    root.commit("positions", batch=batch, files=files)
    whole = root.write("positions", rows, batch="compact-1")
    root.commit("positions", batch="compact-1", files=whole, replaces=files)
    assert not root.commit("positions", batch=batch, files=files)
    assert same(root.read("positions"), rows)
    assert set(root.manifest("positions").removed) == {file.path for file in files}


def test_a_batch_replaces_what_it_wrote_before_and_what_it_names(root: TableRoot) -> None:
    old = root.write("positions", positions([1], 3), batch="x")
    root.commit("positions", batch="x", files=old)
    gone = root.write("positions", positions([2], 3), batch="y")
    root.commit("positions", batch="y", files=gone)
    rows = positions([3], 3)
    new = root.write("positions", rows, batch="x", part=1)
    root.commit("positions", batch="x", files=new, replaces=gone)
    assert same(root.read("positions"), rows)


def test_marks_only_move_forward(root: TableRoot) -> None:
    root.commit("lag", batch="a", watermark=START + TICK, seen={"n0": 5, "n1": 9})
    root.commit("lag", batch="b", watermark=START, seen={"n0": 7, "n1": 8})
    assert root.watermark("lag") == START + TICK
    assert root.manifest("lag").seen == {"n0": 7, "n1": 9}
    assert root.watermark("rates") is None


def test_an_empty_table_has_its_columns(root: TableRoot) -> None:
    assert root.read("lag").schema == LAG
    assert not root.has("lag")
    assert root.span("lag") is None
    assert root.write("lag", LAG.empty_table(), batch="a") == []


def test_rows_that_do_not_fit_are_refused_and_leave_no_file(root: TableRoot) -> None:
    with pytest.raises(ValueError, match="required column"):
        root.write("lag", pa.table({"lag": [1]}), batch="a")
    assert not list(root.path.glob("lag/**/*.parquet"))


def test_what_is_missing_or_damaged_is_named_with_its_path(root: TableRoot, tmp_path: Path) -> None:
    with pytest.raises(TablesMissing, match=r"nothing-here holds no tables"):
        TableRoot(tmp_path / "nothing-here")
    with pytest.raises(TablesDiffer, match=r"number of buckets .* is 4, but this job asks for 9"):
        TableRoot.create(root.path, buckets=9)
    files = root.write("positions", positions([1], 3), batch="a")
    root.commit("positions", batch="a", files=files)
    (root.path / files[0].path).unlink()
    with pytest.raises(TableFileMissing, match=files[0].path):
        root.read("positions")
    manifest = root.path / "_manifests/positions.json"
    whole = manifest.read_bytes()
    for cut in range(0, len(whole) - 1, 7):
        manifest.write_bytes(whole[:cut])
        with pytest.raises(ManifestDamaged, match=r"positions\.json is unreadable"):
            root.read("positions")


def test_the_manifest_before_stays_beside_the_one_that_counts(root: TableRoot) -> None:
    for name in ("a", "b"):
        files = root.write("positions", positions([1], 3), batch=name)
        root.commit("positions", batch=name, files=files)
    manifests = root.path / "_manifests"
    (manifests / "positions.json.before").replace(manifests / "positions.json")
    assert {file.batch for file in root.files("positions")} == {"a"}
