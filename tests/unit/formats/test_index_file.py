"""Index files: the reference's vectors, look-ups against a model, a kill between any two stores."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.formats import index_file
from tidemark.formats.index_file import Geometry, Header, IndexFile, IndexFileTooShort

SMALL = Geometry(slots=20, entries=30)
ALL_TIMES = {"begin_ms": -(2**62), "end_ms": 2**62, "hits_max": 10**6}

Row = tuple[int, int, int]


def new(
    geometry: Geometry = SMALL, predecessor: Header | None = None
) -> tuple[bytearray, IndexFile]:
    data = bytearray(geometry.size)
    index = IndexFile(memoryview(data), geometry)
    if predecessor is not None:
        index.start_after(predecessor)
    return data, index


def filled(rows: list[Row], geometry: Geometry = SMALL, predecessor: Header | None = None) -> bytes:
    data, index = new(geometry, predecessor)
    for row in rows:
        assert index.put(*row)
    return bytes(data)


def rows_of(random_source: random.Random, count: int, *, start: int = 0) -> list[Row]:
    """Rows in the order of a log; few hashes, so that chains are long."""
    rows = []
    offset, now_ms = start, 1_795_166_908_000
    for _ in range(count):
        rows.append((random_source.choice([0, 1, 20, 21, 41, 2**31 - 1]), offset, now_ms))
        offset += random_source.choice([0, 0, 97, 200])
        now_ms += random_source.choice([0, 1, 700, 2500])
    return rows


def test_the_reference_s_entries_in_bytes() -> None:
    data, index = new()
    index.put(569321660, 0, 1795166908077)
    index.put(1903240649, 0, 1795166908077)
    assert SMALL.size == len(data) == 720
    assert data[140:160].hex() == "21ef28bc" + "00" * 8 + "00" * 8
    assert data[160:180].hex() == "717125c9" + "00" * 8 + "00" * 8
    assert struct.unpack_from(">i", data, 40 + 4 * (569321660 % 20)) == (1,)
    assert index.header == Header(1795166908077, 1795166908077, 0, 0, 2, 3)


def test_the_first_entry_behind_a_full_file_counts_seconds_from_that_file_s_end() -> None:
    _, first = new()
    for n in range(29):
        assert first.put(n, n * 100, 1795167034244)
    assert first.is_full
    assert not first.put(77, 2900, 1795167034244)
    assert first.header.next_entry == 30
    _, second = new(predecessor=first.header)
    assert second.header == Header(1795167034244, 1795167034244, 2800, 2800, 0, 1)
    second.put(5, 2900, 1795167036545)
    assert second.entry(1).seconds == 2
    assert second.header.begin_timestamp_ms == 1795167036545


@pytest.mark.parametrize(
    ("begin_ms", "now_ms", "seconds"),
    [
        (0, 10**12, 0),
        (-5, 10**12, 0),
        (10_000, 9_999, 0),
        (10_000, 10_999, 0),
        (10_000, 11_000, 1),
        (1, 2**62, 2**31 - 1),
    ],
)
def test_seconds_are_truncated_and_clamped(begin_ms: int, now_ms: int, seconds: int) -> None:
    data, index = new()
    struct.pack_into(">q", data, 0, begin_ms)
    index.put(1, 1, now_ms)
    assert index.entry(1).seconds == seconds


@given(st.randoms(use_true_random=False), st.integers(0, 29), st.booleans())
def test_many_rows_leave_the_bytes_of_one_put_after_another(
    source: random.Random, count: int, follows: bool
) -> None:
    rows = rows_of(source, count, start=5000)
    predecessor = Header(1, 1_795_166_900_000, 3, 4999, 1, 2) if follows else None
    data, index = new(predecessor=predecessor)
    done = 0
    while done < count:
        step = source.randint(1, count - done)
        assert index.put_many(rows[done : done + step]) == step
        done += step
    expected = filled(rows, predecessor=predecessor)
    assert bytes(data) == expected


def test_many_rows_stop_where_the_file_is_full() -> None:
    rows = rows_of(random.Random(1), 40)
    data, index = new()
    assert index.put_many(rows) == 29
    assert index.put_many(rows) == 0
    assert bytes(data) == filled(rows[:29])


def test_more_rows_than_one_step_takes() -> None:
    geometry = Geometry(50, 3 * index_file.PUT_MANY_MAX)
    rows = rows_of(random.Random(2), 2 * index_file.PUT_MANY_MAX + 3)
    data, index = new(geometry)
    assert index.put_many(rows) == len(rows)
    assert bytes(data) == filled(rows, geometry)


@given(
    st.randoms(use_true_random=False),
    st.integers(0, 29),
    st.integers(-3000, 60_000),
    st.integers(-3000, 60_000),
    st.integers(0, 12),
)
def test_lookups_are_those_of_a_plain_list(
    source: random.Random, count: int, begin: int, end: int, hits_max: int
) -> None:
    """Times never step back here, so the early stop of a chain changes nothing."""
    rows = rows_of(source, count)
    _, index = new()
    index.put_many(rows)
    first_ms = rows[0][2] if rows else 0
    begin_ms, end_ms = first_ms + begin, first_ms + end
    for key_hash in (0, 1, 20, 21, 41, 2**31 - 1, 40, 7):
        expected = [
            offset
            for stored_hash, offset, now_ms in reversed(rows)
            if stored_hash == key_hash
            and begin_ms <= first_ms + (now_ms - first_ms) // 1000 * 1000 <= end_ms
        ]
        found = index.lookup(key_hash, begin_ms=begin_ms, end_ms=end_ms, hits_max=hits_max)
        assert found == expected[:hits_max]


@given(st.randoms(use_true_random=False), st.integers(0, 29))
def test_it_contains_what_was_put(source: random.Random, count: int) -> None:
    rows = rows_of(source, count)
    _, index = new()
    index.put_many(rows)
    held = {(key_hash, offset) for key_hash, offset, _ in rows}
    for key_hash in (0, 1, 20, 21, 41, 2**31 - 1, 40, 7):
        for offset in {offset for _, offset, _ in rows} | {-1, 50, 10**6}:
            assert index.contains(key_hash, offset) == ((key_hash, offset) in held)


def test_an_entry_with_a_negative_time_ends_the_walk() -> None:
    data, index = new()
    for n in range(3):
        index.put(1, n * 100, 10_000)
    struct.pack_into(">i", data, SMALL.entry_offset(2) + 12, -1)
    assert index.lookup(1, **ALL_TIMES) == [200]


def test_a_chain_that_turns_back_is_walked_once() -> None:
    data, index = new()
    for n in range(5):
        index.put(1, n * 100, 10_000)
    struct.pack_into(">i", data, SMALL.entry_offset(2) + 16, 4)
    assert index.lookup(1, **ALL_TIMES) == [400, 300, 200, 100]
    assert not index.contains(1, 0)


def test_a_read_only_view_serves_look_ups() -> None:
    data = filled([(1, 100, 10_000)])
    index = IndexFile(memoryview(data), SMALL)
    assert index.lookup(1, **ALL_TIMES) == [100]
    assert index.contains(1, 100)


def test_closing_gives_the_view_back() -> None:
    view = memoryview(bytearray(SMALL.size))
    IndexFile(view, SMALL).close()
    view.release()


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(IndexFileTooShort, match="719 bytes, but 20 slots and 30 entries need 720"):
        IndexFile(memoryview(bytes(719)), SMALL)


@pytest.mark.parametrize("number", [-1, 0, 30])
def test_there_is_no_entry_outside(number: int) -> None:
    _, index = new()
    with pytest.raises(IndexError, match="is not in 1…29"):
        index.entry(number)


# -- kills -----------------------------------------------------------------------------------------


@contextmanager
def each_instruction(seen: Callable[[], None]) -> Iterator[None]:
    """Call seen before every bytecode instruction of index_file: between any two of its stores."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != index_file.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


def states_of(data: bytearray, act: Callable[[], object]) -> list[bytes]:
    """Every different content that the file had while act ran, first and last included."""
    states = [bytes(data)]

    def look() -> None:
        now = bytes(data)
        if now != states[-1]:
            states.append(now)

    with each_instruction(look):
        act()
    look()
    return states


def with_torn_entries(states: list[bytes]) -> list[bytes]:
    """Also the states inside one copy of bytes: a kill may leave any part of it done."""
    torn = list(states)
    for before, after in pairwise(states):
        changed = [at for at in range(len(before)) if before[at] != after[at]]
        if len(changed) < 2 or changed[0] < SMALL.entry_offset(0):
            continue  # one aligned store: it happens or it does not
        middle = changed[len(changed) // 2]
        torn.append(after[:middle] + before[middle:])
        torn.append(before[:middle] + after[middle:])
    return torn


def assert_same_index(data: bytes, expected: bytes) -> None:
    """Equal bytes; unwritten files may differ in the next entry being 0 or 1."""
    one, other = (IndexFile(memoryview(each), SMALL) for each in (data, expected))
    assert one.header == other.header
    assert data[40:] == expected[40:]


@settings(max_examples=25, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 24),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_a_put_killed_anywhere_and_healed_goes_on_as_if_never_killed(
    source: random.Random, before: int, put: int, one_by_one: bool, follows: bool
) -> None:
    predecessor = Header(1, 1_795_166_900_000, 0, 0, 1, 2) if follows else None
    rows = rows_of(source, before + put)
    data, index = new(predecessor=predecessor)
    index.put_many(rows[:before])

    def act() -> None:
        if one_by_one:
            for row in rows[before:]:
                index.put(*row)
        else:
            index.put_many(rows[before:])

    states = states_of(data, act)
    assert len(states) > 2
    for state in with_torn_entries(states):
        killed = bytearray(state)
        again = IndexFile(memoryview(killed), SMALL)
        again.heal(predecessor)
        done = again.entry_count
        assert before <= done <= before + put
        healed = bytes(killed)
        expected = filled(rows[:done], predecessor=predecessor)
        # The end time may still be that of the undone entry; everything else is exact.
        assert healed[:8] + healed[16:36] == expected[:8] + expected[16:36]
        assert healed[40:] == expected[40:]
        assert again.heal(predecessor) == 0
        assert bytes(killed) == healed
        again.put_many(rows[done:])
        assert_same_index(bytes(killed), filled(rows, predecessor=predecessor))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 29), st.booleans())
def test_a_cut_killed_anywhere_is_finished_by_the_next_one(
    source: random.Random, count: int, follows: bool
) -> None:
    predecessor = Header(1, 1_795_166_900_000, 0, 0, 1, 2) if follows else None
    rows = rows_of(source, count)
    at = source.choice([offset for _, offset, _ in rows]) + source.choice([0, 1])
    kept = [row for row in rows if row[1] < at]
    times = {offset: now_ms for _, offset, now_ms in rows}
    expected = filled(kept, predecessor=predecessor)
    data, index = new(predecessor=predecessor)
    index.put_many(rows)
    states = states_of(data, lambda: index.cut(at, last_time(kept), predecessor))
    for state in with_torn_entries(states):
        killed = bytearray(state)
        again = IndexFile(memoryview(killed), SMALL)
        again.heal(predecessor)
        again.cut(at, last_time(kept), predecessor)
        assert_same_index(bytes(killed), expected)
        again.put_many(rows[len(kept) :])
        assert_same_index(bytes(killed), filled(rows, predecessor=predecessor))
    assert times  # the model has what the look-up of times needs


def last_time(kept: list[Row]) -> Callable[[int], int]:
    """What the commit log answers: the store time of the last record kept."""

    def answer(offset: int) -> int:
        assert offset == kept[-1][1]
        return kept[-1][2]

    return answer


def test_a_cut_longer_than_one_step() -> None:
    geometry = Geometry(50, 3 * index_file.PUT_MANY_MAX)
    rows = rows_of(random.Random(3), 2 * index_file.PUT_MANY_MAX + 3)
    data, index = new(geometry)
    index.put_many(rows)
    at = rows[40][1] + 1
    kept = [row for row in rows if row[1] < at]
    assert index.cut(at, last_time(kept)) == len(rows) - len(kept)
    assert bytes(data) == filled(kept, geometry)


def test_a_cut_keeps_an_end_time_that_nobody_knows_any_more() -> None:
    _, index = new()
    index.put_many([(1, 100, 10_000), (2, 200, 12_000)])
    assert index.cut(200, lambda _: None) == 1
    assert index.header == Header(10_000, 12_000, 100, 100, 1, 2)


def test_a_file_cut_to_nothing_is_preset_again() -> None:
    _, index = new()
    index.put_many([(1, 100, 10_000), (2, 200, 12_000)])
    assert index.cut(0, lambda _: 0, Header(1, 9_000, 1, 50, 1, 2)) == 2
    assert index.header == Header(9_000, 9_000, 50, 50, 0, 1)


# -- damage ----------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(0, 29), st.data())
def test_no_damage_makes_a_reader_or_writer_fail(
    source: random.Random, count: int, draw: st.DataObject
) -> None:
    """Answers may be wrong, the caller compares records; but each call ends, without exception."""
    data = bytearray(filled(rows_of(source, count)))
    for _ in range(draw.draw(st.integers(1, 8))):
        at = draw.draw(st.integers(0, len(data) - 4))
        data[at : at + 4] = draw.draw(st.binary(min_size=4, max_size=4))
    index = IndexFile(memoryview(data), SMALL)
    for key_hash in (0, 1, 20, 2**31 - 1):
        hits = index.lookup(key_hash, begin_ms=0, end_ms=2**62, hits_max=64)
        assert len(hits) <= 64
        index.contains(key_hash, 97)
    assert isinstance(index.problem(), str | None)
    assert 0 <= index.entry_count <= 29
    copy = bytearray(data)
    writer = IndexFile(memoryview(copy), SMALL)
    writer.heal()
    writer.cut(draw.draw(st.integers(0, 4000)), lambda _: 0)
    if not writer.is_full:
        assert writer.put(5, 100_000, 1_795_166_999_000)
        assert writer.contains(5, 100_000)
    writer.put_many([(6, 100_001, 1_795_166_999_000)])


@given(st.binary(min_size=SMALL.size, max_size=SMALL.size))
def test_any_bytes_can_be_searched(data: bytes) -> None:
    index = IndexFile(memoryview(data), SMALL)
    assert len(index.lookup(3, begin_ms=0, end_ms=2**62, hits_max=5)) <= 5
    index.contains(3, 0)
    index.problem()


@pytest.mark.parametrize(
    ("position", "stored", "problem"),
    [
        (36, struct.pack(">i", 31), "next entry 31 is not in 0…30"),
        (36, struct.pack(">i", -2), "next entry -2 is not in 0…30"),
        (32, struct.pack(">i", 9), "9 slots in use by 2 entries"),
        (16, struct.pack(">q", 500), "offsets 500…200"),
        (24, struct.pack(">q", 300), "entries run from physical offset 100 to 200"),
    ],
)
def test_a_header_that_cannot_be_is_named(position: int, stored: bytes, problem: str) -> None:
    data = bytearray(filled([(1, 100, 10_000), (2, 200, 12_000)]))
    index = IndexFile(memoryview(data), SMALL)
    assert index.problem() is None
    data[position : position + len(stored)] = stored
    found = index.problem()
    assert found is not None
    assert problem in found


def test_a_new_file_has_no_problem() -> None:
    _, index = new()
    assert index.problem() is None
    index.start_after(Header(1, 9_000, 1, 50, 1, 2))
    assert index.problem() is None


# -- readers meanwhile -----------------------------------------------------------------------------


def test_a_reader_never_misses_a_key_while_others_are_put() -> None:
    """At every instant of put and put_many the earlier hits of the same chain are found."""
    rows: list[Row] = [(1, n * 100, 10_000) for n in range(20)]
    data, index = new()
    index.put_many(rows[:5])
    for act in (lambda: index.put(*rows[5]), lambda: index.put_many(rows[6:])):
        before = index.entry_count
        for state in states_of(data, act):
            hits = IndexFile(memoryview(state), SMALL).lookup(1, **ALL_TIMES)
            assert hits[-before:] == [offset for _, offset, _ in reversed(rows[:before])]
            assert hits == sorted(hits, reverse=True)
