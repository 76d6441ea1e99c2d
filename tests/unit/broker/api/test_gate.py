"""The errors that callers get while the node does not serve."""

from __future__ import annotations

import pytest

from services.broker.api.gate import Gate
from shared.runtime.budget import Budget
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    DiskFull,
    Fenced,
    NotMaster,
    NotServing,
    Overloaded,
)


@pytest.fixture
def health() -> Health:
    return Health(SystemClock())


def test_during_the_start_callers_get_its_progress(health: Health) -> None:
    gate = Gate(health)
    health.state = "recovering"
    health.recovery.progress(250, 1000)
    with pytest.raises(NotServing, match="recovering, 250 of 1000 bytes") as caught:
        gate.check_sends()
    assert caught.value.retriable
    assert caught.value.facts["total_bytes"] == 1000
    assert "Nothing was stored" in caught.value.detail


def test_reads_may_be_open_while_sends_are_not(health: Health) -> None:
    gate = Gate(health)
    gate.reads_open, gate.send_fault = True, DiskFull("full")
    gate.check_reads()
    with pytest.raises(DiskFull):
        gate.check_sends()


def test_damage_found_in_an_earlier_role_does_not_hide_the_next_role(health: Health) -> None:
    # A master that had met a damaged queue became one again when it was rebuilt, and answered
    # readers and senders past its deadline: the old fault kept its role from being checked.
    class Over:
        def check_reads(self, *, anywhere: bool) -> None:
            raise Fenced("the lease is over")

        def check_sends(self) -> None:
            raise Fenced("the lease is over")

    gate = Gate(health)
    gate.fault = DamagedFile("a queue")
    gate.open_as(Over())
    with pytest.raises(Fenced):
        gate.check_reads()
    with pytest.raises(Fenced):
        gate.check_sends()


def test_damage_is_raised_to_every_caller_and_its_traceback_does_not_grow(health: Health) -> None:
    gate = Gate(health)
    gate.fault = CorruptRecord(4711, "crc")
    for _ in range(3):
        with pytest.raises(CorruptRecord, match="4711"):
            gate.check_reads()
        with pytest.raises(CorruptRecord):
            gate.check_sends()
    depth, trace = 0, gate.fault.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth <= 4


def test_a_budget_refuses_the_next_one_and_lets_a_single_large_one_pass() -> None:
    budget = Budget("bytes", 100, "Wait.")
    budget.take(1000)
    with pytest.raises(Overloaded, match="bytes: 1000 of 100 in use"):
        budget.take(1)
    budget.give_back(1000)
    budget.take(60)
    budget.take(40)
    with pytest.raises(Overloaded):
        budget.take(1)
    assert budget.used == 100


class Slave:
    """Serves reads only to clients that accept any node."""

    def check_reads(self, *, anywhere: bool) -> None:
        if not anywhere:
            raise NotMaster("another one")

    def check_sends(self) -> None:
        raise NotMaster("another one")


def test_the_role_in_the_group_is_checked_before_the_gate(health: Health) -> None:
    gate = Gate(health)
    gate.take_role(Slave())
    for check in (gate.check_reads, gate.check_sends):
        with pytest.raises(NotMaster):
            check()
    with pytest.raises(NotServing, match="starting"):
        gate.check_reads(anywhere=True)
    gate.reads_open = True
    gate.check_reads(anywhere=True)
    gate.fault = CorruptRecord(4711, "crc")
    gate.shut()
    with pytest.raises(CorruptRecord):
        gate.check_sends()


@pytest.mark.parametrize(
    ("physical_offset", "damaged_at"),
    [(4096, 4096), (0, 0), (-1, None), ((1 << 63) - 1, None), (None, None)],
)
def test_the_log_is_checked_where_a_sound_unit_leads_to_no_message(
    health: Health, physical_offset: int | None, damaged_at: int | None
) -> None:
    gate = Gate(health)
    facts = {} if physical_offset is None else {"physical_offset": physical_offset}
    gate.note_damage(DamagedFile("no message there.", "Verify.", **facts))
    assert gate.damaged_at == damaged_at
