"""Appending: all or nothing, dense numbers, one contiguous batch per queue, honest store times."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.broker.append import Append, contiguous, store_time
from services.broker.files_ahead import FilesAhead
from services.broker.metrics import BrokerMetrics
from services.broker.queue_offsets import Queue, QueueOffsets
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_config import StoreConfig
from shared.files.store_dir import StoreDir
from shared.runtime.clock import SystemClock
from tidemark.errors import (
    DiskFull,
    DispatchBehind,
    FileNotReady,
    MessageTooLarge,
    NotServing,
    StoreError,
    WriteFailed,
)
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
FILE_SIZE = 1 << 16


class Clock(SystemClock):
    """A wall clock that a test sets."""

    now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class Parts:
    """An Append over a real log, with knobs for everything around it."""

    append: Append
    appender: CommitLogAppender
    reader: CommitLogReader
    offsets: QueueOffsets
    clock: Clock
    undispatched: int = 0
    snapshot: list[Message] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    faults: list[StoreError] = field(default_factory=list)
    appended: list[tuple[list[Queue], int]] = field(default_factory=list)
    prepare: Callable[[], None] = lambda: None


@asynccontextmanager
async def parts_in(directory: Path, *, wait_s: float = 5.0) -> AsyncIterator[Parts]:
    config = StoreConfig(commit_log_file_size=FILE_SIZE, index_slots=10, index_entries=20)
    store = StoreDir(OsDisk(), directory, config)
    store.open_or_create()
    positions = Positions.open(store.disk, store.checkpoint_path)
    appender = CommitLogAppender(store, positions)
    appender.start_at(PhysicalOffset(0))
    clock, offsets = Clock(), QueueOffsets({})
    metrics = BrokerMetrics(CollectorRegistry())
    parts: Parts
    files = FilesAhead(
        lambda: parts.prepare(),
        lambda: appender.written,
        file_size=FILE_SIZE,
        wait_s=wait_s,
        on_change=lambda failure: None,
    )
    append = Append(
        appender,
        offsets,
        files,
        clock,
        metrics,
        file_size=FILE_SIZE,
        record_crc=True,
        reserve=FILE_SIZE // 4,
        clock_step_max_ms=10_000,
        last_store_time_ms=0,
        snapshot=lambda: list(parts.snapshot),
        undispatched=lambda: parts.undispatched,
        dispatch_lag_max=1000,
        on_appended=lambda queues, end: parts.appended.append((list(queues), end)),
        on_clock_step=lambda step: parts.steps.append(step),
        on_fault=lambda fault: parts.faults.append(fault),
    )
    parts = Parts(append, appender, CommitLogReader(store, positions), offsets, clock)
    parts.prepare = appender.prepare_next
    stop = asyncio.Event()
    task = asyncio.create_task(files.run(stop))
    try:
        await asyncio.wait_for(files.wait(), 5)
        yield parts
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        appender.close(clean=True)
        parts.reader.close()
        positions.close()


def message(queue: int = 0, body: bytes = b"x", topic: str = "t") -> Message:
    return Message(topic, queue, body, HOST, HOST)


def read(parts: Parts, offset: PhysicalOffset) -> tuple[str, int, int, bytes]:
    found = parts.reader.record(offset, parts.appender.written)
    assert found is not None
    return found.topic, found.queue_id, found.queue_offset, bytes(found.body)


async def fill(parts: Parts, size: int) -> tuple[int, StoreError]:
    """Append until it is refused: how many were stored, and the refusal."""
    for stored in itertools.count():
        try:
            await parts.append.append([message(body=bytes(size))])
        except StoreError as refusal:
            return stored, refusal
    raise AssertionError("unreachable")


# -- pure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock_ms", "last_ms", "found"),
    [
        (100, 50, (100, False)),
        (100, 100, (100, False)),
        (100, 101, (101, False)),
        (0, 10_000, (10_000, False)),
        (0, 10_001, (0, True)),
    ],
)
def test_store_times_stand_still_for_a_small_step_and_follow_a_large_one(
    clock_ms: int, last_ms: int, found: tuple[int, bool]
) -> None:
    assert store_time(clock_ms, last_ms, 10_000) == found


@given(st.lists(st.integers(0, 3), min_size=1))
def test_messages_are_grouped_by_queue_and_keep_their_order_within(queues: list[int]) -> None:
    order = contiguous([("t", queue) for queue in queues])
    indexes = list(range(len(queues))) if order is None else order
    assert sorted(indexes) == list(range(len(queues)))
    grouped = [queues[index] for index in indexes]
    seen = list(dict.fromkeys(grouped))
    assert grouped == [queue for queue in seen for _ in range(grouped.count(queue))]
    for queue in seen:
        own = [index for index in indexes if queues[index] == queue]
        assert own == sorted(own)


# -- over a real log -------------------------------------------------------------------------------


async def test_a_request_over_several_queues_is_answered_in_its_own_order(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        queues = [1, 0, 1, 2, 0]
        sent = [message(queue, b"%d" % index) for index, queue in enumerate(queues)]
        stored = await parts.append.append(sent)
        assert [place.queue for place in stored.places] == queues
        assert [place.queue_offset for place in stored.places] == [0, 0, 1, 0, 1]
        for index, place in enumerate(stored.places):
            expected = ("t", place.queue, place.queue_offset, b"%d" % index)
            assert read(parts, place.physical_offset) == expected
        by_place = sorted(stored.places, key=lambda place: place.physical_offset)
        assert [place.queue for place in by_place] == [1, 1, 0, 0, 2], "adjacent per queue"
        assert stored.end == by_place[-1].physical_offset + by_place[-1].size
        assert parts.appended == [([("t", 1), ("t", 0), ("t", 2)], stored.end)]


async def test_what_is_refused_takes_no_number(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.append.append([message()])
        with pytest.raises(MessageTooLarge) as caught:
            await parts.append.append([message(body=bytes(FILE_SIZE))])
        assert caught.value.facts["limit"] == FILE_SIZE - 8
        parts.undispatched = 1001
        with pytest.raises(DispatchBehind):
            await parts.append.append([message()])
        await parts.append.append([message()], own=True)
        parts.undispatched = 0
        stored = await parts.append.append([message()])
        assert stored.places[0].queue_offset == 2


async def test_requests_roll_into_the_next_file_and_wait_for_it(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        offsets = []
        for _ in range(40):
            stored = await parts.append.append([message(body=bytes(10_000))])
            offsets.append(stored.places[0])
        assert [place.queue_offset for place in offsets] == list(range(40))
        assert parts.appender.written > 6 * FILE_SIZE
        for place in offsets:
            assert read(parts, place.physical_offset)[2] == place.queue_offset


async def test_a_new_file_begins_with_the_snapshot_and_both_are_numbered_densely(
    tmp_path: Path,
) -> None:
    async with parts_in(tmp_path) as parts:
        state = [message(0, b"part 0", "state"), message(0, b"part 1", "state")]
        parts.snapshot = state
        await parts.append.append([message(body=b"first")])
        assert read(parts, PhysicalOffset(0)) == ("state", 0, 0, b"part 0")
        # A state record that itself moves the log into the next file stands behind the snapshot.
        while parts.appender.room(10_500):
            await parts.append.append([message(body=bytes(10_000))])
        own = await parts.append.append([message(0, bytes(10_000), "state")], own=True)
        start = parts.reader.next_file(PhysicalOffset(0))
        assert read(parts, start) == ("state", 0, 2, b"part 0")
        assert own.places[0].queue_offset == 4
        assert parts.offsets.next_of(("state", 0)) == 5


async def test_a_message_that_fits_only_without_the_snapshot_goes_without(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        parts.snapshot = [message(0, bytes(5000), "state")]
        body = bytes(FILE_SIZE - 500)
        stored = await parts.append.append([message(body=body)])
        assert stored.places[0].physical_offset == 0
        assert parts.offsets.next_of(("state", 0)) == 0


async def test_a_full_disk_stops_sends_before_the_log_is_full_and_leaves_room_for_our_own(
    tmp_path: Path,
) -> None:
    async with parts_in(tmp_path) as parts:

        def full() -> None:
            raise DiskFull("planted: the disk is full")

        parts.prepare = full
        stored, refusal = await fill(parts, 5000)
        assert isinstance(refusal, DiskFull)
        assert parts.appender.reserved_bytes >= FILE_SIZE // 4
        own = await parts.append.append([message(0, bytes(5000), "state")], own=True)
        assert own.places[0].queue_offset == 0
        parts.prepare = parts.appender.prepare_next
        async with asyncio.timeout(10):
            while True:
                try:
                    again = await parts.append.append([message(body=bytes(5000))])
                    break
                except DiskFull:
                    await asyncio.sleep(0.02)
        assert again.places[0].queue_offset == stored


async def test_a_slow_disk_is_an_error_that_says_so_and_stores_nothing(tmp_path: Path) -> None:
    async with parts_in(tmp_path, wait_s=0.05) as parts:
        hold = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()

        parts.prepare = slow
        try:
            _, refusal = await fill(parts, 20_000)
            assert isinstance(refusal, FileNotReady)
            assert "Nothing was stored" in refusal.detail
        finally:
            hold.set()


async def test_store_times_hide_a_small_step_back_and_report_a_large_one(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        first = await parts.append.append([message()])
        parts.clock.now_ms -= 5000
        second = await parts.append.append([message()])
        assert second.store_timestamp_ms == first.store_timestamp_ms
        assert parts.steps == []
        parts.clock.now_ms -= 60_000
        third = await parts.append.append([message()])
        assert third.store_timestamp_ms == parts.clock.now_ms
        assert parts.steps == [65_000]


async def test_a_closed_log_refuses(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        parts.append.close()
        with pytest.raises(NotServing, match="stopping"):
            await parts.append.append([message()])


async def test_a_failed_write_ends_appending_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.append.append([message()])
        file = next(iter(parts.appender._open.values()))
        monkeypatch.setattr(type(file), "pwrite", _fails)
        with pytest.raises(WriteFailed):
            await parts.append.append([message()])
        monkeypatch.undo()
        assert [type(fault) for fault in parts.faults] == [WriteFailed]
        with pytest.raises(NotServing):
            await parts.append.append([message()])
        assert parts.offsets.next_of(("t", 0)) == 1


def _fails(*_: object) -> None:
    raise OSError(errno.EIO, "planted")
