"""Removal of expired queue and index files; no kill or power cut during it causes a rebuild.

The tests use a store with several log, queue and index files on a simulated disk, and do the
broker's part: they publish MIN and remove the log file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from tests.support.for_each import for_each
from tests.support.index_query import query
from tests.support.sim_disk import SimCrash, SimDisk
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import PhysicalOffset

ROOT = Path("/sim/store")
MESSAGES = 120
QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))
FILE_SIZE = CONFIG.commit_log_file_size
UNITS_PER_FILE = CONFIG.consume_queue_file_size // 20


class Filled:
    """A store that is dispatched and synced, with its dispatcher."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.small = SmallStore(ROOT, disk=disk)
        self.batches: list[Unit] = []
        """The record of each message of a batch queue."""
        for number in range(MESSAGES):
            topic, queue = QUEUES[number % 7 % 3]
            self.small.put(topic, queue, body=b"x" * 150, keys=f"k{number}")
            if number % 3 == 0:
                count = 1 + number % 4
                unit = self.small.put_batch([b"y"] * count, dispatched=False)
                self.batches += [unit] * count
        self.small.put("once", 0, body=b"only in the first file", at_ms=self.small.now_ms)
        self.small.flush()
        self.dispatcher = dispatcher_of(disk, self.small.positions)
        dispatch_all(self.dispatcher)
        self.dispatcher.sync()
        self.small.positions.sync()  # the kernel writes it back within half a minute

    def shorten(self, files: int) -> int:
        """Do the broker's part: publish the new min offset durably, then remove the log files."""
        log_min = files * FILE_SIZE
        self.small.positions.publish(Slot.MIN, log_min)
        self.small.positions.sync()
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
    """Check that every unit and key of the remaining records exists and that the min offsets are
    right.
    """
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
    check_queue(ConsumeQueueReader(store, "batches", 0, log), filled.batches, end, log_min)
    for message, (topic, _, _, unit) in enumerate(filled.small.units[:MESSAGES]):
        wanted = [unit.physical_offset] if unit.physical_offset >= log_min else []
        assert query(index, topic, f"k{message}", dispatched=end) == wanted
    index.close()
    log.close()


def check_queue(reader: ConsumeQueueReader, units: list[Unit], end: int, log_min: int) -> None:
    """Check what a reader returns for a queue. units: the record of each of its messages."""
    assert reader.max_offset(end) == len(units)
    kept = [n for n, unit in enumerate(units) if unit.physical_offset >= log_min]
    assert reader.min_offset(log_min) == (kept[0] if kept else len(units))
    assert [reader.unit(number) for number in kept] == [units[number] for number in kept]
    reader.close()


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


def test_the_release_of_log_files_is_published() -> None:
    """A mapped file keeps its disk blocks, so on a full disk the broker waits for its release."""
    disk = SimDisk(6)
    filled = Filled(disk)
    get = filled.small.positions.get
    filled.small.positions.publish(Slot.MIN, FILE_SIZE)
    filled.dispatcher.release()
    assert get(Slot.RELEASED_MIN) == 0, "the name is still there"
    disk.unlink(filled.small.store.commit_log_dir / offset_name(0))
    filled.dispatcher.release()
    assert get(Slot.RELEASED_MIN) == FILE_SIZE
    assert get(Slot.CLEANED_MIN) == 0


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
    """A file removed during a sync must still be announced after the sync.

    1. A sync reads the totals. 2. Files are removed. 3. The sync publishes the old totals. 4. The
       process is killed: the next start must still know that files may have been removed.
    """
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
    # Kill the process again before the second one has published anything.
    clean_all(again)
    once_more = dispatcher_of(disk, filled.small.positions)
    assert once_more.decision is not None
    assert once_more.decision.index_mode is IndexMode.CONTINUE
    check_answers(disk, filled.small.positions, filled, log_min)


def test_a_queue_keeps_a_file_until_units_behind_it_are_on_disk() -> None:
    """A queue's first file must not be removed while all units behind it are unsynced.

    1. The first file expires. 2. It is removed. 3. The next start counts the durable units, finds
       the queue empty and rebuilds everything.
    """
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


def crashes() -> Iterator[int]:
    """Yield the number of each disk operation of a removal and the following sync."""
    disk = SimDisk(5)
    filled = Filled(disk)
    filled.shorten(5)
    before = disk.operations
    clean_all(filled.dispatcher)
    filled.dispatcher.sync()
    yield from range(1, disk.operations - before)


@for_each("power", ["stays", "goes"])
@for_each("after", crashes())
def test_a_kill_at_any_operation_causes_no_rebuild(after: int, power: str) -> None:
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
        log_min = recover(store, positions, boot_id=BOOT).min_offset
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


# -- many starts, at random ----------------------------------------------------------------------


class Node:
    """One store over many starts: the messages sent to it, and those that must survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(seed)
        self.units: dict[tuple[str, int], list[Unit]] = {}
        """The record of each message of each queue."""
        self.sent = self.log_min = 0
        self.start()

    def start(self) -> None:
        self.small = SmallStore(ROOT, disk=self.disk)
        self.log_min = self.small.recovered.min_offset
        self.dispatcher = dispatcher_of(self.disk, self.small.positions)

    def forget_unanswered(self) -> None:
        """Account for messages of an interrupted send: only those that are stored count."""
        next_offsets = self.small.recovered.next_queue_offsets
        for key, number in next_offsets.items():
            units = self.units.setdefault(key, [])
            del units[number:]
            if len(units) < number:  # stored, but interrupted before its ack
                assert key[0] == "batches" or len(units) == number - 1
                units += [self.unit_of_last()] * (number - len(units))

    def unit_of_last(self) -> Unit:
        """Return the unit of the record at the end of the log."""
        log = CommitLogReader(self.small.store, self.small.positions)
        at, last = log.min_offset, None
        while at < self.small.end:
            record = log.record(at, self.small.end)
            if record is None:
                at = log.next_file(at)
                continue
            last = Unit(record.physical_offset, record.size, 0)
            at = PhysicalOffset(at + record.size)
        log.close()
        assert last is not None
        return last

    def put(self) -> None:
        for _ in range(self.random.randrange(1, 40)):
            queues = [*QUEUES, ("batches", 0), ("rare", 0)][: 4 + (self.sent % 29 == 0)]
            topic, queue = self.random.choice(queues)
            body, count = b"x" * self.random.randrange(300), 1
            if topic == "batches":
                count = self.random.randrange(1, 5)
                bodies = [body] * count
                unit = self.small.put_batch(bodies, topic, queue, keys="all", dispatched=False)
            else:
                unit = self.small.put(topic, queue, body=body, keys="all")
            self.small.flush()
            self.units.setdefault((topic, queue), []).extend([unit] * count)
            self.sent += 1

    def shorten(self) -> None:
        """Remove log files like retention: not the last one, nothing above the dispatched mark."""
        durable = self.small.positions.get(Slot.DISPATCHED_DURABLE)
        last = self.small.end - self.small.end % FILE_SIZE
        new_min = min(durable - durable % FILE_SIZE, last)
        if new_min <= self.log_min:
            return
        self.small.positions.publish(Slot.MIN, new_min)
        self.small.positions.sync()
        directory = self.small.store.commit_log_dir
        for start in range(self.log_min, new_min, FILE_SIZE):
            self.disk.unlink(directory / offset_name(start))
            self.disk.sync_directory(directory)
            self.log_min = start + FILE_SIZE

    def work(self) -> None:
        for _ in range(self.random.randrange(2, 14)):
            match self.random.randrange(6):
                case 0:
                    self.put()
                case 1 | 2:
                    self.dispatcher.step(self.random.choice((500, 5000, 1 << 20)))
                case 3:
                    self.dispatcher.sync()
                case 4:
                    self.shorten()
                case _:
                    self.dispatcher.clean()

    def check(self) -> None:
        """Check that all remaining records are found and that numbering continues."""
        dispatch_all(self.dispatcher)
        self.dispatcher.sync()
        clean_all(self.dispatcher)
        positions, store = self.small.positions, self.small.store
        log = CommitLogReader(store, positions)
        for (topic, queue), units in self.units.items():
            reader = ConsumeQueueReader(store, topic, queue, log)
            check_queue(reader, units, positions.get(Slot.DISPATCHED), self.log_min)
        log.close()


@for_each("seed", range(40))
def test_over_many_starts_no_record_of_the_log_is_missed(seed: int) -> None:
    node = Node(seed)
    for _ in range(8):
        node.disk.crash_at = node.disk.operations + node.random.randrange(1, 400)
        with contextlib.suppress(SimCrash):
            node.work()
        get = node.small.positions.get
        # The boot id does not change here, so a power cut must not lose unflushed data.
        cut = node.random.random() < 0.4 and get(Slot.WRITTEN) == get(Slot.FLUSHED)
        if cut:
            node.disk = node.disk.power_cut(node.random)
        else:
            node.disk = node.disk.copy()
        had_synced = get(Slot.DISPATCHED_DURABLE) > 0
        node.start()
        node.forget_unanswered()
        assert node.dispatcher.decision is not None
        if had_synced and not cut:
            assert node.dispatcher.decision.queue_mode is QueueMode.CONTINUE
            assert node.dispatcher.decision.index_mode is IndexMode.CONTINUE
        node.check()
