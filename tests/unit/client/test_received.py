from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.fake_broker import HOST, FakeBroker
from tidemark import Message, errors
from tidemark.client.group_calls import FetchedQueue, read_fetched
from tidemark.client.queue_names import NUMBERS, QueueNames
from tidemark.client.received import Returned, decode_sound, received
from tidemark.client.tags import wanted_tags
from tidemark.formats import batch, inner_batch, record
from tidemark.formats.batch import WireMessage


def records(*messages: dict[str, Any], topic: str = "orders") -> bytes:
    broker = FakeBroker(queues={topic: [[]]})
    for wire in messages:
        broker.add(topic, 0, {"body": b"", **wire})
    return b"".join(broker.queues[topic][0])


def decoded(raw: bytes) -> list[Message]:
    messages, damage = decode_sound(raw, NUMBERS)
    assert damage is None
    return messages


def framed(facts: dict[str, Any], raw: bytes) -> bytes:
    packed: bytes = msgpack.packb(facts)
    return struct.pack(">I", len(packed)) + packed + raw


def queue(size: int, **more: object) -> dict[str, Any]:
    return {
        "topic": "orders",
        "queue": 0,
        "status": "FOUND",
        "from_offset": 0,
        "next_offset": 1,
        "min_offset": 0,
        "max_offset": 1,
        "size": size,
        **more,
    }


def test_records_of_several_queues_are_separated_by_their_sizes() -> None:
    one, two = records({"body": b"1"}), records({"body": b"2"}, {"body": b"3"})
    facts = {
        "generation": 7,
        "queues": [queue(len(one)), queue(len(two), queue=1), queue(0, queue=2)],
    }
    fetched = read_fetched(framed(facts, one + two))
    assert fetched.generation == 7
    assert [bytes(each.records) for each in fetched.queues] == [one, two, b""]
    assert isinstance(fetched.queues[0], FetchedQueue)
    assert [each.queue for each in fetched.queues] == [("orders", n) for n in range(3)]


@given(st.binary(max_size=40))
def test_bytes_that_are_no_fetch_are_named(body: bytes) -> None:
    with pytest.raises(errors.BrokenAnswer):
        read_fetched(body)


@given(st.data())
def test_a_fetch_that_is_cut_anywhere_is_not_taken(data: st.DataObject) -> None:
    whole = framed({"generation": 7, "queues": [queue(300)]}, bytes(300))
    read_fetched(whole)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(errors.BrokenAnswer):
        read_fetched(whole[:end])
    with pytest.raises(errors.BrokenAnswer):
        read_fetched(whole + b"\0")


# One damaged body made a whole batch unreadable.
@given(st.integers(0, 3), st.data())
def test_messages_before_a_damaged_record_are_delivered(count: int, data: st.DataObject) -> None:
    sound = [{"body": b"%d" % number} for number in range(count)]
    raw = bytearray(records(*sound, {"body": b"damaged"}, {"body": b"behind"}))
    body_at = raw.index(b"damaged")
    at = data.draw(st.integers(body_at, body_at + 6))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    messages, damage = decode_sound(bytes(raw), QueueNames("g0"))
    assert "CRC" in str(damage)
    assert {str(each.queue).partition("/")[0] for each in messages} <= {"g0"}
    assert [each.body for each in messages] == [each["body"] for each in sound]


def test_messages_before_our_position_are_left_out() -> None:
    raw = records({"body": b"0"}, {"body": b"1"}, {"body": b"2"})
    messages = received(decoded(raw), "orders", {"orders": None}, from_offset=1)
    assert [message.body for message in messages] == [b"1", b"2"]


def test_a_retry_keeps_its_place_and_its_other_fields() -> None:
    topic = "%RETRY%billing"
    raw = records(
        {"body": b"1", "tags": "old", "properties": {"RETRY_TOPIC": "orders"}},
        {"body": b"2"},
        topic=topic,
    )
    back, other = received(decoded(raw), topic, {"orders": wanted_tags("new")}, from_offset=0)
    assert isinstance(back, Returned)
    # It was delivered once, so its tag passed then; and the topic is not one that was subscribed.
    assert (back.topic, back.tags, back.queue_offset) == ("orders", "old", 0)
    assert back.source == (topic, 0, 0)
    assert back._replace(topic=topic)[:] == received(decoded(raw), topic, {}, from_offset=0)[
        0
    ]._replace(topic=topic)
    assert (other.topic, other.source) == (topic, (topic, 0, 1))


@pytest.mark.parametrize(
    ("expression", "passes"),
    [
        ("*", [b"a", b"b", b"none"]),
        ("", [b"a", b"b", b"none"]),
        ("a", [b"a"]),
        (" a||b ", [b"a", b"b"]),
        ("c", []),
    ],
)
def test_tags_are_compared_as_text(expression: str, passes: list[bytes]) -> None:
    raw = records({"body": b"a", "tags": "a"}, {"body": b"b", "tags": "b"}, {"body": b"none"})
    messages = received(decoded(raw), "orders", {"orders": wanted_tags(expression)}, from_offset=0)
    assert [message.body for message in messages] == passes


def batch_record(base: int, *messages: WireMessage) -> bytes:
    """The record of an inner batch."""
    raw = inner_batch.encode_properties("BATCH", len(messages), tags=None, keys=None)
    return record.encode(
        record.Message(
            "orders", 0, batch.encode(messages), HOST, HOST, inner_batch.with_base(raw, base), 0,
            inner_batch.SYS_FLAGS,
        ),
        queue_offset=base,
        physical_offset=0,
        store_timestamp_ms=5,
        record_crc=True,
    )  # fmt: skip


def test_a_batch_gives_the_messages_from_the_asked_offset_on_whose_tags_are_wanted() -> None:
    tagged = [WireMessage(b"%d" % each, b"TAGS\x01t%d\x02" % (each % 2)) for each in range(4)]
    messages = decoded(batch_record(5, *tagged) + batch_record(9, *tagged))
    assert [each.queue_offset for each in messages] == list(range(5, 13))
    wanted = {"orders": wanted_tags("t1")}
    found = received(messages, "orders", wanted, from_offset=7)
    assert [(each.queue_offset, each.tags) for each in found] == [(8, "t1"), (10, "t1"), (12, "t1")]


def test_a_batch_with_a_wrong_body_ends_the_messages_before_it() -> None:
    broken = inner_batch.with_base(inner_batch.encode_properties("B", 2, tags=None, keys=None), 6)
    data = record.encode(
        record.Message(
            "orders", 0, batch.encode([WireMessage(b"1")]), HOST, HOST, broken, 0, 0xC0
        ),
        queue_offset=6,
        physical_offset=0,
        store_timestamp_ms=5,
        record_crc=True,
    )  # fmt: skip
    messages, damage = decode_sound(batch_record(5, WireMessage(b"0")) + data, NUMBERS)
    assert ([each.queue_offset for each in messages], damage is None) == ([5], False)
