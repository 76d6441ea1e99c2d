"""A record whose sectors did not all reach the disk is distinguished from a whole one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.torn_record import SECTOR_SIZE, unwritten_at
from tests.support.strategies import messages
from tidemark.formats import properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.record import Checks, Kind, Message

HOST = Host(b"\x0a\0\0\x01", 8192)  # its last byte is zero, as that of many ports


def encoded(message: Message, at: int, *, record_crc: bool) -> bytes:
    return record.encode(
        message, queue_offset=0, physical_offset=at, store_timestamp_ms=1, record_crc=record_crc
    )


@given(messages(), st.integers(0, 1 << 40), st.booleans())
def test_a_whole_record_never_counts_as_torn(message: Message, at: int, record_crc: bool) -> None:
    raw = encoded(message, at, record_crc=record_crc)
    assert unwritten_at(memoryview(raw), 0, at) is None


@given(
    st.integers(0, 1200),
    st.integers(1, 1200),
    st.integers(0, SECTOR_SIZE - 1),
    st.booleans(),
    st.data(),
)
def test_no_record_that_lost_a_sector_passes(
    body_size: int, property_size: int, into: int, record_crc: bool, data: st.DataObject
) -> None:
    """Either its shape or its body's CRC is wrong, or the missing sector is found."""
    message = Message(
        topic="orders",
        queue_id=0,
        body=b"b" * body_size,
        born_host=HOST,
        store_host=HOST,
        properties=properties.encode({"key": "v" * property_size}),
        born_timestamp_ms=1,
    )
    at = 7 * SECTOR_SIZE + into
    raw = bytearray(encoded(message, at, record_crc=record_crc))
    borders = [0, *range(SECTOR_SIZE - into, len(raw), SECTOR_SIZE), len(raw)]
    lost = data.draw(st.integers(0, len(borders) - 2))
    low, high = borders[lost], borders[lost + 1]
    # The three fields before the body are zeros in most records: losing them loses nothing.
    before = bytes(raw)
    raw[low:high] = bytes(high - low)
    if bytes(raw) == before:
        return
    outcome = record.validate(memoryview(raw), 0, at=at, checks=Checks())
    if outcome.kind is Kind.VALID:
        assert unwritten_at(memoryview(raw), 0, at) == at + low


@pytest.mark.parametrize("with_properties", [False, True])
def test_the_two_zeros_of_no_properties_are_no_gap(with_properties: bool) -> None:
    message = Message(
        topic="t",
        queue_id=0,
        body=b"",
        born_host=HOST,
        store_host=HOST,
        properties=b"a\x01b\x02" if with_properties else b"",
    )
    raw = encoded(message, 0, record_crc=False)
    for into in range(SECTOR_SIZE):
        assert unwritten_at(memoryview(encoded(message, into, record_crc=False)), 0, into) is None
    assert len(raw) < 100
