"""The in-sync set of a term: growth, shrinking, and the wait set meanwhile."""

from __future__ import annotations

from services.ha.core.in_sync import GROWTH_PAUSE_MS, InSync, MemberProgress, with_member
from services.ha.lease.value import Holder, Lease, Member
from shared.cluster.time_rules import LOCAL
from tidemark.offsets import Epoch

A, B, C = (Member(name, digit * 32) for name, digit in (("a", "1"), ("b", "2"), ("c", "3")))
C_NEW = Member("c", "4" * 32)
HOLDER = Holder("a", "1" * 32, "5" * 16)
START = 100


def lease(*members: Member, min_in_sync: int = 1) -> Lease:
    return Lease(HOLDER, Epoch(3), tuple(members), 7, min_in_sync, ("a", "b", "c"))


def term(*members: Member, min_in_sync: int = 1) -> InSync:
    found = lease(*members, min_in_sync=min_in_sync)
    return InSync(A, found, epoch_start=START, times=LOCAL, now_ms=0)


def linked(in_sync: InSync, member: Member, durable: int, *, end: int, now_ms: int) -> None:
    in_sync.linked(member, now_ms)
    in_sync.acknowledged(member, durable, own_end=end, confirm=0, now_ms=now_ms)


def test_the_others_of_the_published_set_are_waited_for() -> None:
    assert term(A, B, C).wait_set == {B, C}
    assert term(A).wait_set == frozenset()
    assert term(A, B, C).size(0) == 3


def test_a_silent_member_of_a_set_that_may_not_shrink_is_not_counted() -> None:
    # Both slaves of three were gone. The set kept two members, so sends found it large enough and
    # were stored, and those at ``disk`` were acknowledged by a single node.
    in_sync = term(A, B, C, min_in_sync=2)
    silent_ms = LOCAL.link_dead_ms
    linked(in_sync, B, 200, end=200, now_ms=silent_ms)
    assert in_sync.size(silent_ms - 1) == 3
    assert in_sync.size(silent_ms) == 2
    in_sync.known(lease(A, B)._replace(min_in_sync=2), None)
    assert in_sync.wanted(2 * silent_ms) is None
    assert in_sync.size(2 * silent_ms) == 1
    in_sync.acknowledged(B, 200, own_end=200, confirm=200, now_ms=2 * silent_ms)
    assert in_sync.size(2 * silent_ms) == 2


def test_a_replica_is_waited_for_from_before_it_is_published() -> None:
    in_sync = term(A)
    linked(in_sync, B, 150, end=200, now_ms=10)
    assert in_sync.wait_set == {B}
    assert in_sync.wanted(10) is None  # it lacks what was there when the wait for it began
    in_sync.acknowledged(B, 200, own_end=300, confirm=150, now_ms=20)
    assert in_sync.wanted(20) == (A, B)


def test_what_was_wanted_is_waited_for_until_the_write_is_settled() -> None:
    in_sync = term(A)
    linked(in_sync, B, 200, end=200, now_ms=10)
    in_sync.known(lease(A), lease(A, B))
    assert in_sync.size(10) == 1
    in_sync.unlinked(B)
    assert in_sync.wait_set == {B}  # it may be published at any time
    in_sync.expire(100_000)
    assert in_sync.wait_set == {B}
    in_sync.known(lease(A), None)
    assert in_sync.wait_set == frozenset()


def test_a_replica_that_falters_before_the_write_is_not_waited_for() -> None:
    in_sync = term(A)
    linked(in_sync, B, 150, end=200, now_ms=10)
    in_sync.unlinked(B)
    assert in_sync.wait_set == frozenset()


def test_an_addition_that_does_not_get_there_is_given_up() -> None:
    in_sync = term(A)
    linked(in_sync, B, 150, end=200, now_ms=10)
    in_sync.expire(10 + LOCAL.lag_max_ms)
    assert in_sync.wait_set == {B}
    in_sync.expire(11 + LOCAL.lag_max_ms)
    assert in_sync.wait_set == frozenset()


def test_no_member_is_added_below_the_confirm_offset_or_without_a_byte_of_the_epoch() -> None:
    in_sync = term(A)
    in_sync.linked(B, 0)
    in_sync.acknowledged(B, 150, own_end=200, confirm=151, now_ms=0)
    in_sync.acknowledged(B, START, own_end=200, confirm=0, now_ms=0)
    assert in_sync.wait_set == frozenset()
    in_sync.acknowledged(B, START + 1, own_end=200, confirm=START + 1, now_ms=0)
    assert in_sync.wait_set == {B}


def test_a_member_is_published_at_most_once_in_a_while() -> None:
    in_sync = term(A)
    linked(in_sync, B, 200, end=200, now_ms=10)
    assert in_sync.wanted(10) == (A, B)
    assert in_sync.wanted(11) is None
    in_sync.acknowledged(B, 200, own_end=200, confirm=0, now_ms=10 + GROWTH_PAUSE_MS)
    assert in_sync.wanted(10 + GROWTH_PAUSE_MS) == (A, B)


def test_a_new_incarnation_takes_the_place_of_the_old_one() -> None:
    # Two of one node would count as two copies, and one of them is gone.
    in_sync = term(A, C, min_in_sync=2)
    linked(in_sync, C_NEW, 200, end=200, now_ms=10)
    assert in_sync.wait_set == {C, C_NEW}
    assert in_sync.wanted(10) == (A, C_NEW)
    in_sync.known(lease(A, C_NEW), None)
    assert in_sync.wait_set == {C_NEW}


def test_a_silent_member_is_wanted_out_and_waited_for_until_it_is() -> None:
    in_sync = term(A, B, C)
    linked(in_sync, B, 200, end=200, now_ms=LOCAL.link_dead_ms)
    assert in_sync.wanted(LOCAL.link_dead_ms) == (A, B)
    in_sync.known(lease(A, B, C), lease(A, B))
    assert in_sync.wait_set == {B, C}
    assert in_sync.size(LOCAL.link_dead_ms) == 2
    in_sync.known(lease(A, B), None)
    assert in_sync.wait_set == {B}


def test_a_member_that_ends_is_wanted_out_at_once_and_not_added_until_it_is_back() -> None:
    in_sync = term(A, B, C)
    linked(in_sync, B, 200, end=200, now_ms=10)
    linked(in_sync, C, 200, end=200, now_ms=10)
    in_sync.leaving(C)
    assert in_sync.wanted(10) == (A, B)
    assert not in_sync.left(C)  # it is waited for until it is known to be removed
    in_sync.known(lease(A, B), None)
    assert in_sync.left(C)
    in_sync.acknowledged(C, 200, own_end=200, confirm=0, now_ms=20)
    in_sync.unlinked(C)
    in_sync.acknowledged(B, 200, own_end=200, confirm=0, now_ms=2000)
    assert in_sync.wanted(2000) is None
    linked(in_sync, C, 200, end=200, now_ms=2000)
    assert in_sync.wanted(2000) == (A, B, C)


def test_the_set_never_shrinks_below_the_minimum() -> None:
    in_sync = term(A, B, C, min_in_sync=2)
    in_sync.peer(C).heard_ms = 500
    wanted = in_sync.wanted(10_000)
    assert wanted == (A, C)  # the one that is silent longest is removed, the other stays electable
    in_sync.known(lease(A, C, min_in_sync=2), None)
    assert in_sync.wanted(20_000) is None


def test_a_member_that_lags_too_long_is_wanted_out_although_it_answers() -> None:
    in_sync = term(A, B)
    for now_ms in range(0, LOCAL.lag_max_ms + 1, 100):
        if now_ms == 0:
            in_sync.linked(B, 0)
        in_sync.acknowledged(B, 120, own_end=1000 + now_ms, confirm=0, now_ms=now_ms)
    assert in_sync.wanted(LOCAL.lag_max_ms) == (A,)


def test_a_busy_member_that_keeps_up_stays() -> None:
    in_sync = term(A, B)
    in_sync.linked(B, 0)
    for now_ms in range(0, 20_000, 100):
        # Always a tenth of a second behind, never at the end.
        end = 1000 + now_ms
        in_sync.acknowledged(B, end - 100, own_end=end, confirm=0, now_ms=now_ms)
        assert in_sync.wanted(now_ms) is None


def test_lag_is_unknown_before_the_first_acknowledgement() -> None:
    peer = MemberProgress(0)
    assert peer.lag_ms(100, 50) is None
    peer.acknowledged(100, 100, 50)
    assert peer.lag_ms(100, 60) == 0
    assert peer.lag_ms(200, 80) == 30


def test_a_set_has_one_incarnation_of_a_node() -> None:
    assert with_member((A, C), C_NEW) == (A, C_NEW)
    assert with_member((C,), A) == (A, C)


def test_the_lag_of_a_node_is_that_of_the_volume_that_was_heard_last() -> None:
    # A slave was copied anew: its lag was unknown for the rest of the term.
    in_sync = term(A, C)
    linked(in_sync, C, 150, end=200, now_ms=10)
    in_sync.unlinked(C)
    linked(in_sync, C_NEW, 200, end=200, now_ms=50)
    linked(in_sync, B, 120, end=200, now_ms=50)
    assert in_sync.lags_ms(200, 60) == {"b": 60, "c": 0}


def test_a_mark_from_before_a_pause_of_the_master_shows_no_lag_after_it() -> None:
    # ha of the master was stopped for longer than the lag limit, and its broker appended on. The
    # first ACK afterwards reached the end that ha had noted before the pause: the member seemed to
    # be behind by the whole pause, and was removed.
    in_sync = term(A, B)
    linked(in_sync, B, 200, end=200, now_ms=10)
    in_sync.acknowledged(B, 200, own_end=300, confirm=200, now_ms=20)
    woke_ms = 20 + LOCAL.lag_max_ms
    in_sync.begin(woke_ms)
    in_sync.acknowledged(B, 300, own_end=400, confirm=300, now_ms=woke_ms + 1)
    assert in_sync.wanted(woke_ms + 1) is None
    assert in_sync.lags_ms(400, woke_ms + 1) == {"b": 1}
