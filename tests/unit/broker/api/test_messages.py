"""Produce requests: accepted messages are stored as given; errors name the field."""

from __future__ import annotations

import base64
import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.api.messages import Rules, parse_produce
from services.broker.log.ack_levels import AckLevel
from services.broker.read.message_map import message_map, tags_code
from services.broker.send.request import ProduceRequest
from services.broker.send.wanted_delay import Delay
from tests.support.for_each import for_each
from tidemark.errors import BadProperty, BadRequest, MessageTooLarge, RequestError, TooManyMessages
from tidemark.formats import batch, hashing, properties, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.nack import PROPERTIES_ROOM
from tidemark.formats.record import Message, Record

RULES = Rules(message_size_max=1000, record_crc=True)
HOST = Host(b"\x7f\x00\x00\x01", 10911)


def parse(value: object, *, json_body: bool = False, rules: Rules = RULES) -> ProduceRequest:
    numbers = itertools.count()
    return parse_produce(
        value, rules=rules, json_body=json_body, make_unique_id=lambda: f"ID{next(numbers)}"
    )


def one(**fields: Any) -> ProduceRequest:
    return parse({"messages": [{"body": b"x", **fields}]})


def entries(request: ProduceRequest) -> list[WireMessage]:
    found = list(batch.iterate(request.entries))
    assert len(found) == request.message_count
    return found


def stored(request: ProduceRequest, index: int = 0, topic: str = "orders") -> Record:
    """The record that the store would read back."""
    entry = entries(request)[index]
    raw = record.encode(
        Message(topic, 0, entry.body, HOST, HOST, bytes(entry.properties), entry.flag),
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=1,
        record_crc=True,
    )
    return record.decode(memoryview(raw))


def test_a_full_message_comes_back_field_by_field() -> None:
    request = parse(
        {
            "messages": [
                {
                    "body": b"hello",
                    "tags": "new",
                    "keys": ["order-1", "o2"],
                    "properties": {"colour": "blau", "größe": "ü"},
                    "sharding_key": "user-7",
                    "flag": -3,
                }
            ],
            "ack": "memory",
            "timeout_ms": 50,
        }
    )
    found = stored(request)
    assert (request.ack, request.timeout_ms) == (AckLevel.MEMORY, 50)
    assert bytes(found.body) == b"hello"
    assert (found.tags, list(found.keys), found.flag) == ("new", ["order-1", "o2"], -3)
    assert found.unique_id == "ID0"
    assert found.property_map["colour"] == "blau"
    assert found.property_map["größe"] == "ü"
    assert found.property_map["__SHARDINGKEY"] == "user-7"
    assert request.picks == ["user-7"]


def test_defaults_are_disk_three_seconds_and_an_id_of_our_own() -> None:
    request = one()
    assert (request.ack, request.timeout_ms) == (AckLevel.DISK, 3000)
    assert request.picks is None
    assert stored(request).unique_id == "ID0"
    assert stored(one(unique_id="MINE")).unique_id == "MINE"


def test_a_sender_may_do_without_unique_ids() -> None:
    request = parse(
        {
            "messages": [{"body": b"x"}, {"body": b"y", "unique_id": "MINE"}],
            "make_unique_ids": False,
        }
    )
    assert [stored(request, index).unique_id for index in (0, 1)] == [None, "MINE"]
    assert stored(parse({"messages": [{"body": b"x"}], "make_unique_ids": True})).unique_id == "ID0"
    assert stored(parse({"messages": [{"body": b"x"}], "make_unique_ids": None})).unique_id == "ID0"


@pytest.mark.parametrize("value", [0, 1, "false", [], {}])
def test_the_field_that_asks_for_ids_is_a_boolean(value: object) -> None:
    error = refused({"messages": [{"body": b"x"}], "make_unique_ids": value})
    assert error.facts["field"] == "make_unique_ids"


@pytest.mark.parametrize(
    ("fields", "picks"),
    [
        ([{}, {}], None),
        ([{"queue": 3}, {"queue": 3}], 3),
        ([{"queue": 3}, {"queue": 4}], [3, 4]),
        ([{"queue": 3}, {}], [3, None]),
        ([{}, {"sharding_key": "a"}], [None, "a"]),
        ([{"sharding_key": "a"}, {"sharding_key": "a"}], ["a", "a"]),
    ],
)
def test_a_pick_for_all_messages_is_any_equal_number(
    fields: list[dict[str, object]], picks: object
) -> None:
    request = parse({"messages": [{"body": b"x", **each} for each in fields]})
    assert request.picks == picks


def test_null_is_the_same_as_left_out() -> None:
    absent = dict.fromkeys(
        ["tags", "keys", "properties", "queue", "sharding_key", "flag", "unique_id", "delay_ms"]
    )
    assert one(**absent) == one()


def test_a_json_body_is_text_or_base64() -> None:
    request = parse(
        {
            "messages": [
                {"body_text": "größe"},
                {"body": base64.b64encode(b"\x00\xff").decode()},
                {"body": ""},
            ]
        },
        json_body=True,
    )
    assert [bytes(entry.body) for entry in entries(request)] == ["größe".encode(), b"\x00\xff", b""]


def refused(value: object, *, json_body: bool = False) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(value, json_body=json_body)
    return caught.value


@pytest.mark.parametrize(
    "value", [None, [], "x", 5, {}, {"messages": None}, {"messages": {}}, {"messages": []}, {1: 2}]
)
def test_a_request_without_messages_is_refused(value: object) -> None:
    assert isinstance(refused(value), BadRequest)


@for_each(
    ("field", "value"),
    [
        ("body", "text"),
        ("body", 5),
        ("tags", 5),
        ("tags", b"bytes"),
        ("keys", "order-1"),
        ("keys", [1]),
        ("properties", []),
        ("properties", {"a": 1}),
        ("properties", {"a": None}),
        ("queue", "0"),
        ("queue", -1),
        ("queue", True),
        ("queue", 1.5),
        ("queue", float("inf")),
        ("queue", float("nan")),
        ("queue", 2**31),
        ("flag", 2**31),
        ("flag", "1"),
        ("sharding_key", 1),
        ("unique_id", 1),
        ("delay_level", "1"),
        ("delay_ms", 0.5),
        ("deliver_at_ms", "soon"),
        ("tag", "misspelt"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(field: str, value: object) -> None:
    error = refused({"messages": [{"body": b"good"}, {"body": b"x", field: value}]})
    assert isinstance(error, BadRequest)
    assert f"messages[1].{field}" in error.detail.replace("'", "")


@pytest.mark.parametrize(
    ("field", "value"),
    [("ack", "all"), ("ack", 1), ("timeout_ms", 0), ("timeout_ms", "1"), ("timeout_ms", 10**9)],
)
def test_a_wrong_field_of_the_request_is_named(field: str, value: object) -> None:
    error = refused({"messages": [{"body": b"x"}], field: value})
    assert isinstance(error, BadRequest)
    assert field in error.detail


def test_a_queue_picks_and_the_sharding_key_beside_it_is_stored() -> None:
    """In a cluster the client picks the queue of a key among those of all broker groups."""
    request = one(queue=1, sharding_key="a")
    assert request.picks == 1
    assert stored(request).property_map["__SHARDINGKEY"] == "a"


@pytest.mark.parametrize("wait", [{}, {"delay_level": 1}, {"delay_ms": 1}])
def test_a_message_leaves_room_for_what_is_added_on_its_way(wait: dict[str, int]) -> None:
    rules = RULES._replace(delay_levels_ms=(1000,))
    room = 32_767 - record.CRC_PROPERTY_SIZE - PROPERTIES_ROOM

    def send(size: int) -> None:
        message = {"body": b"x", "properties": {"a": "v" * (size - len("a\x01\x02"))}, **wait}
        value = {"messages": [message], "make_unique_ids": False}
        parse_produce(value, rules=rules, json_body=False, make_unique_id=str)

    send(room)
    with pytest.raises(BadProperty, match=f"{room} are allowed"):
        send(room + 1)


def test_messages_say_how_long_they_wait_one_by_one() -> None:
    rules = RULES._replace(delay_levels_ms=(1000, 5000))
    request = parse_produce(
        {"messages": [{"body": b"a"}, {"body": b"b", "delay_level": 2}, {"body": b"c"}]},
        rules=rules,
        json_body=False,
        make_unique_id=str,
    )
    assert request.delays == [None, Delay(level=2), None]
    assert parse({"messages": [{"body": b"a"}]}).delays is None


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {"properties": {text: "v"}},
        lambda text: {"properties": {"n": text}},
        lambda text: {"tags": text},
        lambda text: {"keys": [text]},
        lambda text: {"sharding_key": text},
        lambda text: {"unique_id": text},
    ],
)
def test_a_separator_is_refused_everywhere(separator: str, place: Any) -> None:
    error = refused({"messages": [{"body": b"x", **place(f"a{separator}b")}]})
    assert isinstance(error, BadProperty)
    assert error.detail.startswith("messages[0].")


@for_each(
    "name",
    [*sorted(properties.RESERVED), "INNER_MULTI_DISPATCH", "__SHARDINGKEY", "__any", "TIDEMARK_X"],
)
def test_a_name_that_the_store_or_the_sdk_sets_is_refused(name: str) -> None:
    error = refused({"messages": [{"body": b"x", "properties": {name: "1"}}]})
    assert isinstance(error, BadProperty)
    assert name in error.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {"": "v"}},
        {"properties": {"n": ""}},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"tags": "\udc80"},
        {"properties": {"n": "\ud800"}},
        {"properties": {"\ud800": "n"}},
        {"properties": {"n": "x" * 33_000}},
        {"keys": ["x" * 33_000]},
        {"unique_id": "a b"},
        {"unique_id": "x" * 129},
    ],
)
def test_a_property_that_would_not_read_back_is_refused(fields: dict[str, Any]) -> None:
    assert isinstance(refused({"messages": [{"body": b"x", **fields}]}), BadProperty)


def test_properties_may_take_what_a_record_has_for_them_and_no_more() -> None:
    overhead = len(properties.encode({"n": "", "UNIQ_KEY": "ID0"}))
    room = RULES.properties_size_max - overhead
    found = stored(one(properties={"n": "x" * room}))
    assert len(found.property_map["n"]) == room
    with pytest.raises(BadProperty):
        one(properties={"n": "x" * (room + 1)})


def test_a_body_may_be_as_large_as_allowed_and_no_larger() -> None:
    assert len(entries(parse({"messages": [{"body": bytes(1000)}]}))[0].body) == 1000
    error = refused({"messages": [{"body": bytes(1001)}]})
    assert isinstance(error, MessageTooLarge)
    assert error.facts["limit"] == 1000


def test_too_many_messages_are_refused_with_the_limit() -> None:
    error = refused({"messages": [{"body": b""}] * 4097})
    assert isinstance(error, TooManyMessages)
    assert error.facts["limit"] == 4096


@pytest.mark.parametrize("body", ["not base64!", "YQ", "ÿÿÿÿ", "YQ==\n"])
def test_a_json_body_that_is_no_base64_is_refused(body: str) -> None:
    error = refused({"messages": [{"body": body}]}, json_body=True)
    assert "messages[0].body" in error.detail


def test_a_body_must_be_there_once() -> None:
    assert "no body" in refused({"messages": [{}]}).detail
    both = {"body": b"", "body_text": ""}
    assert "both" in refused({"messages": [both]}).detail


TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20
)


@given(
    names=st.dictionaries(TEXT.map("p".__add__), TEXT, max_size=5),
    tags=TEXT,
    keys=st.lists(TEXT.filter(lambda key: " " not in key), max_size=4),
    body=st.binary(max_size=50),
)
def test_everything_accepted_reads_back_exactly(
    names: dict[str, str], tags: str, keys: list[str], body: bytes
) -> None:
    request = parse({"messages": [{"body": body, "properties": names, "tags": tags, "keys": keys}]})
    found = stored(request)
    assert bytes(found.body) == body
    assert found.tags == tags
    assert list(found.keys) == keys
    own = {"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#"}
    assert {n: v for n, v in found.property_map.items() if n not in own} == names


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=8)
    | st.text(st.characters(categories=["Cs"]), max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["body", "body_text", "tags", "keys", "properties", "queue", "sharding_key", "flag", "x"]
)


@given(
    value=VALUES
    | st.fixed_dictionaries(
        {"messages": st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), max_size=3)}
    ),
    json_body=st.booleans(),
)
def test_any_value_gives_a_request_or_a_named_error(value: object, json_body: bool) -> None:
    with contextlib.suppress(RequestError):
        parse(value, json_body=json_body)


def test_a_message_is_shown_with_everything_that_is_stored() -> None:
    found = stored(one(tags="new", keys=["k1", "k2"]))
    shown = message_map(found, code=tags_code(found, (1000,)), json_body=False)
    assert shown["body"] == b"x"
    assert shown["tags_code"] == hashing.tags_code("new")
    assert shown["keys"] == ["k1", "k2"]
    assert shown["message_id"] == found.message_id
    assert shown["store_host"] == "127.0.0.1:10911"
    text = message_map(found, code=0, json_body=True)
    assert text["body_text"] == "x"
    assert "body" not in text


def test_a_body_that_is_no_text_is_base64_in_json() -> None:
    found = stored(one(body=b"\xff\x00"))
    shown = message_map(found, code=0, json_body=True)
    assert "body_text" not in shown
    assert base64.b64decode(str(shown["body"])) == b"\xff\x00"


def test_a_delayed_record_has_its_due_time_as_code() -> None:
    raw = properties.encode({"DELAY": "1", "TAGS": "a"})
    data = record.encode(
        Message("SCHEDULE_TOPIC_XXXX", 0, b"", HOST, HOST, raw),
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=5000,
        record_crc=False,
    )
    assert tags_code(record.decode(memoryview(data)), (1000, 5000)) == 6000


def test_a_repeated_request_names_an_id_for_every_message() -> None:
    messages = [{"body": b"x", "unique_id": "A"}, {"body": b"y", "unique_id": "B"}]
    assert parse({"messages": messages, "retry": True}).retry
    assert not parse({"messages": messages, "retry": None}).retry
    assert not parse({"messages": messages}).retry
    del messages[1]["unique_id"]
    error = refused({"messages": messages, "retry": True})
    assert error.facts["field"] == "messages[1].unique_id"
    assert not parse({"messages": messages, "retry": False}).retry
    error = refused({"messages": messages, "retry": "yes"})
    assert error.facts["field"] == "retry"


def test_in_a_group_the_default_level_is_chosen_at_the_send_and_the_wait_is_bounded() -> None:
    rules = RULES._replace(ack_default=None, timeout_ms_default=900)
    request = parse({"messages": [{"body": b"x"}]}, rules=rules)
    assert (request.ack, request.timeout_ms) == (None, 900)
    asked = parse({"messages": [{"body": b"x"}], "ack": "disk", "timeout_ms": 5}, rules=rules)
    assert (asked.ack, asked.timeout_ms) == (AckLevel.DISK, 5)
