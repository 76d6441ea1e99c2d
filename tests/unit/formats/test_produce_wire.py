"""The short way of a produce request, by both twins, held against the careful way."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.broker import encodings, messages
from services.broker.encodings import Encoding
from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.messages import ProduceRequest, Rules, parse_produce
from tests.support import strategies
from tests.support.twins import outcome, twin_modules_of
from tidemark.errors import RequestError
from tidemark.formats import batch, hosts, ids, produce_wire, properties
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.ids import UniqueIdMaker
from tidemark.formats.produce_wire import PAIRS_MAX, PlainRequest

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("wire", produce_wire))

RULES = Rules(message_size_max=300, record_crc=True)
V4, V6 = bytes([10, 9, 8, 7]), bytes(range(16))
MS = 0x088D5C80
I64_MAX = strategies.I64_MAX


def maker(address: bytes = V4, count: int = 0) -> UniqueIdMaker:
    made = UniqueIdMaker(address, pid=0xABCD, salt=0x18B4AAC2)
    made.take(count)
    return made


def read(
    twin: ModuleType, body: Any, *, rules: Rules = RULES, address: bytes = V4, count: int = 0
) -> PlainRequest | None:
    unique_ids = maker(address, count)
    plain: PlainRequest | None = twin.read_plain(
        body,
        message_size_max=rules.message_size_max,
        properties_size_max=rules.properties_size_max,
        messages_max=MESSAGES_MAX,
        timeout_ms_max=ACK_TIMEOUT_MS_MAX,
        id_head=unique_ids.head,
        id_ms=MS,
        id_count=unique_ids.take(0),
    )
    return plain


def careful(
    body: bytes, *, rules: Rules = RULES, address: bytes = V4, count: int = 0
) -> tuple[ProduceRequest, int] | None:
    """The request as the careful way has it, and how many ids it made; None if it refuses."""
    unique_ids = maker(address, count)
    try:
        request = parse_produce(
            encodings.decode(body, Encoding.MSGPACK),
            rules=rules,
            json_body=False,
            make_unique_id=lambda: unique_ids.make(MS),
        )
    except RequestError:
        return None
    return request, unique_ids.take(0) - count


def assert_same(plain: PlainRequest, other: tuple[ProduceRequest, int] | None) -> None:
    assert other is not None, "the careful way refuses it"
    request, made_ids = other
    assert plain.entries == request.entries
    assert (plain.message_count, plain.queue) == (request.message_count, request.picks)
    assert (plain.ack or RULES.ack_default) == request.ack
    assert (plain.timeout_ms or messages.ACK_TIMEOUT_MS_DEFAULT) == request.timeout_ms
    assert plain.made_ids == made_ids


def packed(fields: dict[str, Any], **request: Any) -> bytes:
    """A request of one message with a body and these fields."""
    whole = {"messages": [{"body": b"x", **fields}], **request}
    return bytes(msgpack.packb(whole, unicode_errors="surrogateescape"))


# --- msgpack in all its encodings ---------------------------------------------------------------


class Twice(list[tuple[Any, Any]]):
    """A map as pairs, which may repeat a key."""


def writings(value: object) -> Iterator[bytes]:
    """Every msgpack encoding of one value that is no container, the shortest first."""
    match value:
        case None | True | False:
            yield msgpack.packb(value)
        case int():
            yield msgpack.packb(value)
            for first, code in zip(range(0xCC, 0xD4), "BHIQbhiq", strict=True):
                try:
                    yield bytes([first]) + struct.pack(">" + code, value)
                except struct.error:
                    continue
        case str() | bytes():
            raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            if isinstance(value, str) and len(raw) < 32:
                yield bytes([0xA0 | len(raw)]) + raw
            for first, width in zip(
                (0xD9, 0xDA, 0xDB) if isinstance(value, str) else (0xC4, 0xC5, 0xC6),
                (1, 2, 4),
                strict=True,
            ):
                if len(raw) < 1 << 8 * width:
                    yield bytes([first]) + len(raw).to_bytes(width, "big") + raw
        case _:
            yield msgpack.packb(value)


def heads(count: int, fixed: int, first: int) -> Iterator[bytes]:
    if count < 16:
        yield bytes([fixed | count])
    yield bytes([first]) + struct.pack(">H", count)
    yield bytes([first + 1]) + struct.pack(">I", count)


@st.composite
def encoded(draw: st.DrawFn, value: object) -> bytes:
    """The value as msgpack, each part in any encoding there is for it."""
    match value:
        case list() if not isinstance(value, Twice):
            head = draw(st.sampled_from(list(heads(len(value), 0x90, 0xDC))))
            return head + b"".join(draw(encoded(each)) for each in value)
        case Twice() | dict():
            pairs = list(value.items()) if isinstance(value, dict) else list(value)
            head = draw(st.sampled_from(list(heads(len(pairs), 0x80, 0xDE))))
            return head + b"".join(draw(encoded(key)) + draw(encoded(item)) for key, item in pairs)
        case _:
            return draw(st.sampled_from(list(writings(value))))


GOOD_TEXT = st.one_of(
    st.sampled_from(["a", "TagA", "größe", "中文😀", "x" * 31, "x" * 32, "x" * 255, "\x00\x03"]),
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "),
        min_size=1,
        max_size=12,
    ),
)
GOOD_NAMES = st.one_of(
    st.sampled_from(["colour", "TAGSX", "_x", "TIMER", "INNER", "Größe", "a b"]), GOOD_TEXT
).filter(lambda name: not properties.is_refused(name))
GOOD_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "tags": st.one_of(st.none(), st.just(""), GOOD_TEXT, st.just("a b")),
    "keys": st.one_of(st.none(), st.lists(GOOD_TEXT, max_size=3)),
    "properties": st.one_of(st.none(), st.dictionaries(GOOD_NAMES, GOOD_TEXT, max_size=4)),
    "unique_id": st.one_of(st.none(), GOOD_TEXT.filter(lambda text: len(text) <= 128)),
    "flag": st.one_of(st.none(), strategies.i32s()),
}
GOOD_BODY = st.one_of(
    st.fixed_dictionaries({"body": st.binary(max_size=300)}),
    st.fixed_dictionaries({"body_text": st.text(st.characters(exclude_categories=["Cs"]))}),
)


@st.composite
def good_requests(draw: st.DrawFn) -> dict[str, Any]:
    """Requests of the common form, fields in any order."""
    queue = draw(st.one_of(st.none(), st.integers(0, strategies.I32_MAX)))
    made: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        fields = draw(GOOD_BODY) | draw(st.fixed_dictionaries({}, optional=GOOD_FIELDS))
        if queue is not None or draw(st.booleans()):
            fields["queue"] = queue
        made.append(dict(draw(st.permutations(list(fields.items())))))
    beside = st.fixed_dictionaries(
        {"messages": st.just(made)},
        optional={
            "ack": st.sampled_from([None, "memory", "disk", "replicated"]),
            "timeout_ms": st.one_of(st.none(), st.integers(1, ACK_TIMEOUT_MS_MAX)),
            "make_unique_ids": st.sampled_from([None, True, False]),
        },
    )
    return dict(draw(st.permutations(list(draw(beside).items()))))


BAD_TEXT = st.sampled_from(
    [
        "",
        "\x01",
        "a\x02b",
        "a b",
        "\udcff",
        "a" * 129,
        "TAGS",
        "KEYS",
        "__x",
        "INNER_NUM",
        "TIMER_X",
        "TIDEMARK_X",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "__CRC32#",
        "\udced\udca0\udc80",
        "ö" * 128,
    ]
)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    BAD_TEXT,
    GOOD_TEXT,
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.sampled_from([-1, 0, 1, 1 << 31, (1 << 31) - 1, -(1 << 31) - 1, 1 << 63, 60_000, 60_001]),
    st.binary(max_size=4),
    st.just(b"x" * 301),
    st.just("x" * 301),
    st.lists(st.one_of(BAD_TEXT, GOOD_TEXT, st.integers(0, 3)), max_size=3),
    st.dictionaries(st.one_of(BAD_TEXT, GOOD_NAMES), st.one_of(BAD_TEXT, GOOD_TEXT), max_size=3),
    st.just({f"n{number}": "v" for number in range(PAIRS_MAX + 1)}),
    st.just(msgpack.ExtType(5, b"abc")),
    st.just(msgpack.Timestamp(1, 2)),
)
FIELD_NAMES = st.sampled_from(
    [*sorted(messages._MESSAGE_FIELDS), *sorted(messages._REQUEST_FIELDS), "colour", "", b"body", 3]
)


@st.composite
def odd_requests(draw: st.DrawFn) -> Any:
    """Requests with some field as it should not be, or twice, or elsewhere."""
    whole = draw(good_requests())
    made = [Twice(message.items()) for message in whole["messages"]]
    request = Twice({**whole, "messages": made}.items())
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([request, *made]))
        pair = (draw(FIELD_NAMES), draw(ANYTHING))
        at = draw(st.integers(0, len(place)))
        if draw(st.booleans()) and at < len(place):
            place[at] = (place[at][0], pair[1]) if draw(st.booleans()) else pair
        else:
            place.insert(at, pair)
    return request


# --- the same as the careful way ----------------------------------------------------------------


@given(st.data(), st.sampled_from([V4, V6]), st.sampled_from([0, 65_534, 1 << 40]))
def test_what_is_common_is_read_as_the_careful_way_has_it(
    twin: ModuleType, data: st.DataObject, address: bytes, count: int
) -> None:
    request = data.draw(good_requests())
    body = data.draw(encoded(request))
    plain = read(twin, body, address=address, count=count)
    other = careful(body, address=address, count=count)
    if other is not None:
        assert plain is not None
        assert_same(plain, other)
        return
    # body_text is bounded in bytes, which its strategy is not.
    assert plain is None
    assert any(len(m.get("body_text", "").encode()) > 300 for m in request["messages"])


@given(st.data())
def test_what_is_odd_is_left_to_the_careful_way_or_is_the_same(
    twin: ModuleType, data: st.DataObject
) -> None:
    body = data.draw(encoded(data.draw(odd_requests())))
    plain = read(twin, body)
    assert plain == read(produce_wire, body)
    if plain is not None:
        assert_same(plain, careful(body))


@given(st.data())
def test_cut_flipped_and_lengthened_requests_too(twin: ModuleType, data: st.DataObject) -> None:
    body = bytearray(data.draw(encoded(data.draw(good_requests()))))
    for _ in range(data.draw(st.integers(0, 3))):
        bit = data.draw(st.integers(0, 8 * len(body) - 1))
        body[bit // 8] ^= 1 << bit % 8
    raw = bytes(body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=2)))
    plain = read(twin, raw)
    assert plain == read(produce_wire, raw)
    if plain is not None:
        assert_same(plain, careful(raw))


@given(st.binary(max_size=80))
@example(b"\x81\xa8messages\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\x81\xa8messages" + b"\x91" * 5000)
@example(b"\x81\xa8messages\x91\x81\xa4body\xc6\xff\xff\xff\xff")
@example(b"\x81\xdb\xff\xff\xff\xffmessages")
@example(b"\x81\xa8messages\x91\x82\xa4body\xc4\x00\xa4keys\xdd\xff\xff\xff\xff")
@example(b"\x81\xa8messages\x91\x82\xa4body\xc4\x00\xaaproperties\xdf\xff\xff\xff\xff")
@example(b"\x81\xa8messages\x91\x82\xa4body\xc4\x00\xa4flag\xd3\xff")
@example(b"")
def test_any_bytes_are_read_without_an_exception(twin: ModuleType, raw: bytes) -> None:
    plain = read(twin, raw)
    assert plain == read(produce_wire, raw)
    if plain is not None:
        assert_same(plain, careful(raw))


def test_every_cut_of_a_request_is_none(twin: ModuleType) -> None:
    body = packed(
        {"tags": "a", "keys": ["k"], "properties": {"n": "v"}, "unique_id": "u", "flag": 70_000},
        ack="disk",
        timeout_ms=300,
        make_unique_ids=False,
    )
    assert read(twin, body) is not None
    for cut in range(len(body)):
        assert read(twin, body[:cut]) is None
    assert read(twin, body + b"\xc0") is None


# --- what is common, and what is not ------------------------------------------------------------


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


def test_a_message_that_has_no_room_for_an_id_fits_if_none_is_wanted(twin: ModuleType) -> None:
    # The word that none is wanted stood behind the messages: found by fuzz_twins.
    made = {"messages": [{"body": b"", "properties": {"n": "v" * 32_740}}]}
    assert read(twin, msgpack.packb(made)) is None
    assert read(twin, msgpack.packb({**made, "make_unique_ids": True})) is None
    for order in ({**made, "make_unique_ids": False}, {"make_unique_ids": False, **made}):
        body = msgpack.packb(order)
        plain = read(twin, body)
        assert plain is not None
        assert_same(plain, careful(body))


@pytest.mark.parametrize(
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
def test_what_is_not_common_is_left_to_the_careful_way(twin: ModuleType, body: bytes) -> None:
    assert read(twin, body) is None


@pytest.mark.parametrize("name", [*sorted(properties.REFUSED), "TIMER_", "__", "INNER_x"])
def test_a_name_that_senders_may_not_set_is_left_to_the_careful_way(
    twin: ModuleType, name: str
) -> None:
    assert read(twin, packed({"properties": {"a": "b", name: "x"}})) is None
    assert careful(packed({"properties": {name: "x"}})) is None
    assert read(twin, packed({"properties": {"x" + name: "x"}})) is not None


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"body": b"x" * 300}, True),
        ({"body": b"x" * 301}, False),
        ({"body": b"", "properties": {"n": "v" * 32_702}}, True),
        ({"body": b"", "properties": {"n": "v" * 32_703}}, False),
        ({"body": b"", "unique_id": "x" * 128}, True),
        ({"body": b"", "unique_id": "ö" * 128}, True),
        ({"body": b"", "unique_id": "ö" * 129}, False),
        ({"body": b"", "keys": ["k"] * 300}, True),
        ({"body": b"", "tags": "t" * 31_000, "keys": ["k"] * 600}, True),
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
    body = packed({"unique_id": "u", "properties": {"n": "v" * 32_750}})
    assert read(twin, body) is None
    with_room = RULES._replace(record_crc=False)
    plain = read(twin, body, rules=with_room)
    assert plain is not None
    assert_same(plain, careful(body, rules=with_room))


@pytest.mark.parametrize(
    "raw",
    [
        *(b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf"),
        *(b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xfe", b"\xff"),
        *(b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98"),
        *("ü".encode(), "中".encode(), "😀".encode()),
        *(b"\xf4\x8f\xbf\xbf", b"\xef\xbf\xbf", b"\xed\x9f\xbf"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"abcdefg"])
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


# --- answers ------------------------------------------------------------------------------------

HERE = hosts.parse("10.9.8.7:10911")


def answer(twin: ModuleType, entries: bytes, sizes: bytes, **changed: Any) -> bytes:
    arguments: dict[str, Any] = {
        "level": "disk",
        "copies": 1,
        "host": hosts.encode(HERE),
        "queue": 3,
        "first_queue_offset": 7,
        "first_physical_offset": 1000,
        "store_timestamp_ms": 1_790_000_000_000,
        **changed,
    }
    made: bytes = twin.pack_answer(entries, sizes, **arguments)
    return made


NUMBERS = st.one_of(
    st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, -1, -32, -33]),
    st.sampled_from([-128, -129, -32_768, -32_769, -(1 << 31), -(1 << 31) - 1, -(1 << 63)]),
    st.integers(-(1 << 63), I64_MAX - (1 << 40)),
)
PROPERTIES = st.lists(
    st.sampled_from(
        [
            *(b"UNIQ_KEY\x01abc\x02", b"UNIQ_KEY\x01", b"UNIQ_KEY", b"UNIQ_KEY\x01\x02"),
            *(b"\x01", b"\x02", b"\xff", b"TAGS\x01a\x02", b"XUNIQ_KEY\x01q\x02"),
            b"UNIQ_KEY\x01\xed\xa0\x80\x02",
            "UNIQ_KEY\x01größe".encode(),
            b"UNIQ_KEY\x01" + b"x" * 40,
            b"UNIQ_KEY\x01" + b"x" * 300,
        ]
    ),
    max_size=4,
).map(b"".join)


@given(
    st.lists(PROPERTIES, max_size=20),
    strategies.hosts(),
    st.sampled_from(["memory", "disk", "größe", "x" * 40]),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(91, (1 << 32) - 1),
)
def test_an_answer_is_what_msgpack_makes_of_its_map(
    twin: ModuleType,
    raws: list[bytes],
    host: Host,
    level: str,
    queue: int,
    queue_offset: int,
    physical_offset: int,
    time_ms: int,
    size: int,
) -> None:
    entries = batch.encode(WireMessage(b"body", raw) for raw in raws)
    made = answer(
        twin,
        entries,
        struct.pack("=I", size) * len(raws),
        level=level,
        host=hosts.encode(host),
        queue=queue,
        first_queue_offset=queue_offset,
        first_physical_offset=physical_offset,
        store_timestamp_ms=time_ms,
    )
    results = [
        {
            "message_id": ids.offset_id(host, physical_offset + number * size),
            "unique_id": properties.parse(raw).get("UNIQ_KEY"),
            "queue": queue,
            "queue_offset": queue_offset + number,
            "physical_offset": physical_offset + number * size,
            "store_timestamp_ms": time_ms,
        }
        for number, raw in enumerate(raws)
    ]
    ack = {"level": level, "copies": 1}
    assert made == msgpack.packb({"status": "PUT_OK", "ack": ack, "results": results})


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_an_answer_may_have_any_number_of_results(twin: ModuleType, count: int) -> None:
    entries = batch.encode([WireMessage(b"", b"UNIQ_KEY\x01u\x02")] * count)
    found = msgpack.unpackb(answer(twin, entries, struct.pack("=I", 100) * count))
    assert len(found["results"]) == count
    assert found["ack"] == {"level": "disk", "copies": 1}


ONE = batch.encode([WireMessage(b"x", b"UNIQ_KEY\x01u\x02")])


@pytest.mark.parametrize(
    ("entries", "sizes", "changed", "error"),
    [
        (ONE, b"", {}, ValueError),
        (ONE, b"\0" * 8, {}, ValueError),
        (ONE, b"\0" * 3, {}, ValueError),
        (ONE[:-1], b"\0" * 4, {}, BadBatch),
        (ONE + b"\0", b"\0" * 4, {}, BadBatch),
        (ONE, b"\0" * 4, {"first_physical_offset": 1 << 63}, ValueError),
        (ONE, b"\0" * 4, {"first_queue_offset": 1 << 64}, OverflowError),
    ],
)
def test_what_cannot_be_answered_is_refused(
    twin: ModuleType, entries: bytes, sizes: bytes, changed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        answer(twin, entries, sizes, **changed)


def test_the_last_offsets_are_answered(twin: ModuleType) -> None:
    made = answer(
        twin,
        ONE,
        b"\0" * 4,
        first_physical_offset=I64_MAX,
        first_queue_offset=(1 << 64) - 1,
        copies=True,
    )
    found = msgpack.unpackb(made)
    assert found["results"][0]["physical_offset"] == I64_MAX
    assert found["results"][0]["queue_offset"] == (1 << 64) - 1
    assert found["ack"]["copies"] is True


@given(st.data())
def test_damaged_entries_are_answered_alike(twin: ModuleType, data: st.DataObject) -> None:
    raw = bytearray(
        batch.encode(
            WireMessage(b"b", each) for each in data.draw(st.lists(PROPERTIES, max_size=4))
        )
    )
    for _ in range(data.draw(st.integers(0, 2))):
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    sizes = data.draw(st.binary(max_size=20))
    entries = bytes(raw[: data.draw(st.integers(0, len(raw)))] if raw else raw)
    assert outcome(answer, twin, entries, sizes) == outcome(answer, produce_wire, entries, sizes)
