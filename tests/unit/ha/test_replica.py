"""Replicas as a whole, in memory: they found a group, elect, copy, confirm, fail over."""

from __future__ import annotations

from tests.unit.ha.group import Group, lease_of


def test_the_first_node_founds_the_group_and_the_others_join_its_set() -> None:
    group = Group().start()
    assert group.wait_master().name == "a"
    group.wait_in_sync("a", "b", "c")
    assert lease_of(group).epoch == 1


def test_what_is_confirmed_is_in_every_log() -> None:
    group = Group().start()
    group.wait_master()
    group.wait_in_sync("a", "b", "c")
    end = group.send_confirmed(1000)
    logs = [bytes(node.volume.log[:end]) for node in group.nodes.values()]
    assert logs[0] == logs[1] == logs[2]


def test_a_lost_master_is_replaced_and_comes_back_as_a_slave() -> None:
    group = Group().start()
    group.wait_master()
    group.wait_in_sync("a", "b", "c")
    end = group.send_confirmed(1000)
    before = bytes(group["a"].volume.log[:end])
    group["a"].kill()
    took_ms = group.until(lambda: bool(group.masters))
    assert took_ms < 6000
    assert bytes(group.master.volume.log[:end]) == before
    assert lease_of(group).epoch == 2
    group.send_confirmed()
    group["a"].start()
    group.wait_in_sync("a", "b", "c")
    end = group.send_confirmed()
    logs = [bytes(node.volume.log[:end]) for node in group.nodes.values()]
    assert logs[0] == logs[1] == logs[2]
