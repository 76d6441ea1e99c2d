"""Traced ranges of the log: sent to other services, bounded, forgotten."""

from __future__ import annotations

import json
from random import Random

import pytest

from shared.runtime.traced_ranges import (
    FORGOTTEN_AFTER_S,
    RANGES_MAX,
    TRACE_SIZE_MAX,
    TracedRange,
    TracedRanges,
    decode,
    encode,
)
from tests.support.for_each import for_each
from tests.support.fuzz_cases import damaged

ORDER = TracedRange("order-4711", 1000, 1200)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_stretch_comes_back_from_its_note() -> None:
    assert decode(encode(ORDER)) == ORDER
    longest = TracedRange("x" * TRACE_SIZE_MAX, (1 << 63) - 1, (1 << 63) - 1)
    assert decode(encode(longest)) == longest


@pytest.mark.parametrize(
    "note",
    [
        b"\x02\x03",
        b"\xff\xff",
        b"[]",
        b"{}",
        b'["a", 1]',
        b'["a", null, 2]',
        b"[1, 1, 2]",
        json.dumps(["x" * (TRACE_SIZE_MAX + 1), 1, 2]).encode(),
        b"[" * 1000,
    ],
)
def test_a_note_of_something_else_is_none(note: bytes) -> None:
    assert decode(note) is None


@for_each("seed", range(30))
def test_damaged_notes_do_no_harm(seed: int) -> None:
    ranges = TracedRanges(Clock())
    for note in damaged(Random(seed), encode(ORDER), 50):
        ranges.note(note)
    ranges.reached(1 << 62, lambda traced: None)


def test_each_range_is_reported_once_when_the_step_has_passed_its_end() -> None:
    ranges, said = TracedRanges(Clock()), list[TracedRange]()
    ranges.note(encode(ORDER))
    ranges.note(encode(ORDER._replace(trace="later", end_offset=5000)))
    assert ranges
    ranges.reached(1199, said.append)
    assert said == []
    ranges.reached(1200, said.append)
    ranges.reached(4999, said.append)
    assert said == [ORDER]
    ranges.reached(5000, said.append)
    assert [each.trace for each in said] == ["order-4711", "later"]
    assert not ranges


def test_unused_ranges_are_forgotten_and_their_number_is_bounded() -> None:
    clock = Clock()
    ranges, said = TracedRanges(clock), list[TracedRange]()
    ranges.note(encode(ORDER))
    clock.now += FORGOTTEN_AFTER_S
    ranges.reached(1 << 40, said.append)
    assert (said, bool(ranges)) == ([], False)
    for number in range(3 * RANGES_MAX):
        ranges.note(encode(ORDER._replace(end_offset=number)))
    ranges.reached(1 << 40, said.append)
    assert len(said) == RANGES_MAX
