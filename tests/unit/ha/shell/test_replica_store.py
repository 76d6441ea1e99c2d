"""Recovery of a volume when ha starts, and what is refused instead of guessed."""

from __future__ import annotations

import threading
import zlib
from contextlib import closing
from random import Random

import pytest

from services.ha.core.effects import Copy
from services.ha.core.setup import Setup
from services.ha.shell.copied_log import CopiedLog
from services.ha.shell.replica_files import CutIntent, Damage, Promise, is_incarnation
from services.ha.shell.replica_store import NO_INCARNATION, ReplicaStore
from shared.cluster.grant import grant, granted
from shared.files.store_dir import LockByte, StoreDir
from tests.support.replica_store import (
    FILE,
    MASTER,
    ROOT,
    SETUP,
    MasterLog,
    log_of,
    open_replica,
    store_of,
)
from tests.support.sim_disk import LOSE_ALL, SimDisk
from tests.support.small_store import BOOT, SmallStore
from tests.support.still_clock import StillClock
from tidemark.errors import GroupStore, ReadOnlyDisk, StoreLocked
from tidemark.formats.checkpoint import NodeRole, Slot, resume_check
from tidemark.formats.epochs import EpochStart
from tidemark.formats.filenames import offset_name
from tidemark.formats.record_layout import PHYSICAL_OFFSET_AT
from tidemark.offsets import Epoch, PhysicalOffset

LOG = MasterLog(40, seed=5)
TABLE = (
    EpochStart(Epoch(1), PhysicalOffset(0)),
    EpochStart(Epoch(2), PhysicalOffset(LOG.borders[20])),
)


def slave(disk: SimDisk) -> ReplicaStore:
    """A replica that copied the whole log, and still holds its locks."""
    held, _ = open_replica(disk)
    held.write_promise(Promise(2, 2, 7))
    held.files.write_table(TABLE)
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(0)
    copied.copy(Copy(0, LOG.data, first=True))
    copied.settle()
    copied.close()
    return held


def test_an_empty_volume_becomes_a_member() -> None:
    disk = SimDisk(1)
    held, found = open_replica(disk)
    assert is_incarnation(found.incarnation)
    assert (found.end, found.first_offset, found.confirm, found.table) == (0, 0, 0, ())
    assert (found.promised, found.initialised, found.holds_records) == (0, False, False)
    assert found.halted is None
    held.close()
    _, again = open_replica(disk.power_cut(Random(1), LOSE_ALL))
    assert again.incarnation == found.incarnation


def test_what_was_promised_copied_and_confirmed_is_found_after_a_power_cut() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.files.write_confirm(LOG.borders[10])
    _, found = open_replica(disk.power_cut(Random(2), LOSE_ALL))
    assert found.halted is None
    assert (found.end, found.table, found.confirm) == (LOG.end, TABLE, LOG.borders[10])
    assert (found.promised, found.seen_epoch, found.seen_version) == (2, 2, 7)
    assert (found.initialised, found.holds_records) == (True, True)


@pytest.mark.parametrize("now", ["damaged", "mended", "expired", "unconfirmed", "older page"])
def test_damage_that_an_earlier_start_found_is_read_again(now: str) -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.positions.publish(Slot.CONFIRM, LOG.end)
    held.positions.publish(Slot.DISPATCHED_DURABLE, LOG.end)  # recovery begins there
    held.positions.publish(Slot.RESUME_CHECK, resume_check(LOG.end, 0, 0))
    at = [border for border in LOG.borders if border > FILE][2]
    held.files.write_damage(Damage(at, "a CRC"))
    if now != "mended":
        path = store_of(disk).commit_log_dir / offset_name(at - at % FILE)
        file = disk.open(path, writable=True)
        file.pwrite(bytes((LOG.data[at + 60] ^ 1,)), at % FILE + 60)
        file.close()
    if now == "expired":
        held.positions.publish(Slot.MIN, 2 * FILE)
        for start in (0, FILE):
            disk.unlink(store_of(disk).commit_log_dir / offset_name(start))
    if now == "unconfirmed":  # a page that was lost does not show what is confirmed
        held.positions.publish(Slot.CONFIRM, 0)
    if now == "older page":
        # Its confirm offset ends in the file of the damage, before it: the mark was removed, and
        # the node campaigned for the lease with the damage in its log.
        held.positions.publish(Slot.CONFIRM, at)
    held.close()
    held, found = open_replica(disk)
    stays = now in ("damaged", "unconfirmed", "older page")
    assert (found.halted, found.damage) == (None, "a CRC" if stays else "")
    assert (held.files.damage() is not None) is stays


@pytest.mark.parametrize("is_known", [True, False])
def test_damage_of_the_first_record_of_an_epoch_halts_only_if_it_is_not_known(
    is_known: bool,
) -> None:
    # The last node with the log noted the damage, and its next start halted: no node served.
    disk = SimDisk(1)
    held = slave(disk)
    held.positions.publish(Slot.CONFIRM, LOG.end)
    held.positions.publish(Slot.DISPATCHED_DURABLE, LOG.end)  # recovery begins there
    held.positions.publish(Slot.RESUME_CHECK, resume_check(LOG.end, 0, 0))
    at = TABLE[-1].start
    if is_known:
        held.files.write_damage(Damage(at, "a position"))
    path = store_of(disk).commit_log_dir / offset_name(at - at % FILE)
    with closing(disk.open(path, writable=True)) as file:
        file.pwrite(bytes((LOG.data[at + PHYSICAL_OFFSET_AT] ^ 1,)), at % FILE + PHYSICAL_OFFSET_AT)
    held.close()
    _, found = open_replica(disk)
    assert found.damage == ("a position" if is_known else "")
    assert (found.halted is None) is is_known


@pytest.mark.parametrize("slot", [Slot.CONFIRM, Slot.DISPATCHED_DURABLE])
def test_confirm_is_the_largest_of_file_and_page(slot: Slot) -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.files.write_confirm(LOG.borders[10])
    held.positions.publish(slot, LOG.borders[12])
    held.close()
    assert open_replica(disk)[1].confirm == LOG.borders[12]


def test_opening_ends_the_grant_of_a_predecessor_and_waits_for_the_broker() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    grant(held.positions, epoch=3, nonce=5, deadline_boot_ms=9000, boot=BOOT)
    nonce = held.positions.get(Slot.HA_NONCE)
    held.close()
    broker = store_of(disk).lock(LockByte.APPEND)
    asked: list[int | None] = []
    held = ReplicaStore.open(store_of(disk), SETUP, StillClock(1000))
    get = held.positions.get
    assert (get(Slot.FENCED), get(Slot.GRANTED_TO), get(Slot.ROLE)) == (1, 0, NodeRole.VOID)
    assert get(Slot.HA_NONCE) not in (0, nonce)
    assert get(Slot.HA_PID) != 0

    def stopping() -> bool:
        asked.append(granted(held.positions, nonce=5, boot=BOOT, served=0))
        if len(asked) == 3:
            broker.release()
        return False

    found = held.recover(boot_id=BOOT, progress=lambda done, total: None, stopping=stopping)
    assert found is not None
    assert found.end == LOG.end
    assert set(asked) == {None}


def test_stopped_before_the_broker_gave_the_lock_back_it_finds_nothing() -> None:
    disk = SimDisk(1)
    directory = store_of(disk)
    held = ReplicaStore.open(directory, SETUP, StillClock(1000))
    directory.disk.lock(directory.lock_path, byte=LockByte.APPEND)
    assert (
        held.recover(boot_id=BOOT, progress=lambda done, total: None, stopping=lambda: True) is None
    )


def test_one_ha_per_volume() -> None:
    disk = SimDisk(1)
    held, _ = open_replica(disk)
    with pytest.raises(StoreLocked, match=r"byte 3 \(ha\)"):
        ReplicaStore.open(store_of(disk), SETUP, StillClock(1000))
    held.close()
    ReplicaStore.open(store_of(disk), SETUP, StillClock(1000))


@pytest.mark.parametrize(
    "other",
    [
        SETUP._replace(cluster="other"),
        SETUP._replace(group="other"),
        SETUP._replace(own=SETUP.own._replace(name="n1")),
    ],
)
def test_another_groups_volume_is_refused_and_left_alone(other: Setup) -> None:
    disk = SimDisk(1)
    held, _ = open_replica(disk)
    held.close()
    before = dict(disk.files())
    with pytest.raises(GroupStore, match="Mount the right volume"):
        ReplicaStore.open(store_of(disk), other, StillClock(1000))
    assert dict(disk.files()) == before
    open_replica(disk)  # its lock was released


def test_a_store_of_before_the_group_becomes_one_with_the_first_promise() -> None:
    disk = SimDisk(1)
    small = SmallStore(ROOT, MASTER, disk=disk)
    small.put()
    small.flush()
    small.appender.close(clean=True)
    held, found = open_replica(disk)
    assert (found.holds_records, found.initialised, found.halted) == (True, False, None)
    assert not held.directory.is_grouped
    held.close()
    StoreDir(disk, ROOT, MASTER).open_or_create()
    held, found = open_replica(disk)
    held.write_promise(Promise(1, 1, 1))
    assert held.directory.is_grouped
    held.close()
    with pytest.raises(GroupStore, match="Alone"):
        StoreDir(disk, ROOT, MASTER).open_or_create()
    StoreDir(disk, ROOT, MASTER).open_or_create(writable=False)
    assert open_replica(disk)[1].incarnation == found.incarnation


def test_entries_without_bytes_are_dropped_for_good() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    above = EpochStart(Epoch(3), PhysicalOffset(LOG.end + 1))
    at_end = EpochStart(Epoch(3), PhysicalOffset(LOG.end))
    held.files.write_table((*TABLE, at_end))
    held.close()
    held, found = open_replica(disk)
    assert found.table == (*TABLE, at_end)
    held.files.write_table((*TABLE, above))
    held.close()
    held, found = open_replica(disk)
    assert found.table == held.files.table() == TABLE
    assert (found.halted, found.promised) == (None, 2)


def test_an_epoch_with_bytes_here_counts_as_promised() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.write_promise(Promise(1, 1, 1))
    held.close()
    assert open_replica(disk)[1].promised == 2


@pytest.mark.parametrize(
    "table",
    [
        (TABLE[1], TABLE[0]),
        (TABLE[0], EpochStart(Epoch(1), TABLE[1].start)),
        (TABLE[0], EpochStart(Epoch(2), PhysicalOffset(0))),
        (TABLE[0], EpochStart(Epoch(2), PhysicalOffset(LOG.borders[20] + 1))),
    ],
)
def test_a_table_that_contradicts_the_log_halts(table: tuple[EpochStart, ...]) -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.files.write_table(table)
    held.close()
    held, found = open_replica(disk)
    assert found.halted is not None
    assert str(found.halted).startswith("halted-replica: epoch")
    assert held.files.table() == table


def test_a_log_that_ends_below_what_was_confirmed_halts() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.positions.publish(Slot.DISPATCHED_DURABLE, LOG.end + 100)
    held.close()
    held, found = open_replica(disk)
    assert found.halted is not None
    assert f"ends at {LOG.end}, below {LOG.end + 100}" in str(found.halted)
    held.positions.publish(Slot.DISPATCHED_DURABLE, 0)
    held.files.write_confirm(LOG.end + 100)
    held.close()
    _, found = open_replica(disk)
    assert found.halted is not None
    assert f"the confirm offset is {LOG.end + 100}" in str(found.halted)


def test_a_flipped_bit_in_what_was_confirmed_halts_and_nothing_is_cut() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.positions.publish(Slot.CONFIRM, LOG.end)
    for slot in (Slot.FLUSHED, Slot.WRITTEN):  # an old page: all of the log is walked
        held.positions.publish(slot, 0)
    held.close()
    at = LOG.borders[31]
    path = ROOT / "commitlog" / f"{at - at % FILE:020}"
    disk.flip_bit(path, 8 * (at % FILE + 50))
    held, found = open_replica(disk)
    assert found.halted is not None
    assert str(found.halted).startswith("corrupt-record")
    assert str(at) in str(found.halted)
    assert held.is_halted
    assert is_incarnation(found.incarnation)


def test_below_what_was_confirmed_nothing_is_cut_even_if_the_page_is_lost() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.files.write_confirm(LOG.borders[40])
    held.close()
    at = LOG.borders[31]
    disk.flip_bit(ROOT / "commitlog" / f"{at - at % FILE:020}", 8 * (at % FILE + 50))
    disk.remove_tree(ROOT / "checkpoint")
    damaged = log_of(disk, LOG.end)
    _, found = open_replica(disk)
    assert found.halted is not None
    assert str(found.halted).startswith("corrupt-record")
    assert log_of(disk, LOG.end) == damaged
    assert not disk.list_directory(ROOT / "cut")


def test_a_stray_file_halts_by_name() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.close()
    disk.create(ROOT / "commitlog" / "notes.txt", 5, reserve=False)
    _, found = open_replica(disk)
    assert found.halted is not None
    assert str(found.halted).startswith("stray-file")
    assert "notes.txt" in str(found.halted)


@pytest.mark.parametrize("name", ["identity", "promise", "confirm", "intent", "table"])
def test_a_damaged_file_halts_by_name(name: str) -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.files.write_confirm(1)
    if name == "intent":
        held.files.write_intent(CutIntent(LOG.end, TABLE))
    held.close()
    path = getattr(held.files, f"{name}_path")
    disk.flip_bit(path, 100)
    if name == "table":
        disk.flip_bit(held.files.table_twin_path, 100)
    _, found = open_replica(disk)
    assert found.halted is not None
    assert "damaged-file" in str(found.halted)
    assert path.name in str(found.halted)
    if name == "identity":
        assert found.incarnation == NO_INCARNATION


def test_a_disk_that_takes_no_writes_ends_the_start_by_name() -> None:
    disk = SimDisk(1)
    slave(disk).close()
    disk.read_only = True
    with pytest.raises(ReadOnlyDisk):
        open_replica(disk)


def test_the_crc_before_a_point_is_of_the_logs_bytes_across_files() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    random = Random(1)
    for _ in range(50):
        end = random.randrange(LOG.end + 1)
        size = random.randrange(min(end, 3 * FILE) + 1)
        assert held.crc_before(end, size) == zlib.crc32(LOG.data[end - size : end])
    assert held.crc_before(LOG.end, 0) == 0
    assert held.crc_before(LOG.end + 1, 10) is None
    assert held.crc_before(5, 6) is None
    held.positions.publish(Slot.MIN, FILE)
    assert held.crc_before(FILE + 5, 6) is None
    disk.unlink(ROOT / "commitlog" / f"{FILE:020}")
    assert held.crc_before(FILE + 5, 5) is None


def test_the_last_to_stop_says_that_all_is_clean() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    get, publish = held.positions.get, held.positions.publish
    publish(Slot.REPUT_GENERATION, get(Slot.GENERATION))
    publish(Slot.CONFIRM, LOG.end)
    publish(Slot.DISPATCHED_DURABLE, LOG.end)
    broker = held.directory.lock(LockByte.BROKER)
    held.stopped_clean()
    assert disk.stat(held.directory.abort_path) is not None
    broker.release()
    held.stopped_clean()
    assert disk.stat(held.directory.abort_path) is None
    held.close()
    assert open_replica(disk)[1].halted is None


def test_a_clean_stop_is_no_proof_for_what_a_killed_broker_leaves_later() -> None:
    # 1. ha starts after a clean stop and recovers. 2. The broker becomes master, publishes one
    #    record and is killed within the next one. 3. ha recovers again in the same process.
    disk = SimDisk(1)
    held = slave(disk)
    get, publish = held.positions.get, held.positions.publish
    publish(Slot.REPUT_GENERATION, get(Slot.GENERATION))
    publish(Slot.CONFIRM, LOG.end)
    publish(Slot.DISPATCHED_DURABLE, LOG.end)
    held.stopped_clean()
    held.close()
    assert disk.stat(held.directory.abort_path) is None
    held, found = open_replica(disk)
    assert found.end == LOG.end
    longer = MasterLog(42, seed=5)
    assert longer.data.startswith(LOG.data)
    published, end = longer.borders[-2:]
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(LOG.end)
    copied.copy(Copy(LOG.end, longer.data[LOG.end : published], first=True))
    copied.settle()
    copied.close()
    held.positions.publish(Slot.FLUSHED, LOG.end)
    start = published - published % FILE
    file = disk.open(held.directory.commit_log_dir / offset_name(start), writable=True)
    file.pwrite(longer.data[published : end - 1], published - start)
    file.close()
    recovered = held.recover_log(lambda done, total: None, lambda: False)
    assert recovered.end == published
    assert recovered.cut is not None


def test_recovery_shows_how_far_it_is_and_can_be_stopped() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    held.close()
    held = ReplicaStore.open(store_of(disk), SETUP, StillClock(1000))
    stop = threading.Event()
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        stop.set()

    assert held.recover(boot_id=BOOT, progress=progress, stopping=stop.is_set) is None
    assert seen
