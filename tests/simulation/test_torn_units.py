"""A queue unit across two pages of which a power cut left one: it is made again, not believed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from shared.files.store_config import StoreConfig
from tests.simulation import checks
from tests.simulation.history import History
from tests.simulation.machine import ROOT, Machine, NewOne
from tests.support.sim_disk import PAGE, SimDisk

UNITS = 300
CONFIG = StoreConfig(
    commit_log_file_size=64 << 10,
    consume_queue_file_size=6000,
    index_slots=50,
    index_entries=400,
)


def test_a_unit_whose_tags_code_was_torn_off_is_made_again_from_the_log() -> None:
    """Without a checkpoint queues are believed up to their last whole unit.

    1. Unit 204 of a queue lies across the border of the first page: its offset, its size and half
    of its tags code before it, the other half behind. 2. The power fails, only the first page had
    been written back. 3. The unit looks whole, and the tags code it tells is a wrong one: whoever
    filters by tag would never be shown the message.
    """
    disk = SimDisk(Random(1))
    disk.make_directory(ROOT)
    history = History()
    machine = Machine(disk, CONFIG, history, boot=1)
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
    again = Machine(after, replace(CONFIG), history, boot=2)
    again.start_reput()
    again.dispatch_all()

    checks.check_units(after, ROOT, history, again.dispatched, exact=True)
