"""Records of a store's files: whole ones before any damage, a gap that names the place behind."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from analytics.errors import BadOption
from analytics.schema import MESSAGES, Gap
from analytics.sources.gap_rows import SourceGap
from analytics.sources.store.log_parts import LogPart
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import Part, StoreReader
from shared.files.os_disk import OsFile
from tests.support.small_store import CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import StoreMissing
from tidemark.formats import properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.properties import CRC_SLOT_SIZE
from tidemark.formats.queue_unit import Unit

FILE_SIZE = CONFIG.commit_log_file_size


def filled(small: SmallStore, count: int = 60) -> list[Unit]:
    """Records of some topics over several files; their units, dispatched."""
    rng = Random(5)
    units = [
        small.put(
            rng.choice(["orders", "bills", "größe"]),
            rng.randrange(3),
            body=rng.randbytes(rng.randrange(300)),
            tags=rng.choice([None, "TagA", "größer"]),
            keys=rng.choice([None, f"k{number} other"]),
            unique_id=f"id{number}",
        )
        for number in range(count)
    ]
    small.dispatch()
    return units


def read(root: Path, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = StoreReader(StoreOptions(root=root, **options)).table().to_pylist()
    return rows


def records_of(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["physical_offset"], row["size"]) for row in rows if row["gap"] is None]


def gaps_of(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["gap"], row["physical_offset"]) for row in rows if row["gap"] is not None]


def places(units: list[Unit]) -> list[tuple[int, int]]:
    return [(unit.physical_offset, unit.size) for unit in units]


def without_page(small: SmallStore, into: Path) -> Path:
    """A copy as RocketMQ would have left it: no page and no description of ours."""
    shutil.copytree(small.store.root, into)
    (into / "checkpoint").unlink()
    (into / "tidemark.json").unlink()
    return into


def test_every_field_is_the_records(small: SmallStore) -> None:
    first = small.put(
        "orders", 2, body=b"hello", tags="TagA", keys="k1 k2", at_ms=1_700_000_000_123
    )
    small.put("bills", 0, body=b"")
    small.flush()
    table = StoreReader(StoreOptions(root=small.store.root, verify=True)).table()
    assert table.schema == MESSAGES
    row, bare = table.to_pylist()
    assert row.pop("store_ts").timestamp() == 1_700_000_000.123
    assert row.pop("born_ts").timestamp() == 0
    assert row == {
        "broker": "",
        "file": "0" * 20,
        "physical_offset": first.physical_offset,
        "size": first.size,
        "topic": "orders",
        "queue": 2,
        "queue_offset": 0,
        "tag_hash": 2_598_919,
        "keys": "k1 k2",
        "sys_flag": 0,
        "body_size": 5,
        "crc_ok": True,
        "gap": None,
        "gap_detail": None,
    }
    assert (bare["keys"], bare["tag_hash"], bare["body_size"]) == (None, 0, 0)


def test_records_are_those_of_all_files_and_fillers_are_skipped(small: SmallStore) -> None:
    units = filled(small)
    rows = read(small.store.root)
    assert records_of(rows) == places(units)
    assert gaps_of(rows) == []
    assert len({row["file"] for row in rows}) > 3
    assert {row["crc_ok"] for row in rows} == {None}


@pytest.mark.parametrize("page", [True, False], ids=["ours", "no page"])
def test_each_record_is_in_one_part_however_files_are_cut(
    small: SmallStore, tmp_path: Path, page: bool
) -> None:
    units = filled(small)
    root = small.store.root if page else without_page(small, tmp_path / "copy")
    files = len({unit.physical_offset // FILE_SIZE for unit in units})
    for pieces in (1, 2, 3, 7, 40, 200):
        options = StoreOptions(root=root, split_min=pieces)
        reader = StoreReader(options)
        parts = reader.plan()
        assert len(parts) >= min(pieces, len(units) // 2)
        assert len({part.file for part in parts if isinstance(part, LogPart)}) >= files
        found = [row for part in parts for b in reader.read(part) for row in b.to_pylist()]
        assert records_of(found) == places(units), pieces
        assert gaps_of(found) == []


def test_a_file_without_queues_is_cut_by_walking_sizes(small: SmallStore, tmp_path: Path) -> None:
    units = filled(small)
    root = without_page(small, tmp_path / "copy")
    shutil.rmtree(root / "consumequeue")
    reader = StoreReader(StoreOptions(root=root, split_min=40))
    assert len(reader.plan()) >= 30
    assert records_of(reader.table().to_pylist()) == places(units)


def test_a_range_has_the_records_whose_first_byte_is_in_it(small: SmallStore) -> None:
    units = filled(small, 24)
    rng = Random(11)
    last = units[-1].end
    for _ in range(60):
        low = rng.randrange(last + 1)
        high = rng.randrange(low, last + 2)
        rows = read(small.store.root, from_offset=low, to_offset=high)
        expected = [place for place in places(units) if low <= place[0] < high]
        assert records_of(rows) == expected, (low, high)
        assert gaps_of(rows) == []


def test_topics_and_columns(small: SmallStore) -> None:
    filled(small)
    whole = read(small.store.root)
    of_bills = read(small.store.root, topics=frozenset({"bills", "größe"}))
    assert of_bills == [row for row in whole if row["topic"] in ("bills", "größe")]
    table = StoreReader(
        StoreOptions(root=small.store.root, columns=("store_ts", "queue", "gap"))
    ).table()
    assert table.column_names == ["queue", "store_ts", "gap"]
    assert table.to_pylist() == [{name: row[name] for name in table.column_names} for row in whole]


def test_nothing_beyond_the_published_confirm_offset_is_read(small: SmallStore) -> None:
    units = filled(small, 9)
    small.put(body=b"written, not flushed")
    assert records_of(read(small.store.root)) == places(units)
    small.flush()
    assert len(read(small.store.root)) == len(units) + 1


# -- inner batches --------------------------------------------------------------------------------


def with_batches(small: SmallStore, count: int = 40) -> list[list[tuple[Any, ...]]]:
    """Inner batches and ordinary records in turns; per record, what its rows have in ``FIELDS``."""
    rng = Random(3)
    expected: list[list[tuple[Any, ...]]] = []
    base = 0
    for number in range(count):
        unit = small.put(body=b"plain", keys="plain")
        expected.append([(unit.physical_offset, unit.size, "orders", number, 5, "plain", 0, 0)])
        messages = [
            WireMessage(bytes(size), properties.encode({"KEYS": f"k{size}", "TAGS": "TagA"}), size)
            for size in (rng.randrange(60) for _ in range(rng.randint(1, 9)))
        ]
        unit = small.put_batch(messages, tags="TagA", keys=" ".join(f"k{number}"))
        expected.append(
            [
                (unit.physical_offset, unit.size, "batches", base + index, len(each.body),
                 f"k{len(each.body)}", 2_598_919, 0)
                for index, each in enumerate(messages)
            ]
        )  # fmt: skip
        base += len(messages)
    small.dispatch()
    return expected


FIELDS = (
    "physical_offset", "size", "topic", "queue_offset", "body_size", "keys", "tag_hash", "sys_flag",
)  # fmt: skip


def fields_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in FIELDS) for row in rows if row["gap"] is None]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("pieces", [1, 30])
def test_each_message_of_a_batch_is_a_row(small: SmallStore, verify: bool, pieces: int) -> None:
    expected = list(itertools.chain.from_iterable(with_batches(small)))
    rows = read(small.store.root, verify=verify, split_min=pieces)
    assert fields_of(rows) == expected
    assert gaps_of(rows) == []
    assert {row["crc_ok"] for row in rows} == {verify or None}
    only = read(small.store.root, topics=frozenset({"batches"}))
    assert fields_of(only) == [row for row in expected if row[2] == "batches"]


def test_a_range_has_all_messages_of_the_batches_that_begin_in_it(small: SmallStore) -> None:
    expected = with_batches(small, 9)
    starts = [rows[0][0] for rows in expected]
    for low, high in itertools.combinations(range(len(starts)), 2):
        rows = read(small.store.root, from_offset=starts[low], to_offset=starts[high] - 1)
        assert fields_of(rows) == [*itertools.chain.from_iterable(expected[low:high])]


def test_a_log_is_cut_at_the_batches_that_units_point_to(small: SmallStore) -> None:
    starts = [small.put_batch([bytes(number)] * 3).physical_offset for number in range(90)]
    small.flush()
    victim, behind = starts[2], [start for start in starts[3:] if start < FILE_SIZE]
    small.overwrite(victim, b"\x7f")
    rows = read(small.store.root, split_min=40)
    assert gaps_of(rows) == [(Gap.DAMAGED, victim)]
    found = {row["physical_offset"] for row in rows}
    # The sizes of records lead nowhere after the damage, only units do.
    assert len(found & {*behind}) > len(behind) // 2
    assert found >= {start for start in starts if start >= FILE_SIZE}


@pytest.mark.parametrize("verify", [False, True])
def test_a_batch_that_does_not_hold_its_messages_is_a_gap_and_others_go_on(
    small: SmallStore, verify: bool
) -> None:
    expected = with_batches(small, 6)
    victim = expected[5][0][0]
    small.overwrite(victim + 88 + 16, b"\x00\x00\x10\x00")  # the size of the first message's body
    rows = read(small.store.root, verify=verify)
    assert gaps_of(rows) == [(Gap.DAMAGED, victim)]
    others = [rows for rows in expected if rows[0][0] != victim]
    assert fields_of(rows) == [*itertools.chain.from_iterable(others)]
    with pytest.raises(SourceGap, match=f"physical offset {victim}"):
        read(small.store.root, columns=("size",))


# -- damage ---------------------------------------------------------------------------------------


def damaged_last_file(small: SmallStore, unit: Unit) -> tuple[Path, bytes, int]:
    start = unit.physical_offset // FILE_SIZE * FILE_SIZE
    path = small.log_file(start)
    return path, path.read_bytes(), unit.physical_offset - start


@pytest.mark.parametrize(
    ("first", "page", "kind"),
    [
        (0, True, "zeros"),
        (1, True, "shorter file"),
        (0, False, "shorter file"),
        (1, False, "zeros"),
    ],
)
def test_cut_at_every_byte_of_the_last_record(
    small: SmallStore, tmp_path: Path, first: int, page: bool, kind: str
) -> None:
    units = filled(small, 20)
    small.close()
    root = small.store.root if page else without_page(small, tmp_path / "copy")
    _, whole, at = damaged_last_file(small, units[-1])
    path = root / "commitlog" / small.log_file(units[-1].physical_offset - at).name
    for cut in range(first, units[-1].size, 2):
        kept = whole[: at + cut]
        path.write_bytes(kept if kind == "shorter file" else kept.ljust(FILE_SIZE, b"\0"))
        rows = read(root)
        assert records_of(rows) == places(units[:-1]), cut
        (gap,) = (row for row in rows if row["gap"])
        assert gap["gap"] in (Gap.TORN, Gap.DAMAGED)
        assert gap["physical_offset"] == units[-1].physical_offset
        assert f"physical offset {units[-1].physical_offset}" in gap["gap_detail"]
        assert path.name in gap["gap_detail"]


def rows_of(reader: StoreReader, part: Part) -> list[dict[str, Any]]:
    columns = ["physical_offset", "size", "crc_ok", "gap"]
    return [row for batch in reader.read(part) for row in batch.select(columns).to_pylist()]


def test_no_flipped_bit_of_the_last_record_goes_unseen_with_verify(small: SmallStore) -> None:
    units = filled(small, 8)
    small.close()
    path, whole, at = damaged_last_file(small, units[-1])
    reader = StoreReader(StoreOptions(root=small.store.root, verify=True, split_min=1))
    parts = reader.plan()
    last = [part for part in parts if isinstance(part, LogPart) and part.path == str(path)]
    assert last
    before = [row for part in parts if part not in last for row in rows_of(reader, part)]
    for bit in range(8 * units[-1].size):
        damaged = bytearray(whole)
        damaged[at + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        rows = before + [row for part in last for row in rows_of(reader, part)]
        sound = [row for row in rows if row["crc_ok"]]
        assert records_of(sound) == places(units[:-1]), bit
        if all(row["physical_offset"] != units[-1].physical_offset for row in rows if row["gap"]):
            # The magic of the filler: the only other thing that may stand there.
            assert damaged[at + 4 : at + 8].hex() == "cbd43194"


def test_damage_ends_a_part_and_the_next_goes_on(small: SmallStore) -> None:
    units = filled(small)
    victim = next(unit for unit in units if unit.physical_offset % FILE_SIZE > FILE_SIZE // 4)
    small.overwrite(victim.physical_offset, b"\x7f")
    rows = read(small.store.root, split_min=40)
    ((reason, offset),) = gaps_of(rows)
    assert (reason, offset) == (Gap.DAMAGED, victim.physical_offset)
    found = records_of(rows)
    before = [place for place in places(units) if place[0] < victim.physical_offset]
    assert found[: len(before)] == before
    assert set(found) < set(places(units))
    file_end = victim.physical_offset // FILE_SIZE * FILE_SIZE + FILE_SIZE
    assert [place for place in found if place[0] >= file_end] == [
        place for place in places(units) if place[0] >= file_end
    ]
    lost = len(units) - len(found)
    assert lost < sum(
        victim.physical_offset <= unit.physical_offset < file_end for unit in units
    ), "records behind the damage, in the same file, are read by the parts cut there"


def test_a_damaged_body_is_a_marked_row_and_a_gap(small: SmallStore) -> None:
    units = filled(small, 12)
    small.overwrite(units[4].physical_offset + 90, b"\xff\xfe\xfd")
    rows = read(small.store.root, verify=True)
    assert [row["physical_offset"] for row in rows if row["crc_ok"] is False] == [
        units[4].physical_offset
    ]
    assert gaps_of(rows) == [(Gap.DAMAGED, units[4].physical_offset)]
    assert len(records_of(rows)) == len(units)
    assert gaps_of(read(small.store.root)) == [], "nothing was verified"


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_cost_what_is_behind_them_and_never_an_exception(
    small: SmallStore, seed: int
) -> None:
    units = filled(small)
    rng = Random(seed)
    print(f"seed {seed}")
    for _ in range(20):
        at = rng.randrange(units[-1].end)
        width = rng.choice((1, 2, 4, 8))
        value = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 90, FILE_SIZE, rng.getrandbits(64)))
        raw = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
        old = small.log_bytes()[small.log_file(at // FILE_SIZE * FILE_SIZE).name]
        if at % FILE_SIZE + width > FILE_SIZE:
            continue
        small.overwrite(at, raw)
        rows = read(small.store.root, verify=True, split_min=rng.choice((1, 9)))
        hit = [unit for unit in units if unit.physical_offset < at + width and at < unit.end]
        sound = [row for row in rows if row["crc_ok"]]
        first_hit = min((unit.physical_offset for unit in hit), default=units[-1].end)
        assert [p for p in records_of(sound) if p[0] < first_hit] == [
            place for place in places(units) if place[0] < first_hit
        ]
        changed = bytes(old[at % FILE_SIZE : at % FILE_SIZE + width]) != raw
        if (
            hit
            and changed
            and not any(sound_filler(small, unit) or erases_crc(unit, at, width) for unit in hit)
        ):
            assert gaps_of(rows), (at, raw, hit)
        small.overwrite(at, old[at % FILE_SIZE : at % FILE_SIZE + width])


def sound_filler(small: SmallStore, unit: Unit) -> bool:
    start = unit.physical_offset % FILE_SIZE
    data = small.log_bytes()[small.log_file(unit.physical_offset - start).name]
    return data[start + 4 : start + 8].hex() == "cbd43194"


def erases_crc(unit: Unit, at: int, width: int) -> bool:
    """Bytes over the record CRC property: bytes that do not have its form any more are none."""
    return at + width > unit.end - CRC_SLOT_SIZE and at < unit.end


def test_without_the_column_gap_damage_is_an_error_that_names_the_place(small: SmallStore) -> None:
    units = filled(small, 12)
    small.overwrite(units[5].physical_offset, b"\x7f")
    reader = StoreReader(StoreOptions(root=small.store.root, columns=("size",)))
    with pytest.raises(SourceGap, match=f"physical offset {units[5].physical_offset}"):
        reader.table()
    (first, *_) = reader.plan()
    batches = reader.read(first)
    assert next(batches).num_rows == 5  # what was read before it stands
    with pytest.raises(SourceGap):
        next(batches)


def test_a_file_that_vanishes_is_a_gap(small: SmallStore) -> None:
    units = filled(small)
    reader = StoreReader(StoreOptions(root=small.store.root))
    parts = reader.plan()
    small.log_file(FILE_SIZE).unlink()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    others = [place for place in places(units) if place[0] // FILE_SIZE != 1]
    assert records_of(rows) == others
    assert {reason for reason, _ in gaps_of(rows)} == {Gap.VANISHED}
    again = read(small.store.root)  # planned without it
    assert records_of(again) == others
    assert gaps_of(again) == [(Gap.VANISHED, FILE_SIZE)]


def test_an_open_file_outlives_its_name(small: SmallStore) -> None:
    units = filled(small, 20)
    reader = StoreReader(StoreOptions(root=small.store.root, split_min=1))
    batches = reader.read(reader.plan()[0])
    first = next(batches)
    small.log_file(0).unlink()
    rows = pa.Table.from_batches([first, *batches]).to_pylist()
    assert records_of(rows) == [place for place in places(units) if place[0] < FILE_SIZE]


def test_a_file_that_the_disk_cannot_read_is_a_gap_and_others_go_on(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = filled(small)
    reader = StoreReader(StoreOptions(root=small.store.root))
    parts = reader.plan()
    unreadable = small.log_file(FILE_SIZE)
    # A damaged sector: neither its page can be loaded nor its bytes be copied.
    borrow = OsFile.borrow

    def failing(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def damaged(file: OsFile, size: int, offset: int) -> memoryview | bytes:
        if file.path != unreadable:
            return borrow(file, size, offset)
        with monkeypatch.context() as disk:
            disk.setattr(os, "pread", failing)
            return file.pread(size, offset)

    monkeypatch.setattr(OsFile, "borrow", damaged)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert records_of(rows) == [place for place in places(units) if place[0] // FILE_SIZE != 1]
    assert {reason for reason, _ in gaps_of(rows)} == {Gap.DAMAGED}
    assert any("reading failed" in (row["gap_detail"] or "") for row in rows)


# -- options --------------------------------------------------------------------------------------


def test_options_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    for given, message in (
        ({}, "needs the option root"),
        ({"root": "x", "table": "messages"}, "records, queue_units, offsets"),
        ({"root": "x", "columns": "size,bodies"}, "bodies"),
        ({"root": "x", "columns": " , "}, "nothing"),
        ({"root": "x", "from_offset": "7", "to_offset": "3"}, "not a range"),
        ({"root": "x", "from_offset": "seven"}, "no whole number"),
        ({"root": "x", "verify": "yes"}, "true or false"),
        ({"root": "x", "rooot": "y"}, "no option rooot"),
        ({"root": "x", "split_bytes": "1"}, "at least"),
    ):
        with pytest.raises(BadOption, match=message):
            StoreOptions.of(given)
    with pytest.raises(StoreMissing):
        StoreReader(StoreOptions(root=tmp_path)).plan()


def test_options_come_as_texts() -> None:
    options = StoreOptions.of(
        {"Root": "/x", "topics": "a, b", "columns": "size,gap", "VERIFY": "true", "to_offset": "9"}
    )
    assert options == StoreOptions(
        root=Path("/x"),
        topics=frozenset({"a", "b"}),
        columns=("size", "gap"),
        verify=True,
        to_offset=9,
    )
