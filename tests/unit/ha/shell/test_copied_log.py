"""The slave's log: written, synced, reported, faults named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.ha.core.effects import Copy
from services.ha.core.events import Copied, CopyFault
from services.ha.shell import copied_log
from services.ha.shell.copied_log import CopiedLog
from shared.files.positions import Positions
from tests.support.replica_store import FILE, MasterLog, log_of, store_of
from tests.support.sim_disk import SimDisk
from tidemark.errors import FlushFailed
from tidemark.formats.checkpoint import Slot

LOG = MasterLog(40, seed=4)


class Slave:
    """A copied log and its reports."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        store = store_of(disk)
        store.open_or_create()
        self.positions = Positions.open(disk, store.checkpoint_path)
        self.events: list[Copied | CopyFault] = []
        self.changed = threading.Condition()
        self.crashes: list[BaseException] = []
        self.log = CopiedLog(store, self.positions, self.take, self.crashes.append)

    def take(self, event: Copied | CopyFault) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait_for(self, event: Copied | CopyFault) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: event in self.events, 10), self.events

    def send(self, start: int, end: int, step: int, *, first: bool = True) -> None:
        for at in range(start, end, step):
            data = memoryview(LOG.data)[at : min(end, at + step)]
            self.log.copy(Copy(at, data, first and at == start))

    @property
    def faults(self) -> list[CopyFault]:
        return [event for event in self.events if isinstance(event, CopyFault)]


@pytest.fixture
def slave() -> Iterator[Slave]:
    slave = Slave(SimDisk(1))
    slave.log.open(0)
    yield slave
    slave.log.close()
    assert not slave.crashes


def check_reports(slave: Slave) -> None:
    """Reports only ever grew, and never exceeded the log."""
    ends = [(event.end, event.durable) for event in slave.events if isinstance(event, Copied)]
    assert all(durable <= end for end, durable in ends)
    assert [end for end, _ in ends] == sorted(end for end, _ in ends)
    assert [durable for _, durable in ends] == sorted(durable for _, durable in ends)


@pytest.mark.parametrize("step", [1 << 20, 5000, 700, 61])
def test_bytes_cut_anywhere_become_the_same_log_and_every_byte_is_reported(
    slave: Slave, step: int
) -> None:
    slave.send(0, LOG.end, step)
    slave.wait_for(Copied(LOG.end, LOG.end))
    assert log_of(slave.disk, LOG.end) == LOG.data
    assert slave.positions.get(Slot.FLUSHED) == slave.positions.get(Slot.WRITTEN) == LOG.end
    check_reports(slave)
    assert not slave.faults


def test_what_is_reported_as_durable_survives_a_power_cut(slave: Slave) -> None:
    slave.send(0, LOG.end, 900)
    slave.wait_for(Copied(LOG.end, LOG.end))
    assert log_of(slave.disk.power_cut(), LOG.end) == LOG.data


def test_half_a_record_is_neither_written_nor_reported(slave: Slave) -> None:
    whole, half = LOG.borders[4], LOG.borders[5] + 30
    slave.send(0, half, 1 << 20)
    slave.wait_for(Copied(whole, whole))
    assert slave.positions.get(Slot.WRITTEN) == whole
    assert log_of(slave.disk, FILE)[whole:] == bytes(FILE - whole)
    settled = slave.log.settle()
    assert settled == (whole, whole)
    # Dropped: the next stretch begins at the end of the log.
    slave.send(whole, LOG.end, 700)
    slave.wait_for(Copied(LOG.end, LOG.end))


def test_the_bytes_of_a_filler_are_not_reported_before_they_came(slave: Slave) -> None:
    filler = next(
        at
        for at in LOG.borders
        if 0 < at <= FILE and LOG.data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94"
    )
    slave.send(0, filler + 8, 1 << 20)
    slave.wait_for(Copied(filler + 8, filler + 8))
    assert slave.positions.get(Slot.WRITTEN) == FILE
    slave.send(filler + 8, filler + 20, 12, first=False)
    slave.wait_for(Copied(filler + 20, filler + 20))
    # Settled, it ends where a recovery would find its end.
    assert slave.log.settle() == (FILE, FILE)
    slave.send(FILE, LOG.end, 4000)
    slave.wait_for(Copied(LOG.end, LOG.end))
    assert log_of(slave.disk, LOG.end) == LOG.data


def test_a_bad_byte_is_named_and_nothing_behind_it_is_taken(slave: Slave) -> None:
    bad = bytearray(LOG.data[: LOG.borders[20]])
    start = LOG.borders[9]
    bad[start + 60] ^= 4
    slave.log.copy(Copy(0, bytes(bad), first=True))
    (fault,) = slave.faults
    assert (fault.code, fault.end) == ("bad-stream", start)
    assert str(start) in fault.detail
    slave.send(len(bad), LOG.end, 500, first=False)
    assert slave.log.settle().end == start
    assert len(slave.faults) == 1
    # The right bytes arrive on the next link.
    slave.send(start, LOG.end, 500)
    slave.wait_for(Copied(LOG.end, LOG.end))


@pytest.mark.parametrize("off", [-1, 1, 500])
def test_bytes_of_another_place_are_refused(slave: Slave, off: int) -> None:
    end = LOG.borders[4]
    slave.send(0, end, 1 << 20)
    slave.log.copy(Copy(end + off, LOG.data[end + off : end + off + 400], first=False))
    (fault,) = slave.faults
    assert fault.code == "bad-stream"
    slave.log.copy(Copy(end + off, LOG.data[end + off : end + off + 400], first=True))
    assert len(slave.faults) == 2
    assert slave.log.settle().end == end


def test_a_full_disk_is_named_and_it_goes_on_when_there_is_room() -> None:
    slave = Slave(SimDisk(4, capacity_bytes=7 * FILE))
    slave.log.open(0)
    slave.send(0, LOG.end, 1000)
    (fault,) = slave.faults
    assert fault.code == "disk-full"
    assert slave.log.settle().end == fault.end
    slave.disk.capacity_bytes = None
    slave.send(fault.end, LOG.end, 1000)
    slave.wait_for(Copied(LOG.end, LOG.end))
    slave.log.close()
    assert log_of(slave.disk, LOG.end) == LOG.data


def test_a_failed_sync_is_named_and_ends_the_log(slave: Slave) -> None:
    slave.disk.failing_sync = lambda path: "commitlog" in str(path)
    slave.send(0, 1000, 1000)
    with slave.changed:
        assert slave.changed.wait_for(lambda: slave.faults, 10)
    assert slave.faults[0].code == "flush-failed"
    slave.disk.failing_sync = lambda path: False
    with pytest.raises(FlushFailed):
        slave.log.settle()
    assert not [event for event in slave.events if isinstance(event, Copied)]


def test_without_the_append_lock_nothing_is_taken(slave: Slave) -> None:
    slave.log.close()
    assert not slave.log.is_open
    slave.send(0, 1000, 1000)
    assert [fault.code for fault in slave.faults] == ["not-serving"]


def test_bytes_that_come_while_a_sync_runs_are_synced_by_the_next(slave: Slave) -> None:
    first, second = LOG.borders[4], LOG.borders[8]
    slave.disk.after_sync = lambda: slave.send(first, second, 5000, first=False)
    slave.send(0, first, 5000)
    slave.wait_for(Copied(second, second))
    check_reports(slave)


def test_a_slow_sync_does_not_keep_the_master_from_sending(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_log, "REPORT_SIZE", 500)
    end = next(border for border in LOG.borders if border > 1500)
    assert end < FILE
    synced = threading.Event()

    def slow(path: Path) -> bool:
        assert synced.wait(10)
        return False

    slave.disk.failing_sync = slow
    slave.send(0, end, 400)
    reported = [event for event in slave.events if isinstance(event, Copied)]
    assert reported[-1].end > 500
    assert reported[-1].durable == 0
    synced.set()
    slave.wait_for(Copied(end, end))
    check_reports(slave)
