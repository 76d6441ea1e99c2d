"""Rules of a cluster: when a member joins or leaves a broker group, when a send moves on."""

from __future__ import annotations

import itertools

import pytest

import tidemark
from tests.unit.client.fake_broker import FakeBroker, error
from tidemark import errors
from tidemark.client.checks import check_queue
from tidemark.client.cluster_consumer import Step, next_step
from tidemark.client.connection import Connection, ConnectionSettings
from tidemark.client.queue_names import NUMBERS, QueueNames
from tidemark.client.retries import may_move_on

STEPS = {
    # is_listed, has_topic, is_member, is_served
    (True, True, False, False): Step.JOIN,
    (False, True, False, False): Step.JOIN,
    (True, False, True, True): Step.LEAVE,  # the topic is gone from it
    (True, False, True, False): Step.LEAVE,
    (False, False, True, False): Step.LEAVE,  # gone altogether
    (False, False, True, True): Step.NONE,  # only the name services have lost it
}


@pytest.mark.parametrize("state", list(itertools.product([True, False], repeat=4)))
def test_the_next_step_of_a_member_is_that_of_the_table(
    state: tuple[bool, bool, bool, bool],
) -> None:
    is_listed, has_topic, is_member, is_served = state
    if is_served and not is_member:
        return  # without a member, nothing is known of that
    step = next_step(
        is_listed=is_listed, has_topic=has_topic, is_member=is_member, is_served=is_served
    )
    assert step is STEPS.get(state, Step.NONE)


@pytest.mark.parametrize(
    ("failure", "moves_on"),
    [
        (errors.Unreachable("no connection", sent=False), True),
        (errors.Unreachable("no answer", sent=True), False),
        (errors.Unreachable("unknown"), False),
        (errors.NotServing("starting"), True),
        (errors.NotMaster("another"), True),
        (errors.DiskFull("full"), True),
        (errors.AckTimeout("stored"), False),
        (errors.WriteFailed("unknown outcome"), False),
        (errors.UnknownTopic("deleted"), True),
        (errors.NotPermitted("read only"), True),
        (errors.Drained("by an operator"), True),
        (errors.BadProperty("wrong"), False),
        (errors.BrokenAnswer("what"), False),
    ],
)
def test_a_send_moves_on_only_if_it_certainly_stored_nothing(
    failure: errors.TidemarkError, moves_on: bool
) -> None:
    assert may_move_on(failure) is moves_on


def test_queues_have_numbers_or_the_names_of_their_broker_group() -> None:
    names = QueueNames("g0")
    assert (names.name(3), names.number("g0/3"), names.number(3)) == ("g0/3", 3, 3)
    assert (NUMBERS.name(3), NUMBERS.number(3)) == (3, 3)


@pytest.mark.parametrize("queue", ["/3", "g0/", "g0/x", "g0/-1", "g0/³"])
def test_a_malformed_name_of_a_queue_is_refused(queue: str) -> None:
    with pytest.raises(errors.BadRequest, match="BROKER_GROUP/NUMBER"):
        check_queue(queue)


async def call(broker: FakeBroker, *, moves_on: bool) -> None:
    async with Connection(broker.url, ConnectionSettings(retry_for_s=5.0)) as connection:
        await connection.call(
            "POST",
            "/v1/topics/orders/messages",
            body={"messages": []},
            again=lambda: b"\x81\xa8messages\x90",
            idempotent=False,
            moves_on=moves_on,
        )


async def test_a_call_that_may_move_on_does_not_wait_for_a_busy_broker() -> None:
    async def busy(_request: object) -> object:
        return error(503, "overloaded", retriable=True)

    async with FakeBroker({"orders": [[]]}, faults=[busy] * 2).serve() as broker:  # type: ignore[list-item]
        with pytest.raises(errors.Overloaded):
            await call(broker, moves_on=True)
        assert len(broker.requests) == 1
        await call(broker, moves_on=False)
        assert len(broker.requests) == 3


async def test_a_call_of_unknown_outcome_is_repeated_and_does_not_move_on() -> None:
    """1. The message is stored and its answer is late; 2. the broker is busy; 3. elsewhere, the
    message would be stored a second time."""

    async def late(_request: object) -> object:
        return error(504, "ack-timeout", retriable=True)

    async def busy(_request: object) -> object:
        return error(503, "overloaded", retriable=True)

    async with FakeBroker({"orders": [[]]}, faults=[late, busy]).serve() as broker:  # type: ignore[list-item]
        await call(broker, moves_on=True)
        assert len(broker.requests) == 3


async def test_an_earlier_broker_is_asked_for_its_route_once_and_used_as_before() -> None:
    async with (
        FakeBroker({"orders": [[]]}).serve() as broker,
        tidemark.connect(f" {broker.url} ,{broker.url}") as mq,
    ):
        sent = [await mq.send("orders", b"x") for _ in range(3)]
    assert [each.queue_offset for each in sent] == [0, 1, 2]
    assert {each.broker_group for each in sent} == {None}
