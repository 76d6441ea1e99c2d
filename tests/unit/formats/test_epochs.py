"""The epoch file: read back, found damaged, and tolerant where the reference is."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import epochs
from tidemark.formats.epochs import EpochStart, EpochsUnreadable
from tidemark.offsets import Epoch, PhysicalOffset

ENTRIES = st.lists(
    st.builds(
        EpochStart,
        st.integers(0, 2**31 - 1).map(Epoch),
        st.integers(0, 2**63 - 1).map(PhysicalOffset),
    ),
    max_size=20,
)
TWO = [EpochStart(Epoch(1), PhysicalOffset(0)), EpochStart(Epoch(7), PhysicalOffset(18016))]


def test_a_table_of_two_in_bytes() -> None:
    crc = zlib.crc32(b"1-0\n7-18016\n") & 0x7FFFFFFF
    assert epochs.encode(TWO) == f"2\n{crc}\n1-0\n7-18016\n".encode()


@given(ENTRIES)
def test_a_table_is_read_back(entries: list[EpochStart]) -> None:
    assert epochs.decode(epochs.encode(entries)) == entries


def test_lines_of_windows_are_read_with_their_own_crc() -> None:
    body = b"1-0\r\n7-18016\r\n"
    crc = zlib.crc32(body) & 0x7FFFFFFF
    assert epochs.decode(f"2\r\n{crc}\r\n".encode() + body) == TWO


def test_a_crc_of_zero_is_not_compared() -> None:
    assert epochs.decode(b"2\n0\n1-0\n7-18016\n") == TWO


def test_a_missing_last_line_end_changes_the_crc_only() -> None:
    assert epochs.decode(b"2\n0\n1-0\n7-18016") == TWO


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the number of entries is b''"),
        (b"x\n0\n", "the number of entries is b'x'"),
        (b"2", "ends within its first two lines"),
        (b"2\n5", "ends within its first two lines"),
        (b"2\n-5\n1-0\n7-1\n", "the CRC is b'-5'"),
        (b"2\n5\n1-0\n7-1\n", "CRC-32 is 923021533, the file has 5"),
        (b"3\n0\n1-0\n7-1\n", "2 entries, the file has the count 3"),
        (b"1\n0\n1:0\n", "b'1:0' is not an epoch"),
        (b"1\n0\n-1-0\n", "b'-1-0' is not an epoch"),
        (b"1\n0\n2147483648-0\n", "is out of range"),
        (b"1\n0\n1-9223372036854775808\n", "is out of range"),
        ("1\n0\n١-0\n".encode(), "is not an epoch"),
    ],
)
def test_errors_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(EpochsUnreadable) as caught:
        epochs.decode(data)
    assert reason in str(caught.value)


@given(ENTRIES.filter(bool), st.data())
def test_a_flipped_bit_is_found(entries: list[EpochStart], data: st.DataObject) -> None:
    good = epochs.encode(entries)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    damaged = bytearray(good)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        decoded = epochs.decode(bytes(damaged))
    except EpochsUnreadable:
        return
    # Only a CRC turned to 0 switches the comparison off; the entries are untouched then.
    assert decoded == entries


@given(st.binary(max_size=200) | st.text("0123456789-\n\r", max_size=60).map(str.encode))
def test_any_bytes_are_a_table_or_unreadable(data: bytes) -> None:
    try:
        entries = epochs.decode(data)
    except EpochsUnreadable:
        return
    assert epochs.decode(epochs.encode(entries)) == entries


@given(ENTRIES.filter(bool), st.data())
def test_a_file_cut_short_is_unreadable(entries: list[EpochStart], data: st.DataObject) -> None:
    good = epochs.encode(entries)
    cut = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(EpochsUnreadable):
        epochs.decode(good[:cut])
