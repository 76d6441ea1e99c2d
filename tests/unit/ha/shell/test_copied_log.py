"""The slave's log: written, synced, reported, faults named."""

from __future__ import annotations

from collections.abc import Iterator

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
        self.log = CopiedLog(store, self.positions, self.events.append)

    def send(self, start: int, end: int, step: int, *, first: bool = True) -> None:
        """Copy bytes of the master's log in pieces, then sync, because no more bytes wait."""
        for at in range(start, end, step):
            data = memoryview(LOG.data)[at : min(end, at + step)]
            self.log.copy(Copy(at, data, first and at == start))
        self.log.sync()

    @property
    def faults(self) -> list[CopyFault]:
        return [event for event in self.events if isinstance(event, CopyFault)]


@pytest.fixture
def slave() -> Iterator[Slave]:
    slave = Slave(SimDisk(1))
    slave.log.open(0)
    yield slave
    slave.log.close()


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
    assert slave.events[-1] == Copied(LOG.end, LOG.end)
    assert log_of(slave.disk, LOG.end) == LOG.data
    assert slave.positions.get(Slot.FLUSHED) == slave.positions.get(Slot.WRITTEN) == LOG.end
    check_reports(slave)
    assert not slave.faults


def test_what_is_reported_as_durable_survives_a_power_cut(slave: Slave) -> None:
    slave.send(0, LOG.end, 900)
    assert slave.events[-1] == Copied(LOG.end, LOG.end)
    assert log_of(slave.disk.power_cut(), LOG.end) == LOG.data


def test_half_a_record_is_neither_written_nor_reported(slave: Slave) -> None:
    whole, half = LOG.borders[4], LOG.borders[5] + 30
    slave.send(0, half, 1 << 20)
    assert slave.events[-1] == Copied(whole, whole)
    assert slave.positions.get(Slot.WRITTEN) == whole
    assert log_of(slave.disk, FILE)[whole:] == bytes(FILE - whole)
    settled = slave.log.settle()
    assert settled == (whole, whole)
    # Dropped: the next stretch begins at the end of the log.
    slave.send(whole, LOG.end, 700)
    assert slave.events[-1] == Copied(LOG.end, LOG.end)


def test_the_bytes_of_a_filler_are_not_reported_before_they_came(slave: Slave) -> None:
    filler = next(
        at
        for at in LOG.borders
        if 0 < at <= FILE and LOG.data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94"
    )
    slave.send(0, filler + 8, 1 << 20)
    assert slave.events[-1] == Copied(filler + 8, filler + 8)
    assert slave.positions.get(Slot.WRITTEN) == FILE
    slave.send(filler + 8, filler + 20, 12, first=False)
    assert slave.events[-1] == Copied(filler + 20, filler + 20)
    # Settled, it ends where a recovery would find its end.
    assert slave.log.settle() == (FILE, FILE)
    slave.send(FILE, LOG.end, 4000)
    assert slave.events[-1] == Copied(LOG.end, LOG.end)
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
    assert slave.events[-1] == Copied(LOG.end, LOG.end)


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
    assert slave.events[-1] == Copied(LOG.end, LOG.end)
    slave.log.close()
    assert log_of(slave.disk, LOG.end) == LOG.data


def test_a_failed_sync_is_named_and_ends_the_log(slave: Slave) -> None:
    slave.disk.failing_sync = lambda path: "commitlog" in str(path)
    slave.send(0, 1000, 1000)
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


def test_bytes_of_several_pieces_share_one_sync(slave: Slave) -> None:
    syncs: list[int] = []
    slave.disk.after_sync = lambda: syncs.append(slave.positions.get(Slot.WRITTEN))
    end = LOG.borders[8]
    slave.send(0, end, 700)
    slave.log.sync()
    assert syncs == [end]
    assert slave.events == [Copied(end, end)]


def test_written_bytes_are_reported_before_their_sync_so_that_the_master_keeps_sending(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_log, "REPORT_SIZE", 500)
    end = next(border for border in LOG.borders if border > 1500)
    assert end < FILE
    slave.log.copy(Copy(0, LOG.data[:end], first=True))
    assert slave.events == [Copied(end, 0)]
    slave.log.sync()
    assert slave.events[-1] == Copied(end, end)
    check_reports(slave)


def test_a_master_that_never_pauses_does_not_keep_its_bytes_from_being_synced(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_log, "SYNC_SIZE", 1500)
    for at in range(0, LOG.borders[20], 400):
        slave.log.copy(Copy(at, LOG.data[at : at + 400], first=at == 0))
        unsynced = slave.positions.get(Slot.WRITTEN) - slave.positions.get(Slot.FLUSHED)
        assert unsynced < 1500
    check_reports(slave)


def test_nothing_is_synced_after_a_fault_until_the_next_stretch(slave: Slave) -> None:
    whole = LOG.borders[4]
    slave.log.copy(Copy(0, LOG.data[:whole], first=True))
    slave.log.copy(Copy(whole + 1, b"x", first=False))
    slave.log.sync()
    assert [type(event) for event in slave.events] == [CopyFault]
    assert slave.log.settle() == (whole, whole)
