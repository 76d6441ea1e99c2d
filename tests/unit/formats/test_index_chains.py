"""Both twins of ``index_chains``: rows in files, sound and damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.index_rows import packed, put_plainly
from tests.support.twins import twins_of
from tidemark.formats import index_chains as pure
from tidemark.formats.index_chains import ROW, IndexFileTooShort, NoRow
from tidemark.formats.index_file import Geometry

I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1
NOW_MS = 1_795_166_908_000

each_put = pytest.mark.parametrize("put_rows", twins_of("index", pure.put_rows))
each_held = pytest.mark.parametrize("held_rows", twins_of("index", pure.held_rows))
each_sound = pytest.mark.parametrize("sound", twins_of("index", pure.chains_are_sound))

geometries = st.builds(Geometry, st.integers(1, 12), st.integers(0, 24))
hashes = st.one_of(st.integers(0, 13), st.sampled_from([2**30, I32_MAX - 1, I32_MAX]))
times = st.one_of(
    st.integers(NOW_MS, NOW_MS + 9000),
    st.sampled_from([0, -1, -I64_MAX - 1, I64_MAX]),
    st.integers(-I64_MAX - 1, I64_MAX),
)
counts = st.one_of(
    st.integers(0, 25), st.sampled_from([-1, I32_MAX, -I32_MAX - 1]), st.integers(-30, 30)
)


@st.composite
def files(draw: st.DrawFn) -> tuple[Geometry, bytearray]:
    """A file as puts leave it, and then perhaps overwritten here and there."""
    geometry = draw(geometries)
    data = bytearray(geometry.size)
    source = draw(st.randoms(use_true_random=False))
    if draw(st.booleans()):
        struct.pack_into(">qqqq", data, 0, NOW_MS - 9000, NOW_MS, 3, 5)
    offset, now_ms = 0, NOW_MS
    for _ in range(draw(st.integers(0, max(0, geometry.entries)))):
        put_plainly(data, geometry, (source.choice([0, 1, 5, 12, 13, I32_MAX]), offset, now_ms))
        offset += source.choice([0, 0, 1, 97])
        now_ms += source.choice([0, 1, 700, 2500])
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 6))):
            field = draw(st.integers(0, len(data) // 4 - 1)) * 4
            value = draw(st.one_of(counts, st.integers(-I32_MAX - 1, I32_MAX)))
            struct.pack_into(">i", data, field, value)
    if draw(st.booleans()):
        struct.pack_into(">i", data, 36, draw(counts))
    return geometry, data


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """What it returns, or the type of what it raises."""
    try:
        return call(*arguments)
    except (ValueError, OverflowError, TypeError, BufferError) as error:
        return type(error)


@each_put
def test_a_row_s_hash_must_fit_and_later_ones_count_too(put_rows: Callable[..., int]) -> None:
    geometry = Geometry(3, 9000)
    data = bytearray(geometry.size)
    good = [(number, number, NOW_MS) for number in range(6000)]
    for bad in (-1, 1 << 31, 1 << 40):
        raw = packed([*good, (bad, 7000, NOW_MS)])
        with pytest.raises(NoRow):
            put_rows(memoryview(data), *geometry, raw, 0)
    assert not any(data)


@given(
    file=files(),
    key_hash=hashes,
    hits_max=st.integers(1, 5),
    entries_max=st.integers(1, 5),
)
def test_a_look_up_in_parts_finds_the_same_as_at_once(
    file: tuple[Geometry, bytearray], key_hash: int, hits_max: int, entries_max: int
) -> None:
    geometry, data = file
    view = memoryview(bytes(data))
    asked = (view, *geometry, key_hash & I32_MAX, 0, 1 << 62)
    whole, end, seen = pure.look_up(*asked, 1 << 30, 0, 1 << 30)
    assert end == 0
    found: list[int] = []
    number = seen_in_parts = 0
    while True:
        hits, number, count = pure.look_up(*asked, hits_max, number, entries_max)
        assert len(hits) <= hits_max
        assert count <= entries_max
        found += hits
        seen_in_parts += count
        if not number:
            break
    assert (found, seen_in_parts) == (whole, seen)


@pytest.mark.parametrize("name", ["put_rows", "look_up", "held_rows", "chains_are_sound"])
@given(slots=st.integers(-2, 1 << 70), entries=st.integers(-2, 1 << 70), size=st.integers(0, 200))
def test_a_geometry_that_does_not_fit_the_bytes_is_refused(
    name: str, slots: int, entries: int, size: int
) -> None:
    rest: dict[str, tuple[object, ...]] = {
        "put_rows": (b"", 0),
        "look_up": (1, 0, 9, 9, 0, 9),
        "held_rows": (b"", 0, 0),
        "chains_are_sound": (1,),
    }
    fits = slots >= 1 and entries >= 0 and size >= 40 + 4 * slots + 20 * entries
    for parameter in twins_of("index", getattr(pure, name)):
        if parameter.marks and parameter.values[0] is None:
            continue
        call: Any = parameter.values[0]
        found = outcome(call, memoryview(bytearray(size)), slots, entries, *rest[name])
        assert (found is IndexFileTooShort) != fits


@each_put
def test_a_file_for_reading_takes_no_rows(put_rows: Callable[..., int]) -> None:
    geometry = Geometry(3, 9)
    with pytest.raises(BufferError):
        put_rows(memoryview(bytes(geometry.size)), *geometry, packed([(1, 1, NOW_MS)]), 0)


@each_put
@pytest.mark.parametrize("count", [1, 2, 4095, 4096, 4097, 9000])
def test_many_rows_over_many_steps_are_single_puts(
    put_rows: Callable[..., int], count: int
) -> None:
    source = random.Random(count)
    geometry = Geometry(97, 8500)
    rows = [
        (source.choice([source.getrandbits(31), 5, 102]), number // 2, NOW_MS + number)
        for number in range(count)
    ]
    one, other = bytearray(geometry.size), bytearray(geometry.size)
    expected = sum(put_plainly(other, geometry, row) for row in rows)
    assert put_rows(memoryview(one), *geometry, packed(rows), 0) == expected == min(count, 8499)
    assert one == other


@each_held
def test_a_comparison_along_one_hot_key_takes_one_pass(held_rows: Callable[..., int]) -> None:
    """Along the chain each look-up would walk all newer entries: 30,000 × 15,000 steps."""
    geometry = Geometry(7, 30_001)
    data = bytearray(geometry.size)
    raw = packed([(3, number, NOW_MS) for number in range(30_000)])
    assert pure.put_rows(memoryview(data), *geometry, raw, 0) == 30_000
    assert held_rows(memoryview(data), *geometry, raw, 0, 30_000) == 30_000
    missing = raw[: 20_000 * ROW.size] + packed([(4, 20_000, 0)])
    assert held_rows(memoryview(data), *geometry, missing, 0, 20_001) == 20_000


@each_sound
def test_soundness_from_an_entry_on_leaves_those_before_it_aside(
    sound: Callable[..., bool],
) -> None:
    geometry = Geometry(5, 40)
    data = bytearray(geometry.size)
    for number in range(30):
        put_plainly(data, geometry, (number % 9, number, NOW_MS))
    struct.pack_into(">i", data, geometry.entry_offset(12) + 16, 11)
    view = memoryview(data)
    assert [sound(view, *geometry, first) for first in (1, 11, 12, 30, 31)] == [
        False, False, True, True, True,
    ]  # fmt: skip
