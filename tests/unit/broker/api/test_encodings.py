"""Request and response bodies: any bytes give a value or BadRequest; responses are in the caller's
encoding."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.api import encodings
from services.broker.api.encodings import Encoding, decode
from services.broker.limits import MAPS_MAX, VALUES_MAX
from tidemark.errors import BadRequest, TooManyValues, UnsupportedMediaType

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


SHORT_PIECE = 32

LONG = st.text(min_size=1).map(lambda text: text * (3 * SHORT_PIECE // len(text) + 1))
PARTS = JSON_VALUES | LONG | st.lists(JSON_VALUES | LONG, max_size=4)


@pytest.mark.parametrize("encoding", list(Encoding))
@given(value=st.dictionaries(st.text(), PARTS, max_size=4))
def test_encoding_in_pieces_gives_the_same_bytes(encoding: Encoding, value: dict[str, Any]) -> None:
    whole = encodings.encode(value, encoding)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encodings, "PIECE", SHORT_PIECE)
        assert b"".join(encodings.pieces(value, encoding)) == whole
    items = {"items": encodings.Items(len(value), iter(list(value.values())))}
    assert encodings.encode(items, encoding) == encodings.encode(
        {"items": list(value.values())}, encoding
    )


@pytest.mark.parametrize("text", ["\x01", "\ud800", "ä", "\U0001f600"])
def test_a_long_text_is_encoded_in_short_pieces(text: str) -> None:
    value = {"messages": encodings.Items(2, iter([{"body_text": text * 300_000}, {"n": 1}]))}
    pieces = list(encodings.pieces(value, Encoding.JSON))
    assert max(map(len, pieces)) <= 6 * encodings.PIECE
    assert json.loads(b"".join(pieces)) == {"messages": [{"body_text": text * 300_000}, {"n": 1}]}


@pytest.mark.parametrize("encoding", list(Encoding))
def test_values_of_a_list_are_made_one_by_one(encoding: Encoding) -> None:
    made: list[int] = []

    def values() -> Iterator[object]:
        for number in range(100):
            made.append(number)
            yield {"number": number, "body": "x" * 20}

    steps = encodings.pieces({"messages": encodings.Items(100, values())}, encoding)
    for _ in range(10):
        next(steps)
    assert len(made) < 10


def test_an_answer_in_json_ends_its_line() -> None:
    value = {"messages": [{"body_text": "x" * 100_000}]}
    whole = encodings.encode(value, Encoding.JSON)
    assert whole.endswith(b"]}\n")
    assert b"".join(encodings.pieces(value, Encoding.JSON)) == whole


@pytest.mark.parametrize("encoding", list(Encoding))
@given(value=JSON_VALUES)
def test_an_encoded_value_decodes_to_the_same_value(encoding: Encoding, value: Any) -> None:
    assert encodings.decode(encodings.encode(value, encoding), encoding) == value


@pytest.mark.parametrize("encoding", list(Encoding))
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_bad_request(encoding: Encoding, data: bytes) -> None:
    with contextlib.suppress(BadRequest):
        encodings.decode(data, encoding)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 30_000,
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1' + b"0" * 10_000 + b"}",
        b'{"a": 1, "a": 2}',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"",
        b"{",
        b'{"a": "\\ud800',
    ],
)
def test_json_made_to_break_parsers_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        encodings.decode(body, Encoding.JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 200_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc1",
        b"\x81\x90\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"",
        b"\x80\x80",
    ],
)
def test_msgpack_made_to_break_parsers_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        encodings.decode(body, Encoding.MSGPACK)


def test_the_key_given_twice_is_named() -> None:
    with pytest.raises(BadRequest, match="'tags' appears twice"):
        encodings.decode(b'{"tags": "a", "tags": "b"}', Encoding.JSON)


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        (None, Encoding.MSGPACK),
        ("", Encoding.MSGPACK),
        ("application/msgpack", Encoding.MSGPACK),
        ("application/x-msgpack", Encoding.MSGPACK),
        ("application/json; charset=utf-8", Encoding.JSON),
        ("Application/JSON", Encoding.JSON),
    ],
)
def test_a_request_is_read_as_its_content_type_says(
    content_type: str | None, encoding: Encoding
) -> None:
    assert encodings.of_request(content_type) is encoding


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "x"])
def test_another_content_type_is_refused_with_the_supported_ones(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        encodings.of_request(content_type)
    assert "application/json" in caught.value.advice


@pytest.mark.parametrize(
    ("accept", "content_type", "encoding"),
    [
        (None, None, Encoding.JSON),
        ("*/*", None, Encoding.JSON),
        ("*/*", "application/msgpack", Encoding.MSGPACK),
        ("*/*", "application/json", Encoding.JSON),
        ("application/msgpack", "application/json", Encoding.MSGPACK),
        ("application/json", "application/msgpack", Encoding.JSON),
        ("application/json;q=0.5, application/msgpack", None, Encoding.MSGPACK),
        ("application/msgpack;q=0, application/json", None, Encoding.JSON),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None, Encoding.JSON),
        ("application/json;q=x", None, Encoding.JSON),
    ],
)
def test_an_answer_is_in_the_callers_encoding(
    accept: str | None, content_type: str | None, encoding: Encoding
) -> None:
    assert encodings.of_answer(accept, content_type) is encoding


@given(st.text(), st.text())
def test_any_header_leads_to_some_encoding(accept: str, content_type: str) -> None:
    assert encodings.of_answer(accept, content_type) in Encoding
    assert isinstance(encodings.wants_records(accept), bool)


def test_text_that_is_no_unicode_is_shown_escaped_and_not_an_error() -> None:
    value = {"detail": "name \ud800"}
    assert msgpack.unpackb(encodings.encode(value, Encoding.MSGPACK)) == {"detail": "name \\ud800"}
    assert json.loads(encodings.encode(value, Encoding.JSON)) == {"detail": "name \ud800"}


def _body(value: object, encoding: Encoding) -> bytes:
    return msgpack.packb(value) if encoding is Encoding.MSGPACK else json.dumps(value).encode()


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{}] * (MAPS_MAX + 1)},
        {"messages": [{"body_text": "x", "keys": [[]] * 1000}] * (VALUES_MAX // 900)},
        [[0] * 1000] * (VALUES_MAX // 900),
        [""] * (2 * VALUES_MAX),
        {"messages": [{"properties": {str(n): "v" for n in range(500)}}] * (VALUES_MAX // 400)},
    ],
    ids=["maps", "keys", "lists", "strings", "properties"],
)
def test_too_many_values_are_refused_before_any_is_decoded(
    encoding: Encoding, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB of empty maps took 1.5 GB and three seconds of the loop before they were refused."""
    body = _body(value, encoding)
    with monkeypatch.context() as patched:
        patched.setattr(msgpack, "unpackb", lambda *_, **__: pytest.fail("it was decoded"))
        patched.setattr(json, "loads", lambda *_, **__: pytest.fail("it was decoded"))
        with pytest.raises(TooManyValues, match=f"more than {VALUES_MAX} values"):
            decode(body, encoding)


@pytest.mark.parametrize("text", [rb"\"{", b'\\\n\\"{', rb"\"[,{ "])
def test_a_string_without_an_end_is_searched_once(text: bytes) -> None:
    """Its end was searched again from each quote in it: 120 kB took three minutes of a core, and
    16 MiB would have taken days, with the event loop standing still for a tenth of a second each
    time."""
    body = b'{"messages": "' + text * (MAPS_MAX + 1)
    for end in (b"", b"\\"):
        with pytest.raises(BadRequest, match="is not JSON"):
            decode(body + end, Encoding.JSON)


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"body_text": '{"a": [1, 2, "\\"{,[" ]},' * 100_000}]},
        {"messages": [{"body_text": "x", "keys": ["a", "b"], "flag": 1}] * 4096},
        {"messages": [{"properties": {"a": "b"}, "body_text": '\\"\\', "flag": -5.5}] * 4096},
    ],
)
def test_a_request_within_the_bounds_is_decoded_whatever_its_texts_hold(
    encoding: Encoding, value: object
) -> None:
    assert decode(_body(value, encoding), encoding) == value


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats()
        | st.text(max_size=300)
        | st.binary(max_size=300)
        | st.binary(max_size=20).map(lambda data: msgpack.ExtType(5, data)),
        lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
        max_leaves=60,
    )
)
def test_the_values_of_msgpack_are_counted_one_by_one(value: object) -> None:
    def count(each: object) -> int:
        if isinstance(each, dict):
            return 1 + sum(1 + count(inner) for inner in each.values())
        return 1 + sum(map(count, each)) if isinstance(each, list) else 1

    body = msgpack.packb(value)
    total = count(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encodings, "VALUES_MAX", total)
        encodings.check_count(body, Encoding.MSGPACK)
        patched.setattr(encodings, "VALUES_MAX", total - 1)
        with pytest.raises(TooManyValues):
            encodings.check_count(body, Encoding.MSGPACK)
