"""A unit or a record across two pages of which a power cut kept one, without a checkpoint."""

from __future__ import annotations

from random import Random

from shared.files.store_config import StoreConfig
from tests.simulation import checks
from tests.simulation.history import History
from tests.simulation.machine import ROOT, Log, Machine, NewOne
from tests.support.sim_disk import PAGE, SimDisk

UNITS = 300
CONFIG = StoreConfig(
    commit_log_file_size=64 << 10,
    consume_queue_file_size=6000,
    index_slots=50,
    index_entries=400,
)


def test_a_unit_with_a_torn_tags_code_is_rebuilt_from_the_log() -> None:
    """Without a checkpoint, queues are trusted up to their last whole unit.

    1. Unit 204 of a queue lies across the border of the first page: its offset, its size and half
    of its tags code before it, the other half behind. 2. The power fails, only the first page had
    been written back. 3. The unit seems whole, but its tags code is wrong: a consumer that filters
    by tag would never get the message.
    """
    disk = SimDisk(Random(1))
    disk.make_directory(ROOT)
    history = History()
    machine = Machine(disk, CONFIG, Log(), history, boot=1)
    machine.start_reput()
    for number in range(UNITS):
        machine.send([NewOne("orders", 0, b"%d" % number, f"Tag{number}", (), f"U{number}")])
    machine.flush()
    machine.dispatch_all()
    machine.sync()
    machine.stop()
    unit = history.sent[PAGE // checks.UNIT_SIZE].unit
    assert unit.tags_code & 0xFFFFFFFF, "half of it has to differ from zeros"

    after = disk.copy()
    path = ROOT / "consumequeue" / "orders" / "0" / f"{0:020}"
    file = after.open(path, writable=True)
    file.pwrite(bytes(CONFIG.consume_queue_file_size - PAGE), PAGE)
    file.close()
    after.remove_tree(ROOT / "checkpoint")
    again = Machine(after, CONFIG, Log(), history, boot=2)
    again.start_reput()
    again.dispatch_all()

    checks.check_units(after, ROOT, history, again.dispatched, exact=True)


def test_a_record_that_lost_its_properties_is_cut_without_a_checkpoint_too() -> None:
    """1. A record lies across two pages: all up to the length of its properties in the first one.
    2. The power fails before any sync, with only the first page written back. 3. The checkpoint
    is deleted: no mark shows whether the record was ever flushed. 4. Sizes, position and body CRC
    are right, the record CRC is absent: half a message was served.
    """
    disk = SimDisk(Random(1))
    disk.make_directory(ROOT)
    history = History()
    machine = Machine(disk, CONFIG, Log(), history, boot=1)
    machine.send([NewOne("orders", 0, b"first", "", (), "U1")])
    machine.flush()
    first = history.sent[0]
    head_size = 48 + 8 + 8 + 8 + 16 + 1 + len("orders") + 2
    body = bytes(range(1, 256)) * 16
    machine.send([NewOne("orders", 0, body[: PAGE - first.end - head_size], "", (), "U2")])
    torn = history.sent[1]

    after = disk.copy()
    file = after.open(ROOT / "commitlog" / f"{0:020}", writable=True)
    file.pwrite(bytes(PAGE), PAGE)
    file.close()
    after.remove_tree(ROOT / "checkpoint")
    again = Machine(after, CONFIG, Log(), history, boot=2)

    assert torn.start < PAGE < torn.end
    assert again.recovered.end == first.end == torn.start
    assert again.recovered.cut is not None
    assert again.next_queue_offsets == {("orders", 0): 1}
