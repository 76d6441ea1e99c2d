"""Queues and index follow the log's start, and no kill or power cut on the way has them made again.

A store of several log, queue and index files on a simulated disk; the broker's part, MIN and the
log file's name, is played here.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from services.reput.dispatcher import Dispatcher
from services.reput.resume import IndexMode, QueueMode
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.index import IndexReader
from shared.files.positions import Positions
from shared.files.recovery import recover
from shared.files.store_dir import StoreDir
from tests.support.sim_disk import SimCrash, SimDisk
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name
from tidemark.offsets import PhysicalOffset

ROOT = Path("/sim/store")
MESSAGES = 120
QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))
FILE_SIZE = CONFIG.commit_log_file_size
UNITS_PER_FILE = CONFIG.consume_queue_file_size // 20


class Filled:
    """A store that is dispatched and synced, and the dispatcher that did it."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.small = SmallStore(ROOT, disk=disk)
        for number in range(MESSAGES):
            topic, queue = QUEUES[number % 7 % 3]
            self.small.put(topic, queue, body=b"x" * 150, keys=f"k{number}")
        self.small.put("once", 0, body=b"only in the first file", at_ms=self.small.now_ms)
        self.small.flush()
        self.dispatcher = dispatcher_of(disk, self.small.positions)
        dispatch_all(self.dispatcher)
        self.dispatcher.sync()
        self.small.positions.sync()  # the kernel writes it back within half a minute

    def shorten(self, files: int) -> int:
        """What the broker does: publish the new start, then remove the names. Returns it."""
        log_min = files * FILE_SIZE
        self.small.positions.publish(Slot.MIN, log_min)
        for start in range(0, log_min, FILE_SIZE):
            path = self.small.store.commit_log_dir / offset_name(start)
            if self.disk.stat(path) is not None:
                self.disk.unlink(path)
                self.disk.sync_directory(self.small.store.commit_log_dir)
        return log_min


def dispatcher_of(disk: SimDisk, positions: Positions) -> Dispatcher:
    store = StoreDir(disk, ROOT, CONFIG)
    dispatcher = Dispatcher(store, positions, CommitLogReader(store, positions), boot_id=BOOT)
    dispatcher.resume()
    return dispatcher


def dispatch_all(dispatcher: Dispatcher) -> None:
    while dispatcher.step(1000):
        pass


def clean_all(dispatcher: Dispatcher) -> int:
    removed = 0
    while dispatcher.may_clean:
        removed += dispatcher.clean()
    return removed


def queue_starts(disk: SimDisk, topic: str, queue: int) -> list[int]:
    directory = ROOT / "consumequeue" / topic / str(queue)
    return [int(entry.name) for entry in disk.list_directory(directory)]


def check_answers(disk: SimDisk, positions: Positions, filled: Filled, log_min: int) -> None:
    """Every unit and every key of a record that the log still has is there; minima are right."""
    store = StoreDir(disk, ROOT, CONFIG)
    log = CommitLogReader(store, positions)
    end = positions.get(Slot.DISPATCHED)
    index = IndexReader(store, log)
    for topic, queue in QUEUES:
        reader = ConsumeQueueReader(store, topic, queue, log)
        own = [
            (number, unit) for t, q, number, unit in filled.small.units if (t, q) == (topic, queue)
        ]
        kept = [(number, unit) for number, unit in own if unit.physical_offset >= log_min]
        assert reader.min_offset(log_min) == kept[0][0]
        assert reader.max_offset(end) == own[-1][0] + 1
        for number, unit in kept:
            assert reader.unit(number) == unit
        reader.close()
    for message, (topic, _, _, unit) in enumerate(filled.small.units[:MESSAGES]):
        wanted = [unit.physical_offset] if unit.physical_offset >= log_min else []
        assert index.query(topic, f"k{message}", dispatched=end) == wanted
    index.close()
    log.close()


def test_leading_files_of_expired_records_go_and_the_last_of_a_queue_stays() -> None:
    disk = SimDisk(1)
    filled = Filled(disk)
    before = {key: queue_starts(disk, *key) for key in QUEUES}
    index_before = IndexReader(filled.small.store, filled.dispatcher._log).names()
    assert not filled.dispatcher.may_clean
    log_min = filled.shorten(4)
    assert filled.dispatcher.may_clean
    assert clean_all(filled.dispatcher) > 0
    for topic, queue in QUEUES:
        own = [unit for t, q, _, unit in filled.small.units if (t, q) == (topic, queue)]
        expired = sum(unit.physical_offset < log_min for unit in own)
        gone = expired // UNITS_PER_FILE
        assert gone > 0
        assert queue_starts(disk, topic, queue) == before[topic, queue][gone:]
    assert queue_starts(disk, "once", 0) == [0]
    index_after = IndexReader(filled.small.store, filled.dispatcher._log).names()
    assert 0 < len(index_after) < len(index_before)
    assert index_after == index_before[-len(index_after) :]
    assert filled.small.positions.get(Slot.CLEANED_MIN) == log_min
    check_answers(disk, filled.small.positions, filled, log_min)


def test_dispatch_goes_on_behind_a_cleaning_and_totals_are_right_again() -> None:
    disk = SimDisk(2)
    filled = Filled(disk)
    log_min = filled.shorten(3)
    clean_all(filled.dispatcher)
    get = filled.small.positions.get
    assert get(Slot.REMOVING_FIRSTS) > 0
    assert get(Slot.REMOVING_ENTRIES) > 0
    filled.dispatcher.sync()
    assert (get(Slot.REMOVING_FIRSTS), get(Slot.REMOVING_ENTRIES)) == (0, 0)
    for number in range(30):
        filled.small.put("orders", number % 2, body=b"later", keys=f"later{number}")
    filled.small.flush()
    dispatch_all(filled.dispatcher)
    filled.dispatcher.sync()
    again = dispatcher_of(disk, filled.small.positions)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.CONTINUE
    assert again.decision.index_mode is IndexMode.CONTINUE
    dispatch_all(again)
    assert again.repaired_count == 0
    check_answers(disk, filled.small.positions, filled, log_min)


def test_a_sync_begun_before_a_cleaning_does_not_hide_it() -> None:
    """1. A sync takes the totals; 2. files go; 3. the sync publishes the totals of before; 4. the
    process is killed: the next start must still know that files were to go."""
    disk = SimDisk(3)
    filled = Filled(disk)
    filled.small.put("orders", 0, body=b"one more", keys="more")
    filled.small.flush()
    dispatch_all(filled.dispatcher)
    job = filled.dispatcher.begin_sync()
    assert job is not None
    log_min = filled.shorten(3)
    clean_all(filled.dispatcher)
    job.run()
    filled.dispatcher.finish_sync(job)
    again = dispatcher_of(disk, filled.small.positions)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.CONTINUE
    assert again.decision.index_mode is IndexMode.CONTINUE
    # And a kill once more, before that one has published anything.
    clean_all(again)
    once_more = dispatcher_of(disk, filled.small.positions)
    assert once_more.decision is not None
    assert once_more.decision.index_mode is IndexMode.CONTINUE
    check_answers(disk, filled.small.positions, filled, log_min)


def test_a_queue_keeps_a_file_until_units_behind_it_are_on_disk() -> None:
    """1. A queue's first file expires, all units behind it are not synced; 2. it goes; 3. the next
    start counts what is on disk, finds the queue empty and makes everything again."""
    disk = SimDisk(4)
    small = SmallStore(ROOT, disk=disk)
    for _ in range(UNITS_PER_FILE):
        small.put("orders", 0, body=b"x" * 150)
    while small.end < FILE_SIZE:
        small.put("bills", 0, body=b"y" * 150)
    small.flush()
    dispatcher = dispatcher_of(disk, small.positions)
    dispatch_all(dispatcher)
    dispatcher.sync()
    for _ in range(3):
        small.put("orders", 0, body=b"z")
    small.flush()
    dispatch_all(dispatcher)
    small.positions.publish(Slot.MIN, FILE_SIZE)
    disk.unlink(small.store.commit_log_dir / offset_name(0))
    dispatcher.clean()
    assert queue_starts(disk, "orders", 0)[0] == 0
    assert small.positions.get(Slot.CLEANED_MIN) == 0
    killed = dispatcher_of(disk, small.positions)
    assert killed.decision is not None
    assert killed.decision.queue_mode is QueueMode.CONTINUE
    dispatch_all(killed)
    killed.sync()
    clean_all(killed)
    assert queue_starts(disk, "orders", 0)[0] == CONFIG.consume_queue_file_size
    assert small.positions.get(Slot.CLEANED_MIN) == FILE_SIZE


def crashes() -> list[int]:
    """Every operation of a cleaning and the sync behind it, by its distance from the beginning."""
    disk = SimDisk(5)
    filled = Filled(disk)
    filled.shorten(5)
    before = disk.operations
    clean_all(filled.dispatcher)
    filled.dispatcher.sync()
    return list(range(1, disk.operations - before))


@pytest.mark.parametrize("power", ["stays", "goes"])
@pytest.mark.parametrize("after", crashes())
def test_killed_at_any_operation_nothing_is_made_again(after: int, power: str) -> None:
    disk = SimDisk(5)
    filled = Filled(disk)
    log_min = filled.shorten(5)
    disk.crash_at = disk.operations + after
    with pytest.raises(SimCrash):  # noqa: PT012 - whichever of them is interrupted
        clean_all(filled.dispatcher)
        filled.dispatcher.sync()
    if power == "goes":
        disk = disk.power_cut(Random(after))
        store = StoreDir(disk, ROOT, CONFIG)
        store.open_or_create()
        positions = Positions.open(disk, store.checkpoint_path)
        log_min = recover(store, positions, boot_id=BOOT, now=0).min_offset
    else:
        disk.crash_at = None
        disk.revive()
        positions = filled.small.positions
    again = dispatcher_of(disk, positions)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.CONTINUE, again.decision
    assert again.decision.index_mode is not IndexMode.REBUILD
    dispatch_all(again)
    clean_all(again)
    again.sync()
    assert positions.get(Slot.CLEANED_MIN) == log_min
    check_answers(disk, positions, filled, log_min)
    last = dispatcher_of(disk, positions)
    assert last.decision is not None
    assert last.decision.queue_mode is QueueMode.CONTINUE
    assert PhysicalOffset(last.dispatched) == filled.small.end
