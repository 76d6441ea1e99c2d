"""Codec of state records: the broker's metadata, stored as messages. Pure.

Topics, groups, consumer offsets, delay progress, starts, drains, and ranges that RocketMQ wrote are
records of one system topic with one queue. The body of a record is one msgpack map
``{"v": 1, "kind": ..., "flushed": n, ...}``. ``flushed`` is the largest flushed offset that the
writer knew: a durable mark that recovery trusts.

A record of an unknown kind or version is a value (``OtherRecord``), not an error: a later version
may have written it. Unknown members are ignored. A body that is not such a map, or that lacks what
its kind requires, is ``StateRecordUnreadable``.
Step before: the broker changes something. Step after: ``shared.state.state`` applies the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgpack

from shared.state import value_maps
from shared.state.kinds import (
    Change,
    DelayRecord,
    DrainRecord,
    EpochRecord,
    ForeignRecord,
    GroupRecord,
    OffsetsRecord,
    OtherRecord,
    SnapshotPart,
    StateRecord,
    TopicRecord,
)
from shared.state.typed_fields import StateRecordUnreadable, TypedFields, unpacked
from shared.state.values import (
    PERM_READ,
    PERM_WRITE,
    Delayed,
    DelayState,
    ForeignRange,
    GroupConfig,
    NextOffset,
    Start,
    TimerMark,
    TopicConfig,
)
from tidemark.offsets import Queue

__all__ = [
    "PERM_READ",
    "PERM_WRITE",
    "STATE_QUEUE",
    "STATE_TOPIC",
    "Change",
    "DelayRecord",
    "DelayState",
    "Delayed",
    "DrainRecord",
    "EpochRecord",
    "ForeignRange",
    "ForeignRecord",
    "GroupConfig",
    "GroupRecord",
    "NextOffset",
    "OffsetsRecord",
    "OtherRecord",
    "Queue",
    "SnapshotPart",
    "Start",
    "StateRecord",
    "StateRecordUnreadable",
    "TimerMark",
    "TopicConfig",
    "TopicRecord",
    "decode",
    "encode",
    "encode_snapshot",
    "encode_topic",
    "flushed_of",
    "part_of",
]

STATE_TOPIC: Final = "rmq_sys_tidemark_state"
STATE_QUEUE: Final = 0
VERSION: Final = 1
KIND_TOPIC: Final = "topic"
KIND_GROUP: Final = "group"
KIND_OFFSETS: Final = "offsets"
KIND_DELAY: Final = "delay"
KIND_EPOCH: Final = "epoch"
KIND_FOREIGN: Final = "foreign"
KIND_DRAIN: Final = "drain"
KIND_SNAPSHOT: Final = "snapshot"

NOTHING_DELAYED: Final = DelayState()
_HEADER_SIZE_MAX: Final = 320
"""Upper bound of a snapshot part's size without its items."""


# -- encode ----------------------------------------------------------------------------------------


def encode(record: Change) -> bytes:
    """Encode the body of a record of one change."""
    match record:
        case TopicRecord(flushed, topic):
            return _body(KIND_TOPIC, flushed, topic=value_maps.topic_map(topic))
        case GroupRecord(flushed, group):
            return _body(KIND_GROUP, flushed, group=value_maps.group_map(group))
        case OffsetsRecord(flushed, moves):
            nested = {group: value_maps.topics_of(pairs) for group, pairs in moves.items()}
            return _body(KIND_OFFSETS, flushed, offsets=nested)
        case DelayRecord(flushed, levels, timer, cancelled):
            return _body(
                KIND_DELAY,
                flushed,
                levels=dict(levels),
                timer=None if timer is None else list(timer),
                cancelled=[[*delayed, due_ms] for delayed, due_ms in cancelled.items()],
            )
        case EpochRecord(flushed, epoch, start_count):
            return _body(KIND_EPOCH, flushed, epoch=epoch, start_count=start_count)
        case ForeignRecord(flushed, foreign):
            return _body(KIND_FOREIGN, flushed, start=foreign.start, end=foreign.end)
        case DrainRecord(flushed, since_ms):
            return _body(KIND_DRAIN, flushed, since_ms=since_ms)


def encode_topic(record: TopicRecord) -> bytes:
    """Encode the body of a topic record."""
    return encode(record)


def encode_snapshot(
    topics: Iterable[TopicConfig],
    next_offsets: Iterable[NextOffset],
    *,
    groups: Iterable[GroupConfig] = (),
    offsets: Mapping[str, Mapping[Queue, int]] | None = None,
    delay: DelayState = NOTHING_DELAYED,
    foreign: Iterable[ForeignRange] = (),
    deleted_below: Mapping[str, int] | None = None,
    drained_since_ms: int | None = None,
    start_count: int = 0,
    flushed: int,
    snapshot_id: int,
    part_bytes_max: int,
) -> list[bytes]:
    """Encode a whole snapshot; return the bodies, part 0 first, at least one.

    part_bytes_max: maximum size of a body, exceeded only if a single topic or group is larger.
    snapshot_id: must differ from that of the previous snapshot. The parts are appended in this
    order; other records may be appended in between.
    """
    packed = msgpack.Packer(use_bin_type=True).pack  # one for all: creating one is slower
    sections: dict[str, Iterator[bytes]] = {
        "topics": map(packed, map(value_maps.topic_map, topics)),
        "next_offsets": map(packed, next_offsets),
        "groups": map(packed, map(value_maps.group_map, groups)),
        "offsets": map(packed, value_maps.offset_items(offsets or {})),
        "levels": map(packed, sorted(delay.levels.items())),
        "cancelled": (packed([*each, due_ms]) for each, due_ms in delay.cancelled.items()),
        "foreign": map(packed, foreign),
    }
    if deleted_below:
        sections["deleted_below"] = map(packed, deleted_below.items())
    drained = () if drained_since_ms is None else _pair("drained_since_ms", drained_since_ms)
    parts = list(_parts(sections, max(0, part_bytes_max - _HEADER_SIZE_MAX)))
    return [
        b"".join(
            (
                msgpack.Packer().pack_map_header(8 + len(drained) // 2 + len(sections)),
                *_pair("v", VERSION),
                *_pair("kind", KIND_SNAPSHOT),
                *_pair("flushed", flushed),
                *_pair("id", snapshot_id),
                *_pair("part", part),
                *_pair("parts", len(parts)),
                *_pair("timer", list(delay.timer)),
                *_pair("start_count", start_count),
                *drained,
                *(piece for name in sections for piece in _array(name, items.get(name, []))),
            )
        )
        for part, items in enumerate(parts)
    ]


def _parts(
    sections: Mapping[str, Iterator[bytes]], room: int
) -> Iterator[Mapping[str, Sequence[bytes]]]:
    """Distribute the packed items in order, room bytes per part (at least one item each)."""
    part: dict[str, list[bytes]] = {}
    size = 0
    for name, items in sections.items():
        for item in items:
            if size and size + len(item) > room:
                yield part
                part, size = {}, 0
            part.setdefault(name, []).append(item)
            size += len(item)
    yield part


def _body(kind: str, flushed: int, **members: object) -> bytes:
    return _packed({"v": VERSION, "kind": kind, "flushed": flushed, **members})


def _packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def _pair(name: str, value: object) -> tuple[bytes, bytes]:
    return _packed(name), _packed(value)


def _array(name: str, items: Sequence[bytes]) -> tuple[bytes, ...]:
    return _packed(name), cast(bytes, msgpack.Packer().pack_array_header(len(items))), *items


# -- decode ----------------------------------------------------------------------------------------


def decode(body: bytes | bytearray | memoryview) -> StateRecord:
    """Decode a body. Raises StateRecordUnreadable."""
    fields = TypedFields(unpacked(body), "the record")
    version = fields.integer("v")
    kind = fields.text("kind")
    flushed = fields.integer("flushed")
    read = _READERS.get(kind) if version == VERSION else None
    return OtherRecord(flushed, kind, version) if read is None else read(flushed, fields)


def flushed_of(body: bytes | bytearray | memoryview) -> int | None:
    """Return the durable mark of a record of any kind; None if the record is unreadable."""
    try:
        return TypedFields(unpacked(body), "the record").integer("flushed")
    except StateRecordUnreadable:
        return None


def part_of(body: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """Return (part, parts) of a snapshot's body; None for any other body, readable or not."""
    try:
        if TypedFields(unpacked(body), "the record").value("kind") != KIND_SNAPSHOT:
            return None
        record = decode(body)
    except StateRecordUnreadable:
        return None
    return (record.part, record.parts) if isinstance(record, SnapshotPart) else None


def _topic_record(flushed: int, fields: TypedFields) -> StateRecord:
    return TopicRecord(flushed, value_maps.topic_of(fields.value("topic")))


def _group_record(flushed: int, fields: TypedFields) -> StateRecord:
    return GroupRecord(flushed, value_maps.group_of(fields.value("group")))


def _offsets_record(flushed: int, fields: TypedFields) -> StateRecord:
    groups = TypedFields(fields.value("offsets"), "offsets").maps()
    return OffsetsRecord(
        flushed, {group: value_maps.pairs_of(pairs) for group, pairs in groups.items()}
    )


def _delay_record(flushed: int, fields: TypedFields) -> StateRecord:
    timer = fields.value("timer")
    return DelayRecord(
        flushed,
        TypedFields(fields.value("levels") or {}, "levels").numbers(),
        None if timer is None else value_maps.timer_of(timer),
        dict(map(value_maps.cancelled_of, fields.items("cancelled"))),
    )


def _epoch_record(flushed: int, fields: TypedFields) -> StateRecord:
    return EpochRecord(flushed, fields.integer("epoch"), fields.integer("start_count"))


def _foreign_record(flushed: int, fields: TypedFields) -> StateRecord:
    start = fields.integer("start")
    return ForeignRecord(flushed, ForeignRange(start, fields.integer("end", low=start)))


def _drain_record(flushed: int, fields: TypedFields) -> StateRecord:
    return DrainRecord(flushed, fields.optional_integer("since_ms"))


def _snapshot_part(flushed: int, fields: TypedFields) -> StateRecord:
    parts = fields.integer("parts", low=1)
    timer = fields.value("timer")
    return SnapshotPart(
        flushed,
        id=fields.integer("id"),
        part=fields.integer("part", high=parts - 1),
        parts=parts,
        topics=[value_maps.topic_of(each) for each in fields.items("topics")],
        next_offsets=[value_maps.next_offset_of(each) for each in fields.items("next_offsets")],
        groups=tuple(map(value_maps.group_of, fields.items("groups"))),
        offsets=tuple(map(value_maps.offset_item_of, fields.items("offsets"))),
        levels=tuple(map(value_maps.level_of, fields.items("levels"))),
        timer=TimerMark() if timer is None else value_maps.timer_of(timer),
        cancelled=tuple(map(value_maps.cancelled_of, fields.items("cancelled"))),
        foreign=tuple(map(value_maps.foreign_of, fields.items("foreign"))),
        start_count=fields.integer("start_count", 0),
        deleted_below=tuple(map(value_maps.deleted_below_of, fields.items("deleted_below"))),
        drained_since_ms=fields.optional_integer("drained_since_ms"),
    )


_READERS: Final[Mapping[str, Callable[[int, TypedFields], StateRecord]]] = {
    KIND_TOPIC: _topic_record,
    KIND_GROUP: _group_record,
    KIND_OFFSETS: _offsets_record,
    KIND_DELAY: _delay_record,
    KIND_EPOCH: _epoch_record,
    KIND_FOREIGN: _foreign_record,
    KIND_DRAIN: _drain_record,
    KIND_SNAPSHOT: _snapshot_part,
}
