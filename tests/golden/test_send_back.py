"""Messages that RocketMQ stored, nacked on a node that took its store over."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.golden.test_node_answers import node_of
from tests.support import golden, offline
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.record import STORE_HOST_V6, Record

EACH = 3
"""Messages of every count of retries and topic."""
RETRY_MAX = 16


def chosen(name: str) -> list[dict[str, Any]]:
    """Some messages of every number of retries that the store has."""
    by_times: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in golden.queued_messages(name):
        if message["topic"] != SCHEDULE_TOPIC:
            by_times[message["topic"], message["reconsumeTimes"]].append(message)
    return [message for some in by_times.values() for message in some[:: len(some) // EACH + 1]]


@pytest.mark.parametrize("name", golden.golden_names())
def test_a_message_of_rocketmq_goes_on_at_its_retry_level(name: str, tmp_path: Path) -> None:
    messages = chosen(name)
    assert messages, "the store has messages of its own"
    levels = len(golden.manifest(name)["config"]["messageDelayLevel"].split())
    answers: list[dict[str, Any]] = []
    with node_of(name, tmp_path) as node:
        node.start()
        node.wait_ready()
        for message in messages:
            body = {"message_id": message["msgId"]}
            status, answer = node.request_json("POST", "/v1/groups/GroupA/nack", body)
            assert status == 200, answer
            answers.append(answer)
        node.stop()
    records = {each.message_id: each for each in offline.records(node.store_dir)}
    for message, answer in zip(messages, answers, strict=True):
        times = message["reconsumeTimes"]
        dead = times >= RETRY_MAX
        assert answer["status"] == ("DEAD" if dead else "RETRY")
        assert answer["topic"] == ("%DLQ%GroupA" if dead else "%RETRY%GroupA")
        assert answer["delay_level"] == (0 if dead else min(3 + times, levels))
        check_record(records[answer["message_id"]], message, answer)


def check_record(stored: Record, message: dict[str, Any], answer: dict[str, Any]) -> None:
    """The stored retry, compared with the reference's record of the message."""
    dead = answer["status"] == "DEAD"
    assert stored.topic == ("%DLQ%GroupA" if dead else SCHEDULE_TOPIC)
    assert stored.queue_id == (0 if dead else answer["delay_level"] - 1)
    assert stored.reconsume_times == message["reconsumeTimes"] + 1 == answer["reconsume_times"]
    assert hashlib.sha256(stored.body).hexdigest() == message["bodySha256"]
    assert stored.flag == message["flag"]
    assert stored.sys_flag == message["sysFlag"] & ~STORE_HOST_V6, "this node's host is IPv4"
    assert stored.born_timestamp_ms == message["bornTimestamp"]
    assert stored.prepared_transaction_offset == 0
    expected = {
        # RocketMQ adds no unique id. By it the copies of a message without one are found.
        "UNIQ_KEY": f"{message['msgId']}-{message['queueOffset']}",
        **message["properties"],
        "WAIT": "false",
        "DELAY": str(answer["delay_level"]),
        "RETRY_TOPIC": message["properties"].get("RETRY_TOPIC", message["topic"]),
        "ORIGIN_MESSAGE_ID": message["properties"].get("ORIGIN_MESSAGE_ID", message["msgId"]),
    }
    if not dead:
        expected |= {"REAL_TOPIC": "%RETRY%GroupA", "REAL_QID": "0"}
    assert stored.property_map == expected, "as this store is configured, without record CRC"
