"""Consume queue units: the vectors of docs/formats.md A.4, and any 20 bytes."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.for_each import for_each
from tests.support.twins import twin_modules_of
from tidemark.formats import queue_unit
from tidemark.formats.queue_unit import PRE_BLANK, Unit

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("unit", "stored"),
    [
        (Unit(165, 112, 0x27A808), "00000000000000a500000070000000000027a808"),
        (Unit(0, 0x7FFFFFFF, 0), "00000000000000007fffffff0000000000000000"),
        (Unit(393, 162, 1795166918153), "0000000000000189000000a2000001a1f8495609"),
    ],
)
def test_units_are_stored_as_the_reference_stores_them(unit: Unit, stored: str) -> None:
    assert queue_unit.encode(unit).hex() == stored
    assert queue_unit.decode(bytes.fromhex(stored)) == unit


@given(I64, I32, I64, st.binary(max_size=9))
def test_an_encoded_record_is_decoded_at_any_place(
    offset: int, size: int, tags_code: int, before: bytes
) -> None:
    unit = Unit(offset, size, tags_code)
    view = memoryview(before + queue_unit.encode(unit) + b"behind")
    assert queue_unit.decode(view, len(before)) == unit


@given(st.binary(max_size=60), st.integers(-5, 70))
def test_any_bytes_decode_or_are_too_few(data: bytes, start: int) -> None:
    if 0 <= start <= len(data) - 20:
        assert queue_unit.encode(queue_unit.decode(data, start)) == data[start : start + 20]
    else:
        with pytest.raises(ValueError, match="a unit needs 20 bytes"):
            queue_unit.decode(data, start)


@given(st.binary(min_size=20, max_size=20))
def test_a_valid_unit_has_an_offset_and_a_size(data: bytes) -> None:
    unit = queue_unit.decode(data)
    assert queue_unit.is_valid(unit) == (unit.physical_offset >= 0 and unit.size > 0)


def test_the_first_record_of_all_has_a_valid_unit_and_unwritten_space_has_none() -> None:
    assert queue_unit.is_valid(Unit(0, 91, 0))
    assert not queue_unit.is_valid(queue_unit.decode(bytes(20)))


def test_a_pre_blank_run_is_valid_units_that_point_nowhere() -> None:
    run = queue_unit.pre_blank_run(3)
    assert len(run) == 60
    units = [queue_unit.decode(run, start) for start in (0, 20, 40)]
    assert all(queue_unit.is_pre_blank(unit) and queue_unit.is_valid(unit) for unit in units)
    assert not queue_unit.is_pre_blank(Unit(0, 91, 0))


def test_a_unit_ends_behind_its_record() -> None:
    assert Unit(165, 112, 0).end == 277


# -- units in order, by both twins ----------------------------------------------------------------

END_MAX = 2**63 - 1


def row_of(*units: tuple[int, int]) -> bytes:
    return b"".join(queue_unit.encode(Unit(offset, size, 7)) for offset, size in units)


@pytest.mark.parametrize("twin", twin_modules_of("units", queue_unit))
@for_each(
    ("view", "end", "end_max", "expected"),
    [
        (b"", 5, END_MAX, (0, 5)),
        (bytes(40), 0, END_MAX, (0, 0)),
        (row_of((0, 100), (100, 50), (200, 1)), 0, END_MAX, (3, 201)),
        (row_of((0, 100), (100, 50)) + bytes(19), 0, END_MAX, (2, 150)),
        (row_of((0, 100), (100, 50), (200, 1)), 0, 200, (2, 150)),
        (row_of((0, 100), (99, 50)), 0, END_MAX, (1, 100)),
        (row_of((100, 50)), 101, END_MAX, (0, 101)),
        (row_of((0, 100)) + bytes(20) + row_of((100, 1)), 0, END_MAX, (1, 100)),
        (row_of((5, 0)), 0, END_MAX, (0, 0)),
        (row_of((5, -1)), 0, END_MAX, (0, 0)),
        (row_of((-1, 5)), 0, END_MAX, (0, 0)),
        (PRE_BLANK * 3 + row_of((9, 91)), 0, END_MAX, (4, 100)),
        (row_of((9, 91)) + PRE_BLANK, 0, END_MAX, (1, 100)),
        (PRE_BLANK * 3 + row_of((9, 91)), 0, 0, (3, 0)),
        (row_of((END_MAX, 1)), 0, END_MAX, (0, 0)),
        (row_of((END_MAX - 5, 5)), 0, END_MAX, (1, END_MAX)),
        (row_of((END_MAX, 0x7FFFFFFF)), 0, 10, (0, 0)),
    ],
)
def test_leading_units_end_at_the_first_that_is_not_what_it_should_be(
    twin: ModuleType, view: bytes, end: int, end_max: int, expected: tuple[int, int]
) -> None:
    assert twin.leading_units(view, end=end, end_max=end_max) == expected
    assert twin.leading_units(memoryview(b"x" + view)[1:], end=end, end_max=end_max) == expected
