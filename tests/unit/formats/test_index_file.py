"""Index files: the reference's vectors, look-ups against a model, a kill between any two stores."""

from __future__ import annotations

import importlib
import mmap
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

from tests.support.index_rows import Row, packed, put_plainly
from tests.support.machine_steps import shared_memory, states_between_instructions
from tests.support.twins import twins_of
from tidemark.formats import index_chains, index_file
from tidemark.formats.index_file import Geometry, Header, IndexFile, IndexFileTooShort

SMALL = Geometry(slots=20, entries=30)
ALL_TIMES = {"begin_ms": -(2**62), "end_ms": 2**62, "hits_max": 10**6}
TWINS = ("put_rows", "look_up", "held_rows", "chains_are_sound")


@pytest.fixture(scope="module", autouse=True, params=twins_of("index", index_chains.put_rows))
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs with both twins of ``index_chains``."""
    module = importlib.import_module(request.param.__module__)
    with pytest.MonkeyPatch.context() as patch:
        for name in TWINS:
            patch.setattr(index_file, name, getattr(module, name))
        yield


def is_compiled() -> bool:
    return vars(index_file)["put_rows"] is not index_chains.put_rows


def new(
    geometry: Geometry = SMALL, predecessor: Header | None = None
) -> tuple[mmap.mmap, IndexFile]:
    data = shared_memory(geometry.size)
    index = IndexFile(memoryview(data), geometry)
    if predecessor is not None:
        index.start_after(predecessor)
    return data, index


def filled(rows: list[Row], geometry: Geometry = SMALL, predecessor: Header | None = None) -> bytes:
    data, index = new(geometry, predecessor)
    for row in rows:
        assert put_plainly(data, geometry, row)
    index.close()
    return bytes(data)


def put(index: IndexFile, *rows: Row) -> int:
    return index.put_rows(packed(rows))


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
    put(index, (569321660, 0, 1795166908077))
    put(index, (1903240649, 0, 1795166908077))
    assert SMALL.size == len(data) == 720
    assert data[140:160].hex() == "21ef28bc" + "00" * 8 + "00" * 8
    assert data[160:180].hex() == "717125c9" + "00" * 8 + "00" * 8
    assert struct.unpack_from(">i", data, 40 + 4 * (569321660 % 20)) == (1,)
    assert index.header == Header(1795166908077, 1795166908077, 0, 0, 2, 3)


def test_the_first_entry_behind_a_full_file_counts_seconds_from_that_file_s_end() -> None:
    _, first = new()
    for n in range(29):
        assert put(first, (n, n * 100, 1795167034244))
    assert first.is_full
    assert not put(first, (77, 2900, 1795167034244))
    assert first.header.next_entry == 30
    _, second = new(predecessor=first.header)
    assert second.header == Header(1795167034244, 1795167034244, 2800, 2800, 0, 1)
    put(second, (5, 2900, 1795167036545))
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
    put(index, (1, 1, now_ms))
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
        assert put(index, *rows[done : done + step]) == step
        done += step
    expected = filled(rows, predecessor=predecessor)
    assert bytes(data) == expected


def test_many_rows_stop_where_the_file_is_full() -> None:
    rows = rows_of(random.Random(1), 40)
    data, index = new()
    assert put(index, *rows) == 29
    assert put(index, *rows) == 0
    assert bytes(data) == filled(rows[:29])


def test_more_rows_than_one_step_takes() -> None:
    geometry = Geometry(50, 3 * index_file.PUT_MANY_MAX)
    rows = rows_of(random.Random(2), 2 * index_file.PUT_MANY_MAX + 3)
    data, index = new(geometry)
    assert put(index, *rows) == len(rows)
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
    put(index, *rows)
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
def test_it_holds_what_was_put_and_nothing_else(source: random.Random, count: int) -> None:
    rows = rows_of(source, count)
    _, index = new()
    put(index, *rows)
    held = {(key_hash, offset) for key_hash, offset, _ in rows}
    for key_hash in (0, 1, 20, 21, 41, 2**31 - 1, 40, 7):
        for offset in {offset for _, offset, _ in rows} | {-1, 50, 10**6}:
            assert index.held_rows(packed([(key_hash, offset, 0)]), 0, 1) == (
                (key_hash, offset) in held
            )


@given(st.randoms(use_true_random=False), st.integers(0, 29))
def test_rows_are_held_up_to_the_first_that_is_not(source: random.Random, count: int) -> None:
    rows = rows_of(source, count)
    _, index = new()
    put(index, *rows)
    held = {(key_hash, offset) for key_hash, offset, _ in rows}
    asked = [
        row if source.random() < 0.9 else (row[0], row[1] + source.choice([-1, 0, 1]), row[2])
        for row in rows
        if source.random() < 0.9
    ]
    first = source.randint(0, len(asked))
    end = source.randint(first, len(asked))
    expected = next((n for n in range(first, end) if asked[n][:2] not in held), end)
    assert index.held_rows(packed(asked), first, end) == expected


@given(st.randoms(use_true_random=False), st.integers(0, 29), st.integers(-100, 6000))
def test_the_first_entry_at_an_offset(source: random.Random, count: int, offset: int) -> None:
    rows = rows_of(source, count)
    _, index = new()
    put(index, *rows)
    assert index.first_at(offset) == 1 + sum(row[1] < offset for row in rows)


@given(st.randoms(use_true_random=False), st.integers(1, 29), st.data())
def test_any_overwritten_byte_in_a_chain_is_detected(
    source: random.Random, count: int, draw: st.DataObject
) -> None:
    rows = rows_of(source, count)
    data = bytearray(filled(rows))
    index = IndexFile(memoryview(data), SMALL)
    assert all(index.is_sound(first) for first in range(1, count + 2))
    number = draw.draw(st.integers(1, count))
    slot = SMALL.slot_offset(index.entry(number).key_hash % SMALL.slots)
    at, value = draw.draw(
        st.sampled_from(
            [
                (slot, 0),
                (SMALL.entry_offset(number), -1),
                (SMALL.entry_offset(number) + 4, -1),
                (SMALL.entry_offset(number) + 12, -1),
                (SMALL.entry_offset(number) + 16, -1),
                (SMALL.entry_offset(number) + 16, number),
            ]
        )
    )
    struct.pack_into(">i", data, at, value)
    assert not index.is_sound()
    assert not index.is_sound(number)
    assert index.is_sound(count + 1)


def test_an_entry_with_a_negative_time_ends_the_walk() -> None:
    data, index = new()
    for n in range(3):
        put(index, (1, n * 100, 10_000))
    struct.pack_into(">i", data, SMALL.entry_offset(2) + 12, -1)
    assert index.lookup(1, **ALL_TIMES) == [200]


def test_a_chain_that_turns_back_is_walked_once() -> None:
    data, index = new()
    for n in range(5):
        put(index, (1, n * 100, 10_000))
    struct.pack_into(">i", data, SMALL.entry_offset(2) + 16, 4)
    assert index.lookup(1, **ALL_TIMES) == [400, 300, 200, 100]
    assert not index.is_sound()


def test_a_read_only_view_serves_look_ups() -> None:
    data = filled([(1, 100, 10_000)])
    index = IndexFile(memoryview(data), SMALL)
    assert index.lookup(1, **ALL_TIMES) == [100]
    assert index.held_rows(packed([(1, 100, 0)]), 0, 1) == 1
    with pytest.raises(BufferError):
        put(index, (1, 200, 11_000))


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
    """Call seen before every bytecode instruction of the index file's pure code: between any two
    of its stores."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in (index_file.__file__, index_chains.__file__):
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


def states_of_put(data: mmap.mmap, act: Callable[[], object]) -> list[bytes]:
    """Every different content that the file had while act put rows, first and last included; with
    the compiled twin between any two machine instructions."""
    return states_between_instructions(data, act) if is_compiled() else states_of(data, act)


def states_of(data: mmap.mmap, act: Callable[[], object]) -> list[bytes]:
    """Every different content that the file had while pure code ran, first and last included."""
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
    """Add the states inside one copy of bytes: a kill may leave any part of it done."""
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


@settings(max_examples=10)
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 24),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_a_put_killed_anywhere_and_healed_goes_on_as_if_never_killed(
    source: random.Random, before: int, added: int, one_by_one: bool, follows: bool
) -> None:
    predecessor = Header(1, 1_795_166_900_000, 0, 0, 1, 2) if follows else None
    rows = rows_of(source, before + added)
    data, index = new(predecessor=predecessor)
    put(index, *rows[:before])
    batches = [[row] for row in rows[before:]] if one_by_one else [rows[before:]]
    puts = [packed(batch) for batch in batches]

    def act() -> None:
        for each in puts:
            index.put_rows(each)

    states = states_of_put(data, act)
    assert len(states) > 2
    numbers = range(before, before + added + 1)
    never_killed = {count: filled(rows[:count], predecessor=predecessor) for count in numbers}
    for state in with_torn_entries(states):
        killed = bytearray(state)
        again = IndexFile(memoryview(killed), SMALL)
        again.heal(predecessor)
        done = again.entry_count
        assert done in numbers
        healed = bytes(killed)
        expected = never_killed[done]
        # The end time may still be that of the undone entry; everything else is exact.
        assert healed[:8] + healed[16:36] == expected[:8] + expected[16:36]
        assert healed[40:] == expected[40:]
        assert again.heal(predecessor) == 0
        assert bytes(killed) == healed
        put(again, *rows[done:])
        assert_same_index(bytes(killed), never_killed[len(rows)])


@settings(max_examples=10)
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
    put(index, *rows)
    states = states_of(data, lambda: index.cut(at, last_time(kept), predecessor))
    assert len(states) > 1 or at > rows[-1][1]
    for state in with_torn_entries(states):
        killed = bytearray(state)
        again = IndexFile(memoryview(killed), SMALL)
        again.heal(predecessor)
        again.cut(at, last_time(kept), predecessor)
        assert_same_index(bytes(killed), expected)
        put(again, *rows[len(kept) :])
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
    put(index, *rows)
    at = rows[40][1] + 1
    kept = [row for row in rows if row[1] < at]
    assert index.cut(at, last_time(kept)) == len(rows) - len(kept)
    assert bytes(data) == filled(kept, geometry)


def test_a_cut_keeps_an_end_time_that_is_no_longer_known() -> None:
    _, index = new()
    put(index, (1, 100, 10_000), (2, 200, 12_000))
    assert index.cut(200, lambda _: None) == 1
    assert index.header == Header(10_000, 12_000, 100, 100, 1, 2)


def test_a_file_cut_to_nothing_is_preset_again() -> None:
    _, index = new()
    put(index, (1, 100, 10_000), (2, 200, 12_000))
    assert index.cut(0, lambda _: 0, Header(1, 9_000, 1, 50, 1, 2)) == 2
    assert index.header == Header(9_000, 9_000, 50, 50, 0, 1)


# -- damage ----------------------------------------------------------------------------------------


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
        assert index.held_rows(packed([(key_hash, 97, 0)]), 0, 1) in (0, 1)
    assert index.is_sound() in (True, False)
    assert 1 <= index.first_at(2000) <= 30
    assert isinstance(index.problem(), str | None)
    assert 0 <= index.entry_count <= 29
    copy = bytearray(data)
    writer = IndexFile(memoryview(copy), SMALL)
    writer.heal()
    writer.cut(draw.draw(st.integers(0, 4000)), lambda _: 0)
    if not writer.is_full:
        assert put(writer, (5, 100_000, 1_795_166_999_000)) == 1
        hits = writer.lookup(5, begin_ms=-(2**63), end_ms=2**63 - 1, hits_max=1)
        assert hits in ([100_000], [])  # []: the begin that it counts from is damaged
    put(writer, (6, 100_001, 1_795_166_999_000))


@given(st.binary(min_size=SMALL.size, max_size=SMALL.size))
def test_any_bytes_can_be_searched(data: bytes) -> None:
    index = IndexFile(memoryview(data), SMALL)
    assert len(index.lookup(3, begin_ms=0, end_ms=2**62, hits_max=5)) <= 5
    assert index.held_rows(packed([(3, 0, 0), (3, 1, 0)]), 0, 2) in (0, 1, 2)
    assert index.is_sound() in (True, False)
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
    """At every instant of a put the earlier hits of the same chain are found."""
    rows: list[Row] = [(1, n * 100, 10_000) for n in range(20)]
    data, index = new()
    put(index, *rows[:5])
    for act in (lambda: put(index, rows[5]), lambda: put(index, *rows[6:])):
        before = index.entry_count
        for state in states_of_put(data, act):
            hits = IndexFile(memoryview(state), SMALL).lookup(1, **ALL_TIMES)
            assert hits[-before:] == [offset for _, offset, _ in reversed(rows[:before])]
            assert hits == sorted(hits, reverse=True)
