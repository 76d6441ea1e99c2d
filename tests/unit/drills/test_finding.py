from __future__ import annotations

from typing import Any

import pytest

from drills.finding import Known, NodeStatus


def status(
    at: float, node: str, epoch: int, master: str | None, state: str = "in-sync"
) -> NodeStatus:
    said: dict[str, Any] = {
        "epoch": epoch,
        "master": master,
        "nodes": [{"node": node, "state": state, "in_sync": True}],
    }
    return NodeStatus(at, node, said)


def test_the_answer_that_knows_the_highest_epoch_counts() -> None:
    known = Known()
    known.take(status(1.0, "n0", 1, "n0", "master"))
    known.take(status(1.1, "n1", 2, "n1", "master"))
    known.take(status(1.2, "n2", 2, "n1"))
    best = known.best()
    assert best is not None
    assert best.master == "n1"
    assert known.masters == {1: "n0", 2: "n1"}


def test_a_node_that_does_not_answer_is_silent_and_changes_nothing_else() -> None:
    known = Known()
    known.take(status(1.0, "n0", 1, "n0", "master"))
    known.take(NodeStatus(1.1, "n1", {}))
    assert known.newest["n1"].role == "silent"
    best = known.best()
    assert best is not None
    assert best.master == "n0"


def test_every_change_of_a_node_is_remembered_once() -> None:
    known = Known()
    for at in (1.0, 1.1, 1.2):
        known.take(status(at, "n0", 1, "n0", "master"))
    known.take(status(1.3, "n0", 2, "n1", "follower"))
    assert [(change.role, change.epoch) for change in known.changes] == [
        ("master", 1),
        ("follower", 2),
    ]


def test_two_masters_of_one_epoch_are_a_contradiction() -> None:
    known = Known()
    for at in (1.0, 1.2):
        known.take(status(at, "n0", 4, "n0", "master"))
        known.take(status(at + 0.1, "n1", 4, "n1", "master"))
    assert len(known.contradictions) == 1


def test_a_stranger_named_in_the_lease_is_no_master() -> None:
    known = Known()
    known.take(status(1.0, "n0", 4, "n0", "master"))
    known.take(status(1.1, "n0", 4, "n9"))
    assert known.masters == {4: "n0"}
    assert not known.contradictions


@pytest.mark.parametrize(
    ("slave", "may"),
    [
        ({"state": "in-sync", "in_sync": True, "reason": None}, True),
        ({"state": "in-sync", "in_sync": True, "reason": "reput is not there"}, False),
        ({"state": "catchup", "in_sync": False, "reason": None}, False),
        ({"state": None, "in_sync": True, "reason": "not reachable from n0"}, False),
    ],
)
def test_a_slave_that_may_be_switched_to_has_no_reason_beside_it(
    slave: dict[str, object], may: bool
) -> None:
    # The in-sync set only means that a node replicates. Its reput may not run yet; then a
    # switchover is refused.
    nodes = [{"node": "n0", "state": "master", "in_sync": True}, {"node": "n1", **slave}]
    assert NodeStatus(1.0, "n0", {"nodes": nodes}).may_switch("n0") is may
