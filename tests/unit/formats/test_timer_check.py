"""``config/timercheck``: what RocketMQ reads of ours, and how its changes are detected."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import timer_check
from tidemark.formats.timer_check import TimerCheck

I63 = st.integers(0, (1 << 63) - 1)
CHECKS = st.builds(TimerCheck, st.integers(1, (1 << 63) - 1), I63, I63, I63)


@given(CHECKS, I63)
def test_a_check_that_we_write_is_read_back_and_counts_as_untouched(
    check: TimerCheck, now_ms: int
) -> None:
    raw = timer_check.encode(check, now_ms)
    assert len(raw) == timer_check.SIZE
    # RocketMQ's fields, and a version of which it takes each number as it is.
    assert struct.unpack_from(">7q", raw) == (*check, 0, now_ms, 1)
    assert timer_check.decode(raw) == check
    assert timer_check.is_signed(raw)
    assert timer_check.is_untouched(raw)


@given(CHECKS, CHECKS)
def test_changes_by_rocketmq_are_detected(ours: TimerCheck, theirs: TimerCheck) -> None:
    # It maps the file, and writes its seven numbers over ours.
    raw = bytearray(timer_check.encode(ours, 7))
    struct.pack_into(">7q", raw, 0, *theirs, 0, 8, 2)
    assert timer_check.decode(bytes(raw)) == theirs
    assert timer_check.is_signed(bytes(raw))
    assert timer_check.is_untouched(bytes(raw)) == (ours == theirs)


@pytest.mark.parametrize("size", [0, 55, 56, 95, 96, 4096])
def test_a_file_that_rocketmq_made_has_no_sign(size: int) -> None:
    raw = struct.pack(">7q", 5, 6, 7, 7, 0, 8, 2).ljust(4096, b"\0")[:size]
    assert not timer_check.is_signed(raw)
    assert not timer_check.is_untouched(raw)


def test_a_file_of_ours_that_is_cut_has_no_sign() -> None:
    raw = timer_check.encode(TimerCheck(5, 6, 7, 7), 8)
    assert [size for size in range(200) if timer_check.is_signed(raw[:size])] == [*range(96, 200)]
