"""Requests about groups: what is accepted, and that an error names the field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.schema import members
from services.broker.schema.groups import GroupConfig
from services.broker.schema.members import Fetch, Join, Subscription
from services.broker.schema.offsets import Commit, CommitLevel, Position, Reset, ResetPlace
from services.broker.schema.parsing import parsed
from services.broker.schema.retry import Nack
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
        (Commit, {"offsets": [{"topic": "orders", "queue": 0, "offset": -1}]}, "offsets[0].offset"),
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


@for_each(
    ("kind", "body", "text"),
    [
        (Join, {"subscriptions": [TOPIC], "session_ms": 5}, "a whole number from 1000 to 600000, "),
        (Join, {"subscriptions": [TOPIC] * 300}, "a list of 1 to 256, not a list of 300"),
        (Join, {"subscriptions": [{**TOPIC, "tags": "\ud800"}]}, "a string of UTF-8 text, not "),
        (Join, {"subscriptions": [TOPIC], "incarnation": ""}, "a string of 1 to 64 characters, "),
        (Join, {"subscriptions": [TOPIC], "holding": [["orders"]]}, "must be [topic, queue], not "),
        (Commit, {"offsets": [], "ack": "memory"}, "one of accepted, disk, not 'memory'"),
        (Reset, {**TOPIC, "to": 5}, "one of first, last or a map, not 5"),
        (GroupConfig, {"order": None}, "must be true or false, not nothing"),
        (Nack, {"message_id": "7"}, "a message id: 32 or 56 hexadecimal digits, not '7'"),
        (Fetch, {"maximum": 5}, "It has: generation, max, max_bytes, "),
        (Fetch, {b"max": 5}, "has a key that is not UTF-8 text"),
        (Fetch, {"\ud800": 5}, "has a key that is not UTF-8 text"),
    ],
)
def test_the_error_has_rule_and_value(kind: type[Request], body: object, text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parsed(body, kind)
    assert text in str(refused.value)


def test_null_is_a_missing_field_and_3_0_is_3() -> None:
    subscription = {**TOPIC, "tags": None}
    body = {"subscriptions": [subscription], "session_ms": 5000.0, "generation": None}
    assert parsed(body, Join) == Join([Subscription("orders")], 5000)
    assert parsed({"lag_objective_ms": None}, GroupConfig).given() == {"lag_objective_ms": None}


KINDS = [each for each in Request.__subclasses__() if each not in (Position, Subscription)]
NAMES = sorted(
    {name for kind in Request.__subclasses__() for name in kind.__struct_encode_fields__}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([1 << 63, 1 << 200, 3.0, float("inf"), float("nan"), "\ud800", "orders", b"x"]),
    st.text(max_size=5),
)
BODIES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*NAMES, "a - at `$.b", "\ud800", ""]), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(BODIES, st.sampled_from(KINDS))
def test_any_body_is_a_request_or_refused_with_a_field(body: object, kind: type[Request]) -> None:
    try:
        made = parsed(body, kind)
    except (BadRequest, BadName) as error:
        refused: Exception | None = error
    else:
        refused = None
        assert isinstance(made, kind)
    assert refused is None or isinstance(refused.__dict__["facts"]["field"], str)
