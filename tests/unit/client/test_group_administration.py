from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack
import numpy
import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import FakeBroker, in_a_thread
from tidemark import errors
from tidemark.client.dead_letters import DeadLetter
from tidemark.client.groups import QueueReset
from tidemark.client.times import as_ms

CONFIG = {
    "order": False,
    "broadcast": False,
    "start": "first",
    "retry_max": 16,
    "lag_objective_ms": None,
}
LAG = {
    "messages": 3,
    "bytes": None,
    "seconds": 1.5,
    "expiring_messages": 0,
    "in_flight": 2,
    "lost": 1,
    "ahead": 0,
    "reasons": {"bytes": "too_many_unread"},
}
LETTER = {
    "queue_offset": 4,
    "message_id": "A",
    "unique_id": "U",
    "original_topic": "orders",
    "original_message_id": "B",
    "reconsume_times": 16,
    "dead_at_ms": 5,
    "redriven": False,
    "tags": None,
}


class Answers(FakeBroker):
    """Answers what the test sets, and keeps the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []
        self.asked: list[tuple[str, str, Any]] = []

    async def say(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        asked: Any = msgpack.unpackb(raw) if raw else dict(request.query)
        self.asked.append((request.method, request.path, asked))
        said = self.answers.pop(0)
        if said is None:
            return web.Response(status=204)
        return web.Response(body=msgpack.packb(said), content_type="application/msgpack")

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{rest:.*}", self.say)


@pytest.fixture
async def broker() -> AsyncIterator[Answers]:
    async with Answers().serve() as serving:
        yield serving


@pytest.fixture
async def mq(broker: Answers) -> AsyncIterator[tidemark.Client]:
    async with tidemark.connect(broker.url) as client:
        yield client


async def test_a_group_is_configured_with_the_given_fields_only(
    broker: Answers, mq: tidemark.Client
) -> None:
    broker.answers = [CONFIG, {**CONFIG, "start": 1000}]
    group = await mq.groups.create("billing", retry_max=16)
    assert (group.name, group.retry_max, group.members) == ("billing", 16, None)
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert (await mq.groups.create("billing", start=at)).start == 1000
    assert broker.asked == [
        ("PUT", "/v1/groups/billing", {"retry_max": 16}),
        ("PUT", "/v1/groups/billing", {"start": 1000}),
    ]


async def test_groups_are_listed_by_name(broker: Answers, mq: tidemark.Client) -> None:
    listed = [{**CONFIG, "group": name, "members": 2, "state": "stable"} for name in ("b", "a")]
    broker.answers = [{"groups": listed}]
    assert [(group.name, group.members) for group in await mq.groups.list()] == [("a", 2), ("b", 2)]


async def test_a_group_shows_members_lag_and_unknown_values(
    broker: Answers, mq: tidemark.Client
) -> None:
    queue = {"queue": 1, "member": "m", "committed": 2, "min_offset": 0, "max_offset": 5, **LAG}
    member = {
        "member": "m",
        "assignment": [["orders", 1]],
        "subscriptions": [{"topic": "orders", "tags": "*"}],
        "session_ms": 30000,
        "last_seen_ms": 12,
    }
    broker.answers = [
        {
            **CONFIG,
            "group": "billing",
            "state": "stable",
            "generation": 7,
            "members": [member],
            "lag": LAG,
            "topics": [{"topic": "orders", "queues": [queue]}],
            "at_ms": 99,
        }
    ]
    detail = await mq.groups.get("billing")
    assert (detail.group.state, detail.group.members, detail.generation) == ("stable", 1, 7)
    assert detail.members[0].assignment == [("orders", 1)]
    assert detail.members[0].subscriptions == {"orders": "*"}
    (shown,) = detail.queues
    assert (shown.topic, shown.queue, shown.member, shown.lag.messages) == ("orders", 1, "m", 3)
    assert shown.lag.bytes is None
    assert (shown.lag.in_flight, shown.lag.lost, shown.lag.ahead) == (2, 1, 0)
    assert shown.lag.reasons == {"bytes": "too_many_unread"}
    assert detail.facts["at_ms"] == 99


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ({"to": "first"}, "first"),
        ({"to": 5}, {"timestamp_ms": 5}),
        ({"to": datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, {"timestamp_ms": 0}),
        ({"offset": 0}, {"offset": 0}),
    ],
    ids=["word", "milliseconds", "datetime", "offset"],
)
async def test_a_reset_says_where_to(
    broker: Answers, mq: tidemark.Client, arguments: dict[str, Any], target: object
) -> None:
    broker.answers = [{"queues": [{"queue": 0, "from": None, "to": 9}], "dry_run": True}]
    done = await mq.groups.reset("billing", "orders", queue=0, dry_run=True, **arguments)
    assert done == [QueueReset(0, None, 9)]
    assert broker.asked[0][2] == {"topic": "orders", "to": target, "queue": 0, "dry_run": True}


async def test_a_reset_to_two_places_or_none_is_refused(mq: tidemark.Client) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        await mq.groups.reset("billing", "orders")
    with pytest.raises(ValueError, match="exactly one"):
        await mq.groups.reset("billing", "orders", to="first", offset=0)


async def test_offsets_and_deletion(broker: Answers, mq: tidemark.Client) -> None:
    broker.answers = [{"offsets": [{"topic": "orders", "queue": 1, "offset": 5}]}, None]
    assert await mq.groups.offsets("billing") == {("orders", 1): 5}
    await mq.groups.delete("billing")
    assert [(method, path) for method, path, _ in broker.asked] == [
        ("GET", "/v1/groups/billing/offsets"),
        ("DELETE", "/v1/groups/billing"),
    ]


async def test_delayed_messages_are_iterated_page_by_page(
    broker: Answers, mq: tidemark.Client
) -> None:
    message = {
        "unique_id": "U",
        "message_id": "A",
        "topic": "orders",
        "queue": 0,
        "deliver_at_ms": 5,
        "delay_level": None,
        "store_timestamp_ms": 1,
        "size": 100,
    }
    broker.answers = [
        {"messages": [message], "pending": 2, "next": "5-0"},
        {"messages": [{**message, "unique_id": "V"}], "pending": 2, "next": None},
        {"cancelled": 1},
    ]
    assert [each.unique_id async for each in mq.delayed.iterate("orders")] == ["U", "V"]
    assert await mq.delayed.cancel("orders", "U") == 1
    assert broker.asked == [
        ("GET", "/v1/delayed", {"topic": "orders", "max": "100"}),
        ("GET", "/v1/delayed", {"topic": "orders", "max": "100", "after": "5-0"}),
        ("DELETE", "/v1/delayed/U", {"topic": "orders"}),
    ]


async def test_dead_letters_are_iterated_and_redriven(broker: Answers, mq: tidemark.Client) -> None:
    page = {"messages": [LETTER], "next_offset": 5, "max_offset": 6, "done": False}
    broker.answers = [
        page,
        {**page, "messages": [], "next_offset": 6, "done": True},
        {
            "matched": 1,
            "redriven": 1,
            "skipped": 0,
            "refused": 0,
            "next_offset": 6,
            "max_offset": 6,
            "done": True,
            "refusals": [],
        },
    ]
    letters = [each async for each in mq.dead_letters.iterate("billing")]
    named = {name: LETTER[name] for name in DeadLetter._fields if name != "facts"}
    assert letters == [DeadLetter(**named, facts=LETTER)]  # type: ignore[arg-type]
    redriven = await mq.dead_letters.redrive("billing", key="k", begin=7, max=10)
    assert (redriven.redriven, redriven.done, redriven.facts["refusals"]) == (1, True, [])
    assert broker.asked[1][2] == {"from_offset": "5", "max": "100"}
    assert broker.asked[2][2] == {
        "to": "topic",
        "key": "k",
        "begin_ms": 7,
        "max": 10,
        "dry_run": False,
    }


async def test_a_trace_keeps_the_facts_of_each_step(broker: Answers, mq: tidemark.Client) -> None:
    broker.answers = [
        {
            "message": {"topic": "orders"},
            "complete": True,
            "events": [
                {"what": "produced", "at_ms": 5, "born_host": "127.0.0.1:1"},
                {"what": "flushed", "at_ms": None, "reason": "not_recorded"},
            ],
        }
    ]
    trace = await mq.trace("U", topic="orders")
    assert trace.complete
    assert [(step.what, step.at_ms, step.reason) for step in trace.events] == [
        ("produced", 5, None),
        ("flushed", None, "not_recorded"),
    ]
    assert trace.events[0].facts == {"born_host": "127.0.0.1:1"}
    assert broker.asked == [("GET", "/v1/messages/U/trace", {"topic": "orders"})]


@pytest.mark.parametrize(
    "said", [{}, {"queues": 1}, {"groups": [{}]}, {"groups": [1]}, {"messages": [{}]}]
)
async def test_an_answer_that_lacks_something_is_named(
    broker: Answers, mq: tidemark.Client, said: dict[str, Any]
) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        mq.groups.list,
        lambda: mq.groups.get("g"),
        lambda: mq.groups.offsets("g"),
        lambda: mq.groups.create("g"),
        lambda: mq.groups.reset("g", "t", to="first"),
        lambda: mq.delayed.list(),
        lambda: mq.delayed.cancel("t", "u"),
        lambda: mq.dead_letters.list("g"),
        lambda: mq.dead_letters.redrive("g"),
        lambda: mq.trace("u"),
    ]
    for call in calls:
        broker.answers = [said]
        with pytest.raises(errors.BrokenAnswer):
            await call()


async def test_a_topic_is_made_with_its_retention(broker: Answers, mq: tidemark.Client) -> None:
    broker.answers = [{"topic": "orders", "queues": 4}, {"topic": "orders", "queues": 4}, {"x": 1}]
    await mq.create_topic("orders")
    await mq.create_topic("orders", retention_ms=5)
    assert await mq.retention() == {"x": 1}
    assert [asked for _, _, asked in broker.asked] == [
        {},  # what is not named stays as it is
        {"retention_ms": 5},
        {},
    ]


async def test_a_delay_is_sent_as_it_was_given(broker: Answers, mq: tidemark.Client) -> None:
    stored = {
        "message_id": "A",
        "queue": 2,
        "queue_offset": 0,
        "physical_offset": 0,
        "store_timestamp_ms": 1,
        "deliver_at_ms": 10_001,
        "unique_id": "U",
    }
    said = {"status": "PUT_OK", "ack": {"level": "disk", "copies": 1}, "results": [stored]}
    at = datetime(2030, 1, 1, tzinfo=UTC)
    broker.answers = [said] * 3
    result = await mq.send("orders", b"", delay_level=3)
    assert (result.deliver_at_ms, result.unique_id) == (10_001, "U")
    await mq.send("orders", b"", delay_ms=5)
    await mq.send("orders", b"", deliver_at=at)
    sent = [asked["messages"][0] for _, _, asked in broker.asked]
    assert len({wire.pop("unique_id") for wire in sent}) == 3
    assert sent == [
        {"body": b"", "delay_level": 3},
        {"body": b"", "delay_ms": 5},
        {"body": b"", "deliver_at_ms": int(at.timestamp() * 1000)},
    ]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="start has no time zone"):
        as_ms(datetime(2030, 1, 1), "start")  # noqa: DTZ001 — what is refused
    for wrong in (1.5, "now", True):
        with pytest.raises(TypeError, match="start must be"):
            as_ms(wrong, "start")  # type: ignore[arg-type]
    assert repr(as_ms(numpy.int64(5), "start")) == "5"  # type: ignore[arg-type]


@contextmanager
def answering(*said: Any) -> Iterator[Answers]:
    broker = Answers()
    broker.answers = list(said)
    with in_a_thread(broker):
        yield broker


def test_the_facade_has_the_same_calls() -> None:
    page = {"messages": [], "pending": 0, "next": None, "next_offset": 0, "max_offset": 0}
    redriven = dict.fromkeys(("matched", "redriven", "skipped", "refused", "next_offset"), 0)
    with (
        answering(
            CONFIG,
            {"groups": []},
            {"offsets": []},
            {"queues": []},
            None,
            page,
            {"cancelled": 0},
            {**page, "done": True},
            {**redriven, "max_offset": 0, "done": True},
            {"message": {}, "events": []},
            page,
            {**page, "done": True},
        ) as broker,
        tidemark.connect_sync(broker.url) as mq,
    ):
        assert mq.groups.create("g").name == "g"
        assert mq.groups.list() == []
        assert mq.groups.offsets("g") == {}
        assert mq.groups.reset("g", "t", to="last") == []
        mq.groups.delete("g")
        assert mq.delayed.list().pending == 0
        assert mq.delayed.cancel("t", "u") == 0
        assert mq.dead_letters.list("g").done
        assert mq.dead_letters.redrive("g").matched == 0
        assert mq.trace("u").events == []
        assert list(mq.delayed.iterate("t")) == []
        assert list(mq.dead_letters.iterate("g")) == []
        assert len(broker.asked) == 12
