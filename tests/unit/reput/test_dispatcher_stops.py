"""Dispatch stops with a location at what it cannot dispatch, and repairs what it can."""

from __future__ import annotations

import pytest

from services.reput.resume import QueueMode
from tests.support.small_dispatch import (
    dispatch_all,
    dispatched,
    dispatcher_of,
    expected_units,
    fill,
    units,
)
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord, QueueGap, StrayFile
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import UNIT_SIZE


def test_a_damaged_record_stops_dispatch_names_the_byte_and_the_file(small: SmallStore) -> None:
    dispatcher = dispatcher_of(small)
    fill(small)
    bad = small.units[30][3]
    small.overwrite(bad.physical_offset + 90, b"\xff")
    with pytest.raises(CorruptRecord) as caught:
        dispatch_all(dispatcher)
    assert caught.value.at == bad.physical_offset
    start = bad.physical_offset - bad.physical_offset % 4096
    assert caught.value.path == small.log_file(start)
    assert small.positions.get(Slot.DISPATCHED) == bad.physical_offset
    assert dispatcher.stopped is caught.value
    assert dispatcher.step() == 0, "it stays where it is"
    assert len(units(small)) == 30
    dispatcher.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == bad.physical_offset


def test_a_missing_log_file_stops_dispatch_and_is_named(small: SmallStore) -> None:
    fill(small)
    dispatcher = dispatcher_of(small)
    small.log_file(4096).unlink()
    with pytest.raises(CorruptRecord, match="the file is missing") as caught:
        dispatch_all(dispatcher)
    assert caught.value.at == 4096
    assert dispatcher.stopped is caught.value


def test_a_gap_in_the_log_stops_dispatch_after_one_comparison_with_the_whole_log(
    small: SmallStore,
) -> None:
    small.put()
    small.put()
    small.flush()
    dispatcher = dispatched(small)
    small.put(queue_offset=5)
    small.flush()
    with pytest.raises(QueueGap, match="has queue offset 5, but the queue ends at 2"):
        dispatch_all(dispatcher)
    assert isinstance(dispatcher.stopped, QueueGap)
    assert len(units(small)) == 2


def test_a_running_sync_does_not_publish_values_that_a_rebuild_withdrew(small: SmallStore) -> None:
    dispatcher = dispatcher_of(small)
    fill(small, 10)
    dispatch_all(dispatcher)
    job = dispatcher.begin_sync()
    assert job is not None
    small.put(queue_offset=99)
    small.flush()
    with pytest.raises(QueueGap):
        dispatch_all(dispatcher)
    job.run()
    dispatcher.finish_sync(job)
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    again = dispatcher_of(small)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.REBUILD


def test_units_that_got_lost_are_detected_by_the_next_record_and_rebuilt(small: SmallStore) -> None:
    fill(small, 30)
    dispatcher = dispatched(small)
    # Simulate a queue that has lost its end since the totals were counted.
    queue = dispatcher._queues._queues["orders", 0, UNIT_SIZE]
    queue.next -= 2
    queue.next_offset -= 2
    published = small.positions.get(Slot.DISPATCHED)
    fill(small, 10)
    dispatch_all(dispatcher)
    assert small.positions.get(Slot.DISPATCHED) == small.end > published
    assert units(small) == expected_units(small)
    assert dispatcher.stopped is None
    dispatcher.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 40


def test_a_file_where_a_queues_directory_belongs_is_waited_for(small: SmallStore) -> None:
    # The foreign file was reported, but a second later its directory could not be synced. This
    # ended the process repeatedly, as if the disk had failed.
    fill(small, 20)
    topic, queue, *_ = small.units[0]
    directory = small.store.queue_directory(topic, queue).path
    directory.parent.mkdir(parents=True)
    directory.touch()
    dispatcher = dispatcher_of(small)
    with pytest.raises(StrayFile, match="a file where a directory belongs"):
        dispatch_all(dispatcher)
    dispatcher.sync()
    directory.unlink()
    dispatch_all(dispatcher)
    dispatcher.sync()
    assert units(small) == expected_units(small)


def test_a_record_crc_copied_by_rocketmq_is_not_checked(small: SmallStore) -> None:
    """RocketMQ treats the CRC property as a user property.

    It copies the property when it delivers a delayed message or sends a message back, so the copy
    has the CRC of another record.
    """
    dispatcher = dispatcher_of(small)
    fill(small, 12)
    copied = small.units[5][3]
    digit = small.log_file().read_bytes()[copied.end - 3 : copied.end - 2]
    small.overwrite(copied.end - 3, b"1" if digit == b"0" else b"0")
    with pytest.raises(CorruptRecord):
        dispatch_all(dispatcher)
    small.positions.publish(Slot.FOREIGN_FROM, small.units[4][3].physical_offset)
    small.positions.publish(Slot.FOREIGN_UNTIL, small.units[8][3].physical_offset)
    dispatcher.resume()
    dispatch_all(dispatcher, 1 << 20)
    assert len(units(small)) == 12

    again = dispatcher_of(small)
    fill(small, 1)
    ours = small.units[-1][3]
    small.overwrite(ours.end - 3, b"\xff")
    with pytest.raises(CorruptRecord) as caught:
        dispatch_all(again, 1 << 20)
    assert caught.value.at == ours.physical_offset, "behind the range it is judged again"
