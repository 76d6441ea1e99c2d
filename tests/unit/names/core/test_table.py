"""Registrations change the table by its rules, and each refused one changes nothing."""

from __future__ import annotations

import pytest

from services.names.core.table import Table
from shared.cluster.routes import EXPIRE_S, Registration
from tests.unit.names.registering import BOUNDS, queues, said
from tidemark.errors import (
    BadRequest,
    BrokerGroupConflict,
    NamesLimit,
    NodeIdentityTaken,
    RegistrationRefused,
    StaleRegistration,
    UnknownBase,
    WrongCluster,
)


@pytest.fixture
def table() -> Table:
    made = Table("tidemark", BOUNDS)
    made.register("g0", "n0", said("orders", "paid", epoch=3, counter=10), 0.0)
    return made


def slave(**given: object) -> Registration:
    fields = {"role": "slave", "identity": "store of g0 n1", "api": "http://n1:8080", **given}
    return said(**fields)  # type: ignore[arg-type]


def test_a_master_registers_with_all_its_topics(table: Table) -> None:
    group = table.groups["g0"]
    assert (group.epoch, group.master, sorted(group.topics)) == (3, "n0", ["orders", "paid"])
    assert table.topics == {"orders": ("g0",), "paid": ("g0",)}
    assert table.entries == 2


def test_a_topic_of_two_broker_groups_lists_both_by_name(table: Table) -> None:
    table.register("a", "n0", said("orders", identity="a"), 0.0)
    assert table.topics == {"orders": ("a", "g0"), "paid": ("g0",)}
    table.register("a", "n0", said(counter=2, identity="a"), 0.0)
    assert table.topics == {"orders": ("g0",), "paid": ("g0",)}


def test_equal_topics_of_many_broker_groups_share_one_entry(table: Table) -> None:
    table.register("g1", "n0", said("orders", identity="1"), 0.0)
    assert table.groups["g0"].topics["orders"] is table.groups["g1"].topics["orders"]


def test_a_difference_changes_only_what_it_names(table: Table) -> None:
    changes = table.register(
        "g0",
        "n0",
        said(epoch=3, counter=12, base=10, changed={"new": queues(4)}, removed=["paid", "none"]),
        1.0,
    )
    assert changes.topics == {"new", "paid"}
    assert sorted(table.groups["g0"].topics) == ["new", "orders"]
    assert sorted(table.topics) == ["new", "orders"]
    assert table.entries == 2


def test_a_renewal_changes_nothing_that_clients_see(table: Table) -> None:
    changes = table.register("g0", "n0", said(epoch=3, counter=10, base=10), 30.0)
    assert not changes.topics
    assert not changes.groups
    assert table.groups["g0"].nodes["n0"].renewed_s == 30.0


@pytest.mark.parametrize(
    ("epoch", "base"), [(3, 9), (3, 11), (4, 10)], ids=["older", "newer", "of another epoch"]
)
def test_a_difference_to_another_registration_is_refused(
    table: Table, epoch: int, base: int
) -> None:
    with pytest.raises(UnknownBase, match="has 3 and 10"):
        table.register("g0", "n0", said(epoch=epoch, counter=20, base=base), 1.0)


def test_a_difference_of_an_unknown_node_is_refused(table: Table) -> None:
    with pytest.raises(UnknownBase, match="does not know node n0"):
        table.register("g1", "n0", said(base=1, identity="1"), 1.0)
    assert "g1" not in table.groups


@pytest.mark.parametrize(("epoch", "counter"), [(3, 9), (2, 99)])
def test_a_lower_registration_never_replaces_a_higher_one(
    table: Table, epoch: int, counter: int
) -> None:
    with pytest.raises(StaleRegistration) as caught:
        table.register("g0", "n0", said("wrong", epoch=epoch, counter=counter), 1.0)
    assert (caught.value.epoch, caught.value.counter) == (3, 10)
    assert "wrong" not in table.topics


def test_a_slave_adds_its_address_and_no_topic(table: Table) -> None:
    changes = table.register("g0", "n1", slave(epoch=3), 1.0)
    assert changes.topics == {"orders", "paid"}, "their routes have another node now"
    assert table.groups["g0"].master == "n0"
    with_topics = Registration("tidemark", 3, 2, "slave", "http://n1:1", "x", topics={})
    with pytest.raises(BadRequest, match="without topics"):
        table.register("g0", "n2", with_topics, 1.0)


def test_after_a_failover_the_new_master_replaces_the_old_one(table: Table) -> None:
    table.register("g0", "n1", slave(epoch=3), 1.0)
    table.register("g0", "n1", said("orders", epoch=4, identity="store of g0 n1"), 2.0)
    group = table.groups["g0"]
    assert (group.master, group.epoch, sorted(group.topics)) == ("n1", 4, ["orders"])
    with pytest.raises(StaleRegistration, match="master n1"):
        table.register("g0", "n0", said("orders", "old", epoch=3, counter=11), 3.0)
    table.register("g0", "n0", slave(epoch=4, identity="store of g0 n0"), 4.0)
    assert group.master == "n1"


def test_a_master_that_steps_down_leaves_its_topics_to_readers(table: Table) -> None:
    table.register("g0", "n0", slave(epoch=3, counter=11, identity="store of g0 n0"), 1.0)
    group = table.groups["g0"]
    assert group.master is None
    assert sorted(group.topics) == ["orders", "paid"]


def test_an_entry_that_is_not_renewed_goes(table: Table) -> None:
    table.register("g0", "n1", slave(epoch=3), 100.0)
    assert not table.expire(EXPIRE_S).groups
    changes = table.expire(EXPIRE_S + 0.1)
    assert changes.expired == (("g0", "n0"),)
    assert changes.topics == {"orders", "paid"}
    assert table.groups["g0"].master is None
    table.expire(100.0 + EXPIRE_S + 0.1)
    assert (table.groups, table.topics, table.entries) == ({}, {}, 0)
    assert list(table.gone) == ["g0"]
    table.register("g0", "n0", said(identity="another"), 300.0)
    assert not table.gone


REFUSED = {
    "of another cluster": (
        "g0", "n0", said(cluster="other", epoch=9), WrongCluster, "'other'.*'tidemark'",
    ),
    "another store with the node's name": (
        "g0", "n0", said("x", epoch=9, identity="b", api="http://b:1"), BrokerGroupConflict,
        "another store.*http://n0:8080.*http://b:1.*first is kept.*120 s",
    ),
    "another node as the master of the same epoch": (
        "g0", "n5", said("x", epoch=3, identity="b"), BrokerGroupConflict, "epoch 3, and node n0",
    ),
    "a copy of a store": (
        "g1", "n0", said("x"), NodeIdentityTaken, "node n0 of broker group g0.*node n0 of g1",
    ),
    "neither topics nor base": (
        "g0", "n0", Registration("tidemark", 9, 9, "master", "http://n0:8080", "store of g0 n0"),
        BadRequest, "topics, or with base",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_registration_says_why_and_changes_nothing(table: Table, case: str) -> None:
    group, node, registration, error, text = REFUSED[case]
    before = table.groups["g0"].nodes.copy(), dict(table.groups["g0"].topics), set(table.groups)
    with pytest.raises(error, match=text):
        table.register(group, node, registration, 60.0)
    after = table.groups["g0"].nodes.copy(), dict(table.groups["g0"].topics), set(table.groups)
    assert after == before


def test_a_store_id_is_free_again_when_its_node_has_expired(table: Table) -> None:
    table.expire(EXPIRE_S + 1)
    table.register("g1", "n0", said("x"), EXPIRE_S + 1)
    assert table.groups["g1"].master == "n0"


def test_a_flood_of_broker_groups_is_refused_and_the_others_go_on(table: Table) -> None:
    for number in range(BOUNDS.groups_max - 1):
        table.register(f"bogus{number}", "n0", said("t", identity=str(number)), 1.0)
    for number in range(1000):
        with pytest.raises(NamesLimit, match="groups_max"):
            table.register(f"more{number}", "n0", said("t", identity=f"more{number}"), 1.0)
    table.register("g0", "n0", said(epoch=3, counter=11, base=10, changed={"y": queues()}), 2.0)
    assert table.topics["y"] == ("g0",)


@pytest.mark.parametrize(
    ("bounds", "setting"),
    [
        (BOUNDS._replace(topics_max=3), "topics_max"),
        (BOUNDS._replace(entries_max=3), "entries_max"),
    ],
)
def test_too_many_topics_are_refused_by_name(bounds: object, setting: str) -> None:
    table = Table("tidemark", bounds)  # type: ignore[arg-type]
    table.register("g0", "n0", said("a", "b", "c"), 0.0)
    with pytest.raises(NamesLimit, match=setting):
        table.register("g0", "n0", said("a", "b", "c", "d", counter=2), 1.0)
    # The same name several times among the removed ones made room for more than were removed.
    more = {"d": queues(), "e": queues()}
    repeated = said(counter=2, base=1, changed=more, removed=["a", "a", "a"])
    with pytest.raises(NamesLimit, match=setting):
        table.register("g0", "n0", repeated, 1.0)
    table.register("g0", "n0", said("b", "c", "d", counter=2), 1.0)
    assert sorted(table.topics) == ["b", "c", "d"]


def test_too_many_nodes_of_a_broker_group_are_refused_by_name(table: Table) -> None:
    for number in range(1, BOUNDS.nodes_max):
        table.register("g0", f"n{number}", slave(identity=str(number)), 1.0)
    with pytest.raises(NamesLimit, match="nodes of broker group g0"):
        table.register("g0", "n9", slave(identity="9"), 1.0)


def test_every_refusal_has_a_status_of_its_own() -> None:
    assert {error.status for error in RegistrationRefused.__subclasses__()} <= {403, 409, 413}
