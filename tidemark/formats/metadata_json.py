"""The JSON files in config/: topics, groups, offsets (docs/formats.md, section 15). Pure.

Unknown keys are ignored, missing ones have RocketMQ's defaults. The top-level key ``tidemark``,
which RocketMQ ignores, records what part of the log a file covers, because the files are caches of
state in the log. ``shared.state.json_cache`` chooses between a file and its ``.bak`` and replaces
files; the dialect is ``formats.json_dialect``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.formats.json_dialect import (
    I64,
    Fields,
    Json,
    MetadataUnreadable,
    Writable,
    dumps,
    is_text,
    loads,
)

__all__ = [
    "ConsumerOffsetsTable",
    "Covered",
    "DataVersion",
    "DelayOffsetsTable",
    "GroupEntry",
    "GroupsTable",
    "Json",
    "MetadataUnreadable",
    "TopicEntry",
    "TopicsTable",
    "consumer_offsets_text",
    "delay_offsets_text",
    "dumps",
    "ends_as_ours",
    "groups_text",
    "loads",
    "parse_consumer_offsets",
    "parse_delay_offsets",
    "parse_groups",
    "parse_topics",
    "topics_text",
]

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

END_SIZE: Final = 160
"""Bytes at the end of a file that show whether Tidemark wrote it."""
# One tab means the top level, which contains no user-defined names. The key sorts after all tables
# except that of topics.json.
_OUR_END: Final = re.compile(
    rb'\n\t"tidemark":\{\n\t\t"epoch":[0-9]{1,19},\n\t\t"physical_offset":[0-9]{1,19}\n\t\}\n\}\Z'
)

DEFAULT_RETRY_POLICY: Final[Mapping[str, Json]] = {"type": "CUSTOMIZED"}


class DataVersion(NamedTuple):
    """RocketMQ's version stamp of a table."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The stamp after one more change."""
        return self._replace(counter=self.counter + 1, timestamp_ms=now_ms)


class Covered(NamedTuple):
    """Position in the log up to which a file of Tidemark contains the state."""

    epoch: int
    physical_offset: int


class TopicEntry(NamedTuple):
    """One topic in topics.json (section 15.2)."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = {}


class TopicsTable(NamedTuple):
    """topics.json."""

    version: DataVersion
    topics: dict[str, TopicEntry]
    covered: Covered | None = None
    deleted: Mapping[str, Mapping[int, int]] = {}
    """Deleted topic -> queue -> queue offset at the deletion. Stored under the key ``tidemark``."""


class GroupEntry(NamedTuple):
    """One consumer group in subscriptionGroup.json (section 15.3)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max: int = 16
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_min: int = 15
    attributes: Mapping[str, str] = {}
    retry_policy: Mapping[str, Json] = DEFAULT_RETRY_POLICY


class GroupsTable(NamedTuple):
    """subscriptionGroup.json. forbidden: group -> topic -> bit mask."""

    version: DataVersion
    groups: dict[str, GroupEntry]
    forbidden: dict[str, dict[str, int]]
    covered: Covered | None = None


class ConsumerOffsetsTable(NamedTuple):
    """consumerOffset.json. offsets: (topic, group) -> queue -> next queue offset to consume."""

    version: DataVersion
    offsets: dict[tuple[str, str], dict[int, int]]
    covered: Covered | None = None


class DelayOffsetsTable(NamedTuple):
    """delayOffset.json. offsets: delay level -> next queue offset to deliver."""

    version: DataVersion
    offsets: dict[int, int]
    covered: Covered | None = None


def ends_as_ours(end: bytes) -> bool:
    """Whether the last END_SIZE bytes show that Tidemark wrote the file.

    The file is not parsed, because offsets of 100,000 groups take a second. False is inconclusive,
    because the key may be elsewhere in the file.
    """
    return _OUR_END.search(end) is not None


# -- the tables ------------------------------------------------------------------------------------


def parse_topics(text: str) -> TopicsTable:
    """Parse topics.json. Raises MetadataUnreadable."""
    root = _root(text)
    topics = {}
    for name, stored in _members(root, "topicConfigTable"):
        entry = Fields(stored, f"topic {name!r}")
        topics[name] = TopicEntry(
            name,
            read_queues=entry.integer("readQueueNums", 16, minimum=0),
            write_queues=entry.integer("writeQueueNums", 16, minimum=0),
            perm=entry.integer("perm", PERM_READ | PERM_WRITE),
            filter_type=entry.string("topicFilterType", "SINGLE_TAG"),
            sys_flag=entry.integer("topicSysFlag", 0),
            order=entry.flag("order", False),
            attributes=_strings(entry.sub("attributes")),
        )
    deleted = {
        name: _integer_map(stored, f"deleted topic {name!r}")
        for name, stored in _members(root.sub("tidemark"), "deleted")
    }
    return TopicsTable(_version(root), topics, _covered(root), deleted)


def topics_text(table: TopicsTable) -> str:
    """Build the text of topics.json."""
    return _text(
        table.version,
        table.covered,
        {"deleted": {name: dict(ends) for name, ends in table.deleted.items()}},
        topicConfigTable={
            entry.name: {
                "attributes": dict(entry.attributes),
                "order": entry.order,
                "perm": entry.perm,
                "readQueueNums": entry.read_queues,
                "topicFilterType": entry.filter_type,
                "topicName": entry.name,
                "topicSysFlag": entry.sys_flag,
                "writeQueueNums": entry.write_queues,
            }
            for entry in table.topics.values()
        },
    )


def parse_groups(text: str) -> GroupsTable:
    """Parse subscriptionGroup.json. Raises MetadataUnreadable."""
    root = _root(text)
    groups = {}
    for name, stored in _members(root, "subscriptionGroupTable"):
        entry = Fields(stored, f"group {name!r}")
        groups[name] = GroupEntry(
            name,
            consume_enable=entry.flag("consumeEnable", True),
            consume_from_min_enable=entry.flag("consumeFromMinEnable", True),
            consume_broadcast_enable=entry.flag("consumeBroadcastEnable", True),
            consume_message_orderly=entry.flag("consumeMessageOrderly", False),
            retry_queues=entry.integer("retryQueueNums", 1),
            retry_max=entry.integer("retryMaxTimes", 16),
            broker_id=entry.integer("brokerId", 0, limits=I64),
            which_broker_when_slow=entry.integer("whichBrokerWhenConsumeSlowly", 1, limits=I64),
            notify_consumer_ids_changed_enable=entry.flag("notifyConsumerIdsChangedEnable", True),
            sys_flag=entry.integer("groupSysFlag", 0),
            consume_timeout_min=entry.integer("consumeTimeoutMinute", 15),
            attributes=_strings(entry.sub("attributes")),
            retry_policy=_retry_policy(entry.member("groupRetryPolicy")),
        )
    forbidden = {}
    for name, stored in _members(root, "forbiddenTable"):
        masks = Fields(stored, f"forbidden topics of {name!r}")
        forbidden[name] = {topic: masks.integer(topic, 0) for topic in masks.names()}
    return GroupsTable(_version(root), groups, forbidden, _covered(root))


def groups_text(table: GroupsTable) -> str:
    """Build the text of subscriptionGroup.json."""
    return _text(
        table.version,
        table.covered,
        forbiddenTable=table.forbidden,
        subscriptionGroupTable={
            entry.name: {
                "attributes": dict(entry.attributes),
                "brokerId": entry.broker_id,
                "consumeBroadcastEnable": entry.consume_broadcast_enable,
                "consumeEnable": entry.consume_enable,
                "consumeFromMinEnable": entry.consume_from_min_enable,
                "consumeMessageOrderly": entry.consume_message_orderly,
                "consumeTimeoutMinute": entry.consume_timeout_min,
                "groupName": entry.name,
                "groupRetryPolicy": entry.retry_policy,
                "groupSysFlag": entry.sys_flag,
                "notifyConsumerIdsChangedEnable": entry.notify_consumer_ids_changed_enable,
                "retryMaxTimes": entry.retry_max,
                "retryQueueNums": entry.retry_queues,
                "whichBrokerWhenConsumeSlowly": entry.which_broker_when_slow,
            }
            for entry in table.groups.values()
        },
    )


def parse_consumer_offsets(text: str) -> ConsumerOffsetsTable:
    """Parse consumerOffset.json; groupTopicMap is derived, not read. Raises MetadataUnreadable."""
    root = _root(text)
    offsets = {}
    for key, stored in _members(root, "offsetTable"):
        topic, separator, group = key.partition("@")
        if separator:  # RocketMQ ignores other keys as well
            offsets[topic, group] = _integer_map(stored, f"offsets of {key!r}")
    return ConsumerOffsetsTable(_version(root), offsets, _covered(root))


def consumer_offsets_text(table: ConsumerOffsetsTable) -> str:
    """Build the text of consumerOffset.json."""
    topics_of: dict[str, list[str]] = {}
    for topic, group in sorted(table.offsets):
        topics_of.setdefault(group, []).append(topic)
    return _text(
        table.version,
        table.covered,
        groupTopicMap=topics_of,
        offsetTable={
            f"{topic}@{group}": queues for (topic, group), queues in table.offsets.items()
        },
    )


def parse_delay_offsets(text: str) -> DelayOffsetsTable:
    """Parse delayOffset.json. Raises MetadataUnreadable."""
    root = _root(text)
    offsets = _integer_map(root.member("offsetTable"), "delay offsets")
    return DelayOffsetsTable(_version(root), offsets, _covered(root))


def delay_offsets_text(table: DelayOffsetsTable) -> str:
    """Build the text of delayOffset.json."""
    return _text(table.version, table.covered, offsetTable=table.offsets)


def _root(text: str) -> Fields:
    return Fields(loads(text), "the file")


def _members(fields: Fields, key: str) -> list[tuple[str, Json]]:
    table = fields.sub(key)
    return [(name, table.member(name)) for name in table.names()]


def _integer_map(value: Json, what: str) -> dict[int, int]:
    fields = Fields(value, what)
    result = {}
    for key in fields.names():
        if not re.fullmatch(r"-?[0-9]{1,10}", key):
            raise MetadataUnreadable(f"{key!a} in {what} is not a whole number")
        result[int(key)] = fields.integer(key, 0, limits=I64)
    return result


def _version(root: Fields) -> DataVersion:
    stored = root.sub("dataVersion")
    return DataVersion(
        counter=stored.integer("counter", 0, limits=I64),
        timestamp_ms=stored.integer("timestamp", 0, limits=I64),
        state_version=stored.integer("stateVersion", 0, limits=I64),
    )


def _covered(root: Fields) -> Covered | None:
    if root.member("tidemark") is None:
        return None
    stored = root.sub("tidemark")
    return Covered(
        epoch=stored.integer("epoch", 0, minimum=0),
        physical_offset=stored.integer("physical_offset", 0, limits=I64, minimum=0),
    )


def _text(
    version: DataVersion,
    covered: Covered | None,
    more: Mapping[str, Writable] | None = None,
    **tables: Writable,
) -> str:
    """Build a file's text. more: further members of the key ``tidemark``, without empty ones."""
    root: dict[str, Writable] = {
        "dataVersion": {
            "counter": version.counter,
            "stateVersion": version.state_version,
            "timestamp": version.timestamp_ms,
        },
        **tables,
    }
    if covered is not None:
        root["tidemark"] = {
            "epoch": covered.epoch,
            "physical_offset": covered.physical_offset,
            **{name: value for name, value in (more or {}).items() if value},
        }
    return dumps(root)


def _strings(fields: Fields) -> dict[str, str]:
    return {name: fields.string(name, "") for name in fields.names()}


def _retry_policy(value: Json) -> dict[str, Json]:
    """Return the policy unchanged for RocketMQ, whose later versions may add kinds."""
    if isinstance(value, dict) and value and is_text(dumps(value)):
        return value
    return dict(DEFAULT_RETRY_POLICY)
