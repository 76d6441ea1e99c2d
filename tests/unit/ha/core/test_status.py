"""Status of a group as one node reports it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import State, Trigger
from services.ha.core.status import cluster_status, master_of, own_status
from services.ha.lease.value import Holder, Stored
from services.ha.wire.payloads import Facts
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.core.test_admin_rules import serving
from tests.unit.ha.core.test_campaign import OLD, A, B, lease, replica
from tests.unit.ha.core.test_founding import report, status_of


def nodes(context: ReplicaContext, peers: Peers) -> dict[str, dict[str, Any]]:
    return {node["node"]: node for node in cluster_status(context, peers, None)["nodes"]}


def test_a_slave_reports_the_statuses_of_the_others() -> None:
    context, peers = serving()
    context.now_ms = 1000
    facts = Facts(lag_ms={"b": 12})
    master = replace(
        status_of("a"), state="master", end=800, facts=facts, incarnation=A.incarnation
    )
    report(peers, master)
    view = nodes(context, peers)
    assert master_of(context, peers) == ("a", None)
    assert view["a"]["role"] == "master"
    assert view["b"]["role"] == "slave"
    assert (view["b"]["lag_bytes"], view["b"]["lag_ms"]) == (300, 12)
    assert view["a"]["in_sync"]
    assert view["c"]["log_end"] is None
    assert view["c"]["reason"] == "not reachable from b: not asked yet"


def test_what_is_not_known_is_none_and_has_a_reason() -> None:
    context = replica()
    context.move(Trigger.RECOVERED)
    answer = cluster_status(context, Peers(context), None)
    assert (answer["master"], answer["reason"]) == (None, "the lease was not read yet")
    assert answer["epoch"] is None
    assert answer["lease"]["holder"] is None
    assert all(node["in_sync"] is None for node in answer["nodes"])


def test_a_holder_that_is_no_master_yet_is_not_named_as_one() -> None:
    context, peers = serving()
    context.now_ms = 1000
    report(peers, replace(status_of("a"), state="promoting"))
    assert master_of(context, peers) == (None, "a has the lease, and is promoting")


def test_a_silent_holder_is_named_while_its_lease_is_renewed() -> None:
    # This node may be the one that is cut off: clients may still reach the holder.
    context, peers = serving()
    context.now_ms = LOCAL.lease_ms - 1
    assert master_of(context, peers) == ("a", None)
    context.now_ms = LOCAL.lease_ms
    assert master_of(context, peers) == (None, "the lease of a has run out")


def test_a_released_lease_names_no_holder() -> None:
    context = replica()
    context.session.read(0)
    released = Stored(lease(None), "1", "u")
    context.session.answered(LeaseAnswered(1, LeaseOutcome.FOUND, released), 0)
    assert master_of(context, Peers(context)) == (None, "the lease is released")


def test_a_replaced_volume_is_not_in_sync_under_its_old_name() -> None:
    context, peers = serving()
    context.incarnation = "9" * 32
    assert Holder(*A, OLD.process) == OLD
    assert B in lease().in_sync
    assert not nodes(context, peers)["b"]["in_sync"]


def test_a_node_with_a_new_volume_is_not_the_master_by_the_lease_of_the_former_one() -> None:
    # It named itself: it is not its own peer that could contradict, and the lease was still valid.
    context, peers = serving()
    context.session.read(0)
    stored = Stored(lease(Holder(*B, "1" * 16)), "2", "u")
    context.session.answered(LeaseAnswered(2, LeaseOutcome.FOUND, stored), 0)
    context.incarnation = "9" * 32
    context.now_ms = LOCAL.lease_ms - 1
    why = "the lease is held by the volume that this node had before"
    assert master_of(context, peers) == (None, why)


def test_a_halted_replica_says_why() -> None:
    context, peers = serving()
    context.halt("cut-below-confirm", "the logs part at 10")
    assert context.state is State.HALTED
    assert own_status(context, None, 4).facts.reason == "cut-below-confirm: the logs part at 10"
    assert nodes(context, peers)["b"]["reason"] == "cut-below-confirm: the logs part at 10"
