"""Snapshots of the own node, and when they are taken."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.ha.core.events import Event, NodeSnapshot, Tick
from services.ha.shell.watch import SILENT_FOR_EVER, SnapshotReader, Watch, trouble
from shared.files.lock_probe import LockProbe
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_dir import LockByte
from shared.runtime.doorbell import Doorbell
from tests.support.still_clock import StillClock, until
from tidemark.errors import ReplacedPositions
from tidemark.formats.checkpoint import BrokerPhase, Slot, Trouble

NOW_MS = 1_000_000


class Locks(LockProbe):
    """Lock bytes that are held."""

    def __init__(self, *held: int) -> None:
        self.held = held

    def is_held(self, byte: int) -> bool:
        return byte in self.held


@pytest.fixture
def positions(tmp_path: Path) -> Iterator[Positions]:
    page = Positions.open(OsDisk(), tmp_path / "checkpoint")
    yield page
    page.close()


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        doorbell = Doorbell(Path(directory), "ha")
        yield doorbell
        doorbell.close()


def test_a_broker_counts_as_long_as_it_holds_its_lock_byte(positions: Positions) -> None:
    positions.publish(Slot.BROKER_NONCE, 77)
    clock = StillClock(NOW_MS)
    assert SnapshotReader(positions, Locks(), clock).read().broker_nonce == 0
    assert SnapshotReader(positions, Locks(LockByte.BROKER), clock).read().broker_nonce == 77


def test_the_slots_are_reported_as_they_are(positions: Positions) -> None:
    for slot, value in (
        (Slot.BROKER_HEARTBEAT_MS, NOW_MS - 40),
        (Slot.SERVING_EPOCH, 3),
        (Slot.EPOCH_RECORD_END, 500),
        (Slot.FLUSHED, 600),
        (Slot.WRITTEN, 700),
        (Slot.BROKER_TROUBLE, Trouble.DISK_FULL),
        (Slot.REPUT_TROUBLE, Trouble.DAMAGED),
        (Slot.MIN, 100),
        (Slot.BROKER_STATE, BrokerPhase.SERVING),
        (Slot.DISPATCHED, 650),
        (Slot.REPUT_HEARTBEAT_MS, NOW_MS - 60),
    ):
        positions.publish(slot, value)
    seen = SnapshotReader(positions, Locks(), StillClock(NOW_MS)).read()
    assert seen == NodeSnapshot(
        0,
        40,
        3,
        500,
        600,
        700,
        Trouble.DISK_FULL,
        Trouble.DAMAGED,
        100,
        gate_open=True,
        dispatched=650,
        reput_alive=False,
        reput_silent_ms=60,
    )


def test_damage_is_reported_as_it_was_loaded_once(
    positions: Positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A broker that starts clears the slot between two loads of it: offset -1 was checked.
    positions.publish(Slot.DAMAGED_AT, 501)
    loaded: list[int] = []
    get = positions.get

    def once(slot: Slot) -> int:
        value = get(slot)
        if slot is Slot.DAMAGED_AT:
            loaded.append(value)
            positions.publish(slot, 0)
        return value

    monkeypatch.setattr(positions, "get", once)
    reader = SnapshotReader(positions, Locks(LockByte.BROKER), StillClock(NOW_MS))
    assert reader.read().damaged_at == 500
    assert loaded == [501]
    assert reader.read().damaged_at is None


def test_the_wall_clock_is_reported_apart_from_the_one_that_decides(positions: Positions) -> None:
    reader = SnapshotReader(positions, Locks(), StillClock(NOW_MS), lambda: NOW_MS + 123)
    assert reader.read().wall_ahead_ms == 123


@pytest.mark.parametrize("ahead_ms", [1, 952, 1_000_000])
def test_a_heartbeat_of_another_boot_is_none_even_when_the_clock_has_reached_it(
    positions: Positions, ahead_ms: int
) -> None:
    clock = StillClock(NOW_MS)
    reader = SnapshotReader(positions, Locks(), clock)
    positions.publish(Slot.BROKER_HEARTBEAT_MS, NOW_MS + ahead_ms)
    assert reader.read().broker_silent_ms == SILENT_FOR_EVER
    clock.advance(ahead_ms)
    assert reader.read().broker_silent_ms == SILENT_FOR_EVER
    positions.publish(Slot.BROKER_HEARTBEAT_MS, clock.boot_ms() - 3)
    assert reader.read().broker_silent_ms == 3


def test_a_trouble_of_a_later_version_counts_as_damage() -> None:
    assert trouble(99) is Trouble.DAMAGED
    assert trouble(0) is Trouble.NONE


def test_the_probe_sees_a_lock_without_taking_it(tmp_path: Path) -> None:
    disk, path = OsDisk(), tmp_path / "lock"
    lock = disk.lock(path, byte=LockByte.BROKER)
    assert lock is not None
    probe = LockProbe(path)
    assert probe.is_held(LockByte.BROKER)
    assert not probe.is_held(LockByte.APPEND)
    lock.release()
    assert not probe.is_held(LockByte.BROKER)
    again = disk.lock(path, byte=LockByte.BROKER)
    assert again is not None
    probe.close()
    assert disk.lock(path, byte=LockByte.BROKER) is None
    again.release()


class Watched:
    """A watch that runs, and its events."""

    def __init__(self, positions: Positions, bell: Doorbell) -> None:
        self.clock = StillClock(NOW_MS)
        self.events: list[Event] = []
        self.stop = asyncio.Event()
        self.watch = Watch(
            SnapshotReader(positions, Locks(), self.clock),
            positions,
            bell,
            self.clock,
            self.events.append,
            interval_ms=50,
        )

    async def reads(self, count: int) -> None:
        """Wait until that many snapshots were posted."""
        await until(lambda: sum(isinstance(event, NodeSnapshot) for event in self.events) >= count)


async def test_it_reads_at_every_ring_and_without_one(positions: Positions, bell: Doorbell) -> None:
    watched = Watched(positions, bell)
    task = asyncio.create_task(watched.watch.run(watched.stop))
    await watched.reads(1)
    assert watched.events[0] == Tick()
    bell.wake()
    await watched.reads(2)
    assert watched.events.count(Tick()) == 1  # the clock stands still
    watched.clock.advance(50)
    await watched.reads(3)  # after the interval, without a ring
    assert watched.events.count(Tick()) == 2
    watched.stop.set()
    await task
    assert positions.get(Slot.HA_HEARTBEAT_MS) == NOW_MS


async def test_it_gives_a_heartbeat_and_ends_when_the_page_is_replaced(
    positions: Positions, bell: Doorbell
) -> None:
    watched = Watched(positions, bell)
    task = asyncio.create_task(watched.watch.run(watched.stop))
    await watched.reads(1)
    watched.clock.advance(600)
    bell.wake()
    await watched.reads(2)
    assert positions.get(Slot.HA_HEARTBEAT_MS) == NOW_MS + 600
    positions.path.rename(positions.path.with_name("elsewhere"))
    watched.clock.advance(600)
    bell.wake()
    with pytest.raises(ReplacedPositions):
        await task


async def test_a_loop_that_stood_still_is_named(
    positions: Positions, bell: Doorbell, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(positions, bell)
    task = asyncio.create_task(watched.watch.run(watched.stop))
    await watched.reads(1)
    watched.clock.advance(14_000)
    bell.wake()
    await watched.reads(2)
    assert watched.watch.loop_stalls == 1
    assert "stood still" in caplog.text
    watched.stop.set()
    await task
