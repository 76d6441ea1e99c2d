"""A term: it appends while its grant stands, and answers for the group only before the deadline."""

from __future__ import annotations

import asyncio

import pytest

from services.broker.log.ack_levels import AckLevel
from services.broker.log.confirmer import Confirmer
from services.broker.log.term import EndlessTerm, GrantedTerm
from services.broker.replication.cluster_view import MasterAddress
from services.broker.replication.role_policy import MasterPolicy, PromotingPolicy, SlavePolicy
from shared.cluster import grant
from tests.unit.broker.replication.page import DEADLINE_MS, NONCE, Page, StillClock
from tidemark.errors import Fenced, NodeAlone, NotMaster, NotServing, SwitchingOver
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

END = PhysicalOffset(500)


class Disk:
    """Notes which waits ask for an early flush."""

    def __init__(self) -> None:
        self.hurries = 0

    def hurry(self) -> None:
        self.hurries += 1


@pytest.fixture
def page() -> Page:
    made = Page()
    made.publish(Slot.CONFIRM, 100)
    made.grant(3)
    return made


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def term(page: Page, clock: StillClock) -> GrantedTerm:
    return GrantedTerm(page, clock, epoch=3, nonce=NONCE)


def test_a_term_ends_with_its_fence_another_epoch_or_another_start(
    page: Page, term: GrantedTerm
) -> None:
    term.check_appends()
    term.check_sends()
    grant.fence(page)
    assert not term.is_valid
    with pytest.raises(Fenced, match="Nothing was stored"):
        term.check_appends()
    page.grant(4)
    assert not term.is_valid
    page.grant(3, nonce=NONCE + 2)
    assert not term.is_valid


def test_past_the_deadline_nothing_is_answered_and_appends_go_on(
    clock: StillClock, term: GrantedTerm
) -> None:
    clock.now_ms = DEADLINE_MS
    assert term.is_valid
    assert not term.may_answer
    term.check_appends()
    for check in (term.check_sends, term.check_reads):
        with pytest.raises(Fenced):
            check()


def test_a_planned_switch_holds_the_brokers_own_records_too(page: Page, term: GrantedTerm) -> None:
    page.publish(Slot.SENDS_HELD, 1)
    for check in (term.check_appends, term.check_sends):
        with pytest.raises(SwitchingOver):
            check()
    term.check_reads()


def test_it_is_the_master_when_ha_says_so_and_not_before(page: Page, term: GrantedTerm) -> None:
    assert not term.is_master
    page.confirm(END)
    assert term.is_master


async def test_confirmed_sends_are_released_in_order_once_they_may_be_answered(
    page: Page, clock: StillClock, term: GrantedTerm
) -> None:
    disk = Disk()
    confirmer = Confirmer(term, disk, clock)
    first, second = (confirmer.durable(PhysicalOffset(end)) for end in (400, END))
    assert disk.hurries == 2
    assert confirmer.poll()
    page.publish(Slot.CONFIRM, 450)
    assert confirmer.poll()
    assert first.done()
    assert not second.done()
    page.publish(Slot.CONFIRM, END)
    clock.now_ms = DEADLINE_MS + 5
    assert confirmer.poll(), "another node may be the master by now"
    assert not second.done()
    clock.now_ms = 0  # stands for a renewal
    assert not confirmer.poll()
    assert await second


async def test_a_confirm_offset_of_another_epoch_releases_no_sender(
    page: Page, clock: StillClock, term: GrantedTerm
) -> None:
    confirmer = Confirmer(term, Disk(), clock)
    waiting = confirmer.durable(END)
    page.grant(4)
    page.confirm(END)
    assert confirmer.poll()
    assert not waiting.done()
    confirmer.end_waits()
    with pytest.raises(NotServing):
        await waiting


async def test_a_send_times_out_and_the_one_behind_it_waits_on(
    page: Page, clock: StillClock, term: GrantedTerm
) -> None:
    confirmer = Confirmer(term, Disk(), clock)
    late = confirmer.durable(PhysicalOffset(400), clock.monotonic() - 1)
    patient = confirmer.durable(END)
    assert not await late
    page.publish(Slot.CONFIRM, END)
    assert not confirmer.poll()
    assert await patient


async def test_success_is_reported_in_the_step_in_which_it_is_true_or_not_at_all(
    page: Page, clock: StillClock, term: GrantedTerm
) -> None:
    """1. A send is confirmed; 2. the process is paused before its task runs; 3. it continues when
    another node is the master: success is no longer true."""
    confirmer = Confirmer(term, Disk(), clock)
    admitted = term.admit(None)
    waiting = confirmer.durable(END, clock.monotonic() + 60)
    page.publish(Slot.CONFIRM, END)
    confirmer.poll()
    assert waiting.done()
    clock.now_ms = DEADLINE_MS * 2
    assert await waiting
    assert term.reached(admitted) is None
    clock.now_ms = 0
    assert term.reached(admitted) == (AckLevel.REPLICATED, 2)
    grant.fence(page)
    assert term.reached(admitted) is None
    with pytest.raises(Fenced):
        term.admit(None)


def test_the_term_of_a_node_alone_does_not_end_and_its_own_disk_confirms() -> None:
    term = EndlessTerm()
    term.check_appends()
    assert term.is_valid
    for asked, level in ((None, "disk"), (AckLevel.DISK, "disk"), (AckLevel.MEMORY, "memory")):
        admitted = term.admit(asked)
        assert not admitted.by_the_group
        assert term.reached(admitted) == (level, 1)
    with pytest.raises(NodeAlone, match="this node is alone"):
        term.admit(AckLevel.REPLICATED)


async def test_waits_end_with_the_term(page: Page, clock: StillClock) -> None:
    confirmer = Confirmer(GrantedTerm(page, clock, epoch=3, nonce=NONCE), Disk(), clock)
    confirmer.end_waits()
    with pytest.raises(NotServing):
        await asyncio.wait_for(confirmer.durable(END), 5)


def test_a_slave_refers_callers_to_the_master() -> None:
    known: list[MasterAddress | None] = [MasterAddress("n1", "http://n1:8080"), None]
    standing = SlavePolicy(lambda: known[0])
    standing.check_reads(anywhere=True)
    for check in (standing.check_sends, lambda: standing.check_reads(anywhere=False)):
        with pytest.raises(NotMaster, match="http://n1:8080") as caught:
            check()
        assert (caught.value.facts["master"], caught.value.status) == ("n1", 421)
    known.pop(0)
    with pytest.raises(NotMaster, match="not known") as caught:
        standing.check_sends()
    assert caught.value.facts == {"master": None, "api": None}
    assert caught.value.retriable


def test_a_fenced_master_serves_reads_from_anywhere_and_a_rising_one_none(
    clock: StillClock, term: GrantedTerm
) -> None:
    master = MasterPolicy(term)
    master.check_reads(anywhere=False)
    clock.now_ms = DEADLINE_MS
    master.check_reads(anywhere=True)
    with pytest.raises(Fenced):
        master.check_reads(anywhere=False)
    rising = PromotingPolicy()
    for check in (rising.check_sends, lambda: rising.check_reads(anywhere=True)):
        with pytest.raises(NotServing, match="about to become"):
            check()
