"""The slave's part: faults of the copy and their consequences."""

from __future__ import annotations

import pytest

from services.ha.core.effects import Copy, Cut, Effect, LeasePut, Resync, Send, Settle
from services.ha.core.events import Command, Copied, CopyFault
from services.ha.core.following import FAULT_PAUSE_MS
from services.ha.core.replica_context import RETRIED_FAULTS
from services.ha.core.states import State
from services.ha.core.status import own_status, reason_of
from services.ha.core.switch_orders import REMOVAL_MS_MAX, STOPPING
from shared.cluster.time_rules import DEFAULT, LOCAL, LONG, TimeRules
from tests.unit.ha import group as group_module
from tests.unit.ha.group import Group, grown, hold, order
from tests.unit.ha.node_in_memory import Node
from tidemark.offsets import Epoch


def fails(node: Node, code: str) -> None:
    """Every copy of the node fails from now on."""
    carry_out = node.carry_out

    def failing(effect: Effect) -> None:
        if isinstance(effect, Copy):
            end, replica = len(node.volume.log), node.replica
            node.group.later(1, lambda: node.tell(replica, CopyFault(code, "so", end)))
        else:
            carry_out(effect)

    node.carry_out = failing  # type: ignore[method-assign]


def heals(node: Node) -> None:
    del node.carry_out


def in_group() -> tuple[Group, Node]:
    group = grown()
    return group, group["c"]


@pytest.mark.parametrize("code", sorted(RETRIED_FAULTS))
def test_a_fault_that_may_pass_is_reported_and_tried_again(code: str) -> None:
    group, slave = in_group()
    fails(slave, code)
    end = group.append()
    group.until(lambda: group.confirmed(end))
    assert group.set == {"a", "b"}
    assert slave.context.alarms[code] == "so"
    heals(slave)
    group.wait_in_sync("a", "b", "c")
    group.send_confirmed()
    assert code not in slave.context.alarms


def test_damage_of_the_own_log_halts_the_replica() -> None:
    group, slave = in_group()
    fails(slave, "corrupt-record")
    group.append()
    group.until(lambda: slave.state == "halted")
    group.until(lambda: group.set == {"a", "b"})


def test_damage_found_while_nothing_is_copied_halts_it_too() -> None:
    group, slave = in_group()
    slave.post(CopyFault("corrupt-record", "a bit flipped", len(slave.volume.log)))
    assert slave.state == "halted"
    group.until(lambda: group.set == {"a", "b"})


def test_a_disk_that_fails_ends_the_process() -> None:
    _, slave = in_group()
    assert slave.replica is not None
    end = len(slave.volume.log)
    effects = slave.replica.handle(CopyFault("flush-failed", "EIO", end), slave.group.now)
    assert [type(effect).__name__ for effect in effects].count("Ended") == 1
    again = slave.replica.handle(Copied(end, end), slave.group.now)
    assert [type(effect).__name__ for effect in again].count("Ended") == 0


def test_a_fault_is_not_tried_again_at_once() -> None:
    group, slave = in_group()
    fails(slave, "disk-full")
    group.append()
    group.until(lambda: "disk-full" in slave.context.alarms)
    heals(slave)
    assert group.until(lambda: slave.context.state.value == "catchup") > FAULT_PAUSE_MS // 2


def test_an_epoch_whose_earlier_bytes_could_not_be_copied_is_copied_by_the_next_link() -> None:
    group, slave = in_group()
    slave.kill()
    group.send_confirmed()
    former = group.master
    former.kill()
    former.start()
    group.wait_master()
    group.send_confirmed()
    fails(slave, "bad-stream")
    slave.start()
    group.until(lambda: "bad-stream" in slave.context.alarms)
    assert slave.volume.table == group.master.volume.table, "the entry came before its bytes"
    heals(slave)
    group.wait_in_sync("a", "b", "c")
    assert slave.volume.log == group.master.volume.log


def test_a_node_that_follows_who_does_not_lead_any_more_still_hears_what_that_is() -> None:
    # 1. The lease cannot be reached: the master steps down. 2. The lease still names it, so the
    #    others still ask to follow it. 3. An operator must see the true state.
    group = grown(1, ("a", "b"))
    master = group.master
    (slave,) = [node for node in group.nodes.values() if node is not master]
    group.lease_down = {"a", "b"}
    group.until(lambda: master.state == "follower")
    group.run(3 * LOCAL.link_dead_ms)
    heard = 0
    assert slave.replica is not None
    for _ in range(100):
        group.run(50)
        (answer,) = [
            node for node in slave.replica.status(group.now)["nodes"] if node["node"] == master.name
        ]
        heard += answer["state"] == "follower"
    assert heard >= 80
    group.lease_down = set()
    group.wait_master()
    group.send_confirmed()


@pytest.mark.parametrize("code", sorted(RETRIED_FAULTS))
def test_what_kept_a_slave_from_copying_is_over_when_it_is_the_master(code: str) -> None:
    group = grown()
    for name in ("b", "c"):
        group[name].post(CopyFault(code, "so", len(group[name].volume.log)))
        assert group[name].context.alarms == {code: "so"}
    group["a"].kill()
    master = group.wait_master()
    assert code not in master.context.alarms


def test_nothing_that_was_said_before_a_resync_stands_behind_it() -> None:
    group, slave = in_group()
    fails(slave, "corrupt-record")
    group.append()
    group.until(lambda: slave.state == "halted")
    heals(slave)
    replica = slave.replica
    assert replica is not None
    group.until(lambda: replica.peers.fresh("a") is not None)
    assert order(slave, "resync", group="g0").ok
    group.until(lambda: slave.state == "in-sync")
    assert slave.context.alarms == {}
    assert slave.raised == set()


def test_a_member_leaves_the_set_before_its_store_is_emptied() -> None:
    group = grown()
    old = group["c"].volume.incarnation
    assert order(group["c"], "resync", group="g0").ok
    assert group.set == {"a", "b"}
    group.until(lambda: group["c"].volume.incarnation != old)
    group.wait_in_sync("a", "b", "c")


# The lease was read too late: the node had left the set, and the command was refused.
@pytest.mark.parametrize("times", [DEFAULT, LONG])
def test_a_member_may_leave_the_set_at_once_however_seldom_the_lease_is_read(
    monkeypatch: pytest.MonkeyPatch, times: TimeRules
) -> None:
    monkeypatch.setattr(group_module, "LOCAL", times)
    for after_ms in range(4000, 7200, 200):  # the lease was read before
        group = grown()
        group.run(after_ms)
        assert order(group["c"], "resync", group="g0").ok
        assert group.set == {"a", "b"}


# It ended at once, and its announcement could be lost: senders waited for it for 3 s.
@pytest.mark.parametrize("after_ms", [0, 20, 100, 1000])
def test_an_old_master_ends_after_the_new_one_has_removed_it(after_ms: int) -> None:
    group = grown(min_in_sync=1)
    assert order(group["a"], "switchover", to="b").ok
    group.run(after_ms)
    assert group.set == {"a", "b", "c"}
    began = group.now
    assert order(group["a"], "switchover", reason=STOPPING).ok
    assert group.set == {"b", "c"}
    assert group.now - began < REMOVAL_MS_MAX


# A member without a link ended at once, and senders waited for it as for any silent member.
@pytest.mark.parametrize("waits_for", ["connection", "settled log", "comparison"])
def test_a_member_without_a_link_ends_after_it_has_left_the_set(waits_for: str) -> None:
    group = grown(min_in_sync=1)
    slave, held = group["c"], list[Effect]()
    if waits_for == "connection":
        group.isolate("c")
    elif waits_for == "settled log":
        held = hold(slave, Settle)
    else:
        held = hold(group.master, Send)  # HELLO_OK among them
    group.drop_links("c")
    group.run(200)
    following = slave.replica.following  # type: ignore[union-attr]
    assert not following.linked
    assert (following.link is not None) == (waits_for == "comparison")
    assert group.set == {"a", "b", "c"}
    began = group.now
    slave.post(Command(77, "switchover", {"reason": STOPPING}))
    group.run(100)
    assert not slave.replies
    group.cut.clear()
    for node in group.nodes.values():
        vars(node).pop("carry_out", None)
    for effect in held:
        (slave if isinstance(effect, Settle) else group.master).carry_out(effect)
    group.until(lambda: 77 in slave.replies)
    assert slave.replies[77].ok
    assert group.set == {"a", "b"}
    assert group.now - began < REMOVAL_MS_MAX


# The order to end came after the release was written, which then named this node as a member.
def test_a_master_that_must_end_while_it_releases_the_lease_leaves_the_set() -> None:
    group = grown(min_in_sync=1)
    old, carry_out = group["a"], group["a"].carry_out
    releases: list[Effect] = []

    def holding(effect: Effect) -> None:
        is_release = isinstance(effect, LeasePut) and effect.lease.holder is None
        (releases.append if is_release else carry_out)(effect)

    old.carry_out = holding  # type: ignore[method-assign]
    old.post(Command(76, "switchover", {"to": "b"}))
    group.until(lambda: bool(releases))
    old.post(Command(77, "switchover", {"reason": STOPPING}))
    del old.carry_out
    old.carry_out(releases[0])
    group.until(lambda: 77 in old.replies)
    assert group.set == {"b", "c"}


def test_a_slave_that_must_end_before_it_has_joined_is_never_a_member() -> None:
    group = grown(min_in_sync=1)
    slave = group["c"]
    slave.kill()
    group.until(lambda: group.set == {"a", "b"})
    held = hold(group.master, Send)  # HELLO_OK among them
    slave.start()
    group.until(lambda: slave.replica is not None and slave.replica.following.link is not None)
    slave.post(Command(77, "switchover", {"reason": STOPPING}))
    vars(group.master).pop("carry_out")
    for effect in held:
        group.master.carry_out(effect)
    for _ in range(50):
        group.run(10)
        assert group.set == {"a", "b"}
    assert slave.replies[77].ok


def test_a_node_that_must_end_begins_no_cut() -> None:
    group = grown(min_in_sync=1)
    slave = group["a"]
    group.isolate("a")
    group.lease_down.add("a")
    group.append()  # no other node gets it
    group.wait_master(other_than="a")
    group.send_confirmed()
    group.lease_down.clear()
    held = hold(group.master, Send)  # HELLO_OK among them
    group.cut.clear()
    group.until(lambda: slave.replica is not None and slave.replica.following.link is not None)
    began = hold(slave, Cut)
    slave.post(Command(77, "switchover", {"reason": STOPPING}))
    vars(group.master).pop("carry_out")
    for effect in held:
        group.master.carry_out(effect)
    group.until(lambda: 77 in slave.replies)
    group.run(200)
    assert not began
    assert slave.state == "follower"


def test_a_slave_that_no_master_waits_for_ends_at_once() -> None:
    group = grown(min_in_sync=1)
    group["c"].kill()
    group.until(lambda: group.set == {"a", "b"})
    group["c"].start()
    hold(group["c"], Send)
    group.run(200)
    began = group.now
    assert order(group["c"], "switchover", reason=STOPPING).ok
    assert group.now - began <= 40


def test_the_copy_of_a_master_that_is_cut_off_is_not_emptied() -> None:
    group = grown(min_in_sync=1, names=("a", "b"))
    group.isolate("a")
    old = group["b"].volume.incarnation
    assert not order(group["b"], "resync", group="g0").ok
    group.run(1000)
    assert group["b"].volume.incarnation == old


def test_a_store_is_emptied_though_the_set_keeps_its_least_size() -> None:
    group = grown(names=("a", "b"))
    began, old = group.now, group["b"].volume.incarnation
    assert order(group["b"], "resync", group="g0").ok
    assert REMOVAL_MS_MAX <= group.now - began < REMOVAL_MS_MAX + 200
    group.until(lambda: group["b"].volume.incarnation != old)
    group.wait_in_sync("a", "b")
    group.send_confirmed()


# 1. The master ended and handed over to its only slave. 2. That slave was emptied meanwhile. 3. The
# set had only the copy that was gone, and no node could lead.
@pytest.mark.parametrize("after_ms", range(0, 320, 20))
def test_a_node_to_which_the_master_hands_over_is_not_emptied(after_ms: int) -> None:
    group = grown(min_in_sync=1, names=("a", "b"))
    end, old = group.send_confirmed(), group["b"].volume.incarnation
    group["a"].post(Command(77, "switchover", {"reason": "stopping"}))
    group.run(after_ms)
    reply = order(group["b"], "resync", group="g0")
    assert not reply.ok
    assert "Nothing was done" in reply.body["detail"]
    group.until(lambda: 77 in group["a"].replies)
    group["a"].kill()
    group.wait_master(other_than="a")
    assert group["b"].volume.incarnation == old
    assert group.send_confirmed() > end


def test_a_node_whose_resync_is_refused_is_in_the_set_again() -> None:
    group = grown()
    group["b"].post(Command(77, "resync", {"group": "g0"}))
    assert not order(group["b"], "resync", group="g0").ok  # the same order waits
    group["a"].kill()
    group.until(lambda: 77 in group["b"].replies)
    assert not group["b"].replies[77].ok
    group.wait_master(other_than="a")
    group.wait_in_sync("b", "c")


# Its store was emptied a second time, maybe after it had begun to copy: 1. A write fails while the
# store is being emptied, and the replica halts. 2. The operator orders the resync again.
def test_a_replica_that_halts_while_it_is_emptied_is_not_emptied_twice() -> None:
    group, slave = in_group()
    carry_out, held = slave.carry_out, []

    def holding(effect: Effect) -> None:
        if isinstance(effect, Resync):
            slave.done(effect.intended)
            held.append(effect)
        else:
            carry_out(effect)

    slave.carry_out = holding  # type: ignore[method-assign]
    assert order(slave, "resync", group="g0").ok
    slave.context.halt("damaged-file", "another write failed")
    group.run(500)
    assert order(slave, "resync", group="g0").body["detail"] == "c is halted. Nothing was done."
    heals(slave)
    (resync,) = held
    slave.carry_out(resync)
    group.run(500)
    assert slave.state == "halted"
    # It showed "resync: The store is emptied and copied anew" forever.
    assert reason_of(slave.context) == "damaged-file: another write failed"
    assert "damaged-file" in slave.context.alarms
    assert order(slave, "resync", group="g0").ok
    group.wait_in_sync("a", "b", "c")


def test_an_order_to_empty_a_store_is_answered_when_a_crash_cannot_undo_it() -> None:
    # It was answered before it was on the disk: ha was killed, and its next start had no order.
    group, slave = in_group()
    carry_out, held = slave.carry_out, []

    def holding(effect: Effect) -> None:
        if isinstance(effect, Resync):
            held.append(effect)
        else:
            carry_out(effect)

    slave.carry_out = holding  # type: ignore[method-assign]
    slave.post(Command(77, "resync", {"group": "g0"}))
    group.until(lambda: bool(held))
    group.run(1000)
    assert 77 not in slave.replies
    (resync,) = held
    slave.done(resync.intended)
    group.until(lambda: 77 in slave.replies)
    assert slave.replies[77].ok
    assert slave.state == "resync"


# It kept copying, and cut or emptied its store if the master's answer to HELLO required it.
def test_a_replica_that_halts_leaves_its_master() -> None:
    group, slave = in_group()
    slave.context.halt("damaged-file", "a write failed")
    end = len(slave.volume.log)
    confirmed = group.append()
    group.until(lambda: group.confirmed(confirmed))
    assert group.set == {"a", "b"}
    assert (slave.state, len(slave.volume.log)) == ("halted", end)


def test_a_fault_of_a_log_that_is_being_emptied_halts_no_replica() -> None:
    group, slave = in_group()
    replica = slave.replica
    assert replica is not None
    assert order(slave, "resync", group="g0").ok
    assert slave.state == "resync"
    slave.post(CopyFault("corrupt-record", "of the old log", 0))
    group.until(lambda: slave.state == "in-sync")


def test_a_lease_of_an_epoch_before_the_masters_makes_no_slave_in_sync() -> None:
    group = grown()
    slave = group["b"]
    group.until(lambda: slave.state == "in-sync")
    assert slave.replica is not None
    following = slave.replica.following
    assert following.master is not None
    slave.context.state, master = State.CATCHUP, following.master
    following.master = master._replace(epoch=Epoch(master.epoch + 1))
    following.published()
    assert slave.state == "catchup"
    following.master = master
    following.published()
    assert slave.state == "in-sync"


def test_a_lease_with_an_older_set_than_the_masters_makes_no_slave_in_sync() -> None:
    # A slave without access to the lease had been removed, followed again, and counted itself in.
    group = grown()
    slave = group["b"]
    group.until(lambda: slave.state == "in-sync")
    assert slave.replica is not None
    following, session = slave.replica.following, slave.replica.session
    slave.context.state, seen = State.CATCHUP, session.seen
    session.note_seen((seen[0], seen[1] + 1))
    following.published()
    assert slave.state == "catchup"
    session.seen = seen
    following.published()
    assert slave.state == "in-sync"


# ha holds the bytes of both while it empties the store, and took them for services that hang: the
# node could not lead for as long again, and four times that.
def test_services_that_wait_for_an_emptied_store_do_not_stall() -> None:
    group, slave = in_group()
    held = hold(slave, Resync)
    slave.post(Command(77, "resync", {"group": "g0"}))
    group.until(lambda: bool(held))
    slave.pause("broker", "reput")
    group.run(3 * LOCAL.lease_ms)
    assert not own_status(slave.context, None, 0).facts.services_move
    assert "stalled-service" not in slave.raised
    slave.resume("broker", "reput")
    heals(slave)
    slave.carry_out(held[0])
    group.until(lambda: slave.state != "resync")
    group.run(100)
    assert slave.context.trouble == ""
    group.wait_in_sync("a", "b", "c")
