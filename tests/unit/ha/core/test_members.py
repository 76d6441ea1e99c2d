"""Nodes are added to and removed from a group while it serves: guards, steps and races."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from services.ha.core import members
from services.ha.core.admin_rules import Refused
from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.core.mastership import Mastership
from services.ha.core.replica import Replica
from services.ha.lease.value import Membership
from services.ha.wire.versions import SPOKEN
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.group import Group, grown, lease_of, order, same_logs
from tests.unit.ha.node_in_memory import Node

A_SECOND_MS = 1000


def given(at: Node, name: str, arguments: dict[str, str]) -> Reply:
    """Give a command to a node, and wait for its answer."""
    token = 1_000_000 + at.group.number()
    at.post(Command(token, name, arguments))
    at.group.until(lambda: token in at.replies)
    return at.replies[token]


def arguments(group: Group, name: str) -> dict[str, str]:
    own = next(node for node in group.configured if node.name == name)
    address = f"{own.host}:{own.port}"
    return {"node": name, "replication": address, "api": own.api, "admin": own.admin}


def replica(node: Node) -> Replica:
    assert node.replica is not None
    return node.replica


def term(node: Node) -> Mastership:
    found = replica(node).leadership.term
    assert found is not None
    return found


def added(group: Group, name: str, **changed: str) -> Reply:
    return given(group.master, "add-node", arguments(group, name) | changed)


def removed(group: Group, name: str, at: str | None = None) -> Reply:
    return order(group[at or group.master.name], "remove-node", node=name)


def all_use(group: Group, version: int) -> bool:
    return all(node.context.members.version == version for node in group.nodes.values())


def reason(reply: Reply) -> str:
    assert not reply.ok, reply
    return str(reply.body["detail"])


def test_a_removed_node_leaves_set_and_links_at_once_and_stays_out() -> None:
    group = grown()
    reply = removed(group, "c")
    assert (reply.ok, reply.body["changed"], reply.body["nodes"]) == (True, True, ["a", "b"])
    assert group.set == {"a", "b"}
    assert group.until(lambda: all_use(group, 1), A_SECOND_MS) <= A_SECOND_MS
    group.run(5000)
    assert group.set == {"a", "b"}
    assert not [link for link in group.links.values() if "c" in link.ends]
    assert "removed-node" in group["c"].context.alarms
    assert "removed-node" not in group["b"].context.alarms
    assert [node["node"] for node in replica(group.master).status(group.now)["nodes"]] == ["a", "b"]
    assert lease_of(group).min_in_sync == 2
    group.send_confirmed()


def test_a_removed_node_starts_again_and_is_still_removed() -> None:
    group = grown()
    assert removed(group, "c").ok
    group["c"].kill()
    group["c"].start()  # with the configuration of before, which has it
    group.run(5000)
    assert group.set == {"a", "b"}
    assert "removed-node" in group["c"].context.alarms
    assert not [link for link in group.links.values() if "c" in link.ends]


def test_an_added_node_is_copied_and_joins_the_set() -> None:
    group = grown()
    assert removed(group, "c").ok
    group.send_confirmed(1000)
    reply = added(group, "c")
    assert (reply.ok, reply.body["changed"], reply.body["nodes"]) == (True, True, ["a", "b", "c"])
    group.wait_in_sync("a", "b", "c")
    assert all_use(group, 2)
    assert not any(node.context.alarms for node in group.nodes.values())
    assert same_logs(group, group.send_confirmed())


def test_a_node_that_no_configuration_has_is_added_and_outlives_restarts() -> None:
    group = Group(("a", "b", "c"))
    configured = group.configured
    group.configured = configured[:2]
    for name in ("a", "b"):
        group[name].start()
    group.wait_master()
    group.wait_in_sync("a", "b")
    group.configured = configured
    group["c"].start()
    group.run(3000)
    assert group.set == {"a", "b"}, "it is not a node of the group yet"
    assert added(group, "c").ok
    group.wait_in_sync("a", "b", "c")
    group.configured = configured[:2]
    for name in ("a", "b"):
        group[name].kill()
        group[name].start()
    group.wait_master()
    group.wait_in_sync("a", "b", "c")
    assert same_logs(group, group.send_confirmed())


def test_a_new_master_keeps_the_nodes() -> None:
    group = grown()
    assert removed(group, "c").ok
    group["a"].kill()
    group.run(10_000)
    assert group.set <= {"a", "b"}
    group["a"].start()
    group.wait_in_sync("a", "b")
    assert lease_of(group).members == Membership(1, group.configured[:2])


def test_a_lease_that_an_earlier_release_wrote_gets_its_nodes_again() -> None:
    group = grown()
    assert removed(group, "c").ok
    group.edit_lease(members=None)
    group.until(lambda: lease_of(group).members is not None, 5000)
    assert lease_of(group).members == Membership(1, group.configured[:2])
    assert group.set == {"a", "b"}


def test_the_master_is_not_removed_and_only_the_master_removes() -> None:
    group = grown()
    master = group.master.name
    slave = next(name for name in group.nodes if name != master)
    assert "is the master" in reason(removed(group, master))
    refused = removed(group, "c", at=slave)
    assert (reason(refused).split(".")[0], refused.body["master"]) == (
        f"{slave} is not the master",
        master,
    )
    assert lease_of(group).members is None


def test_a_removal_that_leaves_too_few_members_is_refused() -> None:
    group = grown(min_in_sync=2)
    assert removed(group, "c").ok
    group.until(lambda: all_use(group, 1))
    assert "1 members of the in-sync set would remain" in reason(removed(group, "b"))
    group = grown(min_in_sync=3)
    assert "2 members of the in-sync set would remain" in reason(removed(group, "c"))
    assert group.set == {"a", "b", "c"}


def test_a_silent_member_does_not_count_among_those_that_remain() -> None:
    # The set may not shrink below two, so it keeps c, which is silent. Without b, the nodes would
    # be two by name, and no send would be accepted.
    group = grown(min_in_sync=2)
    assert removed(group, "b").ok
    group.until(lambda: all_use(group, 1))
    assert added(group, "b").ok
    group.wait_in_sync("a", "b", "c")
    group["c"].pause("ha")
    group.until(lambda: group.set == {"a", "b"})
    group["c"].resume("ha")
    group.wait_in_sync("a", "b", "c")
    group["c"].pause("ha")
    group.run(LOCAL.link_dead_ms - 100)
    assert term(group.master).in_sync.size(group.now) == 3
    change = members.without_node(group.master.context, term(group.master), "b")
    silent = lease_of(group)
    assert change(silent).in_sync == tuple(m for m in silent.in_sync if m.node != "b")
    for peer in term(group.master).in_sync.peers.values():
        if peer is not term(group.master).in_sync.peer(group["b"].context.member):
            peer.heard_ms -= LOCAL.link_dead_ms
    with pytest.raises(Refused, match="1 members of the in-sync set would remain and follow"):
        change(silent)


def test_groups_of_one_and_of_many_have_their_limits() -> None:
    group = grown(min_in_sync=1, names=("a", "b"))
    assert removed(group, "b").ok
    assert group.set == {"a"}
    group.send_confirmed()
    names = tuple("abcdefghi")
    group = grown(min_in_sync=1, names=names)
    reply = order(
        group.master, "add-node", node="j", replication="h:1", api="http://j", admin="http://j"
    )
    assert "at most 9 nodes" in reason(reply)


def test_what_is_so_already_changes_nothing() -> None:
    group = grown()
    reply = added(group, "c")
    assert (reply.ok, reply.body["changed"]) == (True, False)
    assert removed(group, "c").ok
    group.until(lambda: all_use(group, 1))
    reply = removed(group, "c")
    assert (reply.ok, reply.body["changed"]) == (True, False)
    assert lease_of(group).members == Membership(1, group.configured[:2])


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"replication": "nohost"}, "not name=host:port"),
        ({"replication": "h:0"}, "not name=host:port"),
        ({"replication": "[]:7002"}, "not name=host:port"),
        ({"replication": "a b:7002"}, "not name=host:port"),
        ({"replication": "c..example:7002"}, "not name=host:port"),
        ({"replication": "h" * 2000 + ":7002"}, "not name=host:port"),
        ({"replication": "h\ud800:7002"}, "not name=host:port"),
        ({"api": "http://h/" + "x" * 1100}, "no node could read the changed lease"),
        ({"api": "http://h\ud800/"}, "no node could read the changed lease"),
        ({"api": "c:8080"}, "is not a URL"),
        ({"admin": ""}, "is not a URL"),
        ({"replication": "127.0.0.1:7000"}, "a has that address"),
        ({"api": "http://a"}, "a has that address"),
        ({"admin": "http://b-admin"}, "b has that address"),
    ],
)
def test_an_address_that_cannot_be_is_refused(changed: dict[str, str], detail: str) -> None:
    group = grown()
    assert removed(group, "c").ok
    group.until(lambda: all_use(group, 1))
    assert detail in reason(added(group, "c", **changed))
    assert lease_of(group).members == Membership(1, group.configured[:2])


def test_a_member_is_not_moved_by_adding_it_with_another_address() -> None:
    group = grown()
    assert "with other addresses" in reason(added(group, "c", replication="other:1"))


@pytest.mark.parametrize("name", ["", "n/1", "n=1", "-n", "n 1", "n" * 64])
def test_a_name_that_the_lease_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="is not a name"):
        members.requested_node({"node": name, "api": "http://x", "admin": "http://x"})


def test_a_second_change_meanwhile_is_refused_by_name() -> None:
    group = grown()
    master = group.master
    master.post(Command(1, "remove-node", {"node": "c"}))
    master.post(Command(2, "remove-node", {"node": "b"}))
    group.until(lambda: {1, 2} <= master.replies.keys())
    assert master.replies[1].ok
    assert "c is being removed from the group" in reason(master.replies[2])
    assert group.set == {"a", "b"}


def test_a_change_waits_until_most_of_the_set_uses_the_present_nodes() -> None:
    group = grown(min_in_sync=1)
    assert removed(group, "c").ok
    master = group.master
    master.post(Command(1, "add-node", arguments(group, "c")))
    assert "b did not acknowledge the present nodes (version 1)" in reason(master.replies[1])
    group.until(lambda: all_use(group, 1))
    group.run(100)
    assert added(group, "c").ok


def test_nodes_of_an_earlier_release_are_upgraded_first() -> None:
    group = grown()
    slave = next(node for node in group.nodes.values() if node is not group.master)
    peer = replica(group.master).peers.by_node[slave.name]
    assert peer.status is not None
    facts = msgspec.structs.replace(peer.status.facts, members=None)
    peer.status = msgspec.structs.replace(peer.status, facts=facts)
    with pytest.raises(Refused, match="Nothing was changed") as refused:
        members.check_agreement(
            group.master.context, replica(group.master).peers, term(group.master)
        )
    assert refused.value.body["advice"] == "Upgrade every node first."


def test_a_change_that_lost_its_lease_meanwhile_is_refused() -> None:
    group = grown()
    change = members.without_node(group.master.context, term(group.master), "c")
    lease = lease_of(group)
    with pytest.raises(Refused, match="not the master any more"):
        change(lease._replace(holder=None))
    group.master.context.members = Membership(1, group.configured)
    with pytest.raises(Refused, match="changed meanwhile, to version 1"):
        change(lease)


def test_a_removed_node_that_completed_its_handshake_late_is_not_kept() -> None:
    group = grown()
    assert removed(group, "c").ok
    peers = replica(group.master).peers
    assert peers.up(9, group["c"].context.member, outbound=False, version=SPOKEN.highest) is None
    assert 9 not in peers.incoming


def test_a_removed_node_takes_no_lease_even_by_force() -> None:
    group = grown()
    assert removed(group, "c").ok
    group.until(lambda: all_use(group, 1))
    group["a"].kill()
    group["b"].kill()
    group.run(20_000)
    assert group["c"].state == "follower"
    facts = {"to": "c", "group": "g0", "old_master_stopped": "true"}
    assert "is not a node of the group" in reason(given(group["c"], "failover", facts))


def test_the_set_and_the_nodes_agree_after_any_order_of_changes() -> None:
    for names in itertools.permutations("bc"):
        group = grown(min_in_sync=1)
        for name in names:
            assert removed(group, name).ok
            group.run(A_SECOND_MS)
        assert group.set == {"a"}
        for name in names:
            assert added(group, name).ok
            group.run(A_SECOND_MS)
        group.wait_in_sync("a", "b", "c")
        assert lease_of(group).replicas == ("a", *names)


def test_a_removed_machine_stays_out_if_another_one_has_its_name() -> None:
    group = grown()
    assert removed(group, "c").ok
    group["c"].kill()
    group.run(A_SECOND_MS)
    elsewhere = {"replication": "10.9.9.9:7002", "api": "http://new-c", "admin": "http://new-admin"}
    assert added(group, "c", **elsewhere).ok
    group["c"].start()  # the removed machine, with its own address and volume
    group.run(8000)
    assert group.set == {"a", "b"}
    assert "removed-node" in group["c"].context.alarms


def test_a_removed_node_makes_no_lease_again() -> None:
    group = grown()
    assert removed(group, "c").ok
    group.run(3000)
    for name in ("a", "b"):
        group[name].kill()
    group.lease = None
    group.run(8000)
    reply = order(group["c"], "recreate-lease", in_sync="c")
    assert "c is not a node of the group" in reason(reply)
    assert reply.body["advice"] == "Give the command to one of a, b."
    group.run(8000)
    assert group.lease is None


def test_a_node_is_not_added_to_a_lease_that_its_store_could_not_take() -> None:
    group = grown()
    assert removed(group, "c").ok
    group.until(lambda: all_use(group, 1))
    context = group.master.context
    context.setup = context.setup._replace(lease_size_max=500)
    assert "file system of its directory takes 500" in reason(added(group, "c"))
    context.setup = context.setup._replace(lease_size_max=2000)
    assert added(group, "c").ok
    group.wait_in_sync("a", "b", "c")
