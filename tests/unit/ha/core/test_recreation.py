"""A lease that is deleted or goes back, and which node creates it again."""

from __future__ import annotations

from tests.unit.ha.group import grown, lease_of, order


def test_a_deleted_lease_is_made_again_by_its_master_if_all_promise() -> None:
    group = grown()
    group.lease = None
    group.until(lambda: group.lease is not None)
    assert group.wait_master().name == "a"
    assert lease_of(group).epoch == 2
    assert group.set == {"a", "b", "c"}
    group.send_confirmed()


def test_a_deleted_lease_stays_gone_if_one_member_is_silent() -> None:
    group = grown()
    group.isolate("c")
    group.lease = None
    group.run(10_000)
    assert group.lease is None
    assert group.masters == []
    assert "lease-missing" in group["a"].context.alarms


def test_an_operator_makes_a_lost_lease_again() -> None:
    group = grown()
    for node in group.nodes.values():
        node.kill()
    group.lease = None
    for node in group.nodes.values():
        node.start()
    group.run(5000)
    assert group.lease is None
    reply = order(group["b"], "recreate-lease")
    assert not reply.ok  # no node knows the set any more
    reply = order(group["b"], "recreate-lease", in_sync="a,b,c")
    assert reply.ok, reply.body
    group.wait_master()
    assert lease_of(group).epoch > 2
    group.send_confirmed()


def test_a_lease_is_not_made_again_while_a_node_is_silent_and_undeclared() -> None:
    group = grown()
    for node in group.nodes.values():
        node.kill()
    group.lease = None
    group["a"].start()
    group["b"].start()
    group.run(3000)
    reply = order(group["b"], "recreate-lease", in_sync="a,b")
    assert "c does not answer" in reply.body["detail"]
    reply = order(group["b"], "recreate-lease", in_sync="a,b", stopped="c")
    assert reply.ok, reply.body
    group.wait_master()
    assert lease_of(group).epoch > 1000


def test_a_lease_that_went_back_is_used_by_no_node() -> None:
    group = grown()
    old = lease_of(group)
    group["a"].kill()
    group.wait_master(other_than="a")
    group.edit_lease(
        epoch=old.epoch,
        in_sync=old.in_sync,
        in_sync_version=old.in_sync_version,
        holder=old.holder,
    )
    group.until(lambda: not group.masters)
    group.run(10_000)
    assert group.masters == []
    assert "lease-went-backwards" in group["b"].context.alarms
    group["a"].start()
    group.run(5000)
    assert order(group["b"], "recreate-lease").ok
    group.wait_master()


def test_a_set_that_went_back_is_not_believed_by_the_master_of_its_epoch() -> None:
    group = grown()
    newest = lease_of(group)
    older = tuple(member for member in newest.in_sync if member.node != "c")
    group.isolate("c")
    group.edit_lease(in_sync=older, in_sync_version=newest.in_sync_version - 1)
    group.until(lambda: "lease-went-backwards" in group["a"].context.alarms)
    end = group.append()
    before = group["a"].context.confirm
    group.until(lambda: not group.masters)
    assert group["a"].context.confirm == before < end
