"""Checks of operators' commands, and the lease that replaces a lost one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.ha.core.admin_rules import (
    UNHEARD_EPOCHS,
    AlreadySo,
    Refused,
    estimate,
    guard_failover,
    recreated,
)
from services.ha.core.effects import LeaseGet, LeasePut, Reply
from services.ha.core.events import Command, LeaseAnswered, LeaseOutcome, NodeSnapshot
from services.ha.core.lease_edits import LeaseEdits, set_paused, without_member
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import Trigger
from services.ha.lease.value import Holder, Lease, Member, Stored
from services.ha.wire.payloads import Facts
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.core.test_campaign import A, B, C, lease, replica
from tests.unit.ha.core.test_founding import report, status_of
from tidemark.offsets import Epoch


def serving() -> tuple[ReplicaContext, Peers]:
    """Node b, a follower with a broker, which read the lease long ago."""
    context = replica()
    context.move(Trigger.RECOVERED)
    context.snapshot = NodeSnapshot(1, 0, 0, 0, 0, 0)
    context.session.read(0)
    context.session.answered(LeaseAnswered(1, LeaseOutcome.FOUND, Stored(lease(), "1", "u")), 0)
    context.now_ms = LOCAL.lease_ms
    return context, Peers(context)


def order(name: str, **arguments: str) -> Command:
    return Command(1, name, arguments)


def test_the_loss_is_what_others_know_to_be_confirmed_and_this_one_lacks() -> None:
    context, peers = serving()
    assert estimate(context, peers).body["estimated_loss_bytes"] == 0
    report(peers, replace(status_of("c"), confirm=context.end + 70))
    loss = estimate(context, peers).body
    assert loss["estimated_loss_bytes"] == 70
    assert loss["known_from"] == ["b", "c"]
    assert loss["loss_reason"].startswith("a does not answer")


def test_a_dry_run_needs_no_name() -> None:
    context, peers = serving()
    guard_failover(context, peers, order("failover", to="b", dry_run="true"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"to": "c"}, "the order is for c"),
        ({"old_master_stopped": "true"}, "the group's name is not ''"),
        ({"group": "g1", "old_master_stopped": "true"}, "the group's name is not 'g1'"),
        ({"group": "g0"}, "it is not confirmed that the old master is stopped"),
    ],
)
def test_an_unclean_failover_has_guards(arguments: dict[str, str], reason: str) -> None:
    context, peers = serving()
    with pytest.raises(Refused, match=reason):
        guard_failover(context, peers, order("failover", **arguments))


def test_an_unclean_failover_waits_for_the_lease_to_run_out() -> None:
    context, peers = serving()
    meant = order("failover", to="b", group="g0", old_master_stopped="true")
    guard_failover(context, peers, meant)
    context.now_ms -= 1
    with pytest.raises(Refused, match="has not run out"):
        guard_failover(context, peers, meant)


def test_pausing_changes_nothing_else() -> None:
    assert set_paused(True)(lease()) == lease(paused=True)


@pytest.mark.parametrize("paused", [False, True])
def test_who_made_it_so_is_not_known_once_an_answer_was_lost(paused: bool) -> None:
    # 1. The lease is paused by a command, and the answer is lost. 2. The master renews it on top of
    #    that. 3. "Nothing was changed" would be wrong, and so would a second write.
    context, _ = serving()
    edits = LeaseEdits(context)
    edits.begin(7, set_paused(True))
    [put] = [effect for effect in context.out.take() if isinstance(effect, LeasePut)]
    context.session.answered(LeaseAnswered(put.request, LeaseOutcome.UNKNOWN), context.now_ms)
    context.now_ms += LOCAL.renew_ms
    [get] = context.session.tick(context.now_ms)
    assert isinstance(get, LeaseGet)
    found = Stored(lease(paused=paused), "3", "u")
    answer = context.session.answered(
        LeaseAnswered(get.request, LeaseOutcome.FOUND, found), context.now_ms
    )
    edits.settled(answer.settled)
    edits.tick()
    if paused:
        [reply] = context.out.take()
        assert isinstance(reply, Reply)
        assert (reply.ok, reply.body["paused"], reply.body["changed"]) == (True, True, None)
    else:
        assert [type(effect) for effect in context.out.take()] == [LeasePut]


def test_a_try_that_was_refused_for_sure_has_changed_nothing() -> None:
    # This node has not yet seen that another command paused the group: its write is a conflict.
    context, _ = serving()
    edits = LeaseEdits(context)
    edits.begin(7, set_paused(True))
    [put] = [effect for effect in context.out.take() if isinstance(effect, LeasePut)]
    conflict = LeaseAnswered(put.request, LeaseOutcome.CONFLICT)
    [get] = context.session.answered(conflict, context.now_ms).effects
    assert isinstance(get, LeaseGet)
    found = Stored(lease(paused=True), "2", "u")
    answer = context.session.answered(
        LeaseAnswered(get.request, LeaseOutcome.FOUND, found), context.now_ms
    )
    edits.settled(answer.settled)
    edits.tick()
    [reply] = context.out.take()
    assert isinstance(reply, Reply)
    assert (reply.ok, reply.body["changed"]) == (True, False)
    assert reply.body["detail"] == "automatic failover is paused already. Nothing was changed."


@pytest.mark.parametrize("paused_elsewhere", [False, True])
def test_nothing_is_to_be_changed_only_by_a_lease_that_was_read_since_the_command(
    paused_elsewhere: bool,
) -> None:
    # 1. An operator pauses failover at another node. 2. Resumes it here, before this node has read
    # the lease again. It said that failover is on already, and it stayed paused.
    context, _ = serving()
    context.out.take()
    edits = LeaseEdits(context)
    edits.begin(7, set_paused(False))
    [unknown] = context.out.take()
    assert isinstance(unknown, LeaseGet)
    context.session.answered(LeaseAnswered(unknown.request, LeaseOutcome.UNKNOWN, None, "late"), 0)
    context.now_ms += 4_000
    edits.tick()
    [get] = context.out.take()
    assert isinstance(get, LeaseGet)
    found = Stored(lease(paused=paused_elsewhere), "2", "u")
    context.session.answered(LeaseAnswered(get.request, LeaseOutcome.FOUND, found), context.now_ms)
    edits.tick()
    [effect] = context.out.take()
    if paused_elsewhere:
        assert isinstance(effect, LeasePut)
        assert not effect.lease.paused
    else:
        assert isinstance(effect, Reply)
        assert (effect.ok, effect.body["changed"]) == (True, False)


def test_a_member_is_removed_by_the_master_alone_and_never_the_master() -> None:
    context, _ = serving()
    with pytest.raises(Refused, match="not the master any more"):
        without_member(context, "c")(lease())
    mine = lease(context.holder)
    changed = without_member(context, "c")(mine)
    assert (changed.in_sync, changed.in_sync_version) == ((A, B), 8)
    with pytest.raises(Refused, match="is the master"):
        without_member(context, "b")(mine)
    with pytest.raises(Refused, match="there is no node 'x'; the group has a, b, c"):
        without_member(context, "x")(mine)
    with pytest.raises(Refused, match="there is no node ''; the group has a, b, c"):
        without_member(context, "")(mine)
    with pytest.raises(AlreadySo, match="c is not in the in-sync set"):
        without_member(context, "c")(changed)
    with pytest.raises(Refused, match="2 members would remain"):
        without_member(context, "c")(mine._replace(min_in_sync=3))


def lost() -> tuple[ReplicaContext, Peers]:
    context, peers = serving()
    context.session.read(context.now_ms)
    context.session.answered(LeaseAnswered(2, LeaseOutcome.ABSENT), context.now_ms)
    context.known_lease = lease()._replace(epoch=Epoch(5), in_sync=(A, B), in_sync_version=12)
    report(
        peers,
        replace(status_of("a"), promised=9, data_epoch=4, end=900, incarnation=A.incarnation),
        replace(status_of("c"), seen_epoch=5, in_sync_version=12, incarnation=C.incarnation),
    )
    return context, peers


def made(context: ReplicaContext, peers: Peers, **arguments: str) -> Lease:
    return recreated(context, peers, 4, order("recreate-lease", **arguments))


def test_a_lost_lease_is_made_above_all_that_anybody_knows() -> None:
    context, peers = lost()
    new = made(context, peers)
    assert (new.holder, new.epoch, new.in_sync_version) == (None, 10, 13)
    assert new.in_sync == (A, B)
    assert new.handover_to == "a"  # it has the longest log


@pytest.mark.parametrize("facts", [Facts(trouble="damaged"), Facts(services_move=False)])
def test_a_lease_that_is_made_again_is_released_for_a_member_that_can_lead(
    facts: Facts,
) -> None:
    # A node with known damage has the longest log. It took the lease at once, because it was
    # released for it, and no healthy member had its turn.
    context, peers = lost()
    damaged = replace(status_of("a"), promised=9, data_epoch=4, end=900, incarnation=A.incarnation)
    report(peers, replace(damaged, facts=facts))
    assert made(context, peers).handover_to == "b"
    # Members that the operator names need not have all confirmed records: the longest log counts.
    assert made(context, peers, in_sync="a,b").handover_to == "a"


def test_a_set_that_was_seen_later_counts_more() -> None:
    context, peers = lost()
    newer = replace(status_of("c"), in_sync=(B, C), data_epoch=5, facts=Facts(in_sync_at=(6, 13)))
    report(peers, status_of("a"), replace(newer, incarnation=C.incarnation))
    assert made(context, peers).in_sync == (B, C)


def test_an_older_set_does_not_replace_one_that_no_node_remembers() -> None:
    # 1. a was cut off; b took the lease, removed a and confirmed without it. 2. The lease was
    #    deleted and b started again: it had seen the new set, and did not know it. 3. The command
    #    used the set that a remembered, and a, which lacked confirmed records, could become master.
    context, peers = lost()
    restarted = replace(status_of("c"), seen_epoch=6, in_sync_version=13, incarnation=C.incarnation)
    report(peers, status_of("a"), restarted)
    with pytest.raises(Refused, match="no node knows who was in the in-sync set"):
        made(context, peers)


def test_an_epoch_that_was_only_heard_of_hides_no_set_while_all_answer() -> None:
    context, peers = lost()
    heard = replace(status_of("a"), promised=7, seen_epoch=7, incarnation=A.incarnation)
    report(peers, heard)
    assert made(context, peers).in_sync == (A, B)
    # The master of that epoch may have changed the set: one whose volume was replaced since,
    for knew in (replace(heard, incarnation="7" * 32), replace(heard, data_epoch=7)):
        report(peers, knew)
        with pytest.raises(Refused, match="no node knows who was in the in-sync set"):
            made(context, peers)
    # or one that is silent.
    report(peers, heard)
    peers.close(2, "cut")
    with pytest.raises(Refused, match="no node knows who was in the in-sync set"):
        made(context, peers, stopped="c")


def test_a_silent_node_must_be_declared_and_costs_a_thousand_epochs() -> None:
    context, peers = lost()
    peers.close(1, "cut")
    with pytest.raises(Refused, match="a does not answer"):
        made(context, peers)
    # The promise of the silent node is unknown: the new epoch is far above it, too.
    assert made(context, peers, stopped="a").epoch > UNHEARD_EPOCHS
    peers.close(2, "cut")
    with pytest.raises(Refused, match="a and c do not answer"):
        made(context, peers)


def test_the_operator_may_name_the_set_by_nodes_that_answer() -> None:
    context, peers = lost()
    assert made(context, peers, in_sync="b,c").in_sync == (B, C)
    peers.close(2, "cut")
    with pytest.raises(Refused, match="only the volume of a node that answers is known"):
        made(context, peers, in_sync="b,c", stopped="c")


def test_a_lease_that_is_there_is_not_made_again() -> None:
    context, peers = serving()
    with pytest.raises(Refused, match="the lease exists"):
        made(context, peers)


def test_no_lease_is_made_for_members_that_are_all_gone() -> None:
    context, peers = lost()
    assert context.known_lease is not None
    context.known_lease = context.known_lease._replace(in_sync=(Member("a", "7" * 32),))
    with pytest.raises(Refused, match="no member of the in-sync set answers"):
        made(context, peers)


def test_no_other_node_is_asked_to_take_what_a_holder_keeps() -> None:
    context, peers = lost()
    assert made(context, peers).holder != Holder("a", "1" * 32, "9" * 16)
