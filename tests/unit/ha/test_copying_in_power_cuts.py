"""A slave copies on a disk that loses unsynced bytes: what it acknowledged is there afterwards."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from services.ha.shell.replica_files import Promise
from services.ha.wire.record_assembler import Part, RecordAssembler
from shared.files.copied_log_writer import CopiedLogWriter
from tests.support.for_each import for_each
from tests.support.replica_store import FILE, OTHER_BOOT, MasterLog, log_of, open_replica
from tests.support.sim_disk import LOSE_ALL, SimCrash, SimDisk
from tests.support.small_store import BOOT
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

LOG = MasterLog(40, seed=8)
EPOCHS = tuple(
    EpochStart(Epoch(number), PhysicalOffset(LOG.borders[at]))
    for number, at in ((1, 0), (2, 15), (3, 31), (4, 59))
)


class Acked(NamedTuple):
    """Offsets that others may rely on."""

    end: int = 0
    promised: int = 0
    confirm: int = 0


def copy(disk: SimDisk, random: Random) -> Acked:
    """Copy the whole log, epoch by epoch, until it is complete or the machine has lost power."""
    acked = Acked()
    try:
        held, found = open_replica(disk)
        writer = CopiedLogWriter(held.directory, held.positions, ahead=1)
        writer.start_at(PhysicalOffset(found.end))
        records = RecordAssembler(FILE)
        records.begin(found.end)
        for number, epoch in enumerate(EPOCHS):
            held.write_promise(Promise(epoch.epoch, epoch.epoch, 1))
            acked = acked._replace(promised=epoch.epoch)
            held.files.write_table(EPOCHS[: number + 1])
            until = EPOCHS[number + 1].start if number + 1 < len(EPOCHS) else LOG.end
            while records.received < until:
                at = records.received
                data = LOG.data[at : min(until, at + random.randrange(1, 3000))]
                for piece in records.take(data):
                    if piece.part is Part.RECORDS:
                        writer.put(piece.data, piece.store_timestamp_ms)
                    elif piece.part is Part.FILLER:
                        writer.fill_up(piece.data)
                    else:
                        writer.fill_rest(piece.data, piece.at)
                if random.random() < 0.4:
                    acked = acked._replace(end=writer.flush())
                if random.random() < 0.2:
                    held.positions.publish(Slot.CONFIRM, acked.end)
                    held.files.write_confirm(acked.end)
                    acked = acked._replace(confirm=acked.end)
        acked = acked._replace(end=writer.flush())
    except SimCrash:
        pass
    return acked


@for_each("seed", range(150))
def test_what_was_acked_is_there_again_and_the_log_goes_on(seed: int) -> None:
    whole = SimDisk(seed)
    copy(whole, Random(seed))
    disk = SimDisk(seed)
    disk.crash_at = Random(seed).randrange(1, whole.operations)
    acked = copy(disk, Random(seed))
    if seed % 3:
        after = disk.power_cut(Random(seed), LOSE_ALL if seed % 2 else None)
    else:
        after = disk.copy()
    held, found = open_replica(after, boot=OTHER_BOOT if seed % 3 else BOOT)
    assert found.halted is None
    assert found.end >= acked.end
    assert found.promised >= acked.promised
    assert acked.confirm <= found.confirm <= found.end
    assert log_of(after, found.end) == LOG.data[: found.end]
    # Equal (epoch, start) mean equal bytes: each byte has the same epoch as at the master.
    assert found.table == EPOCHS[: len(found.table)]
    assert found.end <= next((epoch.start for epoch in EPOCHS[len(found.table) :]), LOG.end)
    held.close()
    assert copy_rest(after) == LOG.data


def copy_rest(disk: SimDisk) -> bytes:
    """The missing bytes arrive on the next link."""
    held, found = open_replica(disk)
    held.files.write_table(EPOCHS)
    writer = CopiedLogWriter(held.directory, held.positions, ahead=1)
    writer.start_at(PhysicalOffset(found.end))
    records = RecordAssembler(FILE)
    records.begin(found.end)
    for piece in records.take(LOG.data[found.end :]):
        if piece.part is Part.RECORDS:
            writer.put(piece.data, piece.store_timestamp_ms)
        elif piece.part is Part.FILLER:
            writer.fill_up(piece.data)
    writer.flush()
    writer.close(clean=True)
    held.close()
    return log_of(disk, LOG.end)
