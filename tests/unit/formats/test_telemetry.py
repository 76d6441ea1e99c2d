"""Telemetry records: round trip, damage, and deltas that add up to the keyframe."""

from __future__ import annotations

import contextlib
from array import array

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import telemetry
from tidemark.formats.telemetry import (
    PAYLOAD_SIZE_MAX,
    Absent,
    BadTelemetry,
    Column,
    Head,
    Kind,
    Part,
    Section,
    decode,
    encode,
)

AT_MS = 1_800_000_000_123
HEAD = Head(AT_MS - 5000, 3, 0, True, 0, 1, 0, 2, AT_MS - 123, AT_MS, "n0", {"t_max_ms": AT_MS})
SIGNED = st.integers(-(1 << 62), (1 << 62) - 1)
NAMES = st.text(max_size=40)


@st.composite
def columns(draw: st.DrawFn, rows: int) -> Column:
    reasons = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
    values = draw(st.lists(SIGNED, min_size=rows, max_size=rows))
    if not any(reasons):
        return Column(array("q", values), b"")
    known = [0 if reason else value for value, reason in zip(values, reasons, strict=True)]
    return Column(array("q", known), bytes(reasons))


@st.composite
def sections(draw: st.DrawFn) -> Section:
    kind, rows = draw(st.sampled_from(Kind)), draw(st.integers(1, 40))
    names: list[str] = []
    keys = {}
    if kind is Kind.NEW:
        first = draw(st.integers(0, 1000))
        ids = array("q", range(first, first + rows))
        if draw(st.booleans()):
            names = draw(st.lists(NAMES, min_size=rows, max_size=rows))
        else:
            numbers = st.lists(st.integers(0, 100_000), min_size=rows, max_size=rows)
            keys = {"topic": array("q", draw(numbers)), "queue": array("q", draw(numbers))}
    else:
        ids = array("q", sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=rows))))
    rows = len(ids)
    found = {}
    if kind is not Kind.GONE:
        for name in draw(st.sets(st.sampled_from(("max_offset", "head_at_ms", "member")))):
            found[name] = draw(columns(rows))
    return Section("position", kind, ids, names, keys, found)


@given(st.lists(sections(), max_size=4))
def test_a_part_is_read_as_it_was_written(given: list[Section]) -> None:
    assert decode(encode(Part(HEAD, given))) == Part(HEAD, given)


@given(st.lists(sections(), max_size=3), st.data())
def test_flipped_and_cut_bytes_are_never_read_as_a_part(
    given: list[Section], data: st.DataObject
) -> None:
    body = encode(Part(HEAD, given))
    flipped = bytearray(body)
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadTelemetry):
        decode(bytes(flipped))
    with pytest.raises(BadTelemetry):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=20))
def test_a_sound_record_with_another_payload_is_refused_and_nothing_else_is_raised(
    given: object,
) -> None:
    with contextlib.suppress(OverflowError):  # msgpack takes numbers of 64 bits
        body = telemetry._body(msgpack.packb(given))
        with pytest.raises(BadTelemetry):
            decode(body)


def test_a_part_that_is_too_large_is_refused_by_writer_and_reader() -> None:
    names = ["x" * 200] * 6000
    large = Section("topic", Kind.NEW, array("q", range(6000)), names)
    with pytest.raises(ValueError, match="1048576 are allowed"):
        encode(Part(HEAD, [large]))
    with pytest.raises(BadTelemetry, match="exceeds 1048576 bytes"):
        decode(telemetry._body(bytes(PAYLOAD_SIZE_MAX + 1)))


def test_a_later_version_is_refused_by_name() -> None:
    body = bytearray(encode(Part(HEAD, [])))
    body[4] += 1
    with pytest.raises(BadTelemetry, match="version 2"):
        decode(bytes(body))


def test_members_of_the_head_that_are_not_known_are_skipped() -> None:
    stored = msgpack.packb([[*HEAD, "later"], []])
    assert decode(telemetry._body(stored)).head == HEAD


def test_a_thousand_idle_queues_take_few_bytes_each() -> None:
    rows = 1000
    ids = array("q", range(rows))
    offsets = array("q", [1_000_000 + 7919 * place % 65_536 for place in range(rows)])
    absent = bytes([Absent.NONE.value]) * rows
    keyframe = Section(
        "position",
        Kind.NEW,
        ids,
        (),
        {"pair": array("q", [place // 8 for place in ids]), "queue": array("q", [0] * rows)},
        {
            "commit_offset": Column(offsets, b""),
            "head_at_ms": Column(array("q", [0] * rows), absent),
        },
    )
    assert len(encode(Part(HEAD, [keyframe]))) / rows < 4
