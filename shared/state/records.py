"""Codec of state records: what the node knows besides messages, as messages (design: state). Pure.

Topics (later groups, offsets, delay progress) are records of one system topic with one queue. The
body of a record is one msgpack map ``{"v": 1, "kind": ..., "flushed": n, ...}``. ``flushed`` is the
largest flushed offset its writer knew: a durable mark that recovery trusts.

A kind or version that this code does not know is a value (``OtherRecord``), not an error: a later
version may have written it. Members it does not know are ignored. A body that is no such map at
all, or lacks what its kind needs, is ``StateRecordUnreadable``.
Step before: the broker changes something. Step after: ``shared.state.state`` applies the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

import msgpack

STATE_TOPIC: Final = "rmq_sys_tidemark_state"
STATE_QUEUE: Final = 0
VERSION: Final = 1
KIND_TOPIC: Final = "topic"
KIND_SNAPSHOT: Final = "snapshot"

PERM_READ: Final = 4
PERM_WRITE: Final = 2

_I64_MAX: Final = 2**63 - 1
_I32_MIN: Final = -(2**31)
_I32_MAX: Final = 2**31 - 1
_HEADER_SIZE_MAX: Final = 128
"""More than a snapshot part's map takes besides its items."""

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"


class StateRecordUnreadable(ValueError):
    """The body is not a state record, or lacks what its kind needs; the message names the field."""


class TopicConfig(NamedTuple):
    """A topic, existing or deleted. The fields behind ``perm`` are RocketMQ's, kept for it."""

    name: str
    queues: int
    """Queues that sends are spread over: 0…queues − 1."""
    read_queues: int
    """Queues that can be read; more than ``queues`` after the number was lowered."""
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = {}
    min_offsets: Mapping[int, int] = {}
    """Queue -> first queue offset that is not from before a deletion; a missing queue has 0."""
    deleted: bool = False

    @property
    def is_readable(self) -> bool:
        """Consumers may pull from it."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Producers may send to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def queue_count(self) -> int:
        """Queues that can be addressed at all."""
        return max(self.queues, self.read_queues)


class NextOffset(NamedTuple):
    """The queue offset that a queue's next message gets."""

    topic: str
    queue: int
    queue_offset: int


class TopicRecord(NamedTuple):
    """A topic is now as it says, whatever it was before."""

    flushed: int
    topic: TopicConfig


class SnapshotPart(NamedTuple):
    """A part of the whole state as it was when part 0 was appended; counts only with the others."""

    flushed: int
    id: int
    part: int
    """From 0."""
    parts: int
    topics: Sequence[TopicConfig]
    next_offsets: Sequence[NextOffset]


class OtherRecord(NamedTuple):
    """A kind or version that this code does not know."""

    flushed: int
    kind: str
    version: int


StateRecord: TypeAlias = TopicRecord | SnapshotPart | OtherRecord


# -- encode ----------------------------------------------------------------------------------------


def encode_topic(record: TopicRecord) -> bytes:
    """The body of a topic record."""
    return _packed(
        {
            "v": VERSION,
            "kind": KIND_TOPIC,
            "flushed": record.flushed,
            "topic": _topic_map(record.topic),
        }
    )


def encode_snapshot(
    topics: Iterable[TopicConfig],
    next_offsets: Iterable[NextOffset],
    *,
    flushed: int,
    snapshot_id: int,
    part_bytes_max: int,
) -> list[bytes]:
    """The bodies of a whole snapshot, part 0 first, at least one.

    part_bytes_max: no body is longer, unless a single topic is. snapshot_id: another than that of
    the snapshot before; the parts are appended in this order, other records may come in between.
    """
    room = max(0, part_bytes_max - _HEADER_SIZE_MAX)
    packed_topics = (_packed(_topic_map(topic)) for topic in topics)
    packed_offsets = (_packed(list(each)) for each in next_offsets)
    parts = list(_parts(packed_topics, packed_offsets, room))
    return [
        b"".join(
            (
                b"\x88",  # a map of eight
                *_pair("v", VERSION),
                *_pair("kind", KIND_SNAPSHOT),
                *_pair("flushed", flushed),
                *_pair("id", snapshot_id),
                *_pair("part", part),
                *_pair("parts", len(parts)),
                *_array("topics", part_topics),
                *_array("next_offsets", part_offsets),
            )
        )
        for part, (part_topics, part_offsets) in enumerate(parts)
    ]


def _parts(
    topics: Iterator[bytes], offsets: Iterator[bytes], room: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Share the packed items out, in order, room bytes per part (one item always fits)."""
    part: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    for into, items in enumerate((topics, offsets)):
        for item in items:
            if size and size + len(item) > room:
                yield part
                part, size = ([], []), 0
            part[into].append(item)
            size += len(item)
    yield part


def _packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def _pair(name: str, value: int | str) -> tuple[bytes, bytes]:
    return _packed(name), _packed(value)


def _array(name: str, items: Sequence[bytes]) -> tuple[bytes, ...]:
    return _packed(name), cast(bytes, msgpack.Packer().pack_array_header(len(items))), *items


def _topic_map(topic: TopicConfig) -> dict[str, object]:
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


# -- decode ----------------------------------------------------------------------------------------


def decode(body: bytes | bytearray | memoryview) -> StateRecord:
    """The record in a body. Raises StateRecordUnreadable."""
    fields = _Fields(_unpacked(body), "the record")
    version = fields.integer("v")
    kind = fields.text("kind")
    flushed = fields.integer("flushed")
    if version == VERSION and kind == KIND_TOPIC:
        return TopicRecord(flushed, _topic(fields.value("topic")))
    if version == VERSION and kind == KIND_SNAPSHOT:
        parts = fields.integer("parts", low=1)
        return SnapshotPart(
            flushed,
            id=fields.integer("id"),
            part=fields.integer("part", high=parts - 1),
            parts=parts,
            topics=[_topic(each) for each in fields.items("topics")],
            next_offsets=[_next_offset(each) for each in fields.items("next_offsets")],
        )
    return OtherRecord(flushed, kind, version)


def flushed_of(body: bytes | bytearray | memoryview) -> int | None:
    """The durable mark that a record carries, whatever its kind; None if it is unreadable."""
    try:
        return _Fields(_unpacked(body), "the record").integer("flushed")
    except StateRecordUnreadable:
        return None


class _Fields:
    """One map, asked for typed members by name."""

    def __init__(self, value: Value, what: str) -> None:
        if not isinstance(value, dict):
            raise StateRecordUnreadable(f"{what} is not a map")
        self._members = value
        self._what = what

    def value(self, name: str) -> Value:
        return self._members.get(name)

    def integer(
        self, name: str, default: int | None = None, *, low: int = 0, high: int = _I64_MAX
    ) -> int:
        value = self._members.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number in {low}…{high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._members.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._members.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def items(self, name: str) -> list[Value]:
        value = self._members.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def strings(self) -> dict[str, str]:
        if not all(isinstance(name, str) for name in self._members):
            raise StateRecordUnreadable(f"a name in {self._what} is not a string")
        return {name: self.text(name) for name in self._members}

    def _wrong(self, name: str, wanted: str) -> StateRecordUnreadable:
        return StateRecordUnreadable(f"{name} of {self._what} is not {wanted}")


def _unpacked(body: bytes | bytearray | memoryview) -> Value:
    try:
        # Keys of any kind: a later version's kind may use numbers. TypeError: a list as a key.
        value: Value = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateRecordUnreadable(f"not msgpack: {error}") from None
    return value


def _topic(value: Value) -> TopicConfig:
    fields = _Fields(value, "a topic")
    name = fields.text("name")
    queues = fields.integer("queues", high=_I32_MAX)
    attributes = _Fields(fields.value("attributes") or {}, "attributes")
    return TopicConfig(
        name,
        queues=queues,
        read_queues=fields.integer("read_queues", queues, high=_I32_MAX),
        perm=fields.integer("perm", PERM_READ | PERM_WRITE, high=_I32_MAX),
        order=fields.flag("order"),
        filter_type=fields.text("filter_type", "SINGLE_TAG"),
        sys_flag=fields.integer("sys_flag", 0, low=_I32_MIN, high=_I32_MAX),
        attributes=attributes.strings(),
        min_offsets=dict(_min_offset(each) for each in fields.items("min_offsets")),
        deleted=fields.flag("deleted"),
    )


def _min_offset(value: Value) -> tuple[int, int]:
    match value:
        case [int(queue), int(offset)] if 0 <= queue <= _I32_MAX and 0 <= offset <= _I64_MAX:
            return queue, offset
    raise StateRecordUnreadable("a min offset is not a queue and a queue offset")


def _next_offset(value: Value) -> NextOffset:
    match value:
        case [str(topic), int(queue), int(offset)] if (
            0 <= queue <= _I32_MAX and 0 <= offset <= _I64_MAX
        ):
            return NextOffset(topic, queue, offset)
    raise StateRecordUnreadable("a next offset is not a topic, a queue and a queue offset")
