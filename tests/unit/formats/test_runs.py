"""Runs, by both twins: the records that ``record.encode`` makes, all or none."""

from __future__ import annotations

import bisect
import itertools
import re
import struct
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.for_each import for_each
from tests.support.runs import runs_of
from tests.support.twins import outcome, twin_modules_of
from tidemark.formats import batch, hosts, properties, record, runs
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.record import (
    BufferTooSmall,
    FieldOutOfRange,
    Message,
    PropertiesTooLarge,
    TopicTooLong,
)
from tidemark.formats.runs import Run

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("encode", runs))

HERE = hosts.parse("127.0.0.1:10911")
CRC = b"__CRC32#\x011234567890\x02"
I64_MAX = strategies.I64_MAX


def run_of(*entries: WireMessage, **changed: object) -> Run:
    plain = Run("orders", 3, batch.encode(entries), len(entries), HERE, HERE)
    return plain._replace(**changed)  # type: ignore[arg-type]


HELLO = run_of(WireMessage(b"hello", b"TAGS\x01a\x02", 7))
HELLO_SIZE = 91 + 5 + 6 + 7


def encoded(
    twin: ModuleType,
    made: list[Run],
    buffer: bytearray | memoryview,
    *,
    firsts: list[int] | None = None,
    physical_offset: int = 1000,
    store_timestamp_ms: int = 5,
    record_crc: bool = False,
) -> bytes:
    sizes: bytes = twin.encode_runs(
        buffer,
        made,
        firsts=list(range(len(made))) if firsts is None else firsts,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        record_crc=record_crc,
    )
    return sizes


@for_each("body_size", [32_767, 32_768, 32_769, 100_003, 1 << 20])
@for_each("body", [b"\0", b"\xff", b"large"])
def test_a_large_body_is_encoded_with_the_same_crcs(
    twin: ModuleType, body_size: int, body: bytes
) -> None:
    run = run_of(WireMessage((body * body_size)[:body_size], b"TAGS\x01a\x02"))
    buffer, expected = bytearray(body_size + 200), bytearray(body_size + 200)
    assert encoded(twin, [run], buffer, record_crc=True) == encoded(
        runs, [run], expected, record_crc=True
    )
    assert buffer == expected


@given(
    st.lists(strategies.messages(), max_size=6),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 10_000),
    st.integers(0, I64_MAX - 10),
)
def test_runs_are_their_messages_records_one_behind_the_other(
    twin: ModuleType, messages: list[Message], record_crc: bool, start: int, first: int
) -> None:
    # Each message twice: runs of at least two.
    doubled = list(itertools.chain.from_iterable((one, one) for one in messages))
    made = runs_of(doubled)
    numbers = [first + index for run in made for index in range(run.message_count)]
    expected: list[bytes] = []
    at = start
    for message, number in zip(doubled, numbers, strict=True):
        expected.append(
            record.encode(
                message,
                queue_offset=number,
                physical_offset=at,
                store_timestamp_ms=99,
                record_crc=record_crc,
            )
        )
        at += len(expected[-1])
    whole = b"".join(expected)
    buffer = bytearray(b"\xa5" * (len(whole) + 3))
    sizes = encoded(
        twin,
        made,
        buffer,
        firsts=[first] * len(made),
        physical_offset=start,
        store_timestamp_ms=99,
        record_crc=record_crc,
    )
    assert memoryview(sizes).cast("I").tolist() == [len(one) for one in expected]
    assert buffer == whole + b"\xa5" * 3
    assert twin.runs_size(made, record_crc=record_crc) == len(whole)


@for_each("topic", ["t", "t" * 127, "t" * 128, "t" * 255, "größe", "\ud800x"])
@for_each("born", ["1.2.3.4:5", "[2001:db8::1]:65535"])
@for_each("store", ["1.2.3.4:5", "[::1]:0"])
def test_every_shape_of_a_record_is_made(
    twin: ModuleType, topic: str, born: str, store: str
) -> None:
    made = run_of(
        WireMessage(b"", b"", -1),
        WireMessage(b"x" * 70_000, b"a\x01b", 1 << 30),
        topic=topic,
        born_host=hosts.parse(born),
        store_host=hosts.parse(store),
        born_timestamp_ms=-1,
        sys_flag=-1,
        reconsume_times=-2,
        prepared_transaction_offset=-3,
    )
    for record_crc in (False, True):
        size = twin.runs_size([made], record_crc=record_crc)
        buffer = bytearray(size)
        sizes = memoryview(encoded(twin, [made], buffer, record_crc=record_crc)).cast("I")
        assert sum(sizes) == size
        at = 0
        for number, entry in enumerate(batch.iterate(made.entries)):
            found = record.decode(buffer, at)
            checked = record.validate(
                buffer, at, at=1000 + at, checks=record.Checks(require_record_crc=record_crc)
            )
            assert checked == (record.Kind.VALID, sizes[number], "")
            assert found.topic == topic.encode(errors="replace").decode()
            assert (found.born_host, found.store_host) == (made.born_host, made.store_host)
            assert (bytes(found.body), found.flag, found.queue_offset) == (
                entry.body,
                entry.flag,
                number,
            )
            at += found.size


PIECES = st.sampled_from(
    [b"\x02", b"\x01", b"#", b"__CRC32#", b"__CRC32#\x01", CRC, b"X" + CRC, b"a\x01b\x02", b"a\x01"]
)


@given(st.lists(PIECES, max_size=7).map(b"".join), st.booleans())
@example(CRC, True)
@example(CRC, False)
@example(b"a\x01b\x02" + CRC[:-1], True)
@example(CRC + b"a\x01b", True)
@example(b"\x02" + CRC + b"\x02", True)
def test_a_record_crc_among_the_properties_is_replaced(
    twin: ModuleType, raw: bytes, record_crc: bool
) -> None:
    made = run_of(WireMessage(b"x", raw), WireMessage(b"y", b"z\x011\x02"))
    buffer = bytearray(twin.runs_size([made], record_crc=record_crc))
    encoded(twin, [made], buffer, record_crc=record_crc)
    kept = properties.strip_crc(raw)
    found = record.decode(buffer).properties
    assert found[: len(kept)] == kept
    if record_crc:
        assert found[:-20] == kept + properties.crc_slot_inset(kept)
    else:
        assert found == kept
    assert bytes(record.decode(buffer, record.decode(buffer).size).body) == b"y"


def test_no_runs_are_nothing(twin: ModuleType) -> None:
    buffer = bytearray(3)
    assert encoded(twin, [], buffer) == b""
    assert encoded(twin, [run_of()], buffer) == b""
    assert twin.runs_size([run_of()], record_crc=True) == 0
    assert buffer == bytes(3)


WRONG = [
    ({"topic": "t" * 256}, TopicTooLong),
    ({"topic": "ö" * 128}, TopicTooLong),
    ({"queue_id": 1 << 31}, FieldOutOfRange),
    ({"queue_id": -(1 << 31) - 1}, FieldOutOfRange),
    ({"queue_id": 1 << 70}, FieldOutOfRange),
    ({"sys_flag": 1 << 31}, FieldOutOfRange),
    ({"reconsume_times": 1 << 31}, FieldOutOfRange),
    ({"born_timestamp_ms": 1 << 63}, FieldOutOfRange),
    ({"born_timestamp_ms": 1.5}, FieldOutOfRange),
    ({"prepared_transaction_offset": -(1 << 63) - 1}, FieldOutOfRange),
    ({"born_host": Host(b"12345", 1)}, FieldOutOfRange),
    ({"store_host": Host(b"1234", 1 << 31)}, FieldOutOfRange),
    ({"message_count": 2}, ValueError),
    ({"message_count": 0}, ValueError),
    ({"message_count": -1}, ValueError),
    ({"message_count": 1 << 80}, ValueError),
    ({"entries": HELLO.entries[:-1]}, BadBatch),
    ({"entries": HELLO.entries + b"\0" * 21}, BadBatch),
    ({"entries": b"\0" * 16 + b"\xff" * 4 + b"\0\0"}, BadBatch),
    ({"entries": b"\0" * 16 + b"\x7f\xff\xff\xff" + b"\0\0"}, BadBatch),
    ({"entries": b"\0" * 20 + b"\xff\xff"}, BadBatch),
    ({"entries": batch.encode([WireMessage(b"", b"a\x01".ljust(32_767, b"x"))])}, None),
]


@for_each("record_crc", [False, True])
@for_each(("changed", "error"), WRONG)
def test_a_run_that_no_records_can_hold_is_refused_and_nothing_written(
    twin: ModuleType, changed: dict[str, object], error: type[Exception] | None, record_crc: bool
) -> None:
    buffer = bytearray(40_000)
    made = [HELLO, HELLO._replace(**changed)]  # type: ignore[arg-type]
    if error is None:
        if not record_crc:
            assert len(encoded(twin, made, buffer)) == 8
            return
        error = PropertiesTooLarge
    with pytest.raises(error):
        encoded(twin, made, buffer, record_crc=record_crc)
    assert not any(buffer)
    assert outcome(twin.runs_size, made, record_crc=record_crc) == outcome(
        runs.runs_size, made, record_crc=record_crc
    )


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"firsts": [I64_MAX + 1]}, FieldOutOfRange),
        ({"physical_offset": I64_MAX + 1}, FieldOutOfRange),
        ({"store_timestamp_ms": -(1 << 63) - 1}, FieldOutOfRange),
        ({"firsts": []}, ValueError),
        ({"firsts": [0, 1]}, ValueError),
    ],
)
def test_numbers_of_the_append_that_do_not_fit_are_refused(
    twin: ModuleType, changed: dict[str, object], error: type[Exception]
) -> None:
    buffer = bytearray(HELLO_SIZE)
    with pytest.raises(error):
        encoded(twin, [HELLO], buffer, **changed)  # type: ignore[arg-type]
    assert not any(buffer)


def test_the_last_numbers_there_are_fit(twin: ModuleType) -> None:
    buffer = bytearray(HELLO_SIZE)
    encoded(
        twin,
        [HELLO],
        buffer,
        firsts=[I64_MAX],
        physical_offset=I64_MAX,
        store_timestamp_ms=-(1 << 63),
    )
    found = record.decode(buffer)
    assert (found.queue_offset, found.physical_offset) == (I64_MAX, I64_MAX)
    with pytest.raises(FieldOutOfRange):
        encoded(twin, [HELLO, HELLO], bytearray(2 * HELLO_SIZE), physical_offset=I64_MAX)


@pytest.mark.parametrize("size", [0, 1, HELLO_SIZE, 2 * HELLO_SIZE - 1])
def test_a_buffer_that_is_too_small_is_left_alone(twin: ModuleType, size: int) -> None:
    buffer = bytearray(size)
    with pytest.raises(BufferTooSmall):
        encoded(twin, [HELLO, HELLO], buffer)
    assert buffer == bytes(size)


def test_a_buffer_may_be_a_piece_of_another(twin: ModuleType) -> None:
    whole = bytearray(3 * HELLO_SIZE)
    encoded(twin, [HELLO], memoryview(whole)[HELLO_SIZE : 2 * HELLO_SIZE])
    assert not any(whole[:HELLO_SIZE])
    assert not any(whole[2 * HELLO_SIZE :])
    assert bytes(record.decode(whole, HELLO_SIZE).body) == b"hello"


def test_a_buffer_that_cannot_be_written_is_refused(twin: ModuleType) -> None:
    with pytest.raises(TypeError):
        encoded(twin, [HELLO], memoryview(bytes(200)))
    with pytest.raises(TypeError):
        encoded(twin, [HELLO], bytes(200))  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        encoded(twin, [HELLO], memoryview(bytearray(800)).cast("Q"))


def test_every_second_byte_is_a_buffer_too(twin: ModuleType) -> None:
    whole = bytearray(2 * HELLO_SIZE)
    encoded(twin, [HELLO], memoryview(whole)[::2])
    assert bytes(record.decode(bytes(whole[::2])).body) == b"hello"
    assert not any(whole[1::2])


@given(st.lists(st.integers(0, 40), max_size=30), st.lists(st.integers(0, 40), max_size=6))
def test_bodies_are_counted_by_the_first_bound_they_do_not_exceed(
    twin: ModuleType, sizes: list[int], bounds: list[int]
) -> None:
    bounds.sort()
    expected = [0] * (len(bounds) + 1) + [sum(sizes)]
    for size in sizes:
        expected[bisect.bisect_left(bounds, size)] += 1
    entries = batch.encode(WireMessage(bytes(size), b"p\x011\x02") for size in sizes)
    assert twin.body_size_counts(entries, bounds) == expected


def test_bounds_of_a_histogram_may_be_any_numbers(twin: ModuleType) -> None:
    entries = batch.encode([WireMessage(b"12345"), WireMessage(b"")])
    assert twin.body_size_counts(entries, [-1, 4.5, 1 << 70]) == [0, 1, 1, 0, 5]
    assert twin.body_size_counts(entries, []) == [2, 5]
    assert twin.body_size_counts(bytearray(entries), [0]) == [1, 1, 5]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=30))
def test_each_entry_is_found_by_its_start(twin: ModuleType, sizes: list[tuple[int, int]]) -> None:
    messages = [WireMessage(b"b" * body, b"p" * raw, body - raw) for body, raw in sizes]
    entries = batch.encode(messages)
    for held in (entries, memoryview(entries), bytearray(entries)):
        starts = memoryview(twin.entry_starts(held)).cast("I")
        assert [batch.entry_at(held, start) for start in starts] == messages


@given(st.binary(max_size=60), st.integers(0, 70))
def test_damaged_entries_have_no_starts(twin: ModuleType, damage: bytes, kept: int) -> None:
    entries = batch.encode([WireMessage(b"12345"), WireMessage(b"", b"p")])[:kept] + damage
    try:
        count = len(list(batch.iterate(entries)))
    except BadBatch as expected:
        with pytest.raises(BadBatch, match=re.escape(str(expected))):
            twin.entry_starts(entries)
    else:
        assert len(twin.entry_starts(entries)) == 4 * count


def test_sizes_are_native_numbers(twin: ModuleType) -> None:
    assert encoded(twin, [HELLO], bytearray(200)) == struct.pack("=I", HELLO_SIZE)
