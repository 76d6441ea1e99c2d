"""Which node creates a group's first lease."""

from __future__ import annotations

import pytest

from services.ha.core.founding import first_lease, hindrance
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.value import Member, Stored
from services.ha.wire.payloads import Facts, StatusOk
from tests.unit.ha.core.test_campaign import replica
from tests.unit.ha.group import Group

BOTH = ("a", "c")


def status_of(node: str, *, initialised: bool = False, holds_records: bool = False) -> StatusOk:
    end = 100 if holds_records else 0
    return StatusOk(
        node=node,
        incarnation="1" * 32,
        state="follower",
        initialised=initialised,
        holds_records=holds_records,
        promised=0,
        data_epoch=0,
        first_offset=0,
        end=end,
        durable=end,
        confirm=0,
        seen_epoch=0,
        in_sync_version=0,
        in_sync=(),
        facts=Facts(),
    )


def empty(holds_records: bool = False) -> tuple[ReplicaContext, Peers]:
    context = replica()
    context.initialised, context.first_offset, context.end = False, 0, 100 if holds_records else 0
    return context, Peers(context)


def report(peers: Peers, *answers: StatusOk) -> None:
    for link, status in enumerate(answers, start=1):
        member = Member(status.node, status.incarnation)
        peers.up(link, member, outbound=True, version=1)
        peers.received_status(link, status)


def test_the_first_configured_node_founds_an_empty_group() -> None:
    context, peers = empty()  # it is b
    report(peers, *(status_of(node) for node in BOTH))
    assert hindrance(context, peers) == "There is no lease yet; a makes it."


@pytest.mark.parametrize(
    ("silent", "clause"),
    [
        (("a",), "a does not answer"),
        (("c",), "c does not answer"),
        (BOTH, "a and c do not answer"),
    ],
)
def test_no_node_founds_while_one_is_silent(silent: tuple[str, ...], clause: str) -> None:
    context, peers = empty(holds_records=True)
    report(peers, *(status_of(node) for node in BOTH if node not in silent))
    assert hindrance(context, peers) == f"There is no lease yet, and {clause}."


def test_the_only_one_that_holds_records_founds_whatever_its_place() -> None:
    context, peers = empty(holds_records=True)
    report(peers, *(status_of(node) for node in BOTH))
    assert hindrance(context, peers) is None


def test_neither_of_two_that_hold_records_founds() -> None:
    context, peers = empty(holds_records=True)
    report(peers, status_of("a"), status_of("c", holds_records=True))
    assert "b, c hold records" in (hindrance(context, peers) or "")


def test_no_node_founds_beside_a_volume_that_belonged_to_a_group() -> None:
    # A lost lease and one replaced volume must not start an empty group.
    context, peers = empty()
    report(peers, status_of("a", initialised=True), status_of("c"))
    assert "a belonged to a group" in (hindrance(context, peers) or "")
    context, peers = empty()
    report(peers, status_of("c", initialised=True))  # It is reported also while a is silent.
    assert "c belonged to a group" in (hindrance(context, peers) or "")
    context.initialised = True
    assert "this group had one" in (hindrance(context, peers) or "")


def test_the_first_lease_has_one_member() -> None:
    context, _ = empty()
    lease = first_lease(context, 1)
    assert (lease.holder, lease.in_sync, lease.epoch) == (context.holder, (context.member,), 1)
    assert lease.replicas == ("a", "b", "c")


def test_a_founder_that_comes_second_is_halted_and_its_records_are_kept() -> None:
    # The alarm reported that nothing was changed, but the identity of the volume was written before
    # the lease was to be created.
    group = Group()
    founder = group["a"]
    founder.volume.log = bytearray(100)
    group.start()
    group.until(lambda: founder.state == "candidate")
    second = first_lease(group["b"].context, 1)
    group.lease = Stored(second, "1", "u")
    group.until(lambda: founder.state == "halted")
    assert "No record was changed." in founder.context.alarms["unadopted-store"]
    assert founder.volume.log == bytearray(100)
    assert not founder.volume.initialised
