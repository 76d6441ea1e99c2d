"""Lag of one queue and of many: never negative, and an unknown value is None with a reason."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.lag import (
    Lag,
    QueuePositions,
    Reason,
    age,
    batch_record_bytes,
    nothing_known,
    record_bytes,
    total,
    unread,
)
from tidemark.formats.queue_unit import Unit, encode_batch

OFFSETS = st.integers(0, 1 << 40)


@given(st.none() | OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_lag_is_never_negative_and_null_only_with_a_reason(
    committed: int | None, first: int, more: int, undispatched: int
) -> None:
    end = first + more
    found = unread(QueuePositions(committed, first, end, end + undispatched))
    assert (found.messages is None) == (found.reason is not None) == (found.first is None)
    if found.messages is not None and found.first is not None:
        assert 0 <= found.messages <= more
        assert first <= found.first <= end
        assert found.first + found.messages == end
    assert found.lost >= 0
    assert found.ahead >= 0


@pytest.mark.parametrize(
    ("snapshot", "messages", "lost", "ahead", "reason"),
    [
        (QueuePositions(None, 0, 5, 5), None, 0, 0, Reason.NEVER_COMMITTED),
        (QueuePositions(0, 0, 0, 0), 0, 0, 0, None),
        (QueuePositions(3, 0, 10, 10), 7, 0, 0, None),
        (QueuePositions(10, 0, 10, 12), 0, 0, 0, None),
        (QueuePositions(3, 5, 10, 10), 5, 2, 0, None),
        (QueuePositions(3, 10, 10, 10), 0, 7, 0, None),
        (QueuePositions(12, 0, 10, 12), None, 0, 2, Reason.NOT_DISPATCHED),
        (QueuePositions(13, 0, 10, 12), None, 0, 3, Reason.AHEAD),
    ],
)
def test_each_state_of_a_queue_has_its_numbers(
    snapshot: QueuePositions, messages: int | None, lost: int, ahead: int, reason: Reason | None
) -> None:
    found = unread(snapshot)
    assert (found.messages, found.lost, found.ahead, found.reason) == (
        messages,
        lost,
        ahead,
        reason,
    )


def test_age_is_that_of_the_oldest_unread_message_by_its_store_time() -> None:
    assert age(3, 1000, 3500) == (2.5, None)
    assert age(0, None, 3500) == (0.0, None)
    assert age(3, None, 3500) == (None, Reason.UNREADABLE)
    assert age(3, 3501, 3500) == (None, Reason.CLOCK_BEHIND)


@given(st.lists(st.integers(1, (1 << 31) - 1), max_size=50), st.integers(0, 19))
def test_bytes_are_the_sizes_of_all_whole_units(sizes: list[int], torn: int) -> None:
    units = b"".join(struct.pack(">qiq", 1 << 50, size, -7) for size in sizes) + bytes(torn)
    assert record_bytes(memoryview(units)) == sum(sizes)


def test_batches_that_begin_before_the_end_count_whole() -> None:
    ranges = [(10, 5, 100), (15, 1, 20), (16, 3000, 700)]
    units = b"".join(
        encode_batch(Unit(at, size, 0), 7, base, count)
        for at, (base, count, size) in enumerate(ranges)
    )
    for end, expected in ((10, (0, 0)), (11, (100, 15)), (15, (100, 15)), (16, (120, 16))):
        assert batch_record_bytes(memoryview(units), end) == expected
    assert batch_record_bytes(memoryview(units + units[:45]), 1 << 40) == (820, 3016)


def lag(messages: int, size: int | None = 10, seconds: float | None = 1.0) -> Lag:
    reasons = {}
    if size is None:
        reasons["bytes"] = Reason.TOO_MANY_UNREAD
    if seconds is None:
        reasons["seconds"] = Reason.UNREADABLE
    return Lag(messages, size, seconds, in_flight=1, expiring=0, reasons=reasons)


def test_a_total_adds_messages_and_takes_the_largest_age() -> None:
    found = total([lag(3), lag(4, seconds=70.0)], 60.0, otherwise=Reason.NEVER_COMMITTED)
    assert found.lag == Lag(7, 20, 70.0, in_flight=2, expiring=0)
    assert (found.queues, found.unknown_queues, found.lagging_queues) == (2, 0, 1)


def test_a_queue_that_is_not_known_is_counted_and_in_no_sum() -> None:
    unknown = nothing_known(Reason.AHEAD, ahead=5)
    found = total([lag(3), unknown], 60.0, otherwise=Reason.NEVER_COMMITTED)
    assert (found.lag.messages, found.lag.ahead, found.unknown_queues) == (3, 5, 1)
    assert found.lag.reasons == {}


def test_a_sum_that_lacks_a_part_is_not_shown_as_one_of_all() -> None:
    found = total([lag(3), lag(4, size=None)], 60.0, otherwise=Reason.NEVER_COMMITTED)
    assert (found.lag.messages, found.lag.bytes) == (7, None)
    assert found.lag.reasons == {"bytes": Reason.TOO_MANY_UNREAD}


@pytest.mark.parametrize("queues", [0, 3])
def test_nothing_known_of_any_queue_is_null_with_the_reason(queues: int) -> None:
    each = [nothing_known(Reason.BROADCASTING)] * queues
    found = total(each, 60.0, otherwise=Reason.BROADCASTING)
    shown = found.as_dict()
    for name in ("messages", "bytes", "seconds", "in_flight", "expiring_messages"):
        assert shown[name] is None
        assert found.lag.reasons[name] is Reason.BROADCASTING
    assert found.unknown_queues == queues
