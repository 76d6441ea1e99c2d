from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.queue_math import (
    EVERYTHING,
    Boundary,
    count_visible,
    first_kept,
    place,
    recovered_units,
    roll_next,
    search_by_time,
)
from tidemark.formats.queue_unit import PRE_BLANK, Unit, encode
from tidemark.offsets import UNIT_SIZE

MIN = 100
"""Start of the log in the time tables: offsets below it are expired."""


def packed(units: list[Unit], zeros: int = 0) -> memoryview:
    return memoryview(b"".join(map(encode, units)) + bytes(zeros * UNIT_SIZE))


def adjacent(sizes: list[int], start: int = 0) -> list[Unit]:
    """Units of records of these sizes, one behind the other."""
    units = []
    for size in sizes:
        units.append(Unit(start, size, 0))
        start += size
    return units


@given(st.integers(0, 10**9), st.integers(1, 400_000))
def test_a_unit_lies_in_the_file_of_its_number(number: int, units: int) -> None:
    file_size = units * UNIT_SIZE
    start, position = place(number, file_size)
    assert start % file_size == 0
    assert 0 <= position < file_size
    assert start + position == number * UNIT_SIZE


@pytest.mark.parametrize(
    ("number", "following"), [(0, 10), (9, 10), (10, 20), (13, 20), (300_000, 300_010)]
)
def test_rolling_goes_to_the_first_number_of_the_next_file(number: int, following: int) -> None:
    assert roll_next(number, 10 * UNIT_SIZE) == following


@given(
    sizes=st.lists(st.integers(91, 500), max_size=60),
    blanks=st.integers(0, 9),
    zeros=st.integers(0, 9),
    end=st.integers(0, 20_000),
    data=st.data(),
)
def test_counting_from_any_known_place_equals_reading_each_unit(
    sizes: list[int], blanks: int, zeros: int, end: int, data: st.DataObject
) -> None:
    units = adjacent(sizes)
    view = memoryview(PRE_BLANK * blanks + bytes(packed(units, zeros)))
    total = blanks + len(units) + zeros
    expected = blanks + sum(1 for unit in units if unit.end <= end)
    low = data.draw(st.integers(0, expected))
    assert count_visible(view, total, end, low) == expected
    assert recovered_units(view, total) == blanks + len(units)
    assert count_visible(view, total, EVERYTHING) == blanks + len(units)


@given(
    sizes=st.lists(st.integers(91, 500), max_size=40),
    blanks=st.integers(0, 9),
    start=st.sampled_from([0, 1, 5000]),
    min_physical=st.integers(0, 20_000),
)
def test_the_first_kept_unit_is_the_first_message_at_or_above_the_logs_start(
    sizes: list[int], blanks: int, start: int, min_physical: int
) -> None:
    units = adjacent(sizes, start)
    view = memoryview(PRE_BLANK * blanks + bytes(packed(units)))
    total = blanks + len(units)
    kept = [index for index, unit in enumerate(units) if unit.physical_offset >= min_physical]
    expected = blanks + kept[0] if kept else total
    assert first_kept(view, total, min_physical) == expected


def test_pre_blank_units_are_passed_over_though_the_log_starts_at_their_offset() -> None:
    # The reference's search stops in the middle of them: 37 from 300000 on give 300024.
    view = memoryview(PRE_BLANK * 37 + encode(Unit(0, 203, 0)))
    assert first_kept(view, 38, 0) == 37


# -- times ------------------------------------------------------------------------------------


def answer(
    times: list[int],
    timestamp: int,
    boundary: Boundary,
    *,
    file_offset: int = 0,
    floor: int = 0,
    expired: int = 0,
) -> int:
    """Search units with these store times; the first ``expired`` of them cannot be read."""
    offsets = [index if index < expired else MIN + index for index in range(len(times))]
    by_offset = dict(zip(offsets[expired:], times[expired:], strict=True))
    return search_by_time(
        file_offset=file_offset,
        floor=floor,
        ceiling=len(times) - 1,
        timestamp_ms=timestamp,
        boundary=boundary,
        min_physical=MIN,
        unit_at=lambda index: (offsets[index], 91),
        store_time=lambda offset, size: by_offset.get(offset, -1),
    )


def test_in_a_later_file_before_all_is_its_first_number_or_0() -> None:
    assert answer([10, 20], 5, Boundary.LOWER, file_offset=50) == 50
    assert answer([10, 20], 5, Boundary.UPPER, file_offset=50) == 0
    assert answer([10, 20], 15, Boundary.UPPER, file_offset=50) == 50


@pytest.mark.parametrize("boundary", list(Boundary))
def test_a_time_shared_by_very_many_messages_is_found_in_few_reads(boundary: Boundary) -> None:
    """It went from message to message through all of one time: linear, on the loop."""
    count, reads = 100_000, 0
    times = [1, *[5] * count, 9]

    def time_of(offset: int, _: int) -> int:
        nonlocal reads
        reads += 1
        return times[offset]

    found = search_by_time(
        file_offset=0,
        floor=0,
        ceiling=count + 1,
        timestamp_ms=5,
        boundary=boundary,
        min_physical=0,
        unit_at=lambda index: (index, 91),
        store_time=time_of,
    )
    assert found == (1 if boundary is Boundary.LOWER else count)
    assert reads < 50


@given(
    times=st.lists(st.integers(1, 30), min_size=1, max_size=40).map(sorted),
    timestamp=st.integers(0, 32),
    data=st.data(),
)
def test_the_answer_is_the_nearest_message_on_the_right_side(
    times: list[int], timestamp: int, data: st.DataObject
) -> None:
    floor = data.draw(st.integers(0, len(times) - 1))
    expired = data.draw(st.integers(0, floor))
    later = [index for index in range(floor, len(times)) if times[index] >= timestamp]
    earlier = [index for index in range(floor, len(times)) if times[index] <= timestamp]
    lower = answer(times, timestamp, Boundary.LOWER, floor=floor, expired=expired)
    upper = answer(times, timestamp, Boundary.UPPER, floor=floor, expired=expired)
    if len(later) == len(times) - floor and times[floor] > timestamp:
        assert (lower, upper) == (0, 0)  # the file's start, and 0: the caller clamps
    else:
        assert lower == (later[0] if later else len(times))
        assert upper == earlier[-1]
