"""``timerlog/``: RocketMQ's units, and the log from which it rebuilds its timer wheel.

The bytes below were written by RocketMQ 5.3.3. ``recovered`` is what TimerMessageStore does with
such a log when it starts: ``recover``, ``reviseQueueOffset`` and, for each slot, ``dequeue``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import timer_log
from tidemark.formats.timer_log import NONE_BEFORE, ROLL_WINDOW_MS, UNIT_SIZE, Unit, Waiting

NOW_MS = 1_795_380_837_000
START_MS = NOW_MS - 3_601_000
ROCKETMQS = (
    (
        "00000034ffffffffffffffff00000003000001a205098258000007d00000000000000e07000000d7c3df62e5"
        "0000000000000000",
        Unit(-1, 3, 1795380839000, 1795380841000, 3591, 215, -1008770331),
    ),
    (
        "00000034000000000000013800000007000001a205098258000007d00000000000000fbb0000010ec3df62e5"
        "0000000000000000",
        Unit(312, 7, 1795380839000, 1795380841000, 4027, 270, -1008770331),
    ),
)


class Wheel(NamedTuple):
    """What RocketMQ makes of a log."""

    slots: dict[int, list[int]]
    """Slot -> physical offsets of its messages, the oldest first."""
    last: int | None
    """Physical offset of the message behind which it goes on in the queue."""


def recovered(log: bytes, file_size: int) -> Wheel:
    ends: dict[int, int] = {}
    last = None
    for start in range(0, len(log), file_size):
        at = start
        while (unit := timer_log.decode(log, at)) is not None and at + UNIT_SIZE <= (
            start + file_size
        ):
            ends[unit.slot_ms] = at
            last = unit.physical_offset
            at += UNIT_SIZE
        blank = log[at + 12 : at + 16] == bytes.fromhex("cbd43194")
        if not blank:
            break
    slots = {}
    for slot_ms, position in ends.items():
        chain: list[int] = []
        while position != NONE_BEFORE:
            unit = timer_log.decode(log, position)
            assert unit is not None
            assert unit.slot_ms == slot_ms
            chain.insert(0, unit.physical_offset)
            position = unit.previous
        slots[slot_ms] = chain
    return Wheel(slots, last)


def log_of(waiting: Sequence[Waiting], last: Waiting, file_size: int) -> bytes:
    log = bytearray(8 * 52 * (len(waiting) + 2) + 2 * file_size)
    end = 0
    for position, data in timer_log.written(
        waiting, last, now_ms=NOW_MS, start_ms=START_MS, file_size=file_size
    ):
        assert position >= end
        log[position : position + len(data)] = data
        end = position + len(data)
    return bytes(log)


@pytest.mark.parametrize(("raw", "unit"), ROCKETMQS)
def test_units_of_rocketmqs_are_read_and_written(raw: str, unit: Unit) -> None:
    assert timer_log.decode(bytes.fromhex(raw)) == unit
    assert timer_log.encode(*unit) == bytes.fromhex(raw)


@pytest.mark.parametrize("raw", [b"", b"\0" * 52, bytes.fromhex(ROCKETMQS[0][0])[:51]])
def test_no_unit_is_no_unit(raw: bytes) -> None:
    assert timer_log.decode(raw) is None


@pytest.mark.parametrize(
    ("due_in_ms", "slot_in_ms", "magic"),
    [
        (-5000, -6000, 1),  # overdue: RocketMQ begins there
        (0, -1000, 1),
        (1, 0, 1),
        (1000, 0, 1),
        (1001, 1000, 1),
        (ROLL_WINDOW_MS, ROLL_WINDOW_MS - 1000, 1),
        # What is a little behind the window gets half a window; what is far gets one.
        (ROLL_WINDOW_MS + 1, ROLL_WINDOW_MS // 2, 3),
        (ROLL_WINDOW_MS * 4 // 3, ROLL_WINDOW_MS // 2, 3),
        (ROLL_WINDOW_MS * 4 // 3 + 1, ROLL_WINDOW_MS, 3),
        (40 * 24 * 3_600_000, ROLL_WINDOW_MS, 3),
    ],
)
def test_a_message_is_put_where_rocketmq_puts_it(
    due_in_ms: int, slot_in_ms: int, magic: int
) -> None:
    assert timer_log.slot_of(NOW_MS + due_in_ms, NOW_MS) == (NOW_MS + slot_in_ms, magic)


DUES = st.one_of(
    st.integers(-3_600_000, 3_600_000),
    st.integers(-2000, 5000),
    st.integers(ROLL_WINDOW_MS - 3000, 3 * ROLL_WINDOW_MS),
)


@given(
    dues=st.lists(DUES, max_size=60),
    last_waits=st.booleans(),
    file_size=st.sampled_from([68, 119, 120, 121, 172, 500, 1 << 20]),
)
def test_rocketmq_finds_exactly_what_waits_and_goes_on_behind_the_last(
    dues: list[int], last_waits: bool, file_size: int
) -> None:
    waiting = [Waiting(NOW_MS + due, 1000 * n, 100 + n) for n, due in enumerate(dues)]
    last = waiting[-1] if last_waits and waiting else Waiting(0, 1_000_000, 99)
    wheel = recovered(log_of(waiting, last, file_size), file_size)
    expected: dict[int, list[int]] = {}
    for message in waiting:
        slot_ms, _ = timer_log.slot_of(message.due_ms, NOW_MS)
        assert START_MS <= slot_ms <= NOW_MS + ROLL_WINDOW_MS
        expected.setdefault(slot_ms, []).append(message.physical_offset)
    # The wheel is read from START_MS on.
    assert {slot: each for slot, each in wheel.slots.items() if slot >= START_MS} == expected
    assert wheel.last == last.physical_offset
