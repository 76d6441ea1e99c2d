"""Names of files: they sort like their content, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.for_each import for_each
from tidemark.formats import filenames

OFFSETS = st.integers(0, filenames.OFFSET_MAX)
# Until the year 9990: beyond, seventeen digits do not hold a time.
TIMES_MS = st.integers(0, 253_000_000_000_000)


def test_the_default_names_of_a_commit_log() -> None:
    names = [filenames.offset_name(n << 30) for n in range(3)]
    assert names == ["00000000000000000000", "00000000001073741824", "00000000002147483648"]


@given(OFFSETS)
def test_an_offset_is_read_back_from_its_name(offset: int) -> None:
    assert filenames.parse_offset_name(filenames.offset_name(offset)) == offset


@given(OFFSETS, OFFSETS)
def test_names_sort_like_offsets(one: int, other: int) -> None:
    assert (filenames.offset_name(one) < filenames.offset_name(other)) == (one < other)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_no_name_for_an_offset_outside_the_range(offset: int) -> None:
    with pytest.raises(ValueError, match="is not in 0…"):
        filenames.offset_name(offset)


@for_each(
    "name",
    [
        "",
        "0",
        "0000000000000000000",
        "000000000000000000000",
        "-0000000000000000001",
        "+0000000000000000001",
        " 0000000000000000001",
        "0000000000000000000x",
        "0000000000_000000000",
        "٠" * 20,
        "²" * 20,
        "09223372036854775808",
        "00000000000000000000.tmp",
        ".DS_Store",
    ],
)
def test_other_names_are_not_offsets(name: str) -> None:
    assert filenames.parse_offset_name(name) is None


@given(st.text(max_size=24))
def test_any_text_is_an_offset_or_none(name: str) -> None:
    offset = filenames.parse_offset_name(name)
    assert offset is None or filenames.offset_name(offset) == name


def test_an_index_file_is_named_by_local_time() -> None:
    # 2026-11-20 10:18:21.483 UTC, as in a store of the reference
    assert filenames.index_name(1795169901483) == "20261120101821483"
    assert filenames.index_name(1795169901483, 3600) == "20261120111821483"
    assert filenames.index_name(1795169901483, -12 * 3600) == "20261119221821483"


@given(TIMES_MS, st.integers(-50400, 50400), TIMES_MS, st.integers(-50400, 50400))
def test_a_new_index_file_sorts_behind_the_newest(
    before_ms: int, before_zone: int, now_ms: int, now_zone: int
) -> None:
    newest = filenames.index_name(before_ms, before_zone)
    name = filenames.index_name(now_ms, now_zone, after=newest)
    assert len(name) == 17
    assert name > newest
    plain = filenames.index_name(now_ms, now_zone)
    assert name == plain or plain <= newest


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("20261120101821483", 20261120101821483),
        ("0", 0),
        ("9223372036854775808", None),
        ("20261120101821483.tmp", None),
        ("-1", None),
        ("", None),
        ("٣", None),
    ],
)
def test_only_numbers_name_index_files(name: str, number: int | None) -> None:
    assert filenames.parse_index_name(name) == number
