from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from analytics.errors import (
    TableFileMissing,
    TablesDamaged,
    TablesDiffer,
    TablesMissing,
    TableUnreadable,
)
from analytics.moments import HOUR, to_us
from analytics.schema import LAG, POSITIONS, REVISED_AT, TABLES, fit
from analytics.tables import TIME_COLUMN, Batch, DataFile, Span, TableRoot, spans_of
from analytics.tables.files import row_groups
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


def add(root: TableRoot, rows: pa.Table, batch: Batch | str = "made") -> list[DataFile]:
    files = root.write("positions", rows)
    root.commit("positions", batch=batch, files=files)
    return files


def path_of(root: TableRoot, file: DataFile) -> Path:
    return Path(root.location.child(f"{file.table}/{file.path}"))


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
    files = root.write("positions", rows)
    assert root.read("positions").num_rows == 0
    assert root.commit("positions", batch="a", files=files)
    assert same(root.read("positions"), rows)
    assert root.hours("positions") == {START.replace(minute=0), START.replace(minute=0) + HOUR}
    assert {file.bucket for file in files} == {0, 1, 2}  # 5 and -3 share one
    assert sorted(root.files("positions")) == sorted(files)


def test_other_programs_read_the_same_rows(root: TableRoot) -> None:
    rows = positions([1, 2, 3], 10)
    add(root, rows)
    table = DeltaTable(root.location.child("positions"))
    columns = ", ".join(POSITIONS.names)
    with duckdb.connect() as connection:
        connection.register("positions", table.to_pyarrow_dataset())
        query = f"SELECT {columns} FROM positions WHERE bucket = 3"
        found = connection.sql(query).to_arrow_table()
    assert same(fit(found, POSITIONS), rows.filter(pc.equal(rows["pair_id"], 3)))
    frame = table.to_pandas()
    assert len(frame) == 60
    assert set(frame["bucket"]) == {1, 2, 3}
    assert str(frame["date"].iloc[0]) == "2026-03-01"


def test_other_programs_find_rows_by_any_column_whatever_values_it_has(root: TableRoot) -> None:
    at = [START, None, START + TICK]
    rows = [
        {"source": "s", "subject": f"t{n}", "reason": "down", "detail": "d" * 300, "from_ts": each}
        for n, each in enumerate(at)
    ]
    gaps = fit(pa.Table.from_pylist(rows), TABLES["gaps"])
    root.commit("gaps", batch="made", files=root.write("gaps", gaps))
    late = {"tick": START, "pair_id": 1, "status": "OK", "status_since": START}
    names = dict.fromkeys(("cluster", "broker", "group", "topic"), "x")
    pairs = [late | names | {"drain_p10_seconds": value} for value in (1.0, math.inf)]
    lag = fit(pa.Table.from_pylist(pairs), TABLES["pair_lag"])
    root.commit("pair_lag", batch="made", files=root.write("pair_lag", lag))
    for _ in range(2):
        dataset = DeltaTable(root.location.child("gaps")).to_pyarrow_dataset()
        assert dataset.to_table(filter=pc.is_null(pc.field("from_ts"))).num_rows == 1
        assert dataset.to_table(filter=pc.field("from_ts") > pa.scalar(START)).num_rows == 1
        assert dataset.to_table(filter=pc.field("subject") == "t2").num_rows == 1
        dataset = DeltaTable(root.location.child("pair_lag")).to_pyarrow_dataset()
        assert dataset.to_table(filter=pc.field("drain_p10_seconds") > 5).num_rows == 1
        for table in ("gaps", "pair_lag"):  # as others leave it
            found = root.delta(table)
            assert found is not None
            found.optimize.z_order(["reason" if table == "gaps" else "pair_id"])


def test_buckets_are_ordered_by_their_rows_in_a_time(root: TableRoot) -> None:
    hour = START.replace(minute=0)
    for pairs, ticks in (([0], 9), ([1, 5], 9), ([3], 100)):
        add(root, positions(pairs, ticks))
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
        (old,) = add(root, rows.drop_columns(["member"]))
    assert "member" not in pq.read_schema(path_of(root, old)).names
    assert same(root.read("positions"), rows)
    assert root.read("positions", columns=["member", "ts"])["member"].null_count == 6
    members = pa.array([0, 1] * 3, pa.int64())
    add(root, rows.set_column(POSITIONS.get_field_index("member"), "member", members))
    found = root.read("positions")["member"].to_pylist()
    assert sorted(found, key=str) == [0] * 3 + [1] * 3 + [None] * 6
    others = DeltaTable(root.location.child("positions")).to_pandas()
    assert sorted(others["member"].dropna()) == [0] * 3 + [1] * 3


def test_files_are_pruned_by_time_and_bucket_and_rows_by_time(root: TableRoot) -> None:
    add(root, positions([1, 2, 3, 4], 100))
    ten = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert len(root.files("positions")) == 8
    assert len(root.files("positions", since=ten)) == 4
    assert len(root.files("positions", before=ten, buckets=[1])) == 1
    found = root.read(
        "positions", since=ten, before=ten + TICK, pair_ids=[2], columns=["max_offset"]
    )
    assert found.to_pydict() == {"max_offset": [40, 40]}


def test_a_file_is_sorted_by_series_and_time_with_deltas_and_zstd(root: TableRoot) -> None:
    (file,) = root.write("positions", positions([4, 8], 40))
    rows = pq.read_table(path_of(root, file), partitioning=None)
    keys = list(zip(*(rows.column(name).to_pylist() for name in ("series_id", "ts")), strict=True))
    assert keys == sorted(keys)
    group = pq.read_metadata(path_of(root, file)).row_group(0)
    of_column = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert of_column["ts"].compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in of_column["max_offset"].encodings
    assert "RLE_DICTIONARY" in of_column["replica"].encodings


def test_a_numbered_batch_is_in_once_also_after_its_files_were_replaced(root: TableRoot) -> None:
    rows, batch = positions([1], 3), Batch("collect-ab", 7)
    add(root, rows, batch)
    assert root.has_batch("positions", batch)
    assert not root.has_batch("positions", Batch("collect-ab", 8))
    assert not root.has_batch("lag", batch)
    found = root.delta("positions")
    assert found is not None
    found.optimize.compact()
    version = root.version("positions")
    for number in (6, 7):
        again = root.write("positions", rows)
        assert not root.commit("positions", batch=Batch("collect-ab", number), files=again)
    assert root.version("positions") == version
    assert same(root.read("positions"), rows)
    add(root, rows, Batch("collect-ab", 8))
    assert root.read("positions").num_rows == 12


@pytest.mark.parametrize("is_compacted", [False, True])
def test_hours_are_replaced_and_rows_of_other_hours_stay(
    root: TableRoot, is_compacted: bool
) -> None:
    rows = positions([1, 2], 500)  # 9:50 to 11:54
    add(root, rows)
    if is_compacted:
        found = root.delta("positions")
        assert found is not None
        found.optimize.compact()
        assert {len(file.hours) for file in root.files("positions")} == {3}
    hours = [START.replace(minute=0) + n * HOUR for n in range(3)]
    assert root.hours("positions") == set(hours)
    new = positions([3], 50)
    of_ten = new.filter(pc.greater_equal(new["tick"], pa.scalar(hours[1], new["tick"].type)))
    version = root.version("positions")
    files = root.write("positions", of_ten)
    assert root.commit("positions", batch="again", files=files, clears=spans_of([hours[1]]))
    assert root.version("positions") == version + 1, "at one instant"
    tick = rows["tick"]
    kept = pc.or_(
        pc.less(tick, pa.scalar(hours[1], tick.type)),
        pc.greater_equal(tick, pa.scalar(hours[2], tick.type)),
    )
    assert same(root.read("positions"), pa.concat_tables([rows.filter(kept), of_ten]))
    assert root.commit("positions", batch="gone", clears=spans_of(hours))
    assert not root.has("positions")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_ticks_of_one_bucket_are_replaced_and_all_other_rows_stay(
    root: TableRoot, is_compacted: bool
) -> None:
    rows = positions([1, 2, 5], 100)  # pairs 1 and 5 are in bucket 1
    add(root, rows)
    if is_compacted:
        found = root.delta("positions")
        assert found is not None
        found.optimize.compact()
    paths = {file.path for file in root.files("positions") if file.bucket == 2}
    first, end = START + 10 * TICK, START + 90 * TICK
    new = positions([1], 100).filter(pc.field("tick") == pa.scalar(first, POSITIONS[1].type))
    files = root.write("positions", new)
    span = Span(to_us(first), to_us(end), bucket=1)
    assert root.commit("positions", batch="again", files=files, clears=[span])
    is_cleared = (
        (pc.field("pair_id") != 2)
        & (pc.field("tick") >= pa.scalar(first, POSITIONS[1].type))
        & (pc.field("tick") < pa.scalar(end, POSITIONS[1].type))
    )
    assert same(root.read("positions"), pa.concat_tables([rows.filter(~is_cleared), new]))
    assert {file.path for file in root.files("positions") if file.bucket == 2} == paths


def test_a_file_that_a_span_covers_is_removed_unread(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(root, positions([1], 20))
    monkeypatch.setattr(TableRoot, "_row_groups", None)
    end = START + 20 * TICK
    assert root.commit("positions", batch="x", clears=[Span(to_us(START), to_us(end), 1)])
    assert not root.has("positions")


def test_a_commit_whose_answer_got_lost_is_not_made_again(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(root, positions([1], 3))
    commit, tries = DeltaTable.create_write_transaction, []

    def lose_the_answer(self: DeltaTable, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        tries.append(self)
        raise CommitFailedError("the version exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_the_answer)
    new = positions([2], 3)
    files, spans = root.write("positions", new), spans_of([START.replace(minute=0)])
    assert root.commit("positions", batch="x", files=files, clears=spans)
    assert len(tries) == 1
    assert same(root.read("positions"), new)


def test_a_file_is_read_by_row_groups_to_clear_an_hour_of_it(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.tables.files._ROW_GROUP", 7)
    rows = positions([1], 30)
    (file,) = root.write("positions", rows)
    groups = list(row_groups(root.location, file, POSITIONS.names))
    assert [group.num_rows for group in groups] == [7] * 8 + [4]
    assert same(pa.concat_tables(groups), rows)


def test_writers_of_one_table_do_not_lose_commits_of_each_other(root: TableRoot) -> None:
    hour = START.replace(minute=0)
    add(root, positions([7], 3))

    def work(pair: int) -> None:
        for _ in range(8):
            add(root, positions([pair], 1))
            new = root.write("positions", positions([7], 3))
            spans = spans_of([hour - pair * HOUR])
            root.commit("positions", batch="x", files=new, clears=spans)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {
        pair: root.read("positions", pair_ids=[pair], columns=["tick"]).num_rows
        for pair in (1, 2, 3, 7)
    }
    assert counts == {1: 16, 2: 16, 3: 16, 7: 6 * 25}


@pytest.mark.parametrize("is_there", [False, True])
def test_writers_may_create_a_table_or_add_its_columns_at_the_same_time(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if is_there:
        with monkeypatch.context() as before:
            old = POSITIONS.remove(POSITIONS.get_field_index("member"))
            before.setitem(TABLES, "positions", old)
            add(root, positions([0], 1).drop_columns(["member"]))
    together = threading.Barrier(6)

    def work(pair: int) -> None:
        files = root.write("positions", positions([pair], 1))
        together.wait()
        root.commit("positions", batch="made", files=files)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert root.read("positions").num_rows == 12 + 2 * is_there


def test_hours_of_large_files_are_replaced_while_a_stream_commits_all_the_time(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(root, positions([1], 100))
    found, write = root.delta("positions"), TableRoot.write
    assert found is not None
    found.optimize.compact()

    def slowly(self: TableRoot, table: str, rows: pa.Table) -> list[DataFile]:
        files = write(self, table, rows)
        self.commit(table, batch="stream", files=write(self, table, positions([2], 1)))
        return files

    monkeypatch.setattr(TableRoot, "write", slowly)
    hour = START.replace(minute=0)
    assert root.commit("positions", batch="x", clears=spans_of([hour + HOUR]))
    assert root.read("positions", pair_ids=[1]).num_rows == 80
    assert root.read("positions", pair_ids=[2]).num_rows == 2


def test_marks_only_move_forward(root: TableRoot) -> None:
    root.commit("lag", batch="a", watermark=START + TICK)
    root.commit("lag", batch="b", watermark=START)
    assert root.watermark("lag") == START + TICK
    assert root.watermark("rates") is None
    version = root.version("lag")
    assert not root.commit("lag", batch="nothing")
    assert root.version("lag") == version


def test_an_empty_table_has_its_columns(root: TableRoot) -> None:
    assert root.read("lag").schema == LAG.append(REVISED_AT)
    assert not root.has("lag")
    assert root.span("lag") is None
    assert root.write("lag", LAG.empty_table()) == []


def test_the_span_is_that_of_the_rows(root: TableRoot) -> None:
    add(root, positions([1], 100))
    assert root.span("positions") == (START, START + 99 * TICK)


def test_rows_that_do_not_fit_are_refused_and_leave_no_file(root: TableRoot) -> None:
    with pytest.raises(ValueError, match="required column"):
        root.write("lag", pa.table({"lag": [1]}))
    assert not list(root.location.names("lag"))


def test_what_is_missing_or_damaged_is_named_with_its_path(root: TableRoot, tmp_path: Path) -> None:
    with pytest.raises(TablesMissing, match=r"nothing-here holds no tables"):
        TableRoot(tmp_path / "nothing-here")
    with pytest.raises(TablesDiffer, match=r"number of buckets .* is 4, but this job asks for 9"):
        TableRoot.create(root.uri, buckets=9)
    (file,) = add(root, positions([1], 3))
    path_of(root, file).unlink()
    with pytest.raises(TableFileMissing, match=file.path):
        root.read("positions")
    entry = Path(root.location.child("positions/_delta_log/00000000000000000001.json"))
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableUnreadable, match=r"table positions in .*/positions cannot be read"):
        root.read("positions")
    facts = Path(root.location.child("_root.json"))
    facts.write_text('{"format": 2')
    with pytest.raises(TablesDamaged, match=r"_root\.json is unreadable"):
        TableRoot(root.uri)
    facts.write_text('{"format": 1, "buckets": 4}')
    with pytest.raises(TablesDiffer, match=r"the format of the tables .* is 1"):
        TableRoot(root.uri)
