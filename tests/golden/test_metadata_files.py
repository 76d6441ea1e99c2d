"""config/*.json that Apache RocketMQ wrote: read as its managers read them, written in its form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import golden_names, manifest, unpack
from tidemark.formats import metadata_json

STORES = [name for name in golden_names() if "metadata" in manifest(name)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """(the config directory, what the managers had loaded)."""
    return unpack(request.param, tmp_path) / "config", manifest(request.param)["metadata"]


def same_but_for_order(one: str, other: str) -> bool:
    """The reference writes maps in the order of Java's hash; commas move with the order."""
    return sorted(line.rstrip(",") for line in one.split("\n")) == sorted(
        line.rstrip(",") for line in other.split("\n")
    )


def test_topics(store: tuple[Path, dict[str, Any]]) -> None:
    config, expected = store
    text = (config / "topics.json").read_text(encoding="utf-8")
    table = metadata_json.parse_topics(text)
    assert {
        name: {
            "readQueueNums": topic.read_queues,
            "writeQueueNums": topic.write_queues,
            "perm": topic.perm,
            "topicFilterType": topic.filter_type,
            "topicSysFlag": topic.sys_flag,
            "order": topic.order,
            "attributes": topic.attributes,
        }
        for name, topic in table.topics.items()
    } == expected["topics"]
    assert same_but_for_order(metadata_json.topics_text(table), text)


def test_groups(store: tuple[Path, dict[str, Any]]) -> None:
    config, expected = store
    text = (config / "subscriptionGroup.json").read_text(encoding="utf-8")
    table = metadata_json.parse_groups(text)
    assert {
        name: {
            "consumeEnable": group.consume_enable,
            "consumeFromMinEnable": group.consume_from_min_enable,
            "consumeBroadcastEnable": group.consume_broadcast_enable,
            "consumeMessageOrderly": group.consume_message_orderly,
            "retryQueueNums": group.retry_queues,
            "retryMaxTimes": group.retry_max,
            "brokerId": group.broker_id,
            "whichBrokerWhenConsumeSlowly": group.which_broker_when_slow,
            "consumeTimeoutMinute": group.consume_timeout_min,
        }
        for name, group in table.groups.items()
    } == expected["groups"]
    assert same_but_for_order(metadata_json.groups_text(table), text)


def test_consumer_offsets(store: tuple[Path, dict[str, Any]]) -> None:
    config, expected = store
    text = (config / "consumerOffset.json").read_text(encoding="utf-8")
    table = metadata_json.parse_consumer_offsets(text)
    assert {
        f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()}
        for (topic, group), queues in table.offsets.items()
    } == expected["consumerOffsets"]
    missing = expected["consumerOffsetMissing"]
    assert (missing["topic"], missing["group"]) not in table.offsets
    # The order inside groupTopicMap's lists is a Java set's.
    written = metadata_json.consumer_offsets_text(table)
    assert same_but_for_order(_without_group_map(written), _without_group_map(text))


def _without_group_map(text: str) -> str:
    start = text.index('\t"groupTopicMap"')
    return text[:start] + text[text.index('\t"offsetTable"') :]


def test_delay_offsets(store: tuple[Path, dict[str, Any]]) -> None:
    config, expected = store
    text = (config / "delayOffset.json").read_text(encoding="utf-8")
    table = metadata_json.parse_delay_offsets(text)
    loaded = {str(level): offset for level, offset in table.offsets.items()}
    assert loaded == expected["delayOffsets"]
    assert metadata_json.delay_offsets_text(table) == text


def test_twins_are_readable(store: tuple[Path, dict[str, Any]]) -> None:
    config, _ = store
    for name, parse in (
        ("topics.json.bak", metadata_json.parse_topics),
        ("subscriptionGroup.json.bak", metadata_json.parse_groups),
        ("consumerOffset.json.bak", metadata_json.parse_consumer_offsets),
    ):
        if (config / name).exists():
            parse((config / name).read_text(encoding="utf-8"))
