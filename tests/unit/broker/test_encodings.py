"""Bodies in and out: whatever the bytes are, a value or BadRequest; the caller's encoding back."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker import encodings
from services.broker.encodings import Encoding
from tidemark.errors import BadRequest, UnsupportedMediaType

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("encoding", list(Encoding))
@given(value=JSON_VALUES)
def test_what_is_encoded_decodes_to_the_same(encoding: Encoding, value: Any) -> None:
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
        b'{"a":' * 100_000,
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
def test_another_content_type_is_refused_with_what_would_do(content_type: str) -> None:
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
def test_no_header_keeps_an_answer_from_having_an_encoding(accept: str, content_type: str) -> None:
    assert encodings.of_answer(accept, content_type) in Encoding
    assert isinstance(encodings.wants_records(accept), bool)


def test_text_that_is_no_unicode_is_shown_escaped_and_not_an_error() -> None:
    value = {"detail": "name \ud800"}
    assert msgpack.unpackb(encodings.encode(value, Encoding.MSGPACK)) == {"detail": "name \\ud800"}
    assert json.loads(encodings.encode(value, Encoding.JSON)) == {"detail": "name \ud800"}
