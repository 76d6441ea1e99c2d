"""Whatever a server answers, the client returns a result or raises a typed error."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark import errors
from tidemark.client.admin import topic_of
from tidemark.client.answers import Answer, error_of
from tidemark.client.consumer import _message
from tidemark.client.messages import NewMessage, is_offset_id
from tidemark.client.paths import path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary(max_size=200), st.sampled_from([b"json", b"msgpack"]), st.integers(400, 599))
def test_any_error_body_becomes_a_typed_error(data: bytes, form: bytes, status: int) -> None:
    headers = {"Content-Type": f"application/{form.decode()}"}
    assert isinstance(error_of(status, headers, data), errors.TidemarkError)


@given(VALUES)
def test_any_map_in_an_error_answer_becomes_a_typed_error(value: Any) -> None:
    for wire in (value, {"code": value}, {"code": "x", "detail": value, "retriable": value}):
        error = error_of(500, {"Content-Type": "application/msgpack"}, msgpack.packb(wire))
        assert isinstance(error, errors.TidemarkError)


@given(VALUES)
def test_any_value_in_place_of_a_message_or_topic_is_a_broken_answer(value: Any) -> None:
    wire = msgpack.packb(value)
    try:
        decoded = Answer({}, wire).map()
    except errors.BrokenAnswer:
        return
    with pytest.raises(errors.BrokenAnswer):
        _message(decoded)
    with pytest.raises(errors.BrokenAnswer):
        topic_of({"topic": "x", "queues": [decoded]})


def test_a_header_that_is_no_number_is_a_broken_answer() -> None:
    for headers in ({}, {"Tidemark-Next-Offset": "ten"}):
        with pytest.raises(errors.BrokenAnswer, match="Tidemark-Next-Offset"):
            Answer(headers, b"").number("Tidemark-Next-Offset")


@given(st.text(min_size=1))
def test_a_path_keeps_its_segments_apart(topic: str) -> None:
    if topic in (".", ".."):
        return
    quoted = path("topics", topic, "messages")
    assert quoted.count("/") == 4
    assert quoted.isascii()


@pytest.mark.parametrize("name", ["", ".", "..", "\udcff"])
def test_a_name_that_no_path_can_hold_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(errors.BadName, match="Nothing was sent"):
        path("topics", name)


def test_only_what_was_given_goes_over_the_wire() -> None:
    assert NewMessage(b"x").outgoing().wire == {"body": b"x"}
    full = NewMessage(b"x", "t", ["k"], {"p": "v"}, queue=1, flag=2, delay_level=3)
    assert full.outgoing().wire == {
        "body": b"x", "tags": "t", "keys": ["k"], "properties": {"p": "v"}, "queue": 1,
        "flag": 2, "delay_level": 3,
    }  # fmt: skip
    assert NewMessage(b"x", sharding_key="s", delay_ms=4).outgoing(7).wire == {
        "body": b"x", "sharding_key": "s", "delay_ms": 4,
    }  # fmt: skip
    assert NewMessage(b"x", deliver_at_ms=5).outgoing(7).wire == {
        "body": b"x", "queue": 7, "deliver_at_ms": 5,
    }  # fmt: skip


def test_an_offset_id_is_recognised_by_its_form() -> None:
    assert is_offset_id("0A00000100002A9F000000000000005B")
    assert not is_offset_id("order-1")
    assert not is_offset_id("")
