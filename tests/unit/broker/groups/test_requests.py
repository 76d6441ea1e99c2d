"""Requests about groups: what is accepted, and that an error names the field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.broker.groups import requests
from services.broker.groups.requests import (
    CommitLevel,
    Subscribed,
    ToOffset,
    parse_commit,
    parse_fetch,
    parse_join,
    parse_reset,
)
from tests.support.for_each import for_each
from tidemark.errors import BadName, BadRequest


def test_a_join_with_nothing_but_a_topic_takes_the_defaults() -> None:
    join = parse_join({"subscriptions": [{"topic": "orders"}]})
    assert join.subscriptions == [Subscribed("orders", "*")]
    assert join.session_ms == requests.SESSION_MS_DEFAULT
    assert join.holding is None
    assert join.generation is None


def test_a_heartbeat_says_what_it_holds_and_knows() -> None:
    join = parse_join(
        {
            "subscriptions": [{"topic": "orders", "tags": "a || b"}],
            "session_ms": 5000,
            "holding": [["orders", 1], ["orders", 1]],
            "generation": 7 << 32,
        }
    )
    assert join.subscriptions == [Subscribed("orders", "a || b")]
    assert join.holding == frozenset({("orders", 1)})
    assert (join.session_ms, join.generation) == (5000, 7 << 32)
    nothing = parse_join({"subscriptions": [{"topic": "orders"}], "holding": []})
    assert nothing.holding == frozenset()


def test_a_fetch_without_fields_takes_the_defaults() -> None:
    fetch = parse_fetch({})
    defaults = (requests.FETCH_DEFAULT, requests.FETCH_BYTES_DEFAULT, 0)
    assert fetch == (None, *defaults, [], frozenset(), None)
    assert parse_fetch({"sequence": 7}).sequence == 7
    with pytest.raises(BadRequest, match="sequence"):
        parse_fetch({"sequence": -1})
    assert parse_fetch({"positions": [{"topic": "orders", "queue": 0, "offset": 5}]}).positions == [
        (("orders", 0), 5)
    ]


def test_a_commit_and_a_reset_are_read() -> None:
    commit = parse_commit(
        {
            "member": "m1",
            "generation": 5,
            "offsets": [{"topic": "orders", "queue": 0, "offset": 3}],
            "ack": "disk",
        }
    )
    assert commit == ("m1", 5, {("orders", 0): 3}, CommitLevel.DISK)
    assert parse_commit({"offsets": []}).level is CommitLevel.ACCEPTED
    assert parse_reset({"topic": "orders", "to": "last"}) == ("orders", None, "last", False)
    assert parse_reset({"topic": "orders", "to": {"timestamp_ms": 5}}).to == 5
    assert parse_reset({"topic": "orders", "to": {"offset": 5}, "queue": 2}) == (
        "orders",
        2,
        ToOffset(5),
        False,
    )


TOPIC = {"topic": "orders"}


@for_each(
    ("parse", "body", "field"),
    [
        (parse_join, {}, "subscriptions"),
        (parse_join, {"subscriptions": []}, "subscriptions"),
        (parse_join, {"subscriptions": [TOPIC, TOPIC]}, "subscriptions"),
        (parse_join, {"subscriptions": [TOPIC] * 300}, "subscriptions"),
        (parse_join, {"subscriptions": [{"tags": "a"}]}, "subscriptions[0].topic"),
        (parse_join, {"subscriptions": [{**TOPIC, "tag": "a"}]}, "subscriptions[0].tag"),
        (parse_join, {"subscriptions": [{**TOPIC, "tags": 5}]}, "subscriptions[0].tags"),
        (parse_join, {"subscriptions": [TOPIC], "session_ms": 999}, "session_ms"),
        (parse_join, {"subscriptions": [TOPIC], "session_ms": True}, "session_ms"),
        (parse_join, {"subscriptions": [TOPIC], "holding": {}}, "holding"),
        (parse_join, {"subscriptions": [TOPIC], "holding": [["orders"]]}, "holding[0]"),
        (parse_join, {"subscriptions": [TOPIC], "holding": [["orders", -1]]}, "holding[0][1]"),
        (parse_join, {"subscriptions": [TOPIC], "generation": -1}, "generation"),
        (parse_fetch, [], "the request body"),
        (parse_fetch, {"max": 0}, "max"),
        (parse_fetch, {"max": 8193}, "max"),
        (parse_fetch, {"max_bytes": 1 << 40}, "max_bytes"),
        (parse_fetch, {"wait_ms": 30_001}, "wait_ms"),
        (parse_fetch, {"positions": [["orders", 0]]}, "positions[0]"),
        (
            parse_fetch,
            {
                "positions": [
                    {"topic": "orders", "queue": 0, "offset": 1},
                    {"topic": "orders", "queue": 0, "offset": 2},
                ]
            },
            "positions[1]",
        ),
        (parse_commit, {}, "offsets"),
        (
            parse_commit,
            {"offsets": [{"topic": "orders", "queue": 0, "offset": -1}]},
            "offsets[0].offset",
        ),
        (parse_commit, {"offsets": [], "ack": "memory"}, "ack"),
        (parse_reset, {"to": "first"}, "topic"),
        (parse_reset, {"topic": "orders"}, "to"),
        (parse_reset, {"topic": "orders", "to": "middle"}, "to"),
        (parse_reset, {"topic": "orders", "to": {"timestamp_ms": 1, "offset": 1}}, "to"),
        (parse_reset, {"topic": "orders", "to": {"offset": -1}}, "to.offset"),
        (parse_reset, {"topic": "orders", "to": "last", "dry_run": 1}, "dry_run"),
    ],
)
def test_the_field_that_is_wrong_is_named(
    parse: Callable[[object], object], body: object, field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(body)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_join, {"subscriptions": [{"topic": "no/name"}]}),
        (parse_commit, {"offsets": [], "member": ""}),
        (parse_reset, {"topic": "", "to": "first"}),
    ],
)
def test_a_name_that_is_none_is_refused(parse: Callable[[object], object], body: object) -> None:
    with pytest.raises(BadName):
        parse(body)
