"""Queue units and consumer offsets from a store's files."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from analytics.schema import OFFSETS, QUEUE_UNITS, Gap
from analytics.sources.gap_rows import SourceGap
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from shared.state import records
from shared.state.records import STATE_TOPIC, OffsetsRecord
from shared.state.state import BrokerState
from tests.support.small_store import CONFIG, SmallStore
from tests.support.small_store import small as small
from tests.unit.analytics.sources.test_store_records import filled
from tidemark.errors import DamagedFile
from tidemark.formats.queue_unit import PRE_BLANK, Unit, encode_batch
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE, Queue

UNITS_PER_FILE = CONFIG.consume_queue_file_size // UNIT_SIZE


def units_of(root: Path, **options: Any) -> list[dict[str, Any]]:
    table = StoreReader(StoreOptions(root=root, table="queue_units", **options)).table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_units_are_those_that_dispatch_wrote(small: SmallStore) -> None:
    filled(small, 100)
    reader = StoreReader(StoreOptions(root=small.store.root, table="queue_units"))
    assert len(reader.plan()) == 2
    table = reader.table()
    assert table.schema == QUEUE_UNITS
    expected = sorted((topic, queue, number, *unit) for topic, queue, number, unit in small.units)
    names = ("topic", "queue", "queue_offset", "physical_offset", "size", "tags_code")
    assert [tuple(row[name] for name in names) for row in table.to_pylist()] == expected
    assert table["gap"].null_count == len(table)
    only = units_of(small.store.root, topics=frozenset({"bills"}), columns=("queue_offset", "gap"))
    assert [row["queue_offset"] for row in only] == [
        number for topic, _, number, *_ in expected if topic == "bills"
    ]
    middle = expected[len(expected) // 2][3]
    ranged = units_of(small.store.root, from_offset=100, to_offset=middle)
    assert [row["physical_offset"] for row in ranged] == [
        offset for *_, offset, _, _ in expected if 100 <= offset < middle
    ]


def test_units_beyond_the_confirm_offset_are_not_there(small: SmallStore) -> None:
    filled(small, 5)
    unit = small.put(body=b"not flushed")
    small.put_unit(*small.units[-1][:3], unit)
    assert len(units_of(small.store.root)) == 5
    small.flush()
    assert len(units_of(small.store.root)) == 6


def test_what_fills_a_queue_before_its_first_message_is_no_unit(small: SmallStore) -> None:
    unit = small.put(queue_offset=3)
    small.flush()
    for number in range(3):
        small.put_unit("orders", 0, number, PRE_BLANK)
    small.put_unit("orders", 0, 3, unit)
    (row,) = units_of(small.store.root)
    assert (row["queue_offset"], row["physical_offset"]) == (3, unit.physical_offset)


def test_a_damaged_unit_is_a_gap_and_other_files_go_on(small: SmallStore) -> None:
    for number in range(2 * UNITS_PER_FILE):
        small.put(body=bytes(number))
    small.dispatch()
    small.put_unit("orders", 0, 4, bytes(UNIT_SIZE))
    rows = units_of(small.store.root)
    (gap,) = (row for row in rows if row["gap"])
    assert (gap["gap"], gap["queue_offset"]) == (Gap.DAMAGED, 4)
    assert "queue offset 4" in gap["gap_detail"]
    assert [row["queue_offset"] for row in rows if not row["gap"]] == [
        *range(4),
        *range(UNITS_PER_FILE, 2 * UNITS_PER_FILE),
    ]
    with pytest.raises(SourceGap, match="queue offset 4"):
        units_of(small.store.root, columns=("size",))


def test_a_queue_file_that_vanishes_is_a_gap(small: SmallStore) -> None:
    filled(small, 30)
    reader = StoreReader(StoreOptions(root=small.store.root, table="queue_units"))
    parts = reader.plan()
    shutil.rmtree(small.store.queue_directory("bills", 0).path)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    (gap,) = (row for row in rows if row["gap"])
    assert (gap["gap"], gap["topic"], gap["queue"]) == (Gap.VANISHED, "bills", 0)


def put_batches(small: SmallStore, *sizes: int) -> list[Unit]:
    units = [small.put_batch([b"m"] * size) for size in sizes]
    small.flush()
    return units


def test_units_of_batches_have_the_queue_offsets_of_all_their_messages(small: SmallStore) -> None:
    sizes = [1 + number % 7 for number in range(25)]
    units = put_batches(small, *sizes)
    rows = units_of(small.store.root)
    assert [(row["queue_offset"], row["next_offset"]) for row in rows] == [
        *itertools.pairwise(itertools.accumulate(sizes, initial=0))
    ]
    assert [(row["physical_offset"], row["size"]) for row in rows] == [
        (unit.physical_offset, unit.size) for unit in units
    ]
    assert {row["gap"] for row in rows} == {None}
    middle = units[12].physical_offset
    ranged = units_of(small.store.root, from_offset=middle, columns=("next_offset", "gap"))
    assert [row["next_offset"] for row in ranged] == [row["next_offset"] for row in rows[12:]]


def test_ordinary_units_are_of_one_message(small: SmallStore) -> None:
    filled(small, 30)
    rows = units_of(small.store.root)
    assert all(row["next_offset"] == row["queue_offset"] + 1 for row in rows)


@pytest.mark.parametrize(
    ("number", "base", "count"),
    [(3, 6, -1), (3, 6, 0), (3, 5, 2), (UNITS_PER_FILE, 2 * UNITS_PER_FILE, 0)],
)
def test_a_unit_with_wrong_queue_offsets_is_a_gap(
    small: SmallStore, number: int, base: int, count: int
) -> None:
    units = put_batches(small, *[2] * (UNITS_PER_FILE + 5))
    small.put_batch_unit("batches", 0, number, encode_batch(units[number], 0, base, count))
    rows = units_of(small.store.root)
    (gap,) = (row for row in rows if row["gap"])
    assert (gap["gap"], gap["queue_offset"]) == (Gap.DAMAGED, 2 * number)
    assert f"unit of {count} messages from {base} on, out of order" in gap["gap_detail"]


def test_a_missing_unit_of_a_batch_is_a_gap(small: SmallStore) -> None:
    put_batches(small, *[2] * 5)
    small.put_batch_unit("batches", 0, 3, bytes(BATCH_UNIT_SIZE))
    *rows, gap = units_of(small.store.root)
    assert [row["queue_offset"] for row in rows] == [0, 2, 4]
    assert (gap["gap"], gap["queue_offset"]) == (Gap.DAMAGED, 6)


# -- offsets --------------------------------------------------------------------------------------


def put_state(small: SmallStore, *bodies: bytes) -> None:
    for body in bodies:
        small.put(STATE_TOPIC, 0, body=body)


def snapshot(offsets: dict[str, dict[Queue, int]]) -> list[bytes]:
    return BrokerState().snapshot_records(0, 300, offsets=offsets)


def offsets_of(root: Path, **options: Any) -> list[dict[str, Any]]:
    table = StoreReader(StoreOptions(root=root, table="offsets", **options)).table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_offsets_are_the_newest_of_the_log(small: SmallStore) -> None:
    put_state(small, *snapshot({"g": {("orders", 0): 1, ("bills", 1): 0}, "h": {("none", 7): 5}}))
    filled(small, 60)
    put_state(small, *snapshot({"g": {("orders", 0): 2, ("bills", 1): 0}, "h": {("none", 7): 5}}))
    put_state(small, records.encode(OffsetsRecord(0, {"g": {("orders", 0): 4}})))
    small.flush()
    put_state(small, records.encode(OffsetsRecord(0, {"g": {("orders", 0): 5}})))  # not confirmed
    rows = offsets_of(small.store.root)
    written = sum((topic, queue) == ("orders", 0) for topic, queue, *_ in small.units)
    dispatched = sum((topic, queue) == ("bills", 1) for topic, queue, *_ in small.units)
    common = {"broker": "", "origin": "log"}
    assert rows == [
        {**common, "group": "g", "topic": "bills", "queue": 1, "commit_offset": 0,
         "min_offset": 0, "max_offset": dispatched},
        {**common, "group": "g", "topic": "orders", "queue": 0, "commit_offset": 4,
         "min_offset": 0, "max_offset": written},
        {**common, "group": "h", "topic": "none", "queue": 7, "commit_offset": 5,
         "min_offset": None, "max_offset": None},
    ]  # fmt: skip
    assert StoreReader(StoreOptions(root=small.store.root, table="offsets")).schema == OFFSETS
    assert [row["group"] for row in offsets_of(small.store.root, topics=frozenset({"none"}))] == [
        "h"
    ]


def test_the_bounds_of_a_batch_queue_are_queue_offsets(small: SmallStore) -> None:
    put_batches(small, *[100] * 200)
    put_state(small, *snapshot({"g": {("batches", 0): 4}}))
    small.flush()
    small.log_file().unlink()
    (row,) = offsets_of(small.store.root)
    (first, *_) = (row for row in units_of(small.store.root, from_offset=4096))
    assert (row["min_offset"], row["max_offset"]) == (first["queue_offset"], 20_000)


def test_offsets_behind_damage_are_not_guessed(small: SmallStore) -> None:
    put_state(small, *snapshot({"g": {("orders", 0): 1}}))
    units = filled(small, 10)
    put_state(small, records.encode(OffsetsRecord(0, {"g": {("orders", 0): 4}})))
    small.flush()
    small.overwrite(units[3].physical_offset, b"\x7f")
    with pytest.raises(DamagedFile, match=f"physical offset {units[3].physical_offset}"):
        offsets_of(small.store.root)


def test_a_store_without_groups_has_no_offsets(small: SmallStore) -> None:
    filled(small, 3)
    assert offsets_of(small.store.root, broker="g7") == []
