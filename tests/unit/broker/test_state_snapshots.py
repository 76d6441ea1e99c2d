"""Snapshots: at file borders and inside files, whole or in slices; where the newest one begins.

``Files`` simulates the log: files of a fixed size, each begun with what the state log gives, as the
appender does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.offsets import Offsets
from services.broker.log.append import Append, Appended
from services.broker.log.flusher import Flusher
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state import state_log as state_log_module
from services.broker.state.snapshot_places import SnapshotPlaces
from services.broker.state.state_log import StateLog
from shared.runtime.clock import SystemClock
from shared.state import records
from shared.state.records import DelayRecord, GroupConfig, GroupRecord, OffsetsRecord, SnapshotPart
from shared.state.state import BrokerState
from tests.unit.broker.state.test_state_log import HOST, bodies_of, topic
from tidemark.errors import DiskFull, FileNotReady
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

F = TypeVar("F", bound="Files")


class Files:
    """A log of bodies, file after file; an append that does not fit begins the next file."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.log: list[tuple[int, bytes]] = []
        """(physical offset, body)."""
        self.end = 0
        self.missing = False
        self.full = False
        self.state_log: StateLog | None = None

    def append_now(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        assert own
        if self.full:
            raise DiskFull("no room. Nothing was stored.")
        if self.missing:
            raise FileNotReady("the next log file is being made.", "Try again.")
        bodies = bodies_of(runs)
        room = self.file_size - self.end % self.file_size
        if sum(map(len, bodies)) > room:
            self.end += room
            assert self.state_log is not None
            first = bodies_of(self.state_log.snapshot())
            start = self.end
            self._put(first)
            if first:
                self.state_log.snapshot_placed(PhysicalOffset(start), self.end - start)
        start = self.end
        self._put(bodies)
        return Appended([], PhysicalOffset(start), b"", 1, PhysicalOffset(self.end))

    def _put(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.log.append((self.end, body))
            self.end += len(body)

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        return self.append_now(runs, own=own)

    async def file_made(self) -> None:
        self.missing = False

    async def durable(self, end: PhysicalOffset) -> bool:
        return True

    def suffix(self, start: int) -> BrokerState:
        """Sum up the records from a physical offset on."""
        state = BrokerState()
        for at, body in self.log:
            if at >= start:
                state.apply(records.decode(body), at)
        return state


class FilesMadeLater(Files):
    """Appends wait for the missing file until a test makes it."""

    def __init__(self, file_size: int) -> None:
        super().__init__(file_size)
        self.made = asyncio.Event()

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        await self.file_made()
        return self.append_now(runs, own=own)

    async def file_made(self) -> None:
        if self.missing:
            await self.made.wait()
            self.missing = False


def made(file_size: int, state: BrokerState | None = None) -> tuple[Files, StateLog]:
    return connected(Files(file_size), state)


def connected(files: F, state: BrokerState | None = None) -> tuple[F, StateLog]:
    log = StateLog(
        state or BrokerState(),
        QueueOffsets({}),
        SystemClock(),
        HOST,
        flushed=lambda: files.end,
        file_size=files.file_size,
    )
    files.state_log = log
    log.connect(cast(Append, files), cast(Flusher, files))
    return files, log


async def test_any_file_that_begins_with_a_snapshot_rebuilds_everything() -> None:
    files, log = made(16_000)
    for number in range(900):
        body = (
            topic(f"t{number % 7}", number + 1)
            if number % 2
            else records.encode(GroupRecord(0, GroupConfig(f"g{number % 9}", retry_max=number)))
        )
        await log.append_state(body)
    whole = files.suffix(0)
    parts = [(at, records.part_of(body)) for at, body in files.log]
    starts = [at for at, part in parts if part is not None and part[0] == 0]
    assert len(starts) >= 5
    for start in starts:
        state = files.suffix(start)
        assert (state.topics, state.groups) == (whole.topics, whole.groups)
    assert log.snapshot_start == starts[-1] == whole.snapshot_at


async def test_snapshots_hold_the_offsets_that_are_served() -> None:
    files, log = made(2000)
    log.take_offsets_from(lambda: {"g": {("t", 0): 9}})
    log.append_state_now(records.encode(DelayRecord(0, {1: 2})))
    log.append_offsets_now([records.encode(OffsetsRecord(0, {"g": {("t", 0): 7}}))])
    await log.append_snapshot()
    state = files.suffix(0)
    assert state.offsets == {"g": {("t", 0): 9}}
    assert state.delay.levels == {1: 2}


async def test_after_many_records_there_is_a_snapshot_inside_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log_module, "RECORDS_MAX", 10)
    files, log = made(1 << 20)
    stop = asyncio.Event()
    running = asyncio.create_task(log.run(stop))
    for number in range(35):
        await log.append_state(topic(f"t{number}", 1))
        await asyncio.sleep(0)
    stop.set()
    await running
    found = [at for at, body in files.log if records.part_of(body) is not None]
    assert len(found) == 3
    assert files.suffix(found[-1]).topics == files.suffix(0).topics
    assert log.snapshot_start == found[-1]


async def test_a_foreign_state_replaces_that_of_the_records() -> None:
    files, log = made(4096)
    log.take_offsets_from(lambda: {"served before": {("t", 0): 1}})
    for number in range(10):
        await log.append_state(topic(f"old-{number}", 1))
    taken = BrokerState()
    for number in range(80):
        taken.apply(GroupRecord(0, GroupConfig(f"group-{number}")))
        taken.apply(OffsetsRecord(0, {f"group-{number}": {("t", 0): number}}))
    files.missing = True  # it waits for a file, and goes on
    await log.append_snapshot(taken.copy())
    state = files.suffix(0)
    assert not state.topics
    assert (state.groups, state.offsets) == (taken.groups, taken.offsets)
    await log.append_state(topic("new", 1))
    again = bodies_of(log.snapshot()) or [body for _, body in files.log]
    assert any(isinstance(records.decode(body), SnapshotPart) for body in again)


# RocketMQ's state is taken over while the slices of a large snapshot are still being appended.
# 1. Both wait for a file with the same slice; 2. both append it; 3. the next one was dropped
# unappended, and the snapshot counted as complete.
async def test_a_take_over_beside_the_slices_of_a_snapshot_leaves_none_out() -> None:
    state = BrokerState()
    for number in range(200):
        state.apply(GroupRecord(0, GroupConfig(f"group-{number}")))
    files, log = connected(FilesMadeLater(4096), state)
    for number in range(60):
        await log.append_state(topic(f"t{number}", 1))
    assert len(log._slices) > 2
    files.missing = True
    stop = asyncio.Event()
    running = asyncio.create_task(log.run(stop))
    taking_over = asyncio.create_task(log.append_snapshot(taken_over().copy()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    files.made.set()
    await taking_over
    stop.set()
    await running
    bodies = [body for _, body in files.log if records.part_of(body) is not None]
    assert len(bodies) == len(set(bodies)), "no slice is appended twice"
    assert log.snapshot_start is not None
    assert files.suffix(log.snapshot_start).groups == taken_over().groups


# 1. A snapshot is due after many records, and waits for a file; 2. the take-over waits, too; 3. the
# first one ended, and the snapshot of the take-over had the offsets from before it.
async def test_a_take_over_beside_a_due_snapshot_keeps_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log_module, "RECORDS_MAX", 10)
    files, log = connected(FilesMadeLater(1 << 20))
    log.take_offsets_from(lambda: {"served before": {("t", 0): 1}})
    for number in range(10):
        await log.append_state(topic(f"t{number}", 1))
    files.missing = True
    stop = asyncio.Event()
    running = asyncio.create_task(log.run(stop))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    taking_over = asyncio.create_task(log.append_snapshot(taken_over().copy()))
    await asyncio.sleep(0)
    files.made.set()
    await taking_over
    stop.set()
    await running
    assert files.suffix(0).offsets == taken_over().offsets


def taken_over() -> BrokerState:
    state = BrokerState()
    for number in range(80):
        state.apply(GroupRecord(0, GroupConfig(f"taken-{number}")))
        state.apply(OffsetsRecord(0, {f"taken-{number}": {("t", 0): number}}))
    return state


async def test_a_snapshot_that_the_disk_cuts_off_does_not_count_and_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log_module, "SLICE_RETRY_S", 0.01)
    state = BrokerState()
    for number in range(200):
        state.apply(GroupRecord(0, GroupConfig(f"group-{number}")))
    files, log = made(4096, state)
    for number in range(60):
        await log.append_state(topic(f"t{number}", 1))
    assert log._slices, "a snapshot of more than a quarter of a file goes out in slices"
    begun = log.snapshot_start
    files.full = True
    stop = asyncio.Event()
    running = asyncio.create_task(log.run(stop))
    await asyncio.sleep(0.03)
    assert log.snapshot_start == begun
    files.full = False
    async with asyncio.timeout(20):
        while log._slices:  # noqa: ASYNC110 - the pause between two attempts is what is tested
            await asyncio.sleep(0.01)
    stop.set()
    await running
    start = log.snapshot_start
    assert start is not None
    assert start != begun
    rebuilt = files.suffix(start)
    assert rebuilt.groups == files.suffix(0).groups | state.groups
    assert len(rebuilt.topics) == 60


def test_the_newest_snapshot_is_the_last_one_that_is_on_disk_to_its_end() -> None:
    places = SnapshotPlaces(None)
    assert places.newest(1000) is None
    places.begin(PhysicalOffset(100))
    assert places.begun
    assert places.newest(1000) is None
    places.complete(180)
    places.begin(PhysicalOffset(300))
    places.complete(350)
    assert places.newest(179) is None
    assert places.newest(349) == 100
    places.begin(PhysicalOffset(500))
    places.abandon()
    places.complete(600)
    assert places.newest(1000) == 300
    assert SnapshotPlaces(77).newest(0) == 77


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "write", "topic", "slice", "snapshot"]),
        st.integers(0, 3),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([700, 3000, 20_000]))
def test_offsets_are_the_same_from_every_snapshot_whatever_comes_in_between(
    steps: list[tuple[str, int, int]], file_size: int
) -> None:
    async def run() -> None:
        files, log = made(file_size)
        served = BrokerState()
        offsets = Offsets(served, log, flushed=lambda: files.end)
        log.take_offsets_from(offsets.now)
        for step, number, offset in steps:
            match step:
                case "commit":
                    offsets.accept(f"g{number}", {("t", offset % 5): offset})
                case "write":
                    await offsets.finish()
                case "topic":
                    await log.append_state(topic(f"t{number}", offset + 1))
                case "slice" if log._slices:
                    await log._append_slice()
                case "snapshot":
                    await log.append_snapshot()
                case _:
                    pass
        await offsets.finish()
        await log._finish_slices()
        committed = {group: pairs for group, pairs in served.offsets.items() if pairs}
        starts = [at for at, body in files.log if (records.part_of(body) or (1, 1))[0] == 0]
        for start in [0, *starts]:
            state = files.suffix(start)
            if start == 0 or state.snapshots:
                assert state.offsets == committed

    asyncio.run(run())
