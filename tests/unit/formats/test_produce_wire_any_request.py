"""The fast path of any produce request, by both twins, compared with the general path."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.broker.limits import ACK_TIMEOUT_MS_MAX
from services.broker.schema.messages import NewMessage, Send
from tests.support import strategies
from tests.support.plain_requests import V4, V6, assert_same, careful, packed, read
from tests.support.twins import twin_modules_of
from tidemark.formats import produce_wire, properties
from tidemark.formats.produce_wire import PAIRS_MAX

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("wire", produce_wire))


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
    [*NewMessage.__struct_fields__, *Send.__struct_fields__, "colour", "", b"body", 3]
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


# --- the same as the general path ---------------------------------------------------------------


@given(st.data(), st.sampled_from([V4, V6]), st.sampled_from([0, 65_534, 1 << 40]))
def test_a_common_body_is_parsed_as_by_the_general_path(
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
def test_an_uncommon_body_is_left_to_the_general_path_or_parsed_the_same(
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
