"""State records: read back, tolerant of later versions, and never another exception."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.state import records
from shared.state.records import (
    DelayRecord,
    DelayState,
    DrainRecord,
    EpochRecord,
    ForeignRange,
    ForeignRecord,
    GroupConfig,
    GroupRecord,
    NextOffset,
    OffsetsRecord,
    OtherRecord,
    SnapshotPart,
    StateRecordUnreadable,
    TimerMark,
    TopicConfig,
    TopicRecord,
)
from tests.support.for_each import for_each

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
I32 = st.integers(-(2**31), 2**31 - 1)
GROUPS = st.builds(
    GroupConfig,
    name=TEXT,
    order=st.booleans(),
    broadcast=st.booleans(),
    start=st.one_of(st.sampled_from(["first", "last"]), I63),
    retry_max=I32,
    retry_queues=I32,
    lag_objective_ms=st.none() | I63,
    consume_enabled=st.booleans(),
    consume_from_min_enabled=st.booleans(),
    broadcast_enabled=st.booleans(),
    broker_id=st.integers(-(2**63), 2**63 - 1),
    which_broker_when_slow=st.integers(-(2**63), 2**63 - 1),
    notify_members_changed=st.booleans(),
    sys_flag=I32,
    consume_timeout_min=I32,
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
    retry_policy=TEXT,
    forbidden=st.dictionaries(TEXT, I32, max_size=3),
    deleted=st.booleans(),
)
PAIRS = st.dictionaries(st.tuples(TEXT, I31), I63, min_size=1, max_size=6)
OFFSETS = st.dictionaries(TEXT, PAIRS, max_size=5)
LEVELS = st.dictionaries(I31, I63, max_size=4)
TIMERS = st.builds(TimerMark, I63, I63, I63)
CANCELLED = st.dictionaries(st.tuples(I63, I63), I63, max_size=4)
FOREIGN = st.tuples(I63, I63).map(lambda ends: ForeignRange(min(ends), max(ends)))
CHANGES = st.one_of(
    st.builds(TopicRecord, I63, TOPICS),
    st.builds(GroupRecord, I63, GROUPS),
    st.builds(OffsetsRecord, I63, OFFSETS),
    st.builds(DelayRecord, I63, LEVELS, st.none() | TIMERS, CANCELLED),
    st.builds(EpochRecord, I63, I63, I63),
    st.builds(ForeignRecord, I63, FOREIGN),
    st.builds(DrainRecord, I63, st.none() | I63),
)


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


@given(CHANGES)
def test_every_change_is_read_back(change: records.Change) -> None:
    body = records.encode(change)
    assert records.decode(body) == change
    assert records.flushed_of(body) == change.flushed
    assert records.part_of(body) is None


def test_the_records_of_groups_as_maps() -> None:
    group = GroupConfig("billing", order=True, start=1700, attributes={"a": "b"})
    changes: list[records.Change] = [
        GroupRecord(5, group),
        OffsetsRecord(6, {"billing": {("orders", 1): 12, ("orders", 0): 7, ("bills", 0): 3}}),
        DelayRecord(7, {3: 9}, TimerMark(100, 4, 6), {(0, 8): 150, (3, 2): 90}),
        EpochRecord(8, 0, 3),
        ForeignRecord(9, ForeignRange(100, 200)),
    ]
    maps = [msgpack.unpackb(records.encode(change), strict_map_key=False) for change in changes]
    assert [(each.pop("v"), each.pop("kind"), each.pop("flushed")) for each in maps] == [
        (1, "group", 5),
        (1, "offsets", 6),
        (1, "delay", 7),
        (1, "epoch", 8),
        (1, "foreign", 9),
    ]
    assert maps == [
        {"group": {"name": "billing", "order": True, "start": 1700, "attributes": {"a": "b"}}},
        {"offsets": {"billing": {"bills": {0: 3}, "orders": {0: 7, 1: 12}}}},
        {"levels": {3: 9}, "timer": [100, 4, 6], "cancelled": [[0, 8, 150], [3, 2, 90]]},
        {"epoch": 0, "start_count": 3},
        {"start": 100, "end": 200},
    ]


@given(
    st.lists(GROUPS, max_size=6),
    OFFSETS,
    st.builds(DelayState, LEVELS, TIMERS, CANCELLED),
    st.lists(FOREIGN, max_size=3),
    I63,
    st.integers(0, 1500),
)
def test_a_snapshot_has_groups_offsets_and_delay_in_any_number_of_parts(
    groups: list[GroupConfig],
    offsets: dict[str, dict[tuple[str, int], int]],
    delay: DelayState,
    foreign: list[ForeignRange],
    start_count: int,
    part_bytes_max: int,
) -> None:
    bodies = records.encode_snapshot(
        [],
        [],
        groups=groups,
        offsets=offsets,
        delay=delay,
        foreign=foreign,
        start_count=start_count,
        flushed=1,
        snapshot_id=2,
        part_bytes_max=part_bytes_max,
    )
    parts = snapshot_parts(bodies)
    assert [records.part_of(body) for body in bodies] == [
        (number, len(bodies)) for number in range(len(bodies))
    ]
    assert [group for part in parts for group in part.groups] == groups
    found: dict[str, dict[tuple[str, int], int]] = {}
    for part in parts:
        for group, pairs in part.offsets:
            found.setdefault(group, {}).update(pairs)
        assert (part.timer, part.start_count) == (delay.timer, start_count)
    assert found == offsets
    assert dict(level for part in parts for level in part.levels) == delay.levels
    assert dict(each for part in parts for each in part.cancelled) == delay.cancelled
    assert [each for part in parts for each in part.foreign] == foreign
    for body, part in zip(bodies, parts, strict=True):
        items = sum(map(len, (part.groups, part.offsets, part.levels, part.cancelled)))
        assert len(body) <= part_bytes_max or items + len(part.foreign) <= 1


def test_a_group_with_very_many_queues_is_no_item_that_cannot_be_cut() -> None:
    offsets = {"g": {("t", queue): queue for queue in range(5000)}}
    bodies = records.encode_snapshot(
        [], [], offsets=offsets, flushed=0, snapshot_id=0, part_bytes_max=4096
    )
    assert len(bodies) > 5
    assert max(map(len, bodies)) <= 4096


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
def test_a_snapshot_in_parts_has_everything_once_in_order(
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


def test_deleted_topics_are_in_a_snapshot_that_earlier_versions_read_as_before() -> None:
    def snapshot(**more: Any) -> list[bytes]:
        return records.encode_snapshot([], [], flushed=0, snapshot_id=0, part_bytes_max=330, **more)

    borders = {f"topic-{number}": number for number in range(9)}
    parts = snapshot_parts(snapshot(deleted_below=borders))
    assert len(parts) > 1
    assert [each for part in parts for each in part.deleted_below] == list(borders.items())
    assert snapshot(deleted_below={}) == snapshot()
    assert "deleted_below" not in msgpack.unpackb(snapshot()[0])


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
def test_fields_of_a_later_version_are_no_error(
    body: dict[str, Any], record: records.StateRecord
) -> None:
    assert records.decode(packed(body)) == record


GOOD: dict[str, Any] = {"v": 1, "kind": "topic", "flushed": 0, "topic": {"name": "a", "queues": 1}}
HEAD: dict[str, Any] = {"v": 1, "flushed": 0}
PART: dict[str, Any] = {"v": 1, "kind": "snapshot", "flushed": 0, "id": 0, "part": 0, "parts": 1}


@for_each(
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
        (packed({**PART, "deleted_below": [["a", -1]]}), "what was deleted is not"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "attributes": {"a": 1}}}), "a of attributes"),
        (packed({**GOOD, "topic": {**GOOD["topic"], "attributes": {1: "a"}}}), "a name in attrib"),
        (packed({**PART, "parts": 0}), "parts of the record is not a whole number in 1…"),
        (packed({**PART, "part": 1}), "part of the record is not a whole number in 0…0"),
        (packed({**PART, "topics": {}}), "topics of the record is not a list"),
        (packed({**PART, "next_offsets": [["t", 0, -1]]}), "a next offset is not"),
        (packed({**PART, "offsets": [["g", "t", {0: -1}]]}), "not a map of numbers to offsets"),
        (packed({**PART, "offsets": [["g", "t"]]}), "offsets are not a group, a topic and a map"),
        (packed({**PART, "groups": [{"order": True}]}), "name of a group is not a string"),
        (packed({**PART, "levels": [[1]]}), "a level is not"),
        (packed({**PART, "cancelled": [[1, 2, True]]}), "a cancelled message is not"),
        (packed({**PART, "foreign": [[2, 1]]}), "a foreign range is not"),
        (packed({**PART, "timer": [1, 2]}), "the timer's mark is not"),
        (packed({**HEAD, "kind": "group", "group": {"name": "g", "start": "x"}}), "start of a g"),
        (packed({**HEAD, "kind": "offsets"}), "offsets is not a map"),
        (packed({**HEAD, "kind": "offsets", "offsets": {"g": {"t": {"0": 1}}}}), "a topic's off"),
        (packed({**HEAD, "kind": "delay", "levels": {1: -2}}), "levels is not a map of numbers"),
        (packed({**HEAD, "kind": "epoch", "epoch": 0}), "start_count of the record"),
        (packed({**HEAD, "kind": "foreign", "start": 5, "end": 4}), "end of the record is not"),
        (packed({**HEAD, "kind": "drain", "since_ms": -1}), "since_ms of the record is not"),
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
            st.sampled_from(
                [*GOOD, *PART, *SnapshotPart._fields, "name", "queues", "min_offsets", "offsets"]
            ),
            inner,
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


@given(CHANGES, st.data())
def test_no_flipped_bit_raises_another_exception(
    change: records.Change, data: st.DataObject
) -> None:
    body = bytearray(records.encode(change))
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
