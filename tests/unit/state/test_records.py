"""State records: read back, tolerant of later versions, and never another exception."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.state import records
from shared.state.records import (
    NextOffset,
    OtherRecord,
    SnapshotPart,
    StateRecordUnreadable,
    TopicConfig,
    TopicRecord,
)

I31 = st.integers(0, 2**31 - 1)
I63 = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TOPICS = st.builds(
    TopicConfig,
    name=TEXT,
    queues=I31,
    read_queues=I31,
    perm=I31,
    order=st.booleans(),
    filter_type=TEXT,
    sys_flag=st.integers(-(2**31), 2**31 - 1),
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
    min_offsets=st.dictionaries(I31, I63, max_size=3),
    deleted=st.booleans(),
)
NEXT_OFFSETS = st.builds(NextOffset, TEXT, I31, I63)


def packed(value: object) -> bytes:
    body: bytes = msgpack.packb(value)
    return body


def snapshot_parts(bodies: list[bytes]) -> list[SnapshotPart]:
    parts = [records.decode(body) for body in bodies]
    assert all(isinstance(part, SnapshotPart) for part in parts)
    return parts  # type: ignore[return-value]


@given(I63, TOPICS)
def test_a_topic_is_read_back(flushed: int, topic: TopicConfig) -> None:
    record = TopicRecord(flushed, topic)
    body = records.encode_topic(record)
    assert records.decode(body) == record
    assert records.flushed_of(body) == flushed


def test_a_topic_record_as_a_map() -> None:
    topic = TopicConfig("orders", 4, 8, min_offsets={3: 70, 0: 12})
    assert msgpack.unpackb(records.encode_topic(TopicRecord(4711, topic))) == {
        "v": 1,
        "kind": "topic",
        "flushed": 4711,
        "topic": {
            "name": "orders",
            "queues": 4,
            "read_queues": 8,
            "perm": 6,
            "order": False,
            "filter_type": "SINGLE_TAG",
            "sys_flag": 0,
            "attributes": {},
            "min_offsets": [[0, 12], [3, 70]],
            "deleted": False,
        },
    }


@given(
    st.lists(TOPICS, max_size=8), st.lists(NEXT_OFFSETS, max_size=30), I63, I63, st.integers(0, 900)
)
def test_a_snapshot_in_parts_says_everything_once_in_order(
    topics: list[TopicConfig],
    next_offsets: list[NextOffset],
    flushed: int,
    snapshot_id: int,
    part_bytes_max: int,
) -> None:
    bodies = records.encode_snapshot(
        topics,
        next_offsets,
        flushed=flushed,
        snapshot_id=snapshot_id,
        part_bytes_max=part_bytes_max,
    )
    parts = snapshot_parts(bodies)
    assert [part.part for part in parts] == list(range(len(bodies)))
    assert {(part.flushed, part.id, part.parts) for part in parts} == {
        (flushed, snapshot_id, len(bodies))
    }
    assert [topic for part in parts for topic in part.topics] == topics
    assert [each for part in parts for each in part.next_offsets] == next_offsets
    for body, part in zip(bodies, parts, strict=True):
        assert len(body) <= part_bytes_max or len(part.topics) + len(part.next_offsets) <= 1


def test_an_empty_state_has_a_snapshot_too() -> None:
    bodies = records.encode_snapshot([], [], flushed=0, snapshot_id=0, part_bytes_max=1000)
    assert snapshot_parts(bodies) == [SnapshotPart(0, 0, 0, 1, [], [])]


@pytest.mark.parametrize(
    ("body", "record"),
    [
        ({"v": 1, "kind": "pop", "flushed": 7, "group": 1}, OtherRecord(7, "pop", 1)),
        ({"v": 1, "kind": "wheel", "flushed": 7, "slots": {1: 2}}, OtherRecord(7, "wheel", 1)),
        ({"v": 2, "kind": "topic", "flushed": 7}, OtherRecord(7, "topic", 2)),
        (
            {"v": 1, "kind": "topic", "flushed": 7, "topic": {"name": "a", "queues": 3}, "new": []},
            TopicRecord(7, TopicConfig("a", 3, 3)),
        ),
        (
            {"v": 1, "kind": "snapshot", "flushed": 0, "id": 1, "part": 0, "parts": 2, "later": {}},
            SnapshotPart(0, 1, 0, 2, [], []),
        ),
    ],
)
def test_what_a_later_version_adds_is_no_error(
    body: dict[str, Any], record: records.StateRecord
) -> None:
    assert records.decode(packed(body)) == record


GOOD: dict[str, Any] = {"v": 1, "kind": "topic", "flushed": 0, "topic": {"name": "a", "queues": 1}}
PART: dict[str, Any] = {"v": 1, "kind": "snapshot", "flushed": 0, "id": 0, "part": 0, "parts": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (packed(GOOD)[:-1], "not msgpack"),
        (packed(GOOD) + b"\x00", "not msgpack"),
        (packed([]), "the record is not a map"),
        (packed({1: 2}), "v of the record is not a whole number"),
        (packed({**GOOD, "v": "1"}), "v of the record is not a whole number"),
        (packed({**GOOD, "flushed": -1}), "flushed of the record is not a whole number in 0…"),
        (packed({**GOOD, "flushed": True}), "flushed of the record is not a whole number"),
        (packed({**GOOD, "kind": 3}), "kind of the record is not a string"),
        (packed({**GOOD, "topic": None}), "a topic is not a map"),
        (packed({**GOOD, "topic": {"queues": 1}}), "name of a topic is not a string"),
        (packed({**GOOD, "topic": {"name": "a"}}), "queues of a topic is not a whole number"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "deleted": 1}}), "is not true or false"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "min_offsets": [[0]]}}), "a min offset is not"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "attributes": {"a": 1}}}), "a of attributes"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "attributes": {1: "a"}}}), "a name in attrib"),
        (packed({**PART, "parts": 0}), "parts of the record is not a whole number in 1…"),
        (packed({**PART, "part": 1}), "part of the record is not a whole number in 0…0"),
        (packed({**PART, "topics": {}}), "topics of the record is not a list"),
        (packed({**PART, "next_offsets": [["t", 0, -1]]}), "a next offset is not"),
    ],
)
def test_a_wrong_body_is_refused_by_field(body: bytes, reason: str) -> None:
    with pytest.raises(StateRecordUnreadable) as caught:
        records.decode(body)
    assert reason in str(caught.value)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*GOOD, *PART, "name", "queues", "min_offsets", "next_offsets"]), inner
        )
    ),
    max_leaves=15,
)


@given(st.binary(max_size=300) | TREES.map(packed) | TREES.map(lambda t: packed({**PART, "x": t})))
def test_any_body_is_a_record_or_unreadable(body: bytes) -> None:
    mark = records.flushed_of(body)
    try:
        record = records.decode(memoryview(body))
    except StateRecordUnreadable:
        return
    assert record.flushed == mark


@given(TOPICS, st.data())
def test_no_flipped_bit_raises_another_exception(topic: TopicConfig, data: st.DataObject) -> None:
    body = bytearray(records.encode_topic(TopicRecord(5, topic)))
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, len(body) * 8 - 1))
        body[bit // 8] ^= 1 << bit % 8
    try:
        records.decode(body)
    except StateRecordUnreadable:
        return


@pytest.mark.parametrize(
    "body", [b"\x91" * 5000, b"\xd6\xff\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"]
)
def test_hostile_bodies_are_unreadable(body: bytes) -> None:
    with pytest.raises(StateRecordUnreadable):
        records.decode(body)
