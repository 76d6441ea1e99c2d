"""Requests about groups: what is accepted, and that an error names the field."""

from __future__ import annotations

import pytest

from services.broker.schema import members
from services.broker.schema.members import Fetch, Join, Subscription
from services.broker.schema.offsets import Commit, CommitLevel, Position, Reset, ResetPlace
from services.broker.schema.parsing import parsed
from services.broker.schema.values import Request
from tests.support.for_each import for_each
from tidemark.errors import BadName, BadRequest


def test_a_join_with_nothing_but_a_topic_takes_the_defaults() -> None:
    join = parsed({"subscriptions": [{"topic": "orders"}]}, Join)
    assert join.subscriptions == [Subscription("orders", "*")]
    assert join.session_ms == members.SESSION_MS_DEFAULT
    assert join.holding is None
    assert join.generation is None


def test_a_heartbeat_says_what_it_holds_and_knows() -> None:
    join = parsed(
        {
            "subscriptions": [{"topic": "orders", "tags": "a || b"}],
            "session_ms": 5000,
            "holding": [["orders", 1], ["orders", 1]],
            "generation": 7 << 32,
        },
        Join,
    )
    assert join.subscriptions == [Subscription("orders", "a || b")]
    assert join.holding == frozenset({("orders", 1)})
    assert (join.session_ms, join.generation) == (5000, 7 << 32)
    nothing = parsed({"subscriptions": [{"topic": "orders"}], "holding": []}, Join)
    assert nothing.holding == frozenset()


def test_a_fetch_without_fields_takes_the_defaults() -> None:
    fetch = parsed({}, Fetch)
    defaults = (members.FETCH_DEFAULT, members.FETCH_BYTES_DEFAULT, 0)
    assert fetch == Fetch(None, *defaults, [], frozenset(), None)
    assert parsed({"sequence": 7}, Fetch).sequence == 7
    with pytest.raises(BadRequest, match="sequence"):
        parsed({"sequence": -1}, Fetch)
    assert parsed(
        {"positions": [{"topic": "orders", "queue": 0, "offset": 5}]}, Fetch
    ).positions == [Position("orders", 0, 5)]


def test_a_commit_and_a_reset_are_read() -> None:
    commit = parsed(
        {
            "member": "m1",
            "generation": 5,
            "offsets": [{"topic": "orders", "queue": 0, "offset": 3}],
            "ack": "disk",
        },
        Commit,
    )
    assert (commit.member, commit.generation, commit.ack) == ("m1", 5, CommitLevel.DISK)
    assert commit.moves == {("orders", 0): 3}
    assert parsed({"offsets": []}, Commit).ack is CommitLevel.ACCEPTED
    assert parsed({"topic": "orders", "to": "last"}, Reset) == Reset("orders", "last")
    at_time = parsed({"topic": "orders", "to": {"timestamp_ms": 5}}, Reset)
    assert at_time.to == ResetPlace(timestamp_ms=5)
    at_offset = parsed({"topic": "orders", "to": {"offset": 5}, "queue": 2}, Reset)
    assert at_offset == Reset("orders", ResetPlace(offset=5), 2)


TOPIC = {"topic": "orders"}


@for_each(
    ("kind", "body", "field"),
    [
        (Join, {}, "subscriptions"),
        (Join, {"subscriptions": []}, "subscriptions"),
        (Join, {"subscriptions": [TOPIC, TOPIC]}, "subscriptions"),
        (Join, {"subscriptions": [TOPIC] * 300}, "subscriptions"),
        (Join, {"subscriptions": [{"tags": "a"}]}, "subscriptions[0].topic"),
        (Join, {"subscriptions": [{**TOPIC, "tag": "a"}]}, "subscriptions[0].tag"),
        (Join, {"subscriptions": [{**TOPIC, "tags": 5}]}, "subscriptions[0].tags"),
        (Join, {"subscriptions": [TOPIC], "session_ms": 999}, "session_ms"),
        (Join, {"subscriptions": [TOPIC], "session_ms": True}, "session_ms"),
        (Join, {"subscriptions": [TOPIC], "holding": {}}, "holding"),
        (Join, {"subscriptions": [TOPIC], "holding": [["orders"]]}, "holding[0]"),
        (Join, {"subscriptions": [TOPIC], "holding": [["orders", -1]]}, "holding[0][1]"),
        (Join, {"subscriptions": [TOPIC], "generation": -1}, "generation"),
        (Fetch, [], "the request body"),
        (Fetch, {"maximum": None}, "maximum"),
        (Join, {"subscriptions": [{**TOPIC, "max": None}]}, "subscriptions[0].max"),
        (Fetch, {"max": 0}, "max"),
        (Fetch, {"max": 8193}, "max"),
        (Fetch, {"max_bytes": 1 << 40}, "max_bytes"),
        (Fetch, {"wait_ms": 30_001}, "wait_ms"),
        (Fetch, {"positions": [["orders", 0]]}, "positions[0]"),
        (
            Fetch,
            {
                "positions": [
                    {"topic": "orders", "queue": 0, "offset": 1},
                    {"topic": "orders", "queue": 0, "offset": 2},
                ]
            },
            "positions[1]",
        ),
        (Commit, {}, "offsets"),
        (
            Commit,
            {"offsets": [{"topic": "orders", "queue": 0, "offset": -1}]},
            "offsets[0].offset",
        ),
        (Commit, {"offsets": [], "ack": "memory"}, "ack"),
        (Reset, {"to": "first"}, "topic"),
        (Reset, {"topic": "orders"}, "to"),
        (Reset, {"topic": "orders", "to": "middle"}, "to"),
        (Reset, {"topic": "orders", "to": {"timestamp_ms": 1, "offset": 1}}, "to"),
        (Reset, {"topic": "orders", "to": {"offset": -1}}, "to.offset"),
        (Reset, {"topic": "orders", "to": "last", "dry_run": 1}, "dry_run"),
    ],
)
def test_the_field_that_is_wrong_is_named(kind: type[Request], body: object, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parsed(body, kind)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Join, {"subscriptions": [{"topic": "no/name"}]}),
        (Commit, {"offsets": [], "member": ""}),
        (Reset, {"topic": "", "to": "first"}),
    ],
)
def test_a_name_that_is_none_is_refused(kind: type[Request], body: object) -> None:
    with pytest.raises(BadName):
        parsed(body, kind)
