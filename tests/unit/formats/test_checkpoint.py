"""The checkpoint page: RocketMQ's head to the byte, and slots that no two owners share."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import checkpoint
from tidemark.formats.checkpoint import Head, Slot, pid_of, start_id

I64 = st.integers(-(2**63), 2**63 - 1)
HEADS = st.builds(Head, I64, I64, I64, I64, I64)


def test_the_head_is_five_big_endian_numbers_and_then_zeros() -> None:
    page = checkpoint.encode_head(Head(1, 2, 3, 4, 18016)).ljust(checkpoint.SIZE, b"\0")
    assert page == struct.pack(">5q", 1, 2, 3, 4, 18016) + bytes(4096 - 40)


@given(HEADS)
def test_a_head_is_read_back(head: Head) -> None:
    assert checkpoint.decode_head(checkpoint.encode_head(head)) == head


@given(st.binary(max_size=80))
def test_any_bytes_are_a_head_or_too_few(page: bytes) -> None:
    if len(page) >= 40:
        assert checkpoint.encode_head(checkpoint.decode_head(memoryview(page))) == page[:40]
    else:
        with pytest.raises(ValueError, match="needs 40 bytes"):
            checkpoint.decode_head(page)


@pytest.mark.parametrize(
    ("physic", "logics", "expected"),
    [(10_000, 12_000, 7_000), (12_000, 10_000, 7_000), (0, 10_000, 0), (2_000, 9_000, 0)],
)
def test_recovery_starts_three_seconds_before_the_older_flush(
    physic: int, logics: int, expected: int
) -> None:
    assert checkpoint.min_timestamp(Head(physic, logics)) == expected


def test_slots_lie_in_their_owners_region_behind_the_head() -> None:
    bases = {"log": 512, "broker": 1024, "reput": 1536, "ha": 2048}
    owners = {
        "log": [Slot.WRITTEN, Slot.LOG_EPOCH],
        "broker": [Slot.MIN, Slot.UNIT_CHECK_COUNT],
        "reput": [Slot.DISPATCHED, Slot.UNIT_CHECKED],
        "ha": [Slot.CONFIRM, Slot.SENDS_HELD],
    }
    assert sorted(Slot) == list(Slot)
    for owner, (first, last) in owners.items():
        assert first * 8 == bases[owner]
        assert last * 8 + 8 <= bases[owner] + checkpoint.REGION_SIZE
    assert len(set(Slot)) == len(list(Slot.__members__))


def test_slot_numbers_never_change() -> None:
    """Two versions of Tidemark may map one page during an upgrade."""
    log = "WRITTEN FLUSHED BOOT_ID_HIGH BOOT_ID_LOW MAGIC_AND_FORMAT LOG_EPOCH RECOVERED_BY"
    broker = (
        "MIN SERVING_EPOCH BROKER_HEARTBEAT_MS BROKER_PID GENERATION BROKER_STATE "
        "FOREIGN_FROM FOREIGN_UNTIL BROKER_NONCE EPOCH_RECORD_END BROKER_TROUBLE DAMAGED_AT "
        "UNIT_CHECK_QUEUE UNIT_CHECK_OFFSET UNIT_CHECK_COUNT"
    )
    reput = (
        "DISPATCHED DISPATCHED_DURABLE REPUT_HEARTBEAT_MS REPUT_PID REPUT_GENERATION "
        "RESUME_UNITS RESUME_INDEX_ENTRIES RESUME_CHECK "
        "RESUME_FIRSTS REPUT_BOOT_ID_HIGH REPUT_BOOT_ID_LOW "
        "CLEANED_MIN REMOVING_FIRSTS REMOVING_ENTRIES RELEASED_MIN INDEX_BEHIND REPUT_TROUBLE "
        "RESUMED_BY UNIT_CHECKED"
    )
    ha = (
        "CONFIRM ROLE EPOCH LEASE_DEADLINE FENCED HA_BOOT_ID_HIGH HA_BOOT_ID_LOW HA_NONCE "
        "HA_HEARTBEAT_MS HA_PID HA_GENERATION GRANTED_TO IN_SYNC_SIZE MIN_IN_SYNC NEEDED_FROM "
        "SENDS_HELD"
    )
    expected = {
        name: base + place
        for base, names in ((64, log), (128, broker), (192, reput), (256, ha))
        for place, name in enumerate(names.split())
    }
    assert {slot.name: slot.value for slot in Slot} == expected


def test_the_resume_check_is_a_crc_over_the_three_values() -> None:
    expected = zlib.crc32(struct.pack("<QQQ", 7, 8, 9))
    assert checkpoint.resume_check(7, 8, 9) == expected
    assert checkpoint.resume_check(0, 0, 0) != 0  # a page of zeros does not pass


@given(pid=st.integers(1, (1 << 22) - 1), salt=st.integers(0, (1 << 40) - 1))
def test_a_start_number_names_its_process_and_fits_a_slot(pid: int, salt: int) -> None:
    start = start_id(pid, salt)
    assert 0 < start < 1 << 63
    assert pid_of(start) == pid


def test_two_starts_of_process_1_differ() -> None:
    assert start_id(1, 7) != start_id(1, 8)
