"""A store of ours that RocketMQ had in between: nothing is lost or reported as corrupt.

A script plays RocketMQ (``support.by_hand``): it appends over the border of a file without a
snapshot, with record CRC properties copied from other records, delivers a delayed message, rewrites
its JSON files without our key, and stops in order or is killed.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Final

import pytest

from shared.state.records import ForeignRange
from tests.processes.test_state_in_log import (
    FILE_SIZE,
    STORE,
    call,
    remove_derived,
    send,
    start,
    stop,
    use,
    wait_readable,
)
from tests.support.by_hand import Appended, append, rewrite
from tests.support.command import run
from tests.support.log_state import ends_in_log, state_in_log
from tests.support.node import SMALL_STORE, Node
from tests.support.referee import PROBES, classpath, judge
from tidemark.formats import metadata_json
from tidemark.formats.metadata_json import (
    ConsumerOffsetsTable,
    DelayOffsetsTable,
    GroupEntry,
    GroupsTable,
    TopicEntry,
    TopicsTable,
)

BODY: Final = b"from RocketMQ " + b"x" * 3000


def rocketmq_uses(store: Path) -> tuple[list[Appended], tuple[int, int]]:
    """Append, deliver, change topics, groups and offsets; return what was appended, and where."""
    first = ends_in_log(store)["orders", 0]
    more = 3 * FILE_SIZE // 2 // len(BODY)
    messages = [
        Appended("orders", 0, first + n, BODY + b"%d" % n, carries_crc=n % 3 == 0)
        for n in range(more)
    ]
    messages.append(Appended("bills", 0, ends_in_log(store)["bills", 0], b"later 0"))
    messages.append(Appended("theirs", 1, 0, b"a topic of theirs", carries_crc=True))
    span = append(store, messages, now_ms=int(time.time() * 1000))
    config = store / "config"
    rewrite(
        config / "topics.json", metadata_json.parse_topics, with_topic, metadata_json.topics_text
    )
    rewrite(
        config / "subscriptionGroup.json",
        metadata_json.parse_groups,
        with_group,
        metadata_json.groups_text,
    )
    rewrite(
        config / "consumerOffset.json",
        metadata_json.parse_consumer_offsets,
        with_offsets,
        metadata_json.consumer_offsets_text,
    )
    rewrite(
        config / "delayOffset.json",
        metadata_json.parse_delay_offsets,
        with_delivery,
        metadata_json.delay_offsets_text,
    )
    return messages, span


def with_topic(table: TopicsTable) -> TopicsTable:
    topics = {**table.topics, "theirs": TopicEntry("theirs", 2, 2)}
    return table._replace(topics=topics, covered=None)


def with_group(table: GroupsTable) -> GroupsTable:
    shipping = table.groups["shipping"]._replace(retry_max=9)
    groups = {**table.groups, "shipping": shipping, "rocket": GroupEntry("rocket")}
    return table._replace(groups=groups, covered=None)


def with_offsets(table: ConsumerOffsetsTable) -> ConsumerOffsetsTable:
    offsets = {**table.offsets, ("orders", "shipping"): {0: 8}, ("theirs", "rocket"): {1: 1}}
    return table._replace(offsets=offsets, covered=None)


def with_delivery(table: DelayOffsetsTable) -> DelayOffsetsTable:
    return table._replace(offsets={**table.offsets, 2: 1}, covered=None)


def pulled(node: Node, topic: str, queue: int, offset: int) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max=1024"
    messages: list[dict[str, Any]] = call(node, "GET", path)["messages"]
    return messages


@pytest.mark.parametrize("killed", [False, True])
def test_changes_by_rocketmq_are_taken_over_and_survive_a_rebuild(
    tmp_path: Path, *, killed: bool
) -> None:
    with Node(tmp_path, store=STORE) as node:
        start(node)
        use(node)
        stop(node)
        ours = state_in_log(node.store_dir)
        messages, span = rocketmq_uses(node.store_dir)
        if killed:
            (node.store_dir / "abort").write_text("4711")
        start(node)
        in_orders = [each for each in messages if each.topic == "orders"]
        for lost_too in (False, True):
            if lost_too:
                stop(node)
                remove_derived(node)
                start(node)
            first = in_orders[0].queue_offset
            wait_readable(node, "orders", first + len(in_orders))
            found: list[str] = []
            while len(found) < len(in_orders):
                found += [each["body_text"] for each in pulled(node, "orders", 0, first)]
                first = in_orders[0].queue_offset + len(found)
            assert [text.encode() for text in found] == [each.body for each in in_orders]
            assert [each["body_text"] for each in pulled(node, "theirs", 1, 0)] == [
                "a topic of theirs"
            ]
            groups = {each["group"]: each for each in call(node, "GET", "/v1/groups")["groups"]}
            assert groups.keys() == {"billing", "shipping", "rocket"}
            assert groups["shipping"]["retry_max"] == 9
            assert groups["shipping"]["lag_objective_ms"] == 5000
            assert groups["billing"]["start"] == "last"
            assert call(node, "GET", "/v1/groups/rocket/offsets")["offsets"] == [
                {"topic": "theirs", "queue": 1, "offset": 1}
            ]
            assert {"topic": "orders", "queue": 0, "offset": 8} in call(
                node, "GET", "/v1/groups/shipping/offsets"
            )["offsets"]
            assert call(node, "GET", "/v1/delayed")["pending"] == 4
        (sent,) = send(node, "orders", {"body_text": "ours again", "queue": 0})
        assert sent["queue_offset"] == in_orders[-1].queue_offset + 1
        stop(node)
        state = state_in_log(node.store_dir)
        assert state.foreign == [ForeignRange(*span)]
        assert state.delay.levels == {**ours.delay.levels, 2: 1} == {1: 3, 2: 1}
        assert state.delay.cancelled == ours.delay.cancelled
        assert '"CorruptRecord"' not in node.log_text("broker") + node.log_text("reput")
        assert not list((node.store_dir / "cut").glob("*"))


def test_rocketmqs_own_classes_read_our_groups_and_their_changes_are_taken_over(
    tmp_path: Path,
) -> None:
    classpath()
    with Node(tmp_path / "node", store=STORE) as node:
        start(node)
        use(node)
        stop(node)
        ours = state_in_log(node.store_dir)
        ends = ends_in_log(node.store_dir)
        shape = {**SMALL_STORE, **STORE}
        lines = judge(node.store_dir, tmp_path, shape, group="rocket")
        # Beside groups that it always has.
        assert {line[1]: line[2:4] for line in lines if line[0] == "group"}.items() >= {
            "billing": ["16", "true"],
            "shipping": ["4", "false"],
        }.items()
        offsets = {
            (f"{topic}@{group}", str(queue)): str(offset)
            for group, pairs in ours.offsets.items()
            for (topic, queue), offset in pairs.items()
        }
        assert {(line[1], line[2]): line[3] for line in lines if line[0] == "offset"} == offsets
        assert ["level", "1", "3"] in lines
        put = {(line[1], int(line[2])) for line in lines if line[0] == "put"}
        assert ("orders", 0) in put
        for lost_too in (False, True):
            start(node)
            groups = {each["group"] for each in call(node, "GET", "/v1/groups")["groups"]}
            assert groups >= {"billing", "shipping", "rocket"}
            wait_readable(node, "orders", ends["orders", 0] + PROBES)
            found = pulled(node, "orders", 0, ends["orders", 0])
            assert [each["body_text"] for each in found] == [f"probe-{n}" for n in range(PROBES)]
            committed = call(node, "GET", "/v1/groups/rocket/offsets")["offsets"]
            expected = {"topic": "orders", "queue": 0, "offset": ends["orders", 0] + PROBES}
            assert expected in committed
            stop(node)
            state = state_in_log(node.store_dir)
            assert state.groups["billing"] == ours.groups["billing"]
            assert state.offsets["shipping"] == ours.offsets["shipping"]
            assert len(state.foreign) == 1
            if not lost_too:
                remove_derived(node)


def test_verify_calls_an_index_that_a_killed_rocketmq_removed_no_damage(tmp_path: Path) -> None:
    """RocketMQ removes index files at its start after a kill, and rebuilds only the part behind its
    checkpoint."""
    with Node(tmp_path, store=STORE) as node:
        start(node)
        use(node)
        stop(node)
        first = min((node.store_dir / "index").iterdir())
        first.write_bytes(bytes(first.stat().st_size))
        asked = ("store", "verify", "--store", node.store_dir, "-o", "json")
        report = json.loads(run(*asked).stdout)
        assert any("are missing" in each["problem"] for each in report["damages"])
        rocketmq_uses(node.store_dir)
        (node.store_dir / "abort").write_text("4711")
        report = json.loads(run(*asked).stdout)
        assert report["damages"] == []
        (missing,) = (each for each in report["remarks"] if "are not in the index" in each)
        at = re.search("the first at physical offset [0-9]+,", missing)
        assert at is not None
        start(node)
        stop(node)
        report = json.loads(run(*asked).stdout)
        assert report["damages"] == []
        assert not any(at[0] in each for each in report["remarks"]), "the start made it again"
