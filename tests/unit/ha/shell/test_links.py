"""Both sides of a link against each other, over random histories of masters."""

from __future__ import annotations

from random import Random

import pytest

from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.slave_protocol import NO_COMMON_BYTES
from services.ha.core.truncation import CutPlan, HaltPlan, InOrder, LogsDiffer, ResyncPlan
from services.ha.wire.payloads import ResyncReason
from tests.support.for_each import for_each
from tests.support.ha_links import Log, Pair, rejoin


def common_bytes(one: Log, other: Log) -> int:
    """End of the common bytes of two logs, both from 0."""
    size = min(len(one.data), len(other.data))
    low = 0
    while low < size and one.data[low] == other.data[low]:
        low += 1
    return low


@for_each("seed", range(100))
def test_after_any_history_a_slave_becomes_equal_and_loses_nothing_that_is_common(
    seed: int,
) -> None:
    rng = Random(seed)
    logs = [Log() for _ in range(3)]
    for epoch in range(1, rng.randint(3, 12)):
        master = rng.choice(logs)
        master.begin_term(epoch)
        if rng.random() < 0.8:  # else the term ends before it wrote anything
            master.write(rng, rng.randint(1, 12))
        for slave in logs:
            if slave is master or rng.random() < 0.4:
                continue
            shared = common_bytes(master, slave)
            outcomes = rejoin(master, slave, epoch=epoch)
            for outcome in outcomes:
                # The end of an epoch, and no further back than the place at which the bytes differ.
                # One record may begin like another, and one byte may be equal by chance.
                if isinstance(outcome, CutPlan):
                    assert outcome.point <= shared
                    own = [one.start for one in master.table] + [master.end]
                    assert max([0, *(s for s in own if s <= shared - 8)]) <= outcome.point
            assert slave.data == master.data
            # All but an entry whose term has not written yet.
            known = tuple(one for one in master.table if one.start < master.end)
            assert slave.table == known


@for_each("seed", range(100))
def test_a_link_that_breaks_anywhere_leaves_a_beginning_of_the_masters_log(seed: int) -> None:
    rng = Random(seed)
    master, slave = Log(), Log()
    for epoch in range(1, 5):
        master.begin_term(epoch)
        master.write(rng, rng.randint(1, 30))
    for _ in range(rng.randint(1, 6)):
        pair = Pair(master, slave, epoch=5)
        pair.begin()
        pair.run(steps=2)
        pair.stream(steps=rng.randint(0, 6))
        assert master.data.startswith(slave.data)
        assert slave.end in master.borders
        assert slave.table == master.table[: len(slave.table)]
    rejoin(master, slave, epoch=5)
    assert slave.data == master.data


def test_an_empty_slave_is_in_order_at_once_and_copies_everything() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    master.begin_term(1)
    master.write(rng, 50)
    assert rejoin(master, slave, epoch=1) == [InOrder(0)]
    assert (slave.data, slave.table) == (master.data, master.table)


def test_a_master_whose_log_begins_later_is_copied_from_there() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    for epoch in range(1, 4):
        master.begin_term(epoch)
        master.write(rng, 50)
    master.expire(master.borders[70])  # in the second epoch
    outcomes = rejoin(master, slave, epoch=3)
    below = ResyncReason.BELOW_FIRST_OFFSET.name.lower()
    assert outcomes == [ResyncPlan(master.first_offset, below), InOrder(master.first_offset)]
    assert (slave.data, slave.table) == (master.data, master.table)


def test_a_slave_whose_end_retention_has_passed_copies_everything() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    master.begin_term(1)
    master.write(rng, 20)
    rejoin(master, slave, epoch=1)
    master.write(rng, 50)
    master.expire(master.borders[40])
    outcomes = rejoin(master, slave, epoch=1)
    assert isinstance(outcomes[0], ResyncPlan)
    assert slave.data == master.data


def test_bytes_that_differ_before_the_point_lead_to_an_earlier_epoch() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    for epoch in (1, 2, 3):
        master.begin_term(epoch)
        master.write(rng, 3000)  # more than the window
    assert master.table[2].start - master.table[1].start > CRC_WINDOW // 2
    rejoin(master, slave, epoch=3)
    slave.data[-100] ^= 1
    start = master.table[2].start
    assert rejoin(master, slave, epoch=3) == [CutPlan(start, master.table[:2]), InOrder(start)]
    assert slave.data == master.data


@pytest.mark.parametrize("is_known_here", [True, False])
def test_confirmed_bytes_that_differ_are_neither_cut_nor_asked_about_again(
    is_known_here: bool,
) -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    for epoch in (1, 2):
        master.begin_term(epoch)
        master.write(rng, 3000)
    rejoin(master, slave, epoch=2)
    slave.data[-100] ^= 1
    (slave if is_known_here else master).confirm = slave.end
    assert rejoin(master, slave, epoch=2) == [LogsDiffer(slave.end - CRC_WINDOW, slave.end)]


def test_bytes_that_differ_behind_what_is_confirmed_are_cut_there() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    master.begin_term(1)
    master.write(rng, 30)
    rejoin(master, slave, epoch=1)
    slave.data[-10] ^= 1
    slave.confirm = master.confirm = master.borders[20]
    assert rejoin(master, slave, epoch=1) == [
        CutPlan(slave.confirm, master.table),
        InOrder(slave.confirm),
    ]
    assert slave.data == master.data


def test_a_foreign_log_with_the_same_table_is_found_by_its_bytes() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    for log in (master, slave):
        log.begin_term(1)
        log.write(rng, 30)
    outcomes = rejoin(master, slave, epoch=1)
    assert outcomes == [ResyncPlan(0, NO_COMMON_BYTES), InOrder(0)]
    assert slave.data == master.data


def test_a_log_without_a_common_epoch_is_copied_anew() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    for epoch, log in ((4, master), (3, slave)):
        log.begin_term(epoch)
        log.write(rng, 30)
    none = ResyncReason.NO_COMMON_EPOCH.name.lower()
    assert rejoin(master, slave, epoch=4) == [ResyncPlan(0, none), InOrder(0)]


def test_an_entry_without_bytes_is_cut_although_no_byte_is() -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    master.begin_term(1)
    master.write(rng, 10)
    rejoin(master, slave, epoch=1)
    slave.begin_term(2)  # won a term and wrote nothing
    master.begin_term(3)
    master.write(rng, 10)
    start, kept = slave.table[1].start, slave.table[:1]
    assert rejoin(master, slave, epoch=3) == [CutPlan(start, kept), InOrder(start)]
    assert slave.table == master.table


@for_each("confirmed", range(0, 21))
def test_no_point_below_the_confirm_checkpoint_is_cut(confirmed: int) -> None:
    rng = Random(1)
    master, slave = Log(), Log()
    master.begin_term(1)
    master.write(rng, 10)
    rejoin(master, slave, epoch=1)
    slave.begin_term(2)
    slave.write(rng, 10)
    master.begin_term(3)
    slave.confirm = slave.borders[confirmed]
    (outcome, *_) = rejoin(master, slave, epoch=3)
    assert isinstance(outcome, CutPlan if confirmed <= 10 else HaltPlan)
