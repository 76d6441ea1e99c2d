"""Conversion between our state and the entries of RocketMQ's JSON files. Pure.

Settings for which RocketMQ has no field are kept in a group's ``attributes`` under names of ours:
RocketMQ reads and writes them like any others. Before and after: ``shared.state.json_cache``;
``formats.metadata_json`` converts the files' text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from shared.state.records import GroupConfig, Start, TopicConfig
from shared.state.typed_fields import I32_MAX
from shared.state.values import RETRY_POLICY_DEFAULT
from tidemark.formats.json_dialect import dumps, loads
from tidemark.formats.metadata_json import DEFAULT_RETRY_POLICY, GroupEntry, Json, TopicEntry
from tidemark.offsets import Queue

BROADCAST: Final = "tidemark.broadcast"
START: Final = "tidemark.start"
LAG_OBJECTIVE_MS: Final = "tidemark.lag_objective_ms"
_DIGITS: Final = re.compile(r"[0-9]{1,16}")
_OURS: Final = frozenset({BROADCAST, START, LAG_OBJECTIVE_MS})


def config_of(entry: TopicEntry) -> TopicConfig:
    """Convert a topic of RocketMQ to one of ours."""
    return TopicConfig(
        entry.name,
        queues=entry.write_queues,
        read_queues=entry.read_queues,
        perm=entry.perm & 0x7FFFFFFF,
        order=entry.order,
        filter_type=entry.filter_type,
        sys_flag=entry.sys_flag,
        attributes=entry.attributes,
    )


def entry_of(topic: TopicConfig) -> TopicEntry:
    """Convert a topic of ours to RocketMQ's entry."""
    return TopicEntry(
        topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.queues,
        perm=topic.perm,
        filter_type=topic.filter_type,
        sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=topic.attributes,
    )


def group_of(entry: GroupEntry, forbidden: Mapping[str, int]) -> GroupConfig:
    """Convert a group of RocketMQ, and the topics it may not consume, to one of ours."""
    attributes = entry.attributes
    return GroupConfig(
        entry.name,
        order=entry.consume_message_orderly,
        broadcast=attributes.get(BROADCAST) == "true",
        start=_start(attributes.get(START)),
        retry_max=entry.retry_max,
        retry_queues=entry.retry_queues,
        lag_objective_ms=_number(attributes.get(LAG_OBJECTIVE_MS)),
        consume_enabled=entry.consume_enable,
        consume_from_min_enabled=entry.consume_from_min_enable,
        broadcast_enabled=entry.consume_broadcast_enable,
        broker_id=entry.broker_id,
        which_broker_when_slow=entry.which_broker_when_slow,
        notify_members_changed=entry.notify_consumer_ids_changed_enable,
        sys_flag=entry.sys_flag,
        consume_timeout_min=entry.consume_timeout_min,
        attributes={name: value for name, value in attributes.items() if name not in _OURS},
        retry_policy=_policy_text(entry.retry_policy),
        forbidden=dict(forbidden),
    )


def group_entry_of(group: GroupConfig) -> GroupEntry:
    """Convert a group of ours to RocketMQ's entry."""
    attributes = dict(group.attributes)
    if group.broadcast:
        attributes[BROADCAST] = "true"
    if group.start != "first":
        attributes[START] = str(group.start)
    if group.lag_objective_ms is not None:
        attributes[LAG_OBJECTIVE_MS] = str(group.lag_objective_ms)
    return GroupEntry(
        group.name,
        consume_enable=group.consume_enabled,
        consume_from_min_enable=group.consume_from_min_enabled,
        consume_broadcast_enable=group.broadcast_enabled,
        consume_message_orderly=group.order,
        retry_queues=group.retry_queues,
        retry_max=group.retry_max,
        broker_id=group.broker_id,
        which_broker_when_slow=group.which_broker_when_slow,
        notify_consumer_ids_changed_enable=group.notify_members_changed,
        sys_flag=group.sys_flag,
        consume_timeout_min=group.consume_timeout_min,
        attributes=attributes,
        retry_policy=_policy(group.retry_policy),
    )


def offsets_of(table: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, dict[Queue, int]]:
    """Convert RocketMQ's consumer offsets to ours; negative ones mean "none" and are left out."""
    found: dict[str, dict[Queue, int]] = {}
    for (topic, group), queues in table.items():
        known = {
            (topic, queue): offset
            for queue, offset in queues.items()
            if 0 <= queue <= I32_MAX and offset >= 0
        }
        if known:
            found.setdefault(group, {}).update(known)
    return found


def offsets_table(
    offsets: Iterable[tuple[str, Mapping[Queue, int]]],
) -> dict[tuple[str, str], dict[int, int]]:
    """Convert our consumer offsets, one item per group, to RocketMQ's table."""
    table: dict[tuple[str, str], dict[int, int]] = {}
    for group, pairs in offsets:
        for (topic, queue), offset in pairs.items():
            table.setdefault((topic, group), {})[queue] = offset
    return table


def _start(value: str | None) -> Start:
    if value == "last":
        return "last"
    number = _number(value)
    return "first" if number is None else number


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and _DIGITS.fullmatch(value) else None


def _policy_text(policy: Mapping[str, Json]) -> str:
    return RETRY_POLICY_DEFAULT if policy == DEFAULT_RETRY_POLICY else dumps(policy)


def _policy(text: str) -> Mapping[str, Json]:
    policy = loads(text)
    return policy if isinstance(policy, dict) else DEFAULT_RETRY_POLICY
