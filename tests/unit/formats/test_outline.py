"""Outlines of records: what ``scan`` finds, as rows of numbers."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.twins import twins_of
from tidemark.formats import batch, hosts, inner_batch, outline, properties, record, scan
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.outline import ROW, Outlines, Row, Unpacked, Values
from tidemark.formats.record import Checks, Message
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset

BASE = 4096
HOSTS = (hosts.parse("127.0.0.1:10911"), hosts.parse("[::1]:10911"))
Outline = Callable[..., Outlines]
ValuesOf = Callable[..., Values]
UnpackRows = Callable[..., Unpacked]
each_outline = pytest.mark.parametrize(
    "outline_records", twins_of("outline", outline.outline_records)
)
each_values = pytest.mark.parametrize(
    "property_values", twins_of("outline", outline.property_values)
)
each_unpack = pytest.mark.parametrize("unpack_rows", twins_of("outline", outline.unpack_rows))
SHAPE_AND_PLACE = Checks(body_crc=False, record_crc=False, position=True)
EVERYTHING: dict[str, Any] = {"until": 1 << 40, "records_max": 1 << 40}


pieces = st.sampled_from(
    [
        b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"\x01", b"\x02", b" ", b"a", b"7F000001" * 4,
        b"1", b"12", b"+", b"99999999999", "größer".encode(), "中😀".encode(), b"\xff",
        b"\xed\xa0\x80", b"X", b"\x00", b"__CRC32#", b"0000000000",
    ]
)  # fmt: skip
raw_properties = st.one_of(
    st.lists(pieces, max_size=20).map(b"".join),
    st.lists(
        st.tuples(
            st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"X", b""]),
            st.lists(pieces, max_size=4).map(lambda parts: b"".join(parts).replace(b"\x02", b"")),
        ),
        max_size=6,
    ).map(lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)),
)
topics = st.sampled_from(
    [
        "orders",
        "bills",
        "a",
        "SCHEDULE_TOPIC_XXXX",
        "größer",
        "t\ufffd",
        "中" * 60,
        "x" * 127,
    ]
)


@st.composite
def logs(draw: st.DrawFn) -> bytearray:
    """Some adjacent records of few queues."""
    log = bytearray()
    for _ in range(draw(st.integers(0, 8))):
        log += record.encode(
            Message(
                draw(topics),
                draw(st.integers(0, 2)),
                draw(st.binary(max_size=40)),
                draw(st.sampled_from(HOSTS)),
                draw(st.sampled_from(HOSTS)),
                draw(raw_properties),
                sys_flag=draw(st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC, 0x80, 0x1])),
                born_timestamp_ms=draw(st.integers(0, 1 << 50)),
                reconsume_times=draw(st.integers(0, 16)),
            ),
            queue_offset=draw(st.integers(0, 3)),
            physical_offset=BASE + len(log),
            store_timestamp_ms=draw(st.one_of(st.integers(0, 1 << 50), st.just((1 << 63) - 1))),
            record_crc=draw(st.booleans()),
        )
    return log


def texts(values: Values) -> list[str | None]:
    offsets = array("i", values.offsets)
    return [
        values.data[offsets[number] : offsets[number + 1]].decode() if there else None
        for number, there in enumerate(values.present)
    ]


@each_outline
@given(log=logs())
def test_the_records_of_a_walk_are_outlined(outline_records: Outline, log: bytearray) -> None:
    walked = scan.walk(
        log,
        at=PhysicalOffset(BASE),
        checks=SHAPE_AND_PLACE,
        records_max=1 << 20,
        delay_levels_ms=[],
    )
    found = outline_records(log, at=BASE, **EVERYTHING)
    assert (found.end, found.stop, found.reason) == walked[1:]
    rows = list(map(Row._make, ROW.iter_unpack(found.rows)))
    assert found.seen == len(rows) == len(walked.entries)
    for row, entry in zip(rows, walked.entries, strict=True):
        stored = record.decode(log, row.start)
        body, raw = row.start + row.body_at, row.start + row.properties_at
        assert found.topics[row.topic] == entry.topic
        assert log[body : body + row.body_size] == stored.body
        assert log[raw : raw + row.properties_size] == stored.properties
        assert row == row._replace(
            start=entry.physical_offset - BASE,
            size=entry.size,
            sound=outline.NOT_VERIFIED,
            sys_flag=entry.sys_flag,
            number=0,
            torn=int(log[row.start + row.size - (1 if row.properties_size else 3)] == 0),
            queue=stored.queue_id,
            reconsume_times=stored.reconsume_times,
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            born_ms=stored.born_timestamp_ms,
            store_ms=stored.store_timestamp_ms,
        )


@each_outline
@given(made=strategies.records(), data=st.data())
def test_a_flipped_bit_ends_the_walk_or_fails_verification_or_lies_in_no_crc(
    outline_records: Outline, made: strategies.MadeRecord, data: st.DataObject
) -> None:
    bit = data.draw(st.integers(0, 8 * len(made.data) - 1))
    flipped = bytearray(made.data)
    flipped[bit // 8] ^= 1 << bit % 8
    found = outline_records(flipped, at=made.physical_offset, verify=Checks(), **EVERYTHING)
    if not found.rows:
        assert found.stop in (Stop.BAD, Stop.VIEW_END, Stop.BLANK)
        assert found.end == 0
    elif made.record_crc:
        assert ROW.unpack(found.rows)[7] == 0
    else:
        _, _, body_at, body_size, *_ = ROW.unpack(found.rows)
        if body_at <= bit // 8 < body_at + body_size:
            assert ROW.unpack(found.rows)[7] == 0


@each_outline
@pytest.mark.parametrize("pairs", [{}, {"TAGS": "t"}])
def test_a_record_that_ends_in_zeros_is_torn(
    outline_records: Outline, pairs: dict[str, str]
) -> None:
    whole = encoded(BASE, topic="orders", pairs=pairs)
    # Without properties the last two bytes are their length, and zero.
    written = len(whole) if pairs else len(whole) - 2
    for kept in (written, written - 1, written - 3):
        log = whole[:kept] + bytes(len(whole) - kept)
        (row,) = map(Row._make, ROW.iter_unpack(outline_records(log, at=BASE, **EVERYTHING).rows))
        assert row.torn == (kept < written)


@each_outline
def test_a_record_belongs_to_the_owner_of_its_first_byte(outline_records: Outline) -> None:
    sizes = [len(encoded(BASE, body=bytes(size))) for size in (0, 50, 9)]
    log = bytearray()
    for size in (0, 50, 9):
        log += encoded(BASE + len(log), body=bytes(size))
    for until in range(len(log) + 2):
        found = outline_records(log, at=BASE, until=until, records_max=9)
        starts = [row[0] for row in ROW.iter_unpack(found.rows)]
        firsts = [0, sizes[0], sizes[0] + sizes[1]]
        assert starts == [first for first in firsts if first < until]
        assert found.stop is (Stop.LIMIT if until <= len(log) else Stop.VIEW_END)
        assert found.reason == ""
    assert outline_records(log, at=BASE, until=len(log), records_max=2).seen == 2


@each_outline
def test_only_topics_asked_for_get_rows(outline_records: Outline) -> None:
    log = bytearray()
    for topic in ("a", "b", "größe", "a"):
        log += encoded(BASE + len(log), topic=topic)
    found = outline_records(log, at=BASE, topics=frozenset({"a", "größe", "none"}), **EVERYTHING)
    assert [found.topics[row[4]] for row in ROW.iter_unpack(found.rows)] == ["a", "größe", "a"]
    assert (found.seen, found.end) == (4, len(log))


@each_outline
def test_records_of_a_pull_lie_anywhere(outline_records: Outline) -> None:
    log = encoded(77) + encoded(5)
    assert outline_records(log, at=None, **EVERYTHING).seen == 2
    assert outline_records(log, at=77, **EVERYTHING).seen == 1


@each_outline
def test_a_filler_and_a_cut_record_are_distinguished(outline_records: Outline) -> None:
    log = encoded(0)
    filled = log + record.encode_blank(400) + b"anything"
    assert outline_records(filled, at=0, **EVERYTHING)[3:] == (len(log), Stop.BLANK, "")
    for cut in range(1, len(log)):
        found = outline_records(log[:cut], at=0, **EVERYTHING)
        assert (found.seen, found.end, found.stop) == (0, 0, Stop.VIEW_END)
        assert found.reason


wire_messages = st.builds(
    WireMessage,
    st.binary(max_size=9),
    st.sampled_from([b"", b"TAGS\x01red\x02", b"KEYS\x01a b\x02UNIQ_KEY\x01U\x02"]),
    st.integers(-3, 3),
)


def packed_batch(messages: list[WireMessage], *, stated: int | None = None) -> bytes:
    """The record of an inner batch; stated: the number of messages by its properties."""
    count = len(messages) if stated is None else stated
    raw = inner_batch.encode_properties("BATCH", count, tags=None, keys=None)
    message = Message(
        "batches",
        1,
        batch.encode(messages),
        HOSTS[1],
        HOSTS[0],
        inner_batch.with_base(raw, 70),
        sys_flag=inner_batch.SYS_FLAGS | 0x10,
    )
    return record.encode(
        message, queue_offset=70, physical_offset=0, store_timestamp_ms=5, record_crc=True
    )


@each_unpack
@given(batches=st.lists(st.lists(wire_messages, min_size=1, max_size=6), max_size=5))
def test_rows_of_batches_become_those_of_their_messages(
    unpack_rows: UnpackRows, batches: list[list[WireMessage]]
) -> None:
    log, expected = bytearray(), []
    for messages in batches:
        for data in (packed_batch(messages), bytes(encoded(0, pairs={"TAGS": "t"}))):
            expected += [(len(log), each) for each in inner_batch.unpack(record.decode(data))]
            log += data
    rows = outline.outline_records(log, at=None, **EVERYTHING).rows
    unpacked, damaged = unpack_rows(log, rows)
    assert damaged == []
    found = list(map(Row._make, ROW.iter_unpack(unpacked)))
    assert len(found) == len(expected)
    for row, (start, message) in zip(found, expected, strict=True):
        body, raw = start + row.body_at, start + row.properties_at
        assert (row.start, row.sys_flag) == (start, message.sys_flag)
        assert row.queue_offset + row.number == message.queue_offset
        assert log[body : body + row.body_size] == message.body
        assert log[raw : raw + row.properties_size] == message.properties


@each_unpack
@pytest.mark.parametrize("stated", [1, 3])
def test_a_batch_with_another_number_of_messages_is_reported_and_has_no_rows(
    unpack_rows: UnpackRows, stated: int
) -> None:
    two = [WireMessage(b"a"), WireMessage(b"b")]
    log = packed_batch(two) + packed_batch(two, stated=stated) + packed_batch(two)
    rows = outline.outline_records(log, at=None, **EVERYTHING).rows
    unpacked, damaged = unpack_rows(log, rows)
    assert damaged == [1]
    assert [row.number for row in map(Row._make, ROW.iter_unpack(unpacked))] == [0, 1, 0, 1]


@each_unpack
def test_a_flagged_record_without_a_valid_count_stays_one_message(unpack_rows: UnpackRows) -> None:
    log = packed_batch([WireMessage(b"a")], stated=inner_batch.COUNT_MAX + 1)
    rows = outline.outline_records(log, at=None, **EVERYTHING).rows
    assert unpack_rows(log, rows) == (rows, [])


@each_unpack
def test_a_batch_outside_the_view_is_refused(unpack_rows: UnpackRows) -> None:
    log = packed_batch([WireMessage(b"a")])
    rows = outline.outline_records(log, at=None, **EVERYTHING).rows
    with pytest.raises(ValueError, match="view"):
        unpack_rows(log[:-1], rows)
    for field in (0, 1, 2, 3, 5, 6):
        row = list(ROW.unpack(rows))
        row[field] = -1
        with pytest.raises(ValueError, match="negative"):
            unpack_rows(log, ROW.pack(*row))
    with pytest.raises(struct.error):
        unpack_rows(log, rows[:-1])


@each_values
@given(log=logs(), name=st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"X", b"DELAY"]))
def test_values_are_those_that_properties_find(
    property_values: ValuesOf, log: bytearray, name: bytes
) -> None:
    rows = outline.outline_records(log, at=BASE, **EVERYTHING).rows
    expected = []
    for start, *_ in ROW.iter_unpack(rows):
        value = properties.find(record.decode(log, start).properties, name)
        expected.append(None if value is None else properties.text(value))
    assert texts(property_values(log, rows, wanted=name)) == expected


@each_values
def test_a_row_outside_the_view_is_refused(property_values: ValuesOf) -> None:
    log = encoded(0, pairs={"TAGS": "t"})
    rows = outline.outline_records(log, at=0, **EVERYTHING).rows
    with pytest.raises(ValueError, match="view"):
        property_values(log[:-1], rows, wanted=b"TAGS")
    for field in (0, 1, 5, 6):
        row = list(ROW.unpack(rows))
        row[field] = -1
        with pytest.raises(ValueError, match="negative"):
            property_values(log, ROW.pack(*row), wanted=b"TAGS")
    with pytest.raises((ValueError, struct.error)):
        property_values(log, rows[:-1], wanted=b"TAGS")


def encoded(
    at: int, *, topic: str = "orders", body: bytes = b"body", pairs: dict[str, str] | None = None
) -> bytes:
    host = Host(bytes([10, 9, 8, 7]), 10911)
    return record.encode(
        Message(topic, 1, body, host, host, properties.encode(pairs or {})),
        queue_offset=3,
        physical_offset=at,
        store_timestamp_ms=1_700_000_000_000,
        record_crc=False,
    )
