"""Snapshots from records: deltas add up to the keyframe; what is missing is passed over."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.telemetry_tables import (
    PAIR,
    POSITION,
    TableShape,
    TrackedTable,
    absent,
)
from tidemark.formats.telemetry import (
    Absent,
    BadTelemetry,
    Column,
    Head,
    Kind,
    Part,
    Section,
    decode,
    encode,
    pack_section,
)
from tidemark.formats.telemetry_reader import Snapshot, SnapshotReader

AT_MS = 1_800_000_000_123
HEAD = Head(AT_MS - 5000, 0, 0, True, 0, 1, 0, 2, AT_MS - 123, AT_MS, "", {})
SHAPE = TableShape("topic", (), ("messages", "seen_at_ms"))
Value = int | Absent
Row = tuple[Value, ...]
VALUES = st.integers(0, 1 << 50) | st.sampled_from(Absent)
TABLES = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(VALUES, VALUES))


def sections(table: TrackedTable, at_ms: int = AT_MS) -> list[Section]:
    list(table.sweep())
    found = list(table.sections())
    assert all(pack_section(section, at_ms) for section in found)
    return found


def stored(*values: Value) -> tuple[int, ...]:
    return tuple(absent(value) if isinstance(value, Absent) else value for value in values)


def put(table: TrackedTable, rows: Mapping[str, Row]) -> list[Section]:
    for name, row in rows.items():
        table.put(name, stored(*row), name=name)
    return sections(table)


def shown(snapshot: Snapshot) -> dict[str, Row]:
    """The existing rows by name."""
    rows = snapshot.tables.get("topic")
    if rows is None:
        return {}
    return {
        name: tuple(
            Absent(rows.absent[column][place])
            if rows.absent[column][place]
            else rows.values[column][place]
            for column in SHAPE.columns
        )
        for place, name in enumerate(rows.names)
        if rows.present[place]
    }


@given(st.lists(TABLES, min_size=1, max_size=8))
def test_delta_after_delta_has_the_rows_of_each_snapshot(given: list[dict[str, Row]]) -> None:
    table, reader = TrackedTable(SHAPE), SnapshotReader()
    for number, rows in enumerate(given):
        head = HEAD._replace(number=number, is_keyframe=number == 0, back=number)
        body = encode(Part(head, put(table, rows)))
        table.written()
        snapshot = reader.feed(decode(body))
        assert snapshot is not None
        assert shown(snapshot) == rows
        assert len(table) == len(rows)


@given(st.lists(TABLES, min_size=1, max_size=8))
def test_deltas_and_a_new_keyframe_give_the_same_rows(given: list[dict[str, Row]]) -> None:
    table, reader = TrackedTable(SHAPE), SnapshotReader()
    last = None
    for number, rows in enumerate(given):
        head = HEAD._replace(number=number, is_keyframe=number == 0, back=number)
        last = reader.feed(decode(encode(Part(head, put(table, rows)))))
        table.written()
    whole = SnapshotReader().feed(decode(encode(Part(HEAD, put(TrackedTable(SHAPE), given[-1])))))
    assert last is not None
    assert whole is not None
    assert shown(last) == shown(whole)


def parts(number: int, count: int, *, is_keyframe: bool) -> Iterator[bytes]:
    """Bodies of a snapshot of several parts, each with the number of the snapshot in its rows."""
    for part in range(count):
        head = HEAD._replace(
            number=number, is_keyframe=is_keyframe, part=part, parts=count, back=10 * number + part
        )
        row = Column(array("q", [number]), b"")
        kind, place = (Kind.NEW, part) if is_keyframe else (Kind.CHANGED, part)
        names = ["abc"[part]] if is_keyframe else ()
        yield encode(
            Part(
                head,
                [Section("topic", kind, array("q", [place]), names, {}, {"messages": row})],
            )
        )


def read(reader: SnapshotReader, *bodies: bytes) -> list[int]:
    """Numbers of the snapshots that these records complete."""
    found = (reader.feed(decode(body)) for body in bodies)
    return [snapshot.head.number for snapshot in found if snapshot is not None]


def test_a_snapshot_appears_with_its_last_part_and_has_all_rows() -> None:
    reader = SnapshotReader()
    first, second, third = parts(0, 3, is_keyframe=True)
    assert read(reader, first, second) == []
    snapshot = reader.feed(decode(third))
    assert snapshot is not None
    assert snapshot.tables["topic"].names == ["a", "b", "c"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_after_a_lost_part_the_deltas_are_passed_over_up_to_the_next_keyframe(lost: int) -> None:
    keyframe = list(parts(0, 3, is_keyframe=True))
    deltas = [list(parts(number, 3, is_keyframe=False)) for number in (1, 2, 3)]
    del deltas[1][lost]
    again = parts(4, 3, is_keyframe=True)
    stream = [*keyframe, *(body for delta in deltas for body in delta), *again]
    assert read(SnapshotReader(), *stream) == [0, 1, 4]


def test_a_reader_that_begins_inside_a_snapshot_waits_for_a_keyframe() -> None:
    _, second, third = parts(0, 3, is_keyframe=True)
    delta = parts(1, 3, is_keyframe=False)
    again = parts(2, 3, is_keyframe=True)
    assert read(SnapshotReader(), second, third, *delta, *again) == [2]


def test_a_snapshot_of_another_term_does_not_continue_the_one_before() -> None:
    reader = SnapshotReader()
    assert read(reader, *parts(0, 1, is_keyframe=True)) == [0]
    other = HEAD._replace(number=1, is_keyframe=False, epoch=1)
    assert reader.feed(Part(other, [])) is None


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (Section("topic", Kind.GONE, array("q", [5])), "row 5 of topic, which has 1"),
        (Section("topic", Kind.NEW, array("q", [7]), ["x"]), "row 7 of topic comes after 1 rows"),
        (
            Section(
                "topic", Kind.CHANGED, array("q", [0]), (), {}, {"x": Column(array("q", [1]), b"")}
            ),
            "column x of topic is not in its keyframe",
        ),
        (
            Section("topic", Kind.NEW, array("q", [1]), ["x"], {"pair": array("q", [1])}),
            "other columns than the others",
        ),
    ],
)
def test_a_delta_that_does_not_fit_is_refused(section: Section, reason: str) -> None:
    reader = SnapshotReader()
    assert read(reader, *parts(0, 1, is_keyframe=True)) == [0]
    delta = encode(Part(HEAD._replace(number=1, is_keyframe=False, back=1), [section]))
    with pytest.raises(BadTelemetry, match=reason):
        reader.feed(decode(delta))
    assert read(reader, *parts(2, 1, is_keyframe=False)) == []


def test_rows_that_move_on_are_changed_and_others_are_left_out() -> None:
    table = TrackedTable(POSITION)
    for queue in range(3):
        table.put(queue, stored(10, 20, Absent.NOT_TRACKED), (0, queue))
    table.written()
    table.put(0, stored(10, 20, Absent.NOT_TRACKED))
    table.put(1, stored(14, Absent.NONE, 3))
    table.put(2, stored(10, 20, Absent.NOT_TRACKED))
    (section,) = sections(table)
    assert (section.kind, list(section.ids)) == (Kind.CHANGED, [1])
    assert {name: list(column.values) for name, column in section.columns.items()} == {
        "commit_offset": [4],
        "head_at_ms": [0],
        "member": [3],
    }
    assert section.columns["head_at_ms"].absent == bytes([Absent.NONE.value])


def test_a_row_that_returns_after_it_was_gone_gets_a_new_id() -> None:
    table = TrackedTable(PAIR)
    nothing = stored(*[Absent.NONE] * len(PAIR.columns))
    assert table.put("a", nothing, (0, 0)) == 0
    table.written()
    assert [section.kind for section in sections(table)] == [Kind.GONE]
    table.written()
    assert table.put("a", nothing, (0, 0)) == 1


def test_released_tables_are_empty() -> None:
    table = TrackedTable(POSITION)
    for queue in range(1500):
        table.put(queue, (1, 2, 3), (0, queue))
    assert len(list(table.release())) > 3
    assert len(table) == 0
