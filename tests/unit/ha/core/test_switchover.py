"""Planned switches: by command, because of trouble, before the end of a process."""

from __future__ import annotations

import pytest

from services.ha.core.effects import (
    Connect,
    Effect,
    LeaseCreate,
    LeaseGet,
    LeasePut,
    PersistPromise,
    PersistTable,
    ReleaseAppendLock,
)
from services.ha.core.events import Command, CopyFault
from services.ha.core.in_sync import GROWTH_PAUSE_MS
from services.ha.core.peers import RECONNECT_MS, RECONNECT_MS_MAX
from services.ha.core.switch_orders import HANGS, REMOVAL_MS_MAX
from services.ha.core.switchover import FENCE_MS_MAX
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.group import Group, grown, hold, lease_of, order, same_logs
from tests.unit.ha.node_in_memory import Broker, Node
from tidemark.formats.checkpoint import Slot, Trouble


def test_a_planned_switch_takes_less_than_a_second_and_loses_nothing() -> None:
    group = grown()
    end = group.append(5000)
    reply = order(group["a"], "switchover", to="c")
    assert reply.ok, reply.body
    assert reply.body["took_ms"] < 1000
    assert group.master.name == "c"
    assert lease_of(group).epoch == 2
    group.wait_in_sync("a", "b", "c")
    assert group["a"].volume.cut == []
    assert same_logs(group, end)
    assert group["c"].page.get(Slot.SENDS_HELD) == 0


def test_the_new_master_reaches_the_others_without_a_pause_but_a_dead_node_only_now_and_then() -> (
    None
):
    # It waited for RECONNECT_MS, with its epoch written and its broker ready.
    group = grown()
    group["b"].kill()
    group.until(lambda: group.set == {"a", "c"})
    group.run(RECONNECT_MS_MAX)
    begun, connected = list[int](), list[tuple[int, str]]()
    target, carry_out = group["c"], group["c"].carry_out

    def noting(effect: Effect) -> None:
        if isinstance(effect, LeasePut):
            begun.append(group.now)
        elif isinstance(effect, Connect):
            connected.append((group.now, effect.node))
        carry_out(effect)

    target.carry_out = noting  # type: ignore[method-assign]
    assert order(group["a"], "switchover", to="c").ok
    assert min(at for at, node in connected if node == "a") - begun[0] < RECONNECT_MS / 2
    assert [node for _, node in connected].count("b") <= 2


def test_a_switch_to_a_node_outside_the_set_is_refused() -> None:
    group = grown()
    group["c"].kill()
    group.until(lambda: group.set == {"a", "b"})
    group.run(50)  # the master learns that its write is applied
    reply = order(group["a"], "switchover", to="c")
    assert not reply.ok
    assert reply.body["detail"] == "c is not in the in-sync set. Nothing was done."
    group["b"].kill()
    group.run(50)
    refused = order(group["a"], "switchover").body["detail"]
    assert refused == "b does not follow; c is not in the in-sync set. Nothing was done."
    assert "there is no node 'x'" in order(group["a"], "switchover", to="x").body["detail"]
    assert group["a"].page.get(Slot.SENDS_HELD) == 0


def test_a_switch_whose_target_is_lost_leaves_the_master_in_place() -> None:
    group = grown()
    group.isolate("c")
    group.append()
    reply = order(group["a"], "switchover", to="c")
    assert not reply.ok
    assert group.master.name == "a"
    assert group["a"].page.get(Slot.SENDS_HELD) == 0
    assert lease_of(group).epoch == 1


LOST_TARGET = "the lease was released for b, which does not answer now."


def lost_its_target() -> Group:
    """Return a group in which a has the lease again: command 1 switched to b, and b was lost when
    the lease was released for it."""
    group = grown()
    a, c = group["a"], group["c"]
    a.post(Command(1, "switchover", {"to": "b"}))
    group.until(lambda: lease_of(group).holder is None)
    group["b"].kill()
    c.kill()
    group.run(50)
    c.start()
    group.until(lambda: 1 in a.replies or (group.serves("a") and group.set >= {"a", "c"}), 20_000)
    return group


def test_an_order_that_waits_for_its_target_is_answered_before_another_one_begins() -> None:
    # 1. b is lost as soon as the lease is released for it. 2. a takes the lease again. 3. Another
    #    command to a replaced the first one, which was never answered.
    group = lost_its_target()
    a = group["a"]
    order(a, "switchover", to="c")
    assert not a.replies[1].ok
    assert a.replies[1].body["detail"] == LOST_TARGET


def test_an_order_is_not_answered_with_the_outcome_of_a_later_switch_because_of_trouble() -> None:
    # 1. b is lost as soon as the lease is released for it. 2. a takes the lease again, and its disk
    #    is full. 3. It hands over to c. The command to switch to b was answered with c as done.
    group = lost_its_target()
    a = group["a"]
    a.trouble = (Trouble.DISK_FULL, Trouble.NONE)
    group.until(lambda: group.serves("c"))
    group.until(lambda: 1 in a.replies, 20_000)
    assert not a.replies[1].ok
    assert a.replies[1].body["detail"] == LOST_TARGET


@pytest.mark.parametrize("takes_over", [True, False])
def test_an_order_waits_for_its_target_though_the_answer_to_the_release_was_lost(
    monkeypatch: pytest.MonkeyPatch, *, takes_over: bool
) -> None:
    # 1. The release is applied, and its answer is lost. 2. The target takes the lease. 3. The
    #    former master hears of its epoch, and answered that the switch had failed.
    group = grown()
    a, b = group["a"], group["b"]
    ask = group.ask_lease

    def lose_the_release(node: Node, effect: LeaseGet | LeasePut | LeaseCreate) -> None:
        if node is a and isinstance(effect, LeasePut) and effect.lease.holder is None:
            group._answer(effect)
            group.lease_down.add("a")
            if not takes_over:
                b.kill()
        ask(node, effect)

    monkeypatch.setattr(group, "ask_lease", lose_the_release)
    reply = order(a, "switchover", to="b", wait_ms=30_000)
    assert reply.ok is takes_over, reply.body
    if takes_over:
        assert (reply.body["master"], reply.body["epoch"]) == ("b", 2)
        assert group.serves("b")
    else:
        detail = "the lease may have been released for b, which does not answer now."
        assert reply.body["detail"] == detail


def test_an_order_for_the_master_names_it_elsewhere() -> None:
    group = grown()
    reply = order(group["b"], "switchover")
    assert not reply.ok
    assert reply.body["master"] == "a"


def test_a_master_with_a_full_disk_hands_over() -> None:
    group = grown()
    group["a"].trouble = (Trouble.DISK_FULL, Trouble.NONE)
    new = group.wait_master(other_than="a")
    assert new.name in ("b", "c")
    group.run(3000)
    assert group.master is new
    replica = group["a"].replica
    assert replica is not None
    context = replica.context
    assert "handed-over" in context.alarms
    group["a"].trouble = (Trouble.NONE, Trouble.NONE)
    group.run(200)
    assert "handed-over" not in context.alarms


def test_a_broker_that_waits_to_end_is_no_alarm() -> None:
    group = grown()
    replica = group["a"].replica
    assert replica is not None
    alarms: set[str] = set()
    group["a"].trouble = (Trouble.STOPPING, Trouble.NONE)
    reasons: set[str] = set()

    def moved() -> bool:
        alarms.update(replica.context.alarms)
        reasons.add(replica.context.unfit)
        return any(node.name != "a" for node in group.masters)

    group.until(moved)
    assert "handed-over" not in alarms
    assert "its broker was asked to stop" in reasons


def test_a_master_that_is_to_end_hands_over_first() -> None:
    group = grown()
    reply = order(group["a"], "switchover", reason="stopping")
    assert reply.ok
    assert lease_of(group).holder is None or lease_of(group).handover_to is None
    group["a"].kill()
    assert group.until(lambda: bool(group.masters)) < 1000
    group.send_confirmed()


def test_a_master_whose_broker_ended_first_hands_over_all_the_same() -> None:
    group = grown()
    end = group.append()
    group["a"].kill_broker()
    reply = order(group["a"], "switchover", reason="stopping")
    assert reply.ok
    group["a"].kill()
    assert group.until(lambda: bool(group.masters)) < 1500
    assert group.send_confirmed() > end


def test_a_broker_that_ends_during_a_switch_does_not_stop_it() -> None:
    group = grown()
    end = group.append()
    token = 77
    group["a"].post(Command(token, "switchover", {"reason": "stopping"}))
    group["a"].kill_broker()
    group.until(lambda: token in group["a"].replies)
    assert group["a"].replies[token].ok
    group["a"].kill()
    master = group.wait_master(other_than="a", at_most_ms=1000)
    assert len(master.volume.log) >= end


def test_a_slave_that_is_to_end_is_taken_out_of_the_set_before_it_does() -> None:
    group = grown()
    reply = order(group["b"], "switchover", reason="stopping", wait_ms=200)
    assert reply.ok
    assert group.set == {"a", "c"}
    group["b"].kill()
    began = group.now
    group.send_confirmed()
    assert group.now - began < 100  # it is not waited for until its link is dead
    group.run(2 * GROWTH_PAUSE_MS)
    assert group.set == {"a", "c"}
    group["b"].start()
    group.wait_in_sync("a", "b", "c")


def test_a_slave_that_ends_while_the_set_cannot_shrink_says_so_for_a_moment_only() -> None:
    group = grown()
    group["c"].kill()
    group.until(lambda: group.set == {"a", "b"})
    began = group.now
    assert order(group["b"], "switchover", reason="stopping").ok
    assert REMOVAL_MS_MAX <= group.now - began < REMOVAL_MS_MAX + 200
    assert group.set == {"a", "b"}  # min_in_sync: it stays electable


def test_a_member_that_ends_is_no_target_of_a_switch() -> None:
    group = grown()
    group["c"].kill()
    group.until(lambda: group.set == {"a", "b"})
    group["b"].post(Command(78, "switchover", {"reason": "stopping"}))
    group.run(100)
    reply = order(group["a"], "switchover")
    assert not reply.ok


def test_a_switch_to_a_member_that_is_asked_to_end_meanwhile_changes_nothing() -> None:
    group = grown()
    a, b = group["a"], group["b"]
    a.post(Command(78, "switchover", {"to": "b"}))
    b.post(Command(79, "switchover", {"reason": "stopping"}))
    group.until(lambda: 78 in a.replies)
    assert a.replies[78].body["detail"] == "b is about to end. a goes on as master."
    assert (group.master.name, lease_of(group).epoch) == ("a", 1)
    assert a.page.get(Slot.SENDS_HELD) == 0


def test_members_that_end_together_stay_in_the_set() -> None:
    group = Group(("a", "b"), 1)
    group.start()
    group.wait_in_sync("a", "b")
    for token, node in enumerate(("a", "b"), 79):
        group[node].post(Command(token, "switchover", {"reason": "stopping"}))
    group.until(lambda: 79 in group["a"].replies and 80 in group["b"].replies)
    assert group.set == {"a", "b"}


def test_a_master_without_another_member_ends_and_keeps_its_lease() -> None:
    group = Group(("a", "b"), 1)
    group.start()
    group.wait_master()
    group.wait_in_sync("a", "b")
    group["b"].kill()
    group.until(lambda: group.set == {"a"})
    assert order(group["a"], "switchover", reason="stopping", wait_ms=200).ok
    group["a"].kill()
    group["a"].start()
    assert group.until(lambda: bool(group.masters)) < 1500


def cannot_open(group: Group, name: str, why: Trouble = Trouble.DISK_FULL) -> None:
    broker = group[name].broker
    assert broker is not None
    broker.cannot_open = why


def test_a_new_master_whose_broker_cannot_open_leaves_the_group_to_another() -> None:
    group = grown()
    end = group.append()
    cannot_open(group, "b", Trouble.DAMAGED)
    # No node becomes master of that epoch, and the command's answer shows it.
    assert not order(group["a"], "switchover", to="b").ok
    assert group["b"].state == "promoting"
    master = group.wait_master(other_than="b")
    assert lease_of(group).epoch > 2
    assert group.send_confirmed() > end
    group.run(10_000)
    assert group.master is master, "a node with trouble does not take it back"


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_a_node_that_cannot_open_leaves_the_lease_to_the_old_master_when_that_is_back(
    min_in_sync: int,
) -> None:
    # 1. The new master removed the old one from the set. 2. It could not open its epoch, so there
    #    was no record of it that the old one could copy to be added again. 3. None could ever lead.
    group = grown(min_in_sync, ("a", "b"))
    cannot_open(group, "b", Trouble.DAMAGED)
    group["a"].kill()
    stays_unopened(group, "b")
    group["a"].start()
    assert group.wait_master() is group["a"]
    assert group.set >= {"a"}
    group.send_confirmed()


@pytest.mark.parametrize("members", ["ab", "b"])
@pytest.mark.parametrize("alive_ms", [500, 4000])
def test_a_node_whose_broker_ends_in_each_opening_leaves_the_lease_to_another(
    members: str, alive_ms: int
) -> None:
    # The time in which it should have opened began anew with each term, and it took its own lease
    # again at once. As the only member of the set it kept the other node out of it.
    group = grown(1, ("a", "b"))
    if members == "b":
        group["a"].kill()
        group.until(lambda: group.serves("b") and group.set == {"b"})
        group["b"].kill_broker()
        group["a"].start()
    else:
        assert order(group["a"], "switchover", to="b").ok
    node, began_ms = group["b"], group.now
    while not group.serves("a"):
        node.kill_broker()
        node.trouble = (Trouble.NONE, Trouble.NONE)
        group.run(300)
        node.start_broker()
        cannot_open(group, "b")
        group.run(alive_ms)
        assert group.now - began_ms < 120_000


@pytest.mark.parametrize("kind", [PersistPromise, PersistTable, ReleaseAppendLock])
def test_a_node_whose_disk_hangs_before_the_grant_leaves_the_lease_to_another(kind: type) -> None:
    group = grown(min_in_sync=1)
    master = group["b"]
    held = hold(master, kind)
    group["a"].post(Command(1, "switchover", {"to": "b"}))
    group.until(lambda: bool(held))
    group.wait_master(other_than="b")
    assert "not-open" in master.raised


def stays_unopened(group: Group, name: str) -> None:
    """Check that the node gets the lease, and keeps it without opening its epoch."""
    group.until(lambda: group[name].state == "promoting")
    epoch = lease_of(group).epoch
    group.run(60_000)
    assert (group[name].state, lease_of(group).epoch) == ("promoting", epoch)


def test_a_node_that_cannot_open_goes_on_trying_where_no_other_could_lead() -> None:
    alone = grown(1, ("a",))
    alone["a"].kill()
    alone["a"].start()
    cannot_open(alone, "a")
    stays_unopened(alone, "a")
    halted = grown()
    halted["c"].post(CopyFault("corrupt-record", "so", 0))
    cannot_open(halted, "b")
    halted["a"].kill()
    stays_unopened(halted, "b")
    without_broker = grown()
    cannot_open(without_broker, "b")
    without_broker["c"].kill_broker()
    without_broker["a"].kill()
    stays_unopened(without_broker, "b")
    paused = grown()
    cannot_open(paused, "b")
    paused["a"].post(Command(1, "switchover", {"to": "b"}))
    paused.edit_lease(paused=True)
    stays_unopened(paused, "b")


def test_trouble_that_does_not_keep_a_broker_from_opening_ends_no_term() -> None:
    group = grown()
    group["a"].trouble = (Trouble.NONE, Trouble.DISK_FULL)
    group["a"].kill_broker()
    group.until(lambda: not group.masters)
    group["a"].start_broker()
    assert group.wait_master() is group["a"], "it opens, and hands over then"
    group.wait_master(other_than="a")


def test_members_that_all_cannot_open_give_each_other_more_and_more_time() -> None:
    group = grown()
    for name in group.nodes:
        cannot_open(group, name)
    group["a"].kill_broker()
    group["a"].start_broker()
    cannot_open(group, "a")
    group.until(lambda: not group.masters)
    epochs = []
    for _ in range(3):
        before = lease_of(group).epoch
        for _ in range(600):
            group.run(100)
            for node in group.nodes.values():  # as a slave it seems healthy
                if node.state in ("follower", "catchup", "in-sync"):
                    node.trouble = (Trouble.NONE, Trouble.NONE)
        epochs.append(lease_of(group).epoch - before)
    assert epochs[2] <= epochs[0] <= 10, epochs


def test_a_switch_whose_broker_keeps_the_log_frees_the_lease() -> None:
    group = grown()
    broker = group["a"].broker
    assert broker is not None
    broker.keeps_log = True
    reply = order(group["a"], "switchover", to="c")
    assert not reply.ok
    assert f"release the log within {FENCE_MS_MAX} ms" in reply.body["detail"]
    group.wait_master(other_than="a")
    group.send_confirmed()
    broker.keeps_log = False
    group.wait_in_sync("a", "b", "c")


def test_a_node_whose_disk_does_not_write_what_ha_must_know_is_no_target_and_says_so() -> None:
    # Its status waited for that disk, too: it looked like a node that is gone.
    group = grown(min_in_sync=1)
    group["c"].kill()
    slave = group["b"]
    carry_out, held = slave.carry_out, hold(slave, PersistPromise)
    group.until(lambda: group.set == {"a", "b"} and bool(held))
    group.run(LOCAL.broker_silent_ms + LOCAL.heartbeat_ms)
    reply = order(group["a"], "switchover", to="b")
    assert not reply.ok
    assert "b cannot take over: ha's disk does not write the promise" in reply.body["detail"]
    (seen,) = [node for node in group["a"].status()["nodes"] if node["node"] == "b"]
    assert "does not write the promise" in seen["reason"]
    group["a"].kill()
    group.run(5 * LOCAL.lease_ms)
    assert (group["b"].state, lease_of(group).epoch) == ("follower", 1)
    slave.carry_out = carry_out  # type: ignore[method-assign]
    for effect in held:
        carry_out(effect)
    assert group.wait_master() is slave


def hang(group: Group) -> Broker:
    """Let the disk of the master's broker hang while it has something to flush."""
    broker = group.master.broker
    assert broker is not None
    broker.flush_hangs = broker.keeps_log = True
    broker.append(100)
    return broker


def test_a_master_whose_disk_hangs_leaves_the_lease_to_another() -> None:
    # Its broker answered and renewed its heartbeat. No send was acknowledged, without an alarm, and
    # a switch failed, because the log was never confirmed to its end.
    group = grown()
    broker, old = hang(group), group["a"]
    group.run(LOCAL.lease_ms - 500)
    assert (group.master, lease_of(group).epoch) == (old, 1)
    group.wait_master(other_than="a", at_most_ms=4 * LOCAL.lease_ms)
    assert old.context.state_reason == HANGS
    group.send_confirmed()
    broker.flush_hangs = broker.keeps_log = False
    group.wait_in_sync("a", "b", "c")


def test_a_disk_that_hangs_for_less_than_a_lease_changes_no_epoch() -> None:
    group = grown()
    for _ in range(5):
        broker = hang(group)
        group.run(LOCAL.lease_ms - 500)
        broker.flush_hangs = broker.keeps_log = False
        group.send_confirmed()
    assert (group.master, lease_of(group).epoch) == (group["a"], 1)
    assert "stalled-service" not in group["a"].raised


def test_a_master_whose_disk_hangs_keeps_the_lease_if_no_other_could_do_better() -> None:
    group = grown()
    group["b"].kill()
    group["c"].kill()
    hang(group)
    group.run(10 * LOCAL.lease_ms)
    assert (group.master, lease_of(group).epoch) == (group["a"], 1)
    assert group["a"].context.alarms["stalled-service"] == f"{HANGS}."


def test_a_master_whose_disk_hangs_keeps_the_lease_while_failover_is_paused() -> None:
    group = grown()
    group.edit_lease(paused=True)
    hang(group)
    group.run(5 * LOCAL.lease_ms)
    assert (group.master, lease_of(group).epoch) == (group["a"], 1)
    assert group["a"].context.alarms["stalled-service"] == f"{HANGS}."
    group.edit_lease(paused=False)
    group.wait_master(other_than="a", at_most_ms=4 * LOCAL.lease_ms)
    # It is fenced now, which says what it waits for.
    assert "stalled-service" not in group["a"].context.alarms
    assert group["a"].state == "fenced"


@pytest.mark.parametrize("service", ["ha", "broker"])
def test_time_in_which_a_service_stalled_is_no_time_of_its_disk(service: str) -> None:
    group = grown()
    hang(group)
    group.run(LOCAL.lease_ms * 2 // 3)
    group["a"].pause(service)
    group.run(LOCAL.lease_ms // 2)
    group["a"].resume(service)
    group.run(LOCAL.lease_ms // 3)
    assert (group.master, lease_of(group).epoch) == (group["a"], 1)
    assert "stalled-service" not in group["a"].raised
