"""The log is cut at a border, the tail is kept, and the next start finishes it after any crash."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from services.ha.core.effects import Copy
from services.ha.shell import cutting, hooks
from services.ha.shell.copied_log import CopiedLog
from services.ha.shell.replica_files import CutIntent, Promise
from services.ha.shell.replica_store import ReplicaStore
from tests.support.for_each import for_each
from tests.support.replica_store import (
    FILE,
    ROOT,
    MasterLog,
    interrupted_start,
    log_of,
    open_replica,
)
from tests.support.sim_disk import PAGE, SimCrash, SimDisk
from tidemark.errors import HaltedReplica
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

LOG = MasterLog(40, seed=3)
STEPS = ("cut-6", "cut-7", "cut-8", "cut-9", "cut-10")
BEFORE = (
    EpochStart(Epoch(1), PhysicalOffset(0)),
    EpochStart(Epoch(2), PhysicalOffset(LOG.borders[20])),
    EpochStart(Epoch(3), PhysicalOffset(LOG.borders[60])),
)
AFTER = BEFORE[:2]
POINT = LOG.borders[50]
CONFIRM = LOG.borders[30]


def follower(disk: SimDisk, *, confirm: int = CONFIRM) -> ReplicaStore:
    """A replica that holds the whole log, was slave and master, and has closed it."""
    held, found = open_replica(disk)
    assert (found.end, found.table, found.initialised) == (0, (), False)
    held.write_promise(Promise(3, 3, 1))
    held.files.write_table(BEFORE)
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(0)
    copied.copy(Copy(0, LOG.data, first=True))
    assert copied.settle().end == LOG.end
    copied.close()
    held.files.write_confirm(confirm)
    return held


def check_cut(disk: SimDisk) -> None:
    held, found = open_replica(disk)
    assert found.halted is None
    assert (found.end, found.table, found.confirm) == (POINT, AFTER, CONFIRM)
    assert held.files.intent() is None
    assert log_of(disk, LOG.end) == LOG.data[:POINT].ljust(LOG.end, b"\0")
    get = held.positions.get
    assert get(Slot.WRITTEN) == get(Slot.FLUSHED) == POINT
    kept = f"{POINT:020}-{LOG.end:020}-epoch3-forked"
    assert disk.peek(ROOT / "cut" / kept) == LOG.data[POINT:]
    # After a kill, a part may be left under the name that the next attempt uses.
    names = {entry.name for entry in disk.list_directory(ROOT / "cut")}
    assert names - {"keeping.tmp"} == {kept}
    # The log continues there with the records of the other history.
    copied = CopiedLog(held.directory, held.positions, lambda event: None)
    copied.open(found.end)
    copied.copy(Copy(POINT, LOG.data[POINT : LOG.borders[60]], first=True))
    assert copied.settle().end == LOG.borders[60]
    copied.close()
    held.close()


def test_a_cut_takes_the_tail_and_the_tables_end() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    done = held.cut(POINT, AFTER)
    assert (done.end, done.size) == (POINT, LOG.end - POINT)
    held.close()
    check_cut(disk)


def test_the_generation_rises_so_that_others_map_the_files_anew() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    before = held.positions.get(Slot.GENERATION)
    held.cut(POINT, AFTER)
    held.recover_log(lambda done, total: None, lambda: False)
    assert held.positions.get(Slot.GENERATION) == before + 1


def test_no_file_is_ever_shortened_and_the_hooks_come_in_order() -> None:
    held = follower(disk := SimDisk(1))
    seen: list[str] = []
    hooks.install(seen.append)
    try:
        held.cut(POINT, AFTER)
    finally:
        hooks.install(None)
    assert seen == list(STEPS)
    for path, data in disk.files():
        if path.parent.name == "commitlog":
            assert len(data) == FILE


def test_a_table_is_cut_even_if_no_byte_is() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    assert held.cut(LOG.end, AFTER) == cutting.Cut(LOG.end, 0, None)
    held.close()
    held, found = open_replica(disk)
    assert (found.end, found.table) == (LOG.end, AFTER)


@pytest.mark.parametrize("off", [1, 40, 90])
def test_a_point_inside_a_record_moves_down_to_its_start(off: int) -> None:
    disk = SimDisk(1)
    held = follower(disk)
    expected = max(border for border in LOG.borders if border <= POINT + off)
    assert held.cut(POINT + off, AFTER).end == expected
    held.close()
    assert open_replica(disk)[1].end == expected


def test_every_border_is_found_from_any_known_place() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    log = held._log_files()
    borders = sorted({0, *LOG.borders})
    for border in borders[:60]:
        for known in ((), (0,), (border,), tuple(borders), (border + 1, border - 1)):
            assert cutting.border_at_or_below(log, border, known) == border


def test_below_confirm_nothing_is_cut_and_nothing_changed() -> None:
    disk = SimDisk(1)
    held = follower(disk, confirm=POINT + 1)
    with pytest.raises(HaltedReplica, match="below the confirm offset"):
        held.cut(POINT, AFTER)
    assert held.files.intent() is None
    assert log_of(disk, LOG.end) == LOG.data
    held.files.write_confirm(0)
    held.positions.publish(Slot.CONFIRM, POINT + 1)
    with pytest.raises(HaltedReplica):
        held.cut(POINT, AFTER)


def test_without_room_for_the_tail_the_log_is_cut_all_the_same() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    disk.capacity_bytes = disk.space(ROOT).used + 3 * PAGE  # the small files, and not the tail
    assert held.cut(POINT, AFTER).kept is None
    assert log_of(disk, LOG.end) == LOG.data[:POINT].ljust(LOG.end, b"\0")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_each_step_is_finished_by_the_next_start(step: str, power: bool) -> None:
    disk = SimDisk(5)
    held = follower(disk)

    def crash(name: str) -> None:
        if name == step:
            disk.crash()
            raise SimCrash(name)

    hooks.install(crash)
    try:
        with pytest.raises(SimCrash):
            held.cut(POINT, AFTER)
    finally:
        hooks.install(None)
    after = disk.power_cut(Random(1)) if power else disk.copy()
    if step == "cut-6":  # nothing was begun: the same divergence is found again
        held, found = open_replica(after)
        assert (found.end, found.table) == (LOG.end, BEFORE)
        held.cut(POINT, AFTER)
        held.close()
    check_cut(after)


def operations_of_a_cut() -> range:
    """Numbers of the operations of the disk within a cut. They do not depend on its seed."""
    disk = SimDisk(0)
    held = follower(disk)
    begin = disk.operations
    held.cut(POINT, AFTER)
    return range(begin + 1, disk.operations + 1)


@for_each(("crash_at", "power"), product(operations_of_a_cut(), [False, True]))
def test_a_crash_at_any_operation_is_finished_by_the_next_start(crash_at: int, power: bool) -> None:
    random = Random(crash_at)
    disk = SimDisk(crash_at)
    held = follower(disk)
    disk.crash_at = crash_at
    with pytest.raises(SimCrash):
        held.cut(POINT, AFTER)
    # Once more in the middle of finishing it.
    after = disk.power_cut(random) if power else disk.copy()
    after = interrupted_start(after, random, operations_max=60)
    held, found = open_replica(after)
    assert found.halted is None
    assert (found.end, found.table) in {(POINT, AFTER), (LOG.end, BEFORE)}
    if found.end == LOG.end:
        held.cut(POINT, AFTER)
    held.close()
    check_cut(after)


def test_an_intent_that_is_damaged_halts() -> None:
    disk = SimDisk(1)
    held = follower(disk)
    held.files.write_intent(CutIntent(POINT, AFTER))
    held.close()
    disk.flip_bit(held.files.intent_path, 80)
    held, found = open_replica(disk)
    assert found.halted is not None
    assert str(found.halted).startswith("damaged-file")
    assert log_of(disk, LOG.end) == LOG.data
