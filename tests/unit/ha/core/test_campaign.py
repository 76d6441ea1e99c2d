"""Which replica may take the lease, and what the winner writes."""

from __future__ import annotations

import zlib

import pytest

from services.ha.core.campaign import Campaign, Claim, ElectionDelay, claim, taken
from services.ha.core.effects import Effect, LeaseGet, LeasePut, Settle
from services.ha.core.events import Done, LeaseAnswered, LeaseOutcome
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.setup import Found, Setup
from services.ha.core.states import Trigger
from services.ha.lease.session import LeaseSession
from services.ha.lease.value import Holder, Lease, Member, Membership, Stored
from shared.cluster.nodes import Node
from shared.cluster.time_rules import LOCAL
from tidemark.offsets import Epoch

NODES = tuple(Node(name, "::1", 1, f"http://{name}", "") for name in ("a", "b", "c"))
A, B, C = (Member(name, digit * 32) for name, digit in (("a", "1"), ("b", "2"), ("c", "3")))
OLD = Holder("a", "1" * 32, "9" * 16)
D = LOCAL.lease_ms


class NoLog:
    def crc_before(self, end: int, size: int) -> int | None:
        return zlib.crc32(b"") if size == 0 else None


def replica() -> ReplicaContext:
    setup = Setup("t", "g0", NODES[1], NODES, 1, LOCAL, 1 << 20, "b" * 16, (1, 2))
    found = Found("2" * 32, 4, 4, 7, (), 0, 500, 400, initialised=True, holds_records=True)
    session = LeaseSession(found.holder(setup), LOCAL, (4, 7), lambda: 0.5)
    return ReplicaContext(setup, found, NoLog(), session)


def lease(holder: Holder | None = OLD, **facts: object) -> Lease:
    return Lease(holder, Epoch(4), (A, B, C), 7, 1, ("a", "b", "c"))._replace(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "unchanged_ms", "expected"),
    [
        (lease(), D - 1, None),
        (lease(), D, Claim.EXPIRED),
        (lease(in_sync=(A, C)), 10 * D, None),
        (lease(in_sync=(A, Member("b", "8" * 32))), 10 * D, None),
        (lease(paused=True), 10 * D, None),
        (lease(Holder("b", "2" * 32, "7" * 16)), 0, Claim.OWN),
        (lease(Holder("b", "2" * 32, "7" * 16), paused=True), 0, Claim.OWN),
        (lease(Holder("b", "8" * 32, "7" * 16)), 0, None),
        (lease(None, handover_to="b"), 0, Claim.HANDED_OVER),
        (lease(None, handover_to="b", in_sync=(A, C)), 0, None),
        (lease(None, handover_to="c"), D - 1, None),
        (lease(None, handover_to="c"), D, Claim.EXPIRED),
        (lease(None), D, Claim.EXPIRED),
    ],
)
def test_the_lease_may_be_taken(found: Lease, unchanged_ms: int, expected: Claim | None) -> None:
    assert claim(found, replica(), unchanged_ms) is expected


def test_a_removed_node_may_not_take_a_lease_that_names_it() -> None:
    context = replica()
    context.members = Membership(1, (NODES[0], NODES[2]))
    assert claim(lease(None, handover_to="b"), context, 10 * D) is None


def test_a_winner_leaves_the_old_holder_out_if_enough_remain() -> None:
    context = replica()
    won = taken(lease(), context, 5)
    assert (won.holder, won.epoch, won.in_sync, won.in_sync_version) == (
        context.holder,
        5,
        (B, C),
        8,
    )
    assert won.master_address == "http://b"
    won = taken(lease(min_in_sync=3), context, 5)
    assert (won.in_sync, won.in_sync_version) == ((A, B, C), 7)


def test_a_winner_never_leaves_itself_out() -> None:
    context = replica()
    won = taken(lease(Holder("b", "2" * 32, "7" * 16)), context, 5)
    assert won.in_sync == (A, B, C)


def test_a_candidate_waits_longer_at_random() -> None:
    context = replica()
    patience = ElectionDelay(context, Peers(context), lambda: 0.5)
    stored = Stored(lease(), "1", "u")
    wait_ms = LOCAL.wait_random_ms // 2
    assert patience.over(stored, D + wait_ms - 1) is None
    assert patience.over(stored, D + wait_ms) is Claim.EXPIRED


class Attempt:
    """A campaign and its lease."""

    def __init__(self) -> None:
        self.context = replica()
        self.promises = Promises(self.context, 4, (4, 7))
        self.won: list[Lease] = []
        self.lost: list[str] = []
        session = self.context.session
        session.read(0)
        session.answered(LeaseAnswered(1, LeaseOutcome.FOUND, Stored(lease(), "1", "u")), 0)
        self.context.now_ms = D + 1000
        self.context.move(Trigger.RECOVERED)
        self.context.move(Trigger.CAMPAIGNS)
        self.context.out.take()
        self.campaign = Campaign(
            self.context, self.promises, won=self.won.append, lost=self.lost.append
        )

    def effects(self) -> list[Effect]:
        return self.context.out.take()

    def settle(self) -> Effect:
        (settle,) = self.effects()
        assert isinstance(settle, Settle)
        self.context.out.answered(Done(settle.token, 600, 600))
        (get,) = self.effects()
        return get

    def answer(self, request: int, outcome: LeaseOutcome, stored: Stored | None = None) -> None:
        event = LeaseAnswered(request, outcome, stored)
        answer = self.context.session.answered(event, self.context.now_ms)
        self.context.out.put(*answer.effects)
        self.campaign.answered(event, answer.settled)

    def put(self) -> LeasePut:
        get = self.settle()
        assert isinstance(get, LeaseGet)
        self.answer(get.request, LeaseOutcome.FOUND, Stored(lease(), "1", "u"))
        (put,) = self.effects()
        assert isinstance(put, LeasePut)
        return put


def test_nothing_is_written_before_the_log_is_settled_and_the_lease_read() -> None:
    attempt = Attempt()
    put = attempt.put()
    assert attempt.context.end == 600
    assert put.lease.epoch == 5
    attempt.answer(put.request, LeaseOutcome.APPLIED, Stored(put.lease, "2", "u"))
    assert [won.epoch for won in attempt.won] == [5]
    assert attempt.promises.promised == 4  # promised by the term that begins, not before


def test_a_lease_that_was_renewed_meanwhile_is_not_written() -> None:
    attempt = Attempt()
    get = attempt.settle()
    assert isinstance(get, LeaseGet)
    attempt.answer(get.request, LeaseOutcome.FOUND, Stored(lease(renewed=9), "2", "u"))
    assert attempt.lost == ["the lease may not be taken now"]


def test_a_lease_that_cannot_be_read_is_not_written() -> None:
    attempt = Attempt()
    get = attempt.settle()
    assert isinstance(get, LeaseGet)
    attempt.answer(get.request, LeaseOutcome.UNKNOWN)
    assert len(attempt.lost) == 1


def test_a_write_of_unknown_outcome_keeps_the_candidate_mute() -> None:
    attempt = Attempt()
    put = attempt.put()
    attempt.answer(put.request, LeaseOutcome.UNKNOWN)
    assert (attempt.won, attempt.lost) == ([], [])


def test_a_candidate_that_hears_of_a_higher_epoch_gives_its_write_up() -> None:
    # The answer to its success may never arrive: without this it would wait forever, while the
    # winner of the next epoch waits for it.
    attempt = Attempt()
    put = attempt.put()
    attempt.answer(put.request, LeaseOutcome.UNKNOWN)
    attempt.campaign.end("epoch 9 was heard of")
    assert attempt.lost == ["epoch 9 was heard of"]
    assert attempt.context.session.given_up == put.lease.epoch
    attempt.answer(put.request, LeaseOutcome.APPLIED, Stored(put.lease, "2", "u"))
    assert attempt.won == []


def test_a_win_that_was_overtaken_counts_as_lost() -> None:
    # 1. The lease is written, the answer is slow. 2. It expires, another node takes it and
    # announces that. 3. The answer comes: the epoch is over already, and must not be acted on.
    attempt = Attempt()
    put = attempt.put()
    attempt.promises.promise(6)
    attempt.answer(put.request, LeaseOutcome.APPLIED, Stored(put.lease, "2", "u"))
    assert attempt.won == []
    assert attempt.lost == ["epoch 6 was promised meanwhile"]


def test_another_winner_is_followed() -> None:
    attempt = Attempt()
    put = attempt.put()
    attempt.answer(put.request, LeaseOutcome.CONFLICT)
    (get,) = attempt.effects()
    assert isinstance(get, LeaseGet)
    other = lease(Holder("c", "3" * 32, "6" * 16), epoch=5)
    attempt.answer(get.request, LeaseOutcome.FOUND, Stored(other, "2", "u"))
    assert attempt.lost == ["another one was first"]
