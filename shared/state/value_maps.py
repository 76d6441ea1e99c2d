"""Topics, groups, offsets and delay progress as msgpack values, and back. Pure.

Decoding raises StateRecordUnreadable, and uses defaults for missing members: a record of an earlier
version lacks members that were added later. Before and after: ``shared.state.records``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from shared.state.typed_fields import (
    I32_MAX,
    I32_MIN,
    I64_MAX,
    StateRecordUnreadable,
    TypedFields,
    Value,
    is_number,
)
from shared.state.values import (
    PERM_READ,
    PERM_WRITE,
    RETRY_POLICY_DEFAULT,
    Delayed,
    ForeignRange,
    GroupConfig,
    NextOffset,
    Start,
    TimerMark,
    TopicConfig,
)
from tidemark.offsets import Queue

_I64_MIN: Final = -(2**63)
_USUAL: Final = GroupConfig("")[1:]
_QUEUES_PER_ITEM: Final = 256
"""Queues of one group and topic in one item of a snapshot; an item is never split over parts."""


def topic_map(topic: TopicConfig) -> dict[str, object]:
    """Encode a topic with all members."""
    return {
        "name": topic.name,
        "queues": topic.queues,
        "read_queues": topic.read_queues,
        "perm": topic.perm,
        "order": topic.order,
        "filter_type": topic.filter_type,
        "sys_flag": topic.sys_flag,
        "attributes": dict(topic.attributes),
        "min_offsets": sorted([queue, offset] for queue, offset in topic.min_offsets.items()),
        "deleted": topic.deleted,
    }


def topic_of(value: Value) -> TopicConfig:
    """Decode the result of ``topic_map``."""
    fields = TypedFields(value, "a topic")
    name = fields.text("name")
    queues = fields.integer("queues", high=I32_MAX)
    attributes = TypedFields(fields.value("attributes") or {}, "attributes")
    return TopicConfig(
        name,
        queues=queues,
        read_queues=fields.integer("read_queues", queues, high=I32_MAX),
        perm=fields.integer("perm", PERM_READ | PERM_WRITE, high=I32_MAX),
        order=fields.flag("order"),
        filter_type=fields.text("filter_type", "SINGLE_TAG"),
        sys_flag=fields.integer("sys_flag", 0, low=I32_MIN, high=I32_MAX),
        attributes=attributes.strings(),
        min_offsets=dict(_min_offset(each) for each in fields.items("min_offsets")),
        deleted=fields.flag("deleted"),
    )


def _min_offset(value: Value) -> tuple[int, int]:
    match value:
        case [int(queue), int(offset)] if 0 <= queue <= I32_MAX and 0 <= offset <= I64_MAX:
            return queue, offset
    raise StateRecordUnreadable("a min offset is not a queue and a queue offset")


def group_map(group: GroupConfig) -> dict[str, object]:
    """Encode a group without members that have their default; a snapshot may list 100,000."""
    if group[1:] == _USUAL:
        return {"name": group.name}
    usual = GroupConfig(group.name)._asdict()
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in group._asdict().items()
        if name == "name" or value != usual[name]
    }


def group_of(value: Value) -> GroupConfig:
    """Decode the result of ``group_map``."""
    fields = TypedFields(value, "a group")
    objective = fields.value("lag_objective_ms")
    attributes = TypedFields(fields.value("attributes") or {}, "attributes")
    forbidden = TypedFields(fields.value("forbidden") or {}, "forbidden topics")
    return GroupConfig(
        fields.text("name"),
        order=fields.flag("order"),
        broadcast=fields.flag("broadcast"),
        start=_start(fields),
        retry_max=fields.integer("retry_max", 16, low=I32_MIN, high=I32_MAX),
        retry_queues=fields.integer("retry_queues", 1, low=I32_MIN, high=I32_MAX),
        lag_objective_ms=None if objective is None else fields.integer("lag_objective_ms"),
        consume_enabled=fields.flag("consume_enabled", True),
        consume_from_min_enabled=fields.flag("consume_from_min_enabled", True),
        broadcast_enabled=fields.flag("broadcast_enabled", True),
        broker_id=fields.integer("broker_id", 0, low=_I64_MIN),
        which_broker_when_slow=fields.integer("which_broker_when_slow", 1, low=_I64_MIN),
        notify_members_changed=fields.flag("notify_members_changed", True),
        sys_flag=fields.integer("sys_flag", 0, low=I32_MIN, high=I32_MAX),
        consume_timeout_min=fields.integer("consume_timeout_min", 15, low=I32_MIN, high=I32_MAX),
        attributes=attributes.strings(),
        retry_policy=fields.text("retry_policy", RETRY_POLICY_DEFAULT),
        forbidden={
            topic: forbidden.integer(topic, low=I32_MIN, high=I32_MAX) for topic in forbidden.maps()
        },
        deleted=fields.flag("deleted"),
    )


def _start(fields: TypedFields) -> Start:
    match fields.value("start"):
        case None | "first":
            return "first"
        case "last":
            return "last"
    return fields.integer("start")


def next_offset_of(value: Value) -> NextOffset:
    """Decode [topic, queue, queue offset]."""
    match value:
        case [str(topic), int(queue), int(offset)] if (
            0 <= queue <= I32_MAX and 0 <= offset <= I64_MAX
        ):
            return NextOffset(topic, queue, offset)
    raise StateRecordUnreadable("a next offset is not a topic, a queue and a queue offset")


def offset_items(offsets: Mapping[str, Mapping[Queue, int]]) -> Iterator[list[object]]:
    """Yield [group, topic, {queue: offset}] in order; a topic of many queues gives several."""
    for group in sorted(offsets):
        for topic, queues in topics_of(offsets[group]).items():
            if len(queues) <= _QUEUES_PER_ITEM:
                yield [group, topic, queues]
                continue
            listed = list(queues.items())
            for at in range(0, len(listed), _QUEUES_PER_ITEM):
                yield [group, topic, dict(listed[at : at + _QUEUES_PER_ITEM])]


def topics_of(pairs: Mapping[Queue, int]) -> dict[str, dict[int, int]]:
    """Convert (topic, queue) -> offset to topic -> queue -> offset, sorted."""
    nested: dict[str, dict[int, int]] = {}
    for (topic, queue), offset in sorted(pairs.items()):
        nested.setdefault(topic, {})[queue] = offset
    return nested


def offset_item_of(value: Value) -> tuple[str, dict[Queue, int]]:
    """Decode an item of ``offset_items``: the group and its offsets."""
    match value:
        case [str(group), str(topic), dict(queues)]:
            numbers = TypedFields(queues, "offsets").numbers()
            return group, {(topic, queue): offset for queue, offset in numbers.items()}
    raise StateRecordUnreadable("offsets are not a group, a topic and a map")


def pairs_of(value: Value) -> dict[Queue, int]:
    """Convert topic -> queue -> offset to (topic, queue) -> offset."""
    topics = TypedFields(value, "a group's offsets").maps()
    return {
        (topic, queue): offset
        for topic, queues in topics.items()
        for queue, offset in TypedFields(queues, "a topic's offsets").numbers().items()
    }


def timer_of(value: Value) -> TimerMark:
    """Decode [due time, queue offset, read to]."""
    match value:
        case [int(due_ms), int(queue_offset), int(read_to)] if all(
            is_number(each, I64_MAX) for each in value
        ):
            return TimerMark(due_ms, queue_offset, read_to)
    raise StateRecordUnreadable("the timer's mark is not a time and two queue offsets")


def level_of(value: Value) -> tuple[int, int]:
    """Decode [level, next queue offset]."""
    match value:
        case [int(level), int(offset)] if is_number(level, I32_MAX) and is_number(offset, I64_MAX):
            return level, offset
    raise StateRecordUnreadable("a level is not a number and a queue offset")


def cancelled_of(value: Value) -> tuple[Delayed, int]:
    """Decode [level, queue offset, due time]."""
    match value:
        case [int(level), int(offset), int(due_ms)] if all(
            is_number(each, I64_MAX) for each in value
        ):
            return (level, offset), due_ms
    raise StateRecordUnreadable("a cancelled message is not a level, an offset and a time")


def deleted_below_of(value: Value) -> tuple[str, int]:
    """Decode [topic, physical offset]."""
    match value:
        case [str(topic), int(offset)] if is_number(offset, I64_MAX):
            return topic, offset
    raise StateRecordUnreadable("what was deleted is not a topic and a physical offset")


def foreign_of(value: Value) -> ForeignRange:
    """Decode [start, end]."""
    match value:
        case [int(start), int(end)] if 0 <= start <= end <= I64_MAX:
            return ForeignRange(start, end)
    raise StateRecordUnreadable("a foreign range is not a pair of physical offsets")
