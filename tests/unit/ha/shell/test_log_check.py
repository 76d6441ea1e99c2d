"""Damage of confirmed records is found by the check, and nothing else is reported as damage."""

from __future__ import annotations

import threading

import pytest

from services.ha.shell.log_check import LogCheck
from services.ha.shell.replica_store import ReplicaStore
from services.ha.wire.record_assembler import BadBytes
from tests.support.replica_store import FILE, ROOT, MasterLog
from tests.support.sim_disk import SimDisk
from tests.unit.ha.shell.test_replica_store import LOG, slave
from tidemark.formats.checkpoint import Slot

assert isinstance(LOG, MasterLog)


def check_of(held: ReplicaStore, confirm: int = LOG.end) -> LogCheck:
    held.positions.publish(Slot.CONFIRM, confirm)
    return LogCheck(held.directory, held.positions, threading.Lock())


def run_pass(check: LogCheck) -> int:
    """Run a whole pass; return its number of steps."""
    assert check.begin()
    steps = 0
    while check.step():
        steps += 1
    return steps


def flip(disk: SimDisk, at: int, bit: int = 0) -> None:
    disk.flip_bit(ROOT / "commitlog" / f"{at - at % FILE:020}", 8 * (at % FILE) + bit)


def test_a_sound_log_passes_again_and_again() -> None:
    check = check_of(slave(SimDisk(1)))
    assert run_pass(check) == -(-LOG.end // FILE)
    run_pass(check)
    assert check.passes == 2


@pytest.mark.parametrize("number", range(1, 79, 6))
def test_a_flipped_bit_is_found_wherever_it_is(number: int) -> None:
    disk = SimDisk(1)
    held = slave(disk)
    start, end = LOG.borders[number], LOG.borders[number + 1]
    check = check_of(held)
    for at in (start, start + 3, start + 40, (start + end) // 2, end - 1):
        flip(disk, at)
        with pytest.raises(BadBytes) as caught:
            run_pass(check)
        assert caught.value.at == start
        flip(disk, at)
    run_pass(check)


def test_what_is_not_confirmed_is_not_looked_at() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    flip(disk, LOG.borders[41] + 40)
    check = check_of(held, LOG.borders[40])
    run_pass(check)
    held.positions.publish(Slot.CONFIRM, LOG.end)
    with pytest.raises(BadBytes):
        run_pass(check)


def test_nothing_confirmed_is_no_pass() -> None:
    check = check_of(slave(SimDisk(1)), 0)
    assert not check.begin()


def test_a_missing_file_is_damage_and_an_expired_one_is_not() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    check = check_of(held)
    assert check.begin()
    assert check.step()
    for start in (0, FILE, 2 * FILE):
        disk.unlink(ROOT / "commitlog" / f"{start:020}")
    with pytest.raises(BadBytes, match="is missing"):
        check.step()
    held.positions.publish(Slot.MIN, 3 * FILE)
    while check.step():
        pass
    assert check.passes == 1


def test_a_store_that_is_emptied_meanwhile_ends_the_pass() -> None:
    held = slave(SimDisk(1))
    check = check_of(held)
    assert check.begin()
    assert check.step()
    held.resync(2 * FILE, lambda: False)
    assert not check.step()
    assert not check.begin()


def test_where_rocketmq_wrote_a_record_crc_is_not_judged() -> None:
    disk = SimDisk(1)
    held = slave(disk)
    check = check_of(held)
    flip(disk, LOG.borders[11] + 40)
    held.positions.publish(Slot.FOREIGN_UNTIL, LOG.borders[13])
    run_pass(check)
    held.positions.publish(Slot.FOREIGN_UNTIL, LOG.borders[11])
    with pytest.raises(BadBytes):
        run_pass(check)
