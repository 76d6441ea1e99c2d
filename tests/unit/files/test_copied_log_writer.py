"""Records of another node at the end of this log, at the same offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.ha.wire.record_assembler import Part, RecordAssembler
from shared.files.copied_log_writer import CopiedLogWriter
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tests.support.replica_store import FILE, ROOT, SLAVE, MasterLog, log_of
from tests.support.sim_disk import SimDisk, SimFile
from tidemark.errors import DiskFull, FlushFailed, WriteFailed
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

LOG = MasterLog(40, seed=2)


class Copier:
    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        store = StoreDir(disk, ROOT, SLAVE)
        store.open_or_create()
        self.positions = Positions.open(disk, store.checkpoint_path)
        self.writer = CopiedLogWriter(store, self.positions, ahead=1)
        self.writer.start_at(PhysicalOffset(0))
        self.records = RecordAssembler(FILE)
        self.records.begin(0)

    def copy(self, data: bytes) -> None:
        for piece in self.records.take(data):
            if piece.part is Part.RECORDS:
                self.writer.put(piece.data, piece.store_timestamp_ms)
            elif piece.part is Part.FILLER:
                self.writer.fill_up(piece.data)
            else:
                self.writer.fill_rest(piece.data, piece.at)


@pytest.fixture
def copier() -> Iterator[Copier]:
    copier = Copier(SimDisk(3))
    yield copier
    copier.writer.close(clean=False)


def first_filler() -> int:
    records = RecordAssembler(FILE)
    records.begin(0)
    return next(piece.at for piece in records.take(LOG.data) if piece.part is Part.FILLER)


def test_the_log_ends_at_the_next_file_once_the_fillers_head_is_written(copier: Copier) -> None:
    at = first_filler()
    copier.copy(LOG.data[: at + 7])
    assert copier.writer.written == at
    copier.copy(LOG.data[at + 7 : at + 8])
    assert copier.writer.written == copier.positions.get(Slot.WRITTEN) == FILE
    assert copier.writer.flush() == copier.positions.get(Slot.FLUSHED) == FILE
    copier.copy(LOG.data[at + 8 : FILE])
    assert copier.writer.written == FILE
    copier.copy(LOG.data[FILE:])
    assert copier.writer.flush() == LOG.end
    assert log_of(copier.disk, LOG.end) == LOG.data


def test_bytes_behind_the_head_of_a_foreign_filler_are_copied_too(copier: Copier) -> None:
    at = first_filler()
    foreign = bytearray(LOG.data)
    foreign[at + 100 : at + 110] = b"left there"
    copier.copy(bytes(foreign))
    assert log_of(copier.disk, LOG.end) == foreign


@pytest.mark.parametrize("step", [1, 137, 4096, 9000])
def test_any_number_of_files_is_open_only_until_they_are_flushed(copier: Copier, step: int) -> None:
    for at in range(0, LOG.end, step):
        copier.copy(LOG.data[at : at + step])
        if at % 3 == 0:
            copier.writer.flush()
            assert len(copier.writer._open) <= 1
    assert copier.writer.flush() == LOG.end
    assert log_of(copier.disk, LOG.end) == LOG.data


def test_it_goes_on_where_it_ended_also_at_a_files_start(copier: Copier) -> None:
    for end in (first_filler() + 8, 3 * FILE, LOG.end):
        copier.copy(LOG.data[copier.records.received : end])
        copier.writer.close(clean=True)
        copier.writer.start_at(copier.writer.written)
        if copier.writer.written % FILE:  # the next file is made when a byte of it comes
            assert copier.writer.files.ready_ahead == 0
    assert log_of(copier.disk, LOG.end) == LOG.data


def test_a_log_that_was_opened_on_a_full_disk_goes_on_in_its_file(
    copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next file was expected, and the process ended by an assertion.
    copier.copy(LOG.data[: first_filler()])
    copier.writer.close(clean=True)
    end = copier.writer.written
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise DiskFull("planted: the disk is full")

        full.setattr("tests.support.sim_disk.SimFile.reserve", refuse)
        copier.writer.start_at(end)
        assert not copier.writer.settled
    copier.copy(LOG.data[copier.records.received :])
    assert log_of(copier.disk, LOG.end) == LOG.data


def test_after_a_failed_sync_nothing_further_is_taken(copier: Copier) -> None:
    copier.copy(LOG.data[:FILE])
    copier.disk.failing_sync = lambda path: "commitlog" in str(path)
    with pytest.raises(FlushFailed):
        copier.writer.flush()
    copier.disk.failing_sync = lambda path: False
    with pytest.raises(FlushFailed):
        copier.copy(LOG.data[FILE:])
    assert copier.positions.get(Slot.FLUSHED) == 0


def test_after_a_failed_write_nothing_further_is_taken(
    copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier.copy(LOG.data[:FILE])
    written = copier.writer.written

    def fail(self: SimFile, data: bytes, offset: int) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(SimFile, "pwrite", fail)
    with pytest.raises(WriteFailed):
        copier.copy(LOG.data[FILE : 2 * FILE])
    monkeypatch.undo()
    with pytest.raises(WriteFailed):
        copier.writer.flush()
    assert copier.positions.get(Slot.WRITTEN) == written
