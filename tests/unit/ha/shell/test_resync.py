"""The store is emptied in place and becomes another member; it is finished after any crash."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from services.ha.core.effects import Copy
from services.ha.shell import hooks
from services.ha.shell.copied_log import CopiedLog
from services.ha.shell.lock_bytes import Stopping
from services.ha.shell.replica_files import Promise
from services.ha.shell.replica_store import ReplicaStore
from shared.files.store_dir import LockByte
from tests.support.for_each import for_each
from tests.support.replica_store import FILE, ROOT, MasterLog, interrupted_start, open_replica
from tests.support.sim_disk import SimCrash, SimDisk
from tests.unit.ha.shell.test_cutting import BEFORE
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

LOG = MasterLog(40, seed=3)
FIRST = 2 * FILE
STEPS = tuple(f"resync-{number}" for number in range(1, 9))
CONTENT = (
    "consumequeue/orders/0/00000000000000000000",
    "consumequeue/orders/1/00000000000000000000",
    "index/20260101000000000",
    "config/topics.json",
    "config/topics.json.bak",
)


def never() -> bool:
    return False


def full(disk: SimDisk) -> ReplicaStore:
    """A replica with a log, queues, an index and caches of another history."""
    held, _ = open_replica(disk)
    held.write_promise(Promise(3, 3, 1))
    held.files.write_table(BEFORE)
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(0)
    copied.copy(Copy(0, LOG.data, first=True))
    copied.settle()
    copied.close()
    held.files.write_confirm(LOG.end)
    for slot in (Slot.CONFIRM, Slot.DISPATCHED, Slot.DISPATCHED_DURABLE, Slot.REPUT_GENERATION):
        held.positions.publish(slot, LOG.end)
    for name in CONTENT:
        path = ROOT / name
        disk.make_directory(path.parent)
        disk.create(path, 200, reserve=False).close()
        disk.sync_directory(path.parent)
    return held


def check_empty(disk: SimDisk, old: str) -> None:
    held, found = open_replica(disk)
    assert found.halted is None
    assert (found.first_offset, found.end, found.confirm) == (FIRST, FIRST, 0)
    assert (found.table, found.holds_records, found.initialised) == ((), False, True)
    assert (found.promised, found.seen_epoch, found.seen_version) == (3, 3, 1)
    assert found.incarnation != old
    assert held.files.intent() is None
    assert not any(str(path.relative_to(ROOT)) in CONTENT for path, _ in disk.files())
    get = held.positions.get
    assert get(Slot.WRITTEN) == get(Slot.FLUSHED) == get(Slot.MIN) == FIRST
    assert get(Slot.DISPATCHED) == get(Slot.DISPATCHED_DURABLE) == get(Slot.CONFIRM) == 0
    # The master's log is copied from its first byte on.
    held.files.write_table([EpochStart(Epoch(4), PhysicalOffset(0))])
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(FIRST)
    copied.copy(Copy(FIRST, LOG.data[FIRST:], first=True))
    assert copied.settle().end == LOG.end
    copied.close()
    held.close()
    held, found = open_replica(disk)
    assert (found.first_offset, found.end, found.halted) == (FIRST, LOG.end, None)
    held.close()


def test_a_resync_empties_the_store_and_makes_another_member() -> None:
    disk = SimDisk(1)
    held = full(disk)
    assert held.identity is not None
    old = held.identity.incarnation
    generation = held.positions.get(Slot.GENERATION)
    assert held.resync(FIRST, never) == held.identity.incarnation != old
    held.recover_log(lambda done, total: None, never)
    assert held.positions.get(Slot.GENERATION) == generation + 1
    assert held.positions.get(Slot.ROLE) == NodeRole.VOID
    held.close()
    check_empty(disk, old)


def test_it_waits_until_broker_and_reput_have_ended() -> None:
    disk = SimDisk(1)
    held = full(disk)
    assert held.identity is not None
    old = held.identity.incarnation
    others = [held.directory.lock(role) for role in (LockByte.BROKER, LockByte.REPUT)]
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        if others and held.positions.get(Slot.ROLE) == NodeRole.RESYNC:
            others.pop().release()
        return False

    held.resync(FIRST, stopping)
    assert asked >= 2
    assert not others
    assert held.positions.get(Slot.ROLE) == NodeRole.VOID
    held.close()
    check_empty(disk, old)


def test_stopped_while_it_waits_it_is_finished_by_the_next_start() -> None:
    disk = SimDisk(1)
    held = full(disk)
    assert held.identity is not None
    old = held.identity.incarnation
    broker = held.directory.lock(LockByte.BROKER)
    with pytest.raises(Stopping):
        held.resync(FIRST, lambda: True)
    broker.release()
    held.close()
    check_empty(disk, old)


def test_what_others_have_mapped_stays_readable() -> None:
    disk = SimDisk(1)
    held = full(disk)
    path = ROOT / "commitlog" / f"{0:020}"
    region = disk.open(path, writable=False).map(writable=False)
    held.resync(FIRST, never)
    assert bytes(region.view[:100]) == LOG.data[:100]


@for_each("step", STEPS)
@for_each("power", [False, True])
def test_a_crash_at_each_step_is_finished_by_the_next_start(step: str, power: bool) -> None:
    disk = SimDisk(5)
    held = full(disk)
    assert held.identity is not None
    old = held.identity.incarnation
    seen: list[str] = []

    def crash(name: str) -> None:
        seen.append(name)
        if name == step:
            disk.crash()
            raise SimCrash(name)

    hooks.install(crash)
    try:
        with pytest.raises(SimCrash):
            held.resync(FIRST, never)
    finally:
        hooks.install(None)
    assert seen == list(STEPS[: STEPS.index(step) + 1])
    after = disk.power_cut(Random(1)) if power else disk.copy()
    if step == "resync-1":
        held, found = open_replica(after)
        assert (found.incarnation, found.end) == (old, LOG.end)
        held.resync(FIRST, never)
        held.close()
    check_empty(after, old)


def operations_of_a_resync() -> range:
    """Numbers of the operations of the disk within a resync. They do not depend on its seed."""
    disk = SimDisk(0)
    held = full(disk)
    begin = disk.operations
    held.resync(FIRST, never)
    return range(begin + 1, disk.operations + 1)


@for_each(("crash_at", "power"), product(operations_of_a_resync(), [False, True]))
def test_a_crash_at_any_operation_is_finished_by_the_next_start(crash_at: int, power: bool) -> None:
    random = Random(crash_at)
    disk = SimDisk(crash_at)
    held = full(disk)
    assert held.identity is not None
    old = held.identity.incarnation
    disk.crash_at = crash_at
    with pytest.raises(SimCrash):
        held.resync(FIRST, never)
    after = disk.power_cut(random) if power else disk.copy()
    after = interrupted_start(after, random, operations_max=80)
    held, found = open_replica(after)
    assert found.halted is None
    if found.incarnation == old:  # the intent was not on disk yet
        assert found.end == LOG.end
        held.resync(FIRST, never)
    held.close()
    check_empty(after, old)


def test_any_damage_of_the_replicas_own_files_is_mended_by_a_resync() -> None:
    disk = SimDisk(1)
    held = full(disk)
    held.close()
    for path in (held.files.identity_path, held.files.confirm_path, held.files.table_path):
        disk.flip_bit(path, 77)
    disk.flip_bit(held.files.table_twin_path, 77)
    held, found = open_replica(disk)
    assert found.halted is not None
    assert "damaged-file" in str(found.halted)
    held.resync(FIRST, never)
    held.recover_log(lambda done, total: None, never)
    held.close()
    check_empty(disk, found.incarnation)
