"""Consumer offsets: served at once, coalesced into few records, never older than a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from services.broker.groups import offsets as offsets_module
from services.broker.groups.offsets import Offsets, encoded
from shared.state import records
from shared.state.records import GroupConfig, GroupRecord, OffsetsRecord
from shared.state.state import BrokerState
from tidemark.errors import DiskFull, FileNotReady, NotServing, Overloaded
from tidemark.offsets import PhysicalOffset


class Log:
    """A log in memory: everything is durable at once, unless ``fault`` or ``files`` say no."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fault: Exception | None = None
        self.file_missing = False
        self.asked_for_file = asyncio.Event()
        self.file = asyncio.Event()
        self.durable_to = 0

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        if self.fault is not None:
            raise self.fault
        if self.file_missing:
            raise FileNotReady("the next log file is being made.", "Try again.")
        self.bodies += bodies
        return PhysicalOffset(len(self.bodies))

    async def file_made(self) -> None:
        self.asked_for_file.set()
        await self.file.wait()
        self.file_missing = False

    async def durable(self, end: PhysicalOffset) -> None:
        self.durable_to = end

    @property
    def replayed(self) -> dict[str, dict[tuple[str, int], int]]:
        state = BrokerState()
        for body in self.bodies:
            state.apply(records.decode(body))
        return state.offsets


@asynccontextmanager
async def running(offsets: Offsets) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(offsets.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        await task


def made(log: Log, **limits: int) -> Offsets:
    return Offsets(BrokerState(), log, flushed=lambda: 7, **limits)


async def test_an_accepted_offset_is_served_at_once_and_durable_when_waited_for() -> None:
    log = Log()
    offsets = made(log)
    assert offsets.get("g", "t", 0) is None
    offsets.accept("g", {("t", 0): 5, ("t", 1): 0})
    assert (offsets.get("g", "t", 0), offsets.get("g", "t", 1)) == (5, 0)
    assert list(offsets.groups()) == ["g"]
    assert log.bodies == []
    async with running(offsets):
        await offsets.durable()
        assert records.decode(log.bodies[0]) == OffsetsRecord(7, {"g": {("t", 0): 5, ("t", 1): 0}})
        assert log.durable_to == 1


def test_groups_whose_offsets_moved_are_returned_once() -> None:
    state = BrokerState()
    state.offsets["before"] = {("t", 0): 1}
    offsets = Offsets(state, Log(), flushed=lambda: 7)
    assert set(offsets.take_moved()) == {"before"}, "its move was not taken yet"
    assert set(offsets.take_moved()) == set()
    offsets.accept("g", {("t", 0): 5})
    offsets.accept("before", {("t", 0): 1})
    assert set(offsets.take_moved()) == {"g"}, "the same offset again moves nothing"
    offsets.remove_group("before")
    assert set(offsets.take_moved()) == {"before"}


async def test_moves_within_a_window_are_written_in_one_record() -> None:
    log = Log()
    offsets = made(log)
    async with running(offsets):
        offsets.accept("g", {("t", 0): 1})
        await offsets.durable()  # the first one does not wait for a window
        for offset in range(2, 500):
            offsets.accept("g", {("t", 0): offset})
            offsets.accept(f"h{offset % 3}", {("t", 1): offset})
        await offsets.durable()
    assert len(log.bodies) == 2
    assert log.replayed["g"] == {("t", 0): 499}
    assert log.replayed.keys() == {"g", "h0", "h1", "h2"}


async def test_the_last_moves_are_written_at_the_stop() -> None:
    log = Log()
    offsets = made(log)
    async with running(offsets):
        offsets.accept("g", {("t", 0): 1})
        await offsets.durable()
        offsets.accept("g", {("t", 0): 2})
        offsets.accept("g", {("t", 0): 1})  # a reset
        offsets.accept("g", {("t", 1): 9})
    assert log.replayed == {"g": {("t", 0): 1, ("t", 1): 9}}


async def test_the_same_offset_again_writes_nothing() -> None:
    log = Log()
    offsets = made(log)
    async with running(offsets):
        offsets.accept("g", {("t", 0): 1})
        await offsets.durable()
        before = offsets.changes
        offsets.accept("g", {("t", 0): 1})
        await offsets.durable()
        assert offsets.changes == before
    assert len(log.bodies) == 1


async def test_a_record_that_waited_for_a_file_has_the_offsets_of_its_append() -> None:
    # Otherwise the new file's snapshot has the later offset and the record behind it the earlier.
    log = Log()
    log.file_missing = True
    offsets = made(log)
    async with running(offsets):
        offsets.accept("g", {("t", 0): 1})
        await log.asked_for_file.wait()
        offsets.accept("g", {("t", 0): 2})
        log.file.set()
        await offsets.durable()
    assert log.replayed == {"g": {("t", 0): 2}}
    assert len(log.bodies) == 1


async def test_waiting_callers_get_the_full_disk_and_the_write_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets_module, "RETRY_S", 0.01)
    log = Log()
    log.fault = DiskFull("no space.", "Make room.")
    offsets = made(log)
    async with running(offsets):
        offsets.accept("g", {("t", 0): 1})
        with pytest.raises(DiskFull):
            await offsets.durable()
        assert offsets.get("g", "t", 0) == 1
        log.fault = None
        await offsets.durable()
    assert log.replayed == {"g": {("t", 0): 1}}


async def test_commits_that_a_stop_cuts_off_are_named(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    offsets = made(log)
    log.fault = NotServing("the node is stopping.", "Try again.")
    offsets.accept("g", {("t", 0): 1, ("t", 1): 1})
    await offsets.finish()
    (line,) = [each for each in caplog.records if "could not be written" in each.message]
    assert line.__dict__["queues"] == 2


async def test_a_commit_during_the_stop_is_written_or_refused_and_never_waits_for_ever() -> None:
    log = Log()
    offsets = made(log)
    await offsets.finish()
    offsets.accept("g", {("t", 0): 1})
    await offsets.durable()
    assert log.replayed == {"g": {("t", 0): 1}}
    log.fault = NotServing("the node is stopping.", "Try again.")
    offsets.accept("g", {("t", 0): 2})
    with pytest.raises(NotServing):
        await offsets.durable()


async def test_nothing_of_a_removed_group_is_written_behind_its_deletion() -> None:
    log = Log()
    offsets = made(log)
    offsets.accept("g", {("t", 0): 1})
    offsets.accept("h", {("t", 0): 1})
    log.bodies.append(records.encode(GroupRecord(0, GroupConfig("g", deleted=True))))
    offsets.remove_group("g")
    assert offsets.of_group("g") == {}
    await offsets.finish()
    assert log.replayed == {"h": {("t", 0): 1}}


def test_a_group_beyond_the_limit_is_refused_whole() -> None:
    offsets = made(Log(), pairs_max=3)
    offsets.accept("g", {("t", 0): 1, ("t", 1): 1})
    with pytest.raises(Overloaded, match="3 is the limit"):
        offsets.accept("h", {("t", 0): 1, ("t", 1): 1})
    assert offsets.of_group("h") == {}
    offsets.accept("g", {("t", 0): 2, ("t", 2): 1})
    offsets.remove_group("g")
    offsets.accept("h", {("t", 0): 1, ("t", 1): 1})


def test_very_many_moves_are_cut_into_records_and_steps() -> None:
    moved = {f"g{n:03}": {("topic", queue): queue for queue in range(500)} for n in range(200)}
    seen: dict[str, dict[tuple[str, int], int]] = {}
    steps, rest = 0, moved
    while rest:
        bodies, rest = encoded(rest, 0)
        steps += 1
        assert sum(map(len, bodies)) <= offsets_module.STEP_SIZE_MAX
        assert all(len(body) <= 2 * offsets_module.RECORD_SIZE_MAX for body in bodies)
        for body in bodies:
            record = records.decode(body)
            assert isinstance(record, OffsetsRecord)
            for group, pairs in record.moves.items():
                seen.setdefault(group, {}).update(pairs)
    assert seen == moved
    assert steps > 1
