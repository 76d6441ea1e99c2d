"""Both twins of ``decode_messages``: every field as stored, and nothing that is not."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.twins import outcome, twins_of
from tidemark.formats import batch, inner_batch, properties, record
from tidemark.formats import message as pure
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.message import Message
from tidemark.formats.record import UndecodableRecord

HOST = Host(b"\x0a\x00\x00\x01", 10911)
Decode = Callable[..., list[Message]]

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


def stored_batch(
    entries: bytes, count: int, *, base: int = 7, host: Host = HOST, topic: str = "orders"
) -> bytes:
    """The record of an inner batch with any body; its body CRC is right."""
    raw = inner_batch.encode_properties("B1", count, tags=None, keys=b"k")
    return record.encode(
        record.Message(
            topic, 3, entries, HOST, host, inner_batch.with_base(raw, base), 5,
            inner_batch.SYS_FLAGS | 2, born_timestamp_ms=11, reconsume_times=12,
        ),
        queue_offset=base,
        physical_offset=91,
        store_timestamp_ms=5,
        record_crc=True,
    )  # fmt: skip


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


@each_twin
@given(made=st.lists(strategies.records(), max_size=4))
def test_queues_get_the_name_of_their_broker_group(
    decode: Decode, made: list[strategies.MadeRecord]
) -> None:
    data = b"".join(one.data for one in made)
    numbered, named = decode(data), decode(data, "g0")
    assert named == [each._replace(queue=f"g0/{each.queue}") for each in numbered]


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


@each_twin
def test_each_message_of_a_batch_has_its_own_contents_and_the_place_of_the_record(
    decode: Decode,
) -> None:
    entries = [
        WireMessage(b"first", b"TAGS\x01a\x02UNIQ_KEY\x01U1\x02", -4),
        WireMessage(b"", b"KEYS\x01k k2\x02"),
    ]
    data = stored_batch(batch.encode(entries), 2)
    first, second = decode(data)
    assert first == Message(
        topic="orders", queue=3, queue_offset=7, body=b"first",
        message_id="0A00000100002A9F000000000000005B", unique_id="U1", physical_offset=91,
        size=97 + 5 + 19, tags="a", keys=(), properties={"TAGS": "a", "UNIQ_KEY": "U1"},
        born_timestamp_ms=11, store_timestamp_ms=5, born_host="10.0.0.1:10911",
        store_host="10.0.0.1:10911", reconsume_times=12, flag=-4, sys_flag=2,
        body_crc=zlib.crc32(b"first") & 0x7FFFFFFF, tags_code=97, prepared_transaction_offset=0,
    )  # fmt: skip
    assert second == first._replace(
        queue_offset=8, body=b"", size=97 + 10, unique_id=None, tags=None, keys=("k", "k2"),
        properties={"KEYS": "k k2"}, flag=0, body_crc=0, tags_code=0,
    )  # fmt: skip


@each_twin
def test_batches_and_single_records_are_read_in_their_order(decode: Decode) -> None:
    two = batch.encode([WireMessage(b"a", b"TAGS\x01a\x02"), WireMessage(b"b", b"TAGS\x01b\x02")])
    messages = decode(
        stored_batch(two, 2) + stored(b"TAGS\x01b\x02") + stored_batch(two, 2, base=9)
    )
    assert [each.body for each in messages] == [b"a", b"b", b"body", b"a", b"b"]
    assert [each.tags_code for each in messages] == [97, 98, 98, 97, 98]
    assert [each.queue_offset for each in messages] == [7, 8, 7, 9, 10]


@each_twin
@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_whose_body_has_another_number_of_messages_is_refused(
    decode: Decode, count: int
) -> None:
    sound = stored()
    data = sound + stored_batch(batch.encode([WireMessage(b"a"), WireMessage(b"b")]), count)
    with pytest.raises(UndecodableRecord, match=f"record at byte {len(sound)} .*inner batch"):
        decode(data)


@each_twin
def test_a_flagged_record_that_has_no_numbers_of_a_batch_is_one_message(decode: Decode) -> None:
    entries = batch.encode([WireMessage(b"a")])
    data = record.encode(
        record.Message("orders", 3, entries, HOST, HOST, b"INNER_NUM\x011\x02", 0, 0xC0),
        queue_offset=7,
        physical_offset=91,
        store_timestamp_ms=5,
        record_crc=False,
    )
    (message,) = decode(data)
    assert (message.body, message.sys_flag) == (entries, 0xC0)


@native_only
@given(made=st.lists(strategies.records(), min_size=1, max_size=6), base=st.integers(0, 1 << 40))
def test_any_messages_come_out_of_their_batch_as_they_went_in(
    decode: Decode, made: list[strategies.MadeRecord], base: int
) -> None:
    messages = [one.message for one in made]
    entries = batch.encode(
        [WireMessage(each.body, each.properties, each.flag) for each in messages]
    )
    data = stored_batch(
        entries, len(made), base=base, host=messages[0].store_host, topic=messages[0].topic
    )
    found = decode(data)
    assert [(each.queue_offset, each.body, each.flag, each.properties) for each in found] == [
        (base + number, each.body, each.flag, properties.parse(each.properties))
        for number, each in enumerate(messages)
    ]
    assert [(type(field), field) for message in found for field in message] == [
        (type(field), field) for message in pure.decode_messages(data) for field in message
    ]
    fixed = len(data) - len(entries) - len(record.decode(data).properties)
    assert [each.size for each in found] == [
        fixed + len(each.body) + len(each.properties) for each in messages
    ]


@native_only
@given(data=st.data())
def test_a_damaged_batch_with_a_right_crc_is_judged_alike(
    decode: Decode, data: st.DataObject
) -> None:
    entry = st.builds(WireMessage, st.binary(max_size=9), st.binary(max_size=9), strategies.i32s())
    made = data.draw(st.lists(entry, max_size=4))
    entries = bytearray(batch.encode(made))
    for at in data.draw(st.lists(st.integers(0, max(0, len(entries) - 1)), max_size=3)):
        entries[at : at + 1] = data.draw(st.binary(max_size=2))
    base = data.draw(st.sampled_from([0, 7, (1 << 63) - 2, (1 << 63) - 1]))
    stored_bytes = stored_batch(bytes(entries), data.draw(st.integers(0, 4)), base=base)
    assert outcome(decode, stored_bytes) == outcome(pure.decode_messages, stored_bytes)


# They were: a collection visited all messages that a consumer had buffered.
@native_only
def test_the_garbage_collector_does_not_track_messages(decode: Decode) -> None:
    entries = batch.encode([WireMessage(b"1", properties=b"KEYS\x01k\x02")] * 2)
    found = decode(stored(b"TAGS\x01a\x02KEYS\x01k\x02") + stored_batch(entries, 2))
    assert [gc.is_tracked(message) for message in found] == [False] * 3
