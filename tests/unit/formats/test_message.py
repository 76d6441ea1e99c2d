"""Both twins of ``decode_messages``: every field as stored, and nothing that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.twins import twins_of
from tidemark.formats import message as pure
from tidemark.formats import properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.message import Message
from tidemark.formats.record import UndecodableRecord

HOST = Host(b"\x0a\x00\x00\x01", 10911)
Decode = Callable[[bytes | bytearray | memoryview], list[Message]]

each_twin = pytest.mark.parametrize("decode", twins_of("decode", pure.decode_messages))
native_only = pytest.mark.parametrize("decode", twins_of("decode", pure.decode_messages)[1:])
"""For comparisons with the pure function."""


def stored(
    raw: bytes = b"", *, topic: str = "orders", body: bytes = b"body", born: Host = HOST
) -> bytes:
    return record.encode(
        record.Message(topic, 3, body, born, HOST, raw),
        queue_offset=7,
        physical_offset=91,
        store_timestamp_ms=5,
        record_crc=True,
    )


@each_twin
def test_every_field_is_as_it_was_stored(decode: Decode) -> None:
    data = record.encode(
        record.Message(
            "orders", 3, b"body", Host(bytes(15) + b"\x01", 99), HOST,
            properties.encode({"KEYS": "a  b", "TAGS": "TagA", "UNIQ_KEY": "U1", "color": "röt"}),
            flag=-4, sys_flag=2, born_timestamp_ms=11, reconsume_times=12,
            prepared_transaction_offset=-13,
        ),
        queue_offset=1 << 40,
        physical_offset=91,
        store_timestamp_ms=5,
        record_crc=False,
    )  # fmt: skip
    (message,) = decode(data)
    assert isinstance(message, Message)
    assert message == Message(
        topic="orders", queue=3, queue_offset=1 << 40, body=b"body",
        message_id="0A00000100002A9F000000000000005B", unique_id="U1", physical_offset=91,
        size=len(data), tags="TagA", keys=("a", "b"),
        properties={"KEYS": "a  b", "TAGS": "TagA", "UNIQ_KEY": "U1", "color": "röt"},
        born_timestamp_ms=11, store_timestamp_ms=5, born_host="[::1]:99",
        store_host="10.0.0.1:10911", reconsume_times=12, flag=-4, sys_flag=18,
        body_crc=message.body_crc, tags_code=2598919, prepared_transaction_offset=-13,
    )  # fmt: skip


@each_twin
def test_a_missing_value_is_none_or_empty(decode: Decode) -> None:
    (message,) = decode(stored(body=b""))
    assert (message.tags, message.unique_id, message.keys, message.tags_code) == (None, None, (), 0)
    assert (message.body, message.body_crc) == (b"", 0)
    assert list(message.properties) == ["__CRC32#"]
    assert decode(b"") == []


@each_twin
def test_neighbours_that_are_alike_and_unlike_keep_their_own(decode: Decode) -> None:
    parts = [
        stored(b"TAGS\x01a\x02KEYS\x01k\x02"),
        stored(b"TAGS\x01a\x02KEYS\x01k k2\x02"),
        stored(b"KEYS\x01k k2\x02TAGS\x01a\x02", topic="t" * 200),
        stored(b"", born=Host(bytes(16), 1)),
        stored(b"TAGS\x01Aa\x02TAGS\x01b\x02", topic="SCHEDULE_TOPIC_XXXX"),
        stored(b"TAGS\x01b\x02DELAY\x013\x02", topic="SCHEDULE_TOPIC_XXXX"),
        stored(b"TAGS\x01b\x02", born=Host(b"\x01\x02\x03\x04", 1)),
    ]
    messages = decode(b"".join(parts))
    assert messages == [decode(part)[0] for part in parts]
    assert [message.tags for message in messages] == ["a", "a", "a", None, "b", "b", "b"]
    assert [message.tags_code for message in messages] == [97, 97, 97, 0, 98, None, 98]
    assert messages[1].keys == messages[2].keys == ("k", "k2")


@each_twin
def test_a_message_is_a_value_that_shows_itself_in_one_line(decode: Decode) -> None:
    (message,) = decode(stored(properties.encode({"TAGS": "new"}), body=b"x" * 1000))
    assert repr(message) == (
        "Message('orders', queue=3, queue_offset=7, body=b'" + "x" * 40 + "'… 1000 bytes, "
        "tags='new', keys=(), message_id='0A00000100002A9F000000000000005B')"
    )
    (short,) = decode(stored())
    assert "body=b'body', tags=None" in repr(short)
    with pytest.raises(AttributeError):
        message.body = b"other"  # type: ignore[misc]
    assert message._replace(flag=1) != message


@each_twin
def test_its_parts_outlive_the_answer_that_they_came_in(decode: Decode) -> None:
    answer = bytearray(stored(b"TAGS\x01a\x02") * 2)
    first, second = decode(memoryview(answer))
    answer[:] = bytes(len(answer))
    assert (first.body, first.tags, first.topic, first) == (b"body", "a", "orders", second)


@native_only
@given(made=st.lists(strategies.records(), max_size=4))
def test_any_records_are_read_alike(decode: Decode, made: list[strategies.MadeRecord]) -> None:
    data = b"".join(one.data for one in made)
    messages = decode(data)
    assert messages == pure.decode_messages(data)
    assert [message.body for message in messages] == [one.message.body for one in made]
    assert [(type(field), field) for message in messages for field in message] == [
        (type(field), field) for message in pure.decode_messages(data) for field in message
    ]


@each_twin
@given(data=st.data())
def test_a_flipped_bit_in_a_body_is_never_handed_out(decode: Decode, data: st.DataObject) -> None:
    body = data.draw(st.binary(min_size=1, max_size=200))
    sound = stored(body=body)
    damaged = bytearray(sound * 2)
    at = (len(sound) + damaged.index(body, 88)) * 8 + data.draw(st.integers(0, len(body) * 8 - 1))
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(UndecodableRecord, match=f"record at byte {len(sound)} .*CRC"):
        decode(damaged)
