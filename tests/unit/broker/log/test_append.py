"""Appending: all or nothing, dense numbers, one contiguous batch per queue, honest store times."""

from __future__ import annotations

import asyncio
import errno
import itertools
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from services.broker.config import BrokerConfig
from services.broker.log.append import DISPATCH_CHECK_S, Append, Appended, store_time
from services.broker.log.dispatch_lag import DispatchLag
from services.broker.log.log_context import LogContext
from services.broker.log.preallocator import Preallocator
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.term import EndlessTerm
from services.broker.metrics import BrokerMetrics
from services.broker.read.long_polls import LongPolls
from services.broker.state.state_log import StateLog
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_config import StoreConfig
from shared.files.store_dir import StoreDir
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from tests.support.runs import runs_of
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
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
FILE_SIZE = 1 << 16


class Clock(SystemClock):
    """A wall clock that a test sets."""

    now_ms = 1_000_000
    passed_s = 0.0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s


class Flusher:
    """What appending needs of the flusher."""

    def __init__(self) -> None:
        self.faults: list[StoreError] = []

    def fail(self, fault: StoreError) -> None:
        self.faults.append(fault)


class Limits:
    """Limits that a test sets."""

    def __init__(self) -> None:
        self.refusal: StoreError | None = None
        self.fault: StoreError | None = None

    def check_may_create(self) -> None:
        if self.fault is not None:
            raise self.fault


class Components:
    """An Append over a real log, with knobs for everything around it."""

    def __init__(self, store: StoreDir, positions: Positions, wait_s: float) -> None:
        self.config = BrokerConfig(
            store=store.config, clock_step_max_ms=10_000, dispatch_lag_max=1000
        )
        appender = CommitLogAppender(store, positions)
        appender.start_at(PhysicalOffset(0))
        self.offsets = QueueOffsets({})
        self.reader = CommitLogReader(store, positions)
        self.store = SimpleNamespace(last_store_timestamp_ms=0)
        self.metrics = BrokerMetrics(Registry("broker"))
        self.clock = Clock()
        self.flusher = Flusher()
        self.term = EndlessTerm()
        self.appender = appender
        self.prepare: Callable[[], None] = appender.prepare_next
        self.files = Preallocator(
            lambda: self.prepare(),
            appender,
            file_size=FILE_SIZE,
            wait_s=wait_s,
            on_change=lambda failure: None,
        )
        self.notified: list[tuple[list[Queue], int]] = []
        """Queues that got messages, and the end of the log, of each append."""
        self.behind = self.unconfirmed = 0
        self.steps: list[int] = []
        self.first: list[Message] = []
        """The snapshot that a new file begins with."""
        self.snapshots_taken = 0
        log = cast(LogContext, self)
        self.append = Append(log, self.offsets, cast(StateLog, self), LongPolls())

    async def put(self, *messages: Message, own: bool = False) -> Appended:
        return await self.append.append(runs_of(messages), own=own)

    def dispatch_lag(self) -> DispatchLag:
        end = self.appender.appended
        return DispatchLag(end, end - self.unconfirmed, end - self.behind)

    def appended(self, long_polls: LongPolls, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        self.notified.append((list(queues), end))

    def clock_stepped(self, step_ms: int) -> None:
        self.steps.append(step_ms)

    def snapshot(self) -> list[Run]:
        self.snapshots_taken += 1
        return runs_of(self.first)

    def snapshot_placed(self, start: PhysicalOffset, size: int) -> None:
        assert size > 0


@asynccontextmanager
async def parts_in(directory: Path, *, wait_s: float = 5.0) -> AsyncIterator[Components]:
    config = StoreConfig(commit_log_file_size=FILE_SIZE, index_slots=10, index_entries=20)
    store = StoreDir(OsDisk(), directory, config)
    store.open_or_create()
    positions = Positions.open(store.disk, store.checkpoint_path)
    parts = Components(store, positions, wait_s)
    stop = asyncio.Event()
    task = asyncio.create_task(parts.files.run(stop))
    try:
        await asyncio.wait_for(parts.files.wait(), 5)
        yield parts
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        parts.appender.close(clean=True)
        parts.reader.close()
        positions.close()


def message(queue: int = 0, body: bytes = b"x", topic: str = "t") -> Message:
    return Message(topic, queue, body, HOST, HOST)


def read(parts: Components, offset: int) -> tuple[str, int, int, bytes]:
    found = parts.reader.record(PhysicalOffset(offset), parts.appender.written)
    assert found is not None
    return found.topic, found.queue_id, found.queue_offset, bytes(found.body)


def offsets_of(stored: Appended) -> list[int]:
    """Physical offset of each record, and the end."""
    return list(itertools.accumulate(memoryview(stored.sizes).cast("I"), initial=stored.start))


async def fill(parts: Components, size: int) -> tuple[int, StoreError]:
    """Append until it is refused; return how many were stored, and the refusal."""
    for stored in itertools.count():
        try:
            await parts.put(message(body=bytes(size)))
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


# -- over a real log -------------------------------------------------------------------------------


async def test_the_runs_of_a_request_lie_one_behind_the_other(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.put(message(0))
        sent = [(1, b"a"), (1, b"bb"), (0, b"ccc"), (2, b"d")]
        stored = await parts.put(*(message(queue, body) for queue, body in sent))
        assert stored.firsts == [0, 1, 0]
        *starts, end = offsets_of(stored)
        numbers = [0, 1, 1, 0]
        for offset, (queue, body), number in zip(starts, sent, numbers, strict=True):
            assert read(parts, offset) == ("t", queue, number, body)
        assert stored.end == end == parts.appender.appended
        assert parts.notified[-1] == ([("t", 1), ("t", 0), ("t", 2)], stored.end)


async def test_a_refused_append_takes_no_queue_offset(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.put(message(body=bytes(1000)))  # so much may be appended before reput is asked
        with pytest.raises(MessageTooLarge) as caught:
            await parts.put(message(body=bytes(FILE_SIZE)))
        assert caught.value.facts["limit"] == FILE_SIZE - 8
        parts.behind = 1001
        with pytest.raises(DispatchBehind):
            await parts.put(message())
        await parts.put(message(), own=True)
        parts.behind = 0
        assert (await parts.put(message())).firsts == [2]


# If reput begins again further back, as after a loss of its files, sends went on until the log had
# grown by ``dispatch_lag_max``, while /ready reported that they were refused.
async def test_a_dispatched_offset_that_goes_back_stops_sends_within_a_moment(
    tmp_path: Path,
) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.put(message())
        await parts.put(message())
        parts.behind = 1001
        parts.clock.passed_s += DISPATCH_CHECK_S
        with pytest.raises(DispatchBehind, match="1001 bytes"):
            await parts.put(message())
        with pytest.raises(DispatchBehind):
            await parts.put(message())
        parts.behind = 1000
        assert (await parts.put(message())).firsts == [2]


@pytest.mark.parametrize(
    ("unconfirmed", "named", "see"),
    [
        (0, "1001 bytes are not dispatched yet; the limit is 1000", "reput's /ready"),
        (500, "1001 bytes are not dispatched yet; the limit is 1000", "reput's /ready"),
        (
            501,
            "501 of them not confirmed: the in-sync set has the log up to physical offset",
            "sta",
        ),
    ],
)
async def test_sends_that_are_refused_name_what_dispatch_waits_for(
    tmp_path: Path, unconfirmed: int, named: str, see: str
) -> None:
    async with parts_in(tmp_path) as parts:
        parts.behind, parts.unconfirmed = 1001, unconfirmed
        with pytest.raises(DispatchBehind) as caught:
            await parts.put(message())
    assert named in caught.value.detail
    assert see in caught.value.advice
    assert caught.value.facts["unconfirmed"] == unconfirmed
    assert caught.value.facts["confirmed"] == -unconfirmed


async def test_a_run_with_a_wrong_message_count_is_refused_whole(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        (honest,) = runs_of([message(), message()])
        for count in (1, 3):
            with pytest.raises(ValueError, match="2 entries"):
                await parts.append.append([honest, honest._replace(message_count=count)])
        assert parts.appender.appended == 0
        assert (await parts.append.append([honest])).firsts == [0]


async def test_a_new_file_begins_with_the_snapshot_and_both_are_numbered_densely(
    tmp_path: Path,
) -> None:
    async with parts_in(tmp_path) as parts:
        state = [message(0, b"part 0", "state"), message(0, b"part 1", "state")]
        parts.first = state
        first = await parts.put(message(body=b"first"))
        assert first.firsts == [0]
        assert read(parts, 0) == ("state", 0, 0, b"part 0")
        assert read(parts, first.start) == ("t", 0, 0, b"first")
        # A state record that itself moves the log into the next file stands behind the snapshot.
        while parts.appender.room(10_500):
            await parts.put(message(body=bytes(10_000)))
        own = await parts.put(message(0, bytes(10_000), "state"), own=True)
        start = parts.reader.next_file(PhysicalOffset(0))
        assert read(parts, start) == ("state", 0, 2, b"part 0")
        assert own.firsts == [4]
        assert read(parts, own.start)[:3] == ("state", 0, 4)
        assert len(own.sizes) == 4, "of the request's own record only"
        assert parts.offsets.next_of(("state", 0)) == 5


async def held_at_the_last_file(parts: Components) -> asyncio.Event:
    """Fill the last file that there is; the next one is made once the event is set."""
    loop, hold, prepare = asyncio.get_running_loop(), asyncio.Event(), parts.prepare

    def slow() -> None:
        asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()
        prepare()

    parts.prepare = slow
    # The broker's own records: sends would stop before the last file is full.
    while parts.appender.room(20_500) or parts.appender.files.next_ready:
        await parts.put(message(body=bytes(20_000)), own=True)
    return hold


async def test_a_snapshot_is_taken_only_when_it_is_written(tmp_path: Path) -> None:
    # It was once taken before the file existed, dropped, and counted as written: the new file began
    # without a snapshot.
    async with parts_in(tmp_path) as parts:
        parts.first = [message(0, b"part", "state")]
        hold = await held_at_the_last_file(parts)
        taken = parts.snapshots_taken
        waits = asyncio.create_task(parts.put(message(body=bytes(20_000)), own=True))
        await asyncio.sleep(0)
        assert parts.snapshots_taken == taken
        hold.set()
        stored = await waits
        assert parts.snapshots_taken == taken + 1
        assert read(parts, stored.start - stored.start % FILE_SIZE)[3] == b"part"


async def test_a_message_that_fits_only_without_the_snapshot_goes_without(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        parts.first = [message(0, bytes(5000), "state")]
        body = bytes(FILE_SIZE - 500)
        stored = await parts.put(message(body=body))
        assert stored.start == 0
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
        own = await parts.put(message(0, bytes(5000), "state"), own=True)
        assert own.firsts == [0]
        parts.prepare = parts.appender.prepare_next
        async with asyncio.timeout(10):
            while True:
                try:
                    again = await parts.put(message(body=bytes(5000)))
                    break
                except DiskFull:
                    await asyncio.sleep(0.02)
        assert again.firsts == [QueueOffset(stored)]


@pytest.mark.parametrize(
    ("read_only", "needs_restart", "may_append"),
    [
        (None, False, True),
        (DiskFull("full", "Free space."), False, False),
        (None, True, False),
    ],
)
async def test_the_first_records_of_a_term_do_not_wait_for_the_files_ahead(
    tmp_path: Path, read_only: StoreError | None, needs_restart: bool, may_append: bool
) -> None:
    store = StoreDir(OsDisk(), tmp_path, StoreConfig(commit_log_file_size=FILE_SIZE))
    store.open_or_create()
    parts = Components(store, Positions.open(store.disk, store.checkpoint_path), 5.0)
    recovered = SimpleNamespace(end=PhysicalOffset(0), read_only=read_only)
    parts.store = SimpleNamespace(recovered=recovered, needs_restart=needs_restart)
    LogContext.start_appender(cast(LogContext, parts))
    assert parts.appender.files.ready_ahead == 0
    runs = runs_of([message()])
    if may_append:
        assert parts.append.append_now(runs, own=True).end == parts.appender.appended > 0
    else:
        with pytest.raises(FileNotReady, match="is being made"):
            parts.append.append_now(runs, own=True)
    parts.appender.close(clean=True)


async def test_a_slow_disk_is_an_error_that_says_so_and_stores_nothing(tmp_path: Path) -> None:
    async with parts_in(tmp_path, wait_s=1.0) as parts:
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
        first = await parts.put(message())
        parts.clock.now_ms -= 5000
        second = await parts.put(message())
        assert second.store_timestamp_ms == first.store_timestamp_ms
        assert parts.steps == []
        parts.clock.now_ms -= 60_000
        third = await parts.put(message())
        assert third.store_timestamp_ms == parts.clock.now_ms
        assert parts.steps == [65_000]


async def test_a_file_that_is_awaited_when_the_creation_has_ended_is_not_ready(
    tmp_path: Path,
) -> None:
    """It was a RuntimeError of the thread pool. A broker that was started on a read-only disk ends
    once the disk takes writes (``restart-needed``), while the first record of the start waits for
    its file: its last words were a traceback of both errors instead of the code and the remedy."""
    async with parts_in(tmp_path) as parts:
        stop = asyncio.Event()
        stop.set()
        await parts.files.run(stop)
        before = parts.appender.written
        with pytest.raises(FileNotReady, match="Nothing was stored"):
            await parts.files.wait()
        assert parts.appender.written == before


async def test_retention_refuses_sends_and_not_the_brokers_own_records(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        limits = Limits()
        parts.files.limit_by(limits)
        limits.refusal = DiskFull("the disk is 91 % full.", "Wait.")
        with pytest.raises(DiskFull, match="91 %"):
            await parts.put(message())
        assert (await parts.put(message(), own=True)).firsts == [0]
        limits.refusal = None
        assert (await parts.put(message())).firsts == [1]


async def made_again(parts: Components) -> None:
    async with asyncio.timeout(20):
        while parts.files.failure is not None:
            parts.files.made.clear()
            await parts.files.made.wait()


async def test_a_guard_prevents_new_files_and_every_attempt_gets_its_error(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        limits = Limits()
        limits.fault = DiskFull("the disk is 90 % full.", "Wait.")
        parts.files.limit_by(limits)
        parts.files.made.clear()
        with pytest.raises(DiskFull, match="90 %"):
            await parts.files.wait()
        assert parts.files.made.is_set()
        assert isinstance(parts.files.failure, DiskFull)
        assert parts.files.kept_back == FILE_SIZE
        # Two files are ahead, one of them is left to the broker: what is in the way is not in it.
        _, refusal = await fill(parts, 5000)
        assert isinstance(refusal, DiskFull)
        assert parts.appender.reserved_bytes >= FILE_SIZE + FILE_SIZE // 4
        assert parts.appender.files.ready_ahead == 1
        await parts.put(message(body=bytes(20_000)), own=True)
        limits.fault = None
        await made_again(parts)


async def test_a_closed_log_refuses(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        parts.append.close()
        with pytest.raises(NotServing, match="stopping"):
            await parts.put(message())


async def test_a_failed_write_ends_appending_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parts_in(tmp_path) as parts:
        await parts.put(message())
        file = next(iter(parts.appender._open.values()))
        monkeypatch.setattr(type(file), "pwrite", _fails)
        end = parts.appender.appended
        with pytest.raises(WriteFailed) as failed:
            await parts.put(message(), message())
        monkeypatch.undo()
        intended = failed.value.appended
        assert isinstance(intended, Appended)
        assert (intended.firsts, intended.start) == ([1], end)
        sizes = memoryview(intended.sizes).cast("I")
        assert (len(sizes), intended.end) == (2, end + sum(sizes))
        assert [type(fault) for fault in parts.flusher.faults] == [WriteFailed]
        with pytest.raises(NotServing):
            await parts.put(message())
        assert parts.offsets.next_of(("t", 0)) == 1


def _fails(*_: object) -> None:
    raise OSError(errno.EIO, "planted")


# Only ``run`` tries again, and it slept without a limit: it had not seen the failure.
async def test_files_are_made_again_after_a_failure_that_a_send_met(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        fault = DiskFull("planted: the disk is full")
        prepare = parts.prepare

        def full_once() -> None:
            parts.prepare = prepare
            raise fault

        parts.prepare = full_once
        parts.files.made.clear()
        with pytest.raises(DiskFull, match="planted"):
            await parts.files.wait()
        await made_again(parts)


def test_the_place_of_each_request_in_an_append_of_several_is_that_of_its_own_records() -> None:
    def run(queue: int, count: int, batch_properties: bytes = b"") -> Run:
        return Run("t", queue, b"", count, HOST, HOST, batch_properties=batch_properties)

    requests = [[run(0, 2)], [run(1, 3, b"an inner batch is one record"), run(2, 1)], [run(0, 1)]]
    sizes = array("I", [10, 20, 300, 40, 50])
    firsts = [QueueOffset(first) for first in (7, 8, 9, 9)]
    whole = Appended(firsts, PhysicalOffset(1000), sizes.tobytes(), 5, PhysicalOffset(1420))
    found = [
        (part.firsts, part.start, list(memoryview(part.sizes).cast("I")), part.end)
        for part in whole.parts(requests)
    ]
    assert found == [
        ([7], 1000, [10, 20], 1030),
        ([8, 9], 1030, [300, 40], 1370),
        ([9], 1370, [50], 1420),
    ]
