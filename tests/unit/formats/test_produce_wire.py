"""The fast path of a produce request, by both twins: what it parses, and what it leaves alone."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgpack
import pytest

from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from tests.support.for_each import for_each
from tests.support.plain_requests import RULES, V4, V6, assert_same, careful, maker, packed, read
from tests.support.twins import twin_modules_of
from tidemark.formats import batch, produce_wire, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.produce_wire import PAIRS_MAX, PlainRequest

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("wire", produce_wire))


def only(plain: PlainRequest | None) -> WireMessage:
    assert plain is not None
    (entry,) = batch.iterate(plain.entries)
    return entry


def test_an_entry_has_given_properties_tags_keys_and_the_unique_id_in_this_order(
    twin: ModuleType,
) -> None:
    body = packed(
        {
            "unique_id": "u-1",
            "keys": ["k1", "k2"],
            "tags": "TagA",
            "properties": {"z": "1", "a": "2"},
            "flag": -7,
            "queue": 3,
        },
        ack="memory",
        timeout_ms=1500,
    )
    plain = read(twin, body)
    assert plain is not None
    assert plain[1:] == (1, 3, "memory", 1500, 0)
    entry = only(plain)
    assert (entry.body, entry.flag) == (b"x", -7)
    assert entry.properties == (
        b"z\x011\x02a\x012\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u-1\x02"
    )


@pytest.mark.parametrize("address", [V4, V6])
def test_ids_are_made_for_messages_that_bring_none(twin: ModuleType, address: bytes) -> None:
    body = msgpack.packb(
        {"messages": [{"body": b""}, {"body": b"", "unique_id": "own"}, {"body_text": "ö"}]}
    )
    plain = read(twin, body, address=address, count=65_535)
    assert plain is not None
    head = maker(address).head
    assert [bytes(entry.properties) for entry in batch.iterate(plain.entries)] == [
        b"UNIQ_KEY\x01" + head + b"088D5C80FFFF\x02",
        b"UNIQ_KEY\x01own\x02",
        b"UNIQ_KEY\x01" + head + b"088D5C800000\x02",
    ]
    assert plain.made_ids == 2


@pytest.mark.parametrize("before", [True, False])
def test_no_ids_are_made_if_none_are_wanted(twin: ModuleType, before: bool) -> None:
    made = {"messages": [{"body": b"x"}, {"body": b"y", "unique_id": "u"}]}
    unwanted = {"make_unique_ids": False}
    plain = read(twin, msgpack.packb({**unwanted, **made} if before else {**made, **unwanted}))
    assert plain is not None
    assert [bytes(entry.properties) for entry in batch.iterate(plain.entries)] == [
        b"",
        b"UNIQ_KEY\x01u\x02",
    ]
    assert plain.made_ids == 0


@pytest.mark.parametrize("wanted", [{}, {"make_unique_ids": True}, {"make_unique_ids": False}])
def test_a_topic_without_ids_of_messages_makes_none(
    twin: ModuleType, wanted: dict[str, bool]
) -> None:
    body = msgpack.packb({"messages": [{"body": b"x"}, {"body": b"y"}], **wanted})
    plain = read(twin, body, makes_ids=False)
    assert plain is not None
    assert [bytes(entry.properties) for entry in batch.iterate(plain.entries)] == [b"", b""]
    assert plain.made_ids == 0


def test_a_message_that_has_no_room_for_an_id_fits_if_none_is_wanted(twin: ModuleType) -> None:
    # The word that none is wanted stood behind the messages: found by fuzz_twins.
    made = {"messages": [{"body": b"", "properties": {"n": "v" * 31_716}}]}
    assert read(twin, msgpack.packb(made)) is None
    assert read(twin, msgpack.packb({**made, "make_unique_ids": True})) is None
    for order in ({**made, "make_unique_ids": False}, {"make_unique_ids": False, **made}):
        body = msgpack.packb(order)
        plain = read(twin, body)
        assert plain is not None
        assert_same(plain, careful(body))


@for_each(
    "body",
    [
        packed({"sharding_key": "a"}),
        packed({"sharding_key": None}),
        packed({"delay_ms": None}),
        packed({"flag": 1.0}),
        packed({"flag": True}),
        packed({"queue": 1.0}),
        packed({"queue": -1}),
        packed({"queue": 1 << 31}),
        packed({"flag": 1 << 31}),
        packed({"properties": {f"n{number}": "v" for number in range(PAIRS_MAX + 1)}}),
        packed({}, timeout_ms=0),
        packed({}, timeout_ms=ACK_TIMEOUT_MS_MAX + 1),
        packed({}, ack="DISK"),
        packed({}, ack=""),
        packed({}, make_unique_ids=1),
        packed({}, colour=1),
        msgpack.packb({"messages": []}),
        msgpack.packb({"messages": None}),
        msgpack.packb({"messages": {}}),
        msgpack.packb({"messages": [None]}),
        msgpack.packb({"messages": [{}]}),
        msgpack.packb({"messages": [{"body": None}]}),
        msgpack.packb({"messages": [{"body": "text"}]}),
        msgpack.packb({"messages": [{"body_text": b"bytes"}]}),
        msgpack.packb({"messages": [{"body": b"", "body_text": ""}]}),
        msgpack.packb({"messages": [{"body": b"", "queue": 1}, {"body": b""}]}),
        msgpack.packb({"messages": [{"body": b"", "queue": 1}, {"body": b"", "queue": 2}]}),
        msgpack.packb({"messages": [{"body": b""}] * (MESSAGES_MAX + 1)}),
        msgpack.packb({b"messages": [{"body": b""}]}),
        msgpack.packb({"ack": "disk"}),
        msgpack.packb({}),
        msgpack.packb([]),
        b"\x82" + (b"\xa8messages" + msgpack.packb([{"body": b""}])) * 2,
        b"\x83" + b"\xa3ack\xc0" * 2 + b"\xa8messages" + msgpack.packb([{"body": b""}]),
        b"\x83" + b"\xaatimeout_ms\xc0" * 2 + b"\xa8messages" + msgpack.packb([{"body": b""}]),
        b"\x83" + b"\xafmake_unique_ids\xc0" * 2 + b"\xa8messages" + msgpack.packb([{"body": b""}]),
    ],
)
def test_an_uncommon_body_is_left_to_the_general_path(twin: ModuleType, body: bytes) -> None:
    assert read(twin, body) is None


@for_each("name", [*sorted(properties.REFUSED), "TIMER_", "__", "INNER_x"])
def test_a_name_that_senders_may_not_set_is_left_to_the_careful_way(
    twin: ModuleType, name: str
) -> None:
    assert read(twin, packed({"properties": {"a": "b", name: "x"}})) is None
    assert careful(packed({"properties": {name: "x"}})) is None
    assert read(twin, packed({"properties": {"x" + name: "x"}})) is not None


@for_each(
    ("fields", "fits"),
    [
        ({"body": b"x" * 300}, True),
        ({"body": b"x" * 301}, False),
        ({"body": b"", "properties": {"n": "v" * 31_678}}, True),
        ({"body": b"", "properties": {"n": "v" * 31_679}}, False),
        ({"body": b"", "unique_id": "x" * 128}, True),
        ({"body": b"", "unique_id": "ö" * 128}, True),
        ({"body": b"", "unique_id": "ö" * 129}, False),
        ({"body": b"", "keys": ["k"] * 300}, True),
        ({"body": b"", "tags": "t" * 30_000, "keys": ["k"] * 600}, True),
        ({"body": b"", "tags": "t" * 32_000, "keys": ["k"] * 600}, False),
        ({"body": b"", "properties": {f"n{number}": "v" for number in range(PAIRS_MAX)}}, True),
    ],
)
def test_bounds_are_those_of_the_careful_way(
    twin: ModuleType, fields: dict[str, Any], fits: bool
) -> None:
    body = msgpack.packb({"messages": [fields]})
    plain = read(twin, body)
    assert (plain is not None) == fits
    assert (careful(body) is not None) == fits
    if plain is not None:
        assert_same(plain, careful(body))


def test_without_a_record_crc_there_are_20_bytes_more_of_properties(twin: ModuleType) -> None:
    body = packed({"unique_id": "u", "properties": {"n": "v" * 31_726}})
    assert read(twin, body) is None
    with_room = RULES._replace(record_crc=False)
    plain = read(twin, body, rules=with_room)
    assert plain is not None
    assert_same(plain, careful(body, rules=with_room))


@for_each(
    "raw",
    [
        *(b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf"),
        *(b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xfe", b"\xff"),
        *(b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98"),
        *("ü".encode(), "中".encode(), "😀".encode()),
        *(b"\xf4\x8f\xbf\xbf", b"\xef\xbf\xbf", b"\xed\x9f\xbf"),
    ],
)
@for_each("before", [b"", b"abcdefg"])
def test_text_is_utf8_as_python_has_it(twin: ModuleType, raw: bytes, before: bytes) -> None:
    text = before + raw
    try:
        text.decode()
        fine = True
    except UnicodeDecodeError:
        fine = False
    for name in ("body_text", "tags", "unique_id"):
        field = b"\x82\xa4body\xc4\x00" if name != "body_text" else b"\x81"
        field += bytes([0xA0 | len(name)]) + name.encode() + bytes([0xA0 | len(text)]) + text
        assert (read(twin, b"\x81\xa8messages\x91" + field) is not None) == fine


def test_many_messages_are_read_while_others_run(twin: ModuleType) -> None:
    body = msgpack.packb({"messages": [{"body": b"x" * 256, "tags": "t"}] * MESSAGES_MAX})
    plain = read(twin, body, count=3)
    assert plain is not None
    assert_same(plain, careful(body, count=3))


def test_a_body_that_is_no_bytes_is_read_too(twin: ModuleType) -> None:
    body = packed({})
    assert read(twin, bytearray(body)) == read(twin, memoryview(body)) == read(twin, body)
