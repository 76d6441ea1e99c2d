"""Both twins of ``walk``, held against ``validate`` and ``decode``."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.for_each import for_each
from tests.support.twins import twins_of
from tidemark.formats import hashing, hosts, properties, record, scan
from tidemark.formats.record import Checks, Kind, Message
from tidemark.formats.scan import Entry, Stop, Walk
from tidemark.offsets import PhysicalOffset

LEVELS_MS = [1000, 5000, 10_000]
HERE = hosts.parse("127.0.0.1:10911")
BASE = PhysicalOffset(4096)


def build(messages: list[Message], *, record_crc: bool = True, at: int = BASE) -> bytes:
    data = b""
    for number, message in enumerate(messages):
        data += record.encode(
            message,
            queue_offset=number,
            physical_offset=at + len(data),
            store_timestamp_ms=1795166908153,
            record_crc=record_crc,
        )
    return data


class Twin:
    """The walk that the test at hand is about."""

    walk: Callable[..., Walk] = staticmethod(scan.walk)


@pytest.fixture(
    params=[
        *(pytest.param((scan.walk, size), id=f"pure-{size}") for size in (128, 1 << 18)),
        *(
            pytest.param((twin.values[0], 128), id="compiled", marks=twin.marks)
            for twin in twins_of("walk", scan.walk)[1:]
        ),
    ],
    autouse=True,
)
def _twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with both; the pure one also with copies so small that records cross their
    borders everywhere."""
    twin, chunk_size = request.param
    monkeypatch.setattr(Twin, "walk", staticmethod(twin))
    monkeypatch.setattr(scan, "_CHUNK_SIZE", chunk_size)


def walk(
    view: bytes | bytearray | memoryview,
    *,
    checks: Checks = Checks(),  # noqa: B008 (immutable)
    records_max: int = 1000,
    at: int = BASE,
) -> Walk:
    return Twin.walk(
        view,
        at=PhysicalOffset(at),
        checks=checks,
        records_max=records_max,
        delay_levels_ms=LEVELS_MS,
    )


def slow_walk(view: bytes | bytearray, checks: Checks, records_max: int) -> Walk:
    """The same with validate and decode, one record at a time."""
    entries: list[Entry] = []
    at = 0
    while len(entries) < records_max:
        if at == len(view):
            return Walk(entries, at, Stop.VIEW_END, "")
        outcome = record.validate(view, at, at=BASE + at, checks=checks)
        if outcome.kind is not Kind.VALID:
            stops = {Kind.BLANK: Stop.BLANK, Kind.INCOMPLETE: Stop.VIEW_END}
            return Walk(entries, at, stops.get(outcome.kind, Stop.BAD), outcome.reason)
        found = record.decode(view, at)
        pairs = found.property_map
        tags_code = hashing.tags_code(pairs.get("TAGS"))
        if found.topic == hashing.SCHEDULE_TOPIC:
            due = hashing.delivery_time_code(
                pairs.get("DELAY"), found.store_timestamp_ms, LEVELS_MS
            )
            tags_code = tags_code if due is None else due
        entries.append(
            Entry(
                PhysicalOffset(BASE + at),
                found.size,
                found.topic,
                found.queue_id,
                found.queue_offset,
                tags_code,
                found.store_timestamp_ms,
                found.sys_flag,
                pairs.get("UNIQ_KEY"),
                pairs.get("KEYS", ""),
            )
        )
        at += outcome.size
    return Walk(entries, at, Stop.LIMIT, "")


def message(**changed: object) -> Message:
    plain = Message("TopicA", 1, b"hello", HERE, HERE)
    return plain._replace(**changed)  # type: ignore[arg-type]


def entry_of(raw: bytes, topic: str = "TopicA") -> Entry:
    (found,) = walk(build([message(topic=topic, properties=raw)])).entries
    return found


# --- what is found ------------------------------------------------------------------------------


def test_a_walk_finds_every_record_in_order() -> None:
    made = [message(body=b"x" * size, queue_id=size % 4) for size in range(0, 400, 7)]
    data = build(made)
    found = walk(data)
    assert [entry.queue_id for entry in found.entries] == [one.queue_id for one in made]
    assert [entry.queue_offset for entry in found.entries] == list(range(len(made)))
    ends = [entry.physical_offset + entry.size for entry in found.entries]
    assert [entry.physical_offset for entry in found.entries] == [BASE, *ends[:-1]]
    assert (found.end, found.stop, found.reason) == (len(data), Stop.VIEW_END, "")


def test_an_entry_has_what_dispatch_needs() -> None:
    raw = properties.encode({"KEYS": "k1 k2", "UNIQ_KEY": "7F00", "TAGS": "TagB"})
    made = message(properties=raw, sys_flag=record.TRANSACTION_COMMIT)
    data = build([made])
    assert walk(data).entries == [
        Entry(BASE, len(data), "TopicA", 1, 0, 2598920, 1795166908153, 0x8, "7F00", "k1 k2")
    ]


def test_without_properties_there_is_no_id_no_key_and_tags_code_zero() -> None:
    found = entry_of(b"")
    assert (found.unique_id, found.keys, found.tags_code) == (None, "", 0)


@for_each(
    ("raw", "tags_code"),
    [
        (b"TAGS\x01TagA", 2598919),
        (b"TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagB\x02TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagA\x02TAGS\x01\x02", 2598919),
        (b"TAGS\x01TagA\x02XTAGS\x01TagB\x02", 2598919),
        (b"TAGS\x01TagA\x02a\x01TAGS\x01TagB\x02", 2598919),
        ("TAGS\x01中文😀\x02".encode(), 622957533),
        (b"TAGS\x01\x02", 0),
        (b"XTAGS\x01TagA\x02", 0),
        (b"a\x01TAGS\x01TagA\x02", 0),
        (b"TAGS\x01\xff\x02", 0xFFFD),
    ],
)
@for_each("record_crc", [False, True])
def test_the_tags_code_is_the_hash_of_the_last_tags(
    raw: bytes, tags_code: int, record_crc: bool
) -> None:
    (found,) = walk(build([message(properties=raw)], record_crc=record_crc)).entries
    assert found.tags_code == tags_code


@for_each("name", ["UNIQ_KEY", "KEYS"])
@for_each(
    ("raw", "value"),
    [
        ("{0}\x01v", "v"),
        ("{0}\x01v\x02", "v"),
        ("{0}\x01u\x02{0}\x01v\x02", "v"),
        ("{0}\x01v\x02{0}\x01\x02", "v"),
        ("{0}\x01v\x02X{0}\x01w\x02", "v"),
        ("{0}\x01v\x02a\x01{0}\x01w\x02", "v"),
        ("{0}\x01 v  w ", " v  w "),
        ("{0}\x01中😀\x02", "中😀"),
        ("{0}\x01\x02", ""),
        ("X{0}\x01v\x02", ""),
        ("a\x01{0}\x01v\x02", ""),
    ],
)
def test_id_and_keys_are_the_last_ones_that_are_not_empty(raw: str, value: str, name: str) -> None:
    found = entry_of(raw.format(name).encode())
    assert (found.unique_id or "" if name == "UNIQ_KEY" else found.keys) == value
    assert entry_of(b"UNIQ_KEY\x01\xff\x02").unique_id == "�"


def test_a_scheduled_record_has_its_due_time_for_a_tags_code() -> None:
    raw = b"DELAY\x013\x02TAGS\x01TagA\x02"
    assert entry_of(raw, "SCHEDULE_TOPIC_XXXX").tags_code == 1795166918153
    assert entry_of(raw, "TopicA").tags_code == 2598919
    assert entry_of(b"DELAY\x010\x02TAGS\x01TagA\x02", "SCHEDULE_TOPIC_XXXX").tags_code == 2598919
    assert entry_of(b"TAGS\x01TagA\x02", "SCHEDULE_TOPIC_XXXX").tags_code == 2598919


# --- where it ends ------------------------------------------------------------------------------


def test_a_walk_stops_at_its_limit_and_goes_on_from_there() -> None:
    data = build([message()] * 5)
    first = walk(data, records_max=2)
    assert (len(first.entries), first.stop) == (2, Stop.LIMIT)
    rest = walk(data[first.end :], at=BASE + first.end)
    assert [*first.entries, *rest.entries] == walk(data).entries
    assert walk(data, records_max=5).stop is Stop.LIMIT
    assert walk(data, records_max=0) == ([], 0, Stop.LIMIT, "")


def test_a_walk_stops_before_the_filler() -> None:
    data = build([message()] * 3)
    for room in (8, 100, 5000):
        found = walk(data + record.encode_blank(room).ljust(room, b"\xda"))
        assert (len(found.entries), found.end, found.stop) == (3, len(data), Stop.BLANK)


def test_an_empty_view_has_nothing() -> None:
    assert walk(b"") == ([], 0, Stop.VIEW_END, "")


@pytest.mark.parametrize("size", [8, 88, 1000])
def test_zeros_are_bad_and_named(size: int) -> None:
    data = build([message()] * 3)
    assert walk(data + bytes(size))[1:] == (len(data), Stop.BAD, "zeros")


def test_a_record_from_another_place_stops_the_walk() -> None:
    data = build([message()])
    found = walk(data + build([message()]))
    assert (len(found.entries), found.stop) == (1, Stop.BAD)
    assert found.reason == f"stored physical offset {BASE}, not {BASE + len(data)}"
    assert walk(data * 2, checks=Checks(position=False)).stop is Stop.VIEW_END


# --- the same rules as one record at a time -----------------------------------------------------

messages = st.lists(strategies.messages(), max_size=5)
checks = st.builds(Checks, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(messages, st.booleans(), checks, st.integers(0, 6))
def test_a_walk_agrees_with_validate_and_decode(
    made: list[Message], record_crc: bool, checks: Checks, records_max: int
) -> None:
    data = build(made, record_crc=record_crc)
    expected = slow_walk(data, checks, records_max)
    assert walk(data, checks=checks, records_max=records_max) == expected
    assert walk(memoryview(data), checks=checks, records_max=records_max) == expected
    if not checks.require_record_crc:
        assert len(expected.entries) == min(records_max, len(made))


@given(messages, st.booleans(), checks, st.data())
def test_a_walk_over_damage_agrees_with_validate_and_decode(
    made: list[Message], record_crc: bool, checks: Checks, data: st.DataObject
) -> None:
    damaged = bytearray(build(made, record_crc=record_crc) + bytes(data.draw(st.integers(0, 9))))
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    assert walk(damaged, checks=checks) == slow_walk(damaged, checks, 1000)


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=6), checks)
def test_a_walk_over_shuffled_records_agrees_with_validate_and_decode(
    order: list[int], checks: Checks
) -> None:
    v6 = hosts.parse("[::1]:1")
    kinds = [
        message(),
        message(born_host=v6, topic="t" * 130),
        message(store_host=v6, body=b""),
        message(properties=b"TAGS\x01a\x02KEYS\x01b"),
    ]
    data = b"".join(build([kinds[number]]) for number in order)
    assert walk(data, checks=checks) == slow_walk(data, checks, 1000)


@given(st.binary(max_size=300), checks)
def test_a_walk_over_any_bytes_ends_without_an_exception(raw: bytes, checks: Checks) -> None:
    assert walk(raw, checks=checks) == slow_walk(raw, checks, 1000)


def test_no_flipped_bit_brings_a_record_more_or_less_than_those_before_it() -> None:
    made = [message(properties=b"TAGS\x01a\x02"), message(body=b""), message(topic="other")]
    data = build(made)
    whole = walk(data)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        before = [
            entry
            for entry in whole.entries
            if entry.physical_offset - BASE + entry.size <= bit // 8
        ]
        found = walk(flipped)
        assert found.entries == before
        assert found.stop in (Stop.BAD, Stop.VIEW_END)


@for_each("body_size", [32_767, 32_768, 32_769, 100_003, 1 << 20])
@for_each("topic", ["a", "b" * 200])
def test_a_large_record_is_valid_and_a_flipped_bit_anywhere_in_it_is_found(
    body_size: int, topic: str
) -> None:
    body = random.Random(body_size).randbytes(body_size)
    data = bytearray(build([message(topic=topic, body=body, properties=b"TAGS\x01a\x02")]))
    assert len(walk(data).entries) == 1
    for at in (44, 88, 88 + body_size // 2, 87 + body_size, 89 + body_size, len(data) - 25):
        data[at] ^= 4
        assert walk(data).entries == [], f"byte {at}"
        assert walk(data, checks=Checks(body_crc=False)).entries == [], f"byte {at}"
        data[at] ^= 4


def test_every_cut_leaves_the_records_that_are_whole() -> None:
    data = build([message(body=b"x" * size) for size in (0, 5, 200)])
    whole = walk(data)
    for cut in range(len(data) + 1):
        found = walk(data[:cut])
        assert found.entries == [
            entry for entry in whole.entries if entry.physical_offset - BASE + entry.size <= cut
        ]
        assert found.stop is Stop.VIEW_END
        assert (found.reason == "") == (found.end == cut)


def crafted(magic: int, *, body: int, topic: int, raw: int, stored: tuple[int, int, int]) -> bytes:
    """A record with these real lengths, whose size fits them, that stores other ones."""
    stored_body, stored_topic, stored_raw = stored
    width = 1 if magic == record.MAGIC_V1 else 2
    size = 88 + body + width + topic + 2 + raw
    head = bytearray(build([message(body=b"")], record_crc=False)[:88])
    head[:8] = size.to_bytes(4, "big") + magic.to_bytes(4, "big", signed=True)
    head[84:88] = stored_body.to_bytes(4, "big", signed=True)
    parts: list[bytes | bytearray] = [
        head,
        b"b" * body,
        stored_topic.to_bytes(width, "big"),
        b"t" * topic,
    ]
    return b"".join([*parts, stored_raw.to_bytes(2, "big"), b"p" * raw])


@for_each(
    ("data", "valid"),
    [
        (crafted(record.MAGIC_V1, body=0, topic=127, raw=0, stored=(0, 127, 0)), True),
        (crafted(record.MAGIC_V1, body=0, topic=128, raw=0, stored=(0, 128, 0)), False),
        (crafted(record.MAGIC_V1, body=0, topic=255, raw=0, stored=(0, 255, 0)), False),
        (crafted(record.MAGIC_V2, body=0, topic=32_767, raw=0, stored=(0, 32_767, 0)), True),
        (crafted(record.MAGIC_V2, body=0, topic=32_768, raw=0, stored=(0, 32_768, 0)), False),
        (crafted(record.MAGIC_V1, body=0, topic=1, raw=32_767, stored=(0, 1, 32_767)), True),
        (crafted(record.MAGIC_V1, body=0, topic=1, raw=32_768, stored=(0, 1, 32_768)), False),
        (crafted(record.MAGIC_V1, body=0, topic=0, raw=0, stored=(0, 0, 0)), True),
        (crafted(record.MAGIC_V1, body=4, topic=1, raw=0, stored=(-1, 1, 0)), False),
        (crafted(record.MAGIC_V1, body=4, topic=1, raw=0, stored=(-(1 << 31), 1, 0)), False),
        (crafted(record.MAGIC_V1, body=4, topic=1, raw=0, stored=((1 << 31) - 1, 1, 0)), False),
        (crafted(record.MAGIC_V1, body=4, topic=1, raw=4, stored=(5, 1, 4)), False),
    ],
)
def test_a_length_is_signed_and_must_fit(data: bytes, valid: bool) -> None:
    lenient = Checks(body_crc=False, record_crc=False)
    outcome = record.validate(data, 0, at=BASE, checks=lenient)
    assert outcome.kind is (Kind.VALID if valid else Kind.INCONSISTENT)
    found = walk(data, checks=lenient)
    assert found == slow_walk(data, lenient, 1000)
    assert len(found.entries) == valid


@pytest.mark.parametrize("sys_flag", [0x10, 0x20, 0x30])
def test_a_size_too_small_for_its_ipv6_hosts_is_bad(sys_flag: int) -> None:
    # The view ends with the record: nothing behind it may be read for the larger fixed part.
    lenient = Checks(body_crc=False, record_crc=False)
    for size in range(91, 120):
        data = bytearray(crafted(record.MAGIC_V1, body=0, topic=size - 91, raw=0, stored=(0, 0, 0)))
        data[36:40] = sys_flag.to_bytes(4, "big")
        assert walk(data, checks=lenient) == slow_walk(data, lenient, 1000)
