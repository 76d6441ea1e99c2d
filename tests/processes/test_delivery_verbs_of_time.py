"""The verbs of later delivery, compared with the log: retries, redrive, delays, retention."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

import tidemark as sdk
from tests.support.command import tidemark
from tests.support.log_facts import Facts, LogFacts
from tests.support.node import Node, wait_until
from tests.support.verbs import command, consumed, log_of, produce, refused, running_node

RETRY_MAX: Final = 2
HOUR_MS: Final = 3_600_000
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
LEVEL_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_ORIGIN: Final = "TIDEMARK_DELAY_ORIGIN"
REDRIVE_ORIGIN: Final = "TIDEMARK_REDRIVE_ORIGIN"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("verbs")) as running:
        yield running


# -- retries, dead letters, redrive, trace --------------------------------------------------------


def fail_until_dead(node: Node, topic: str, group: str, count: int) -> None:
    """Send every message of a topic back until all of them are dead letters."""
    command(node, "group", "create", group, "--retry-max", str(RETRY_MAX))
    with sdk.connect_sync(node.api_url) as mq, mq.subscribe(topic, group=group) as messages:
        for handled, message in enumerate(messages, start=1):
            messages.nack(message)
            if handled == count * (RETRY_MAX + 1):
                break
    wait_until(
        lambda: len(log_of(node).of(f"%DLQ%{group}")) == count, f"{count} dead letters of {group}"
    )


def test_a_message_that_always_fails_is_retried_listed_as_dead_and_redriven(node: Node) -> None:
    produce(node, "failing", [f"order {number}" for number in range(5)])
    fail_until_dead(node, "failing", "unlucky", 5)
    log = log_of(node)
    originals = {facts["unique_id"]: facts for facts in log.of("failing")}
    dead = log.of("%DLQ%unlucky")
    assert {facts["unique_id"] for facts in dead} == originals.keys()
    assert len(log.of("%RETRY%unlucky")) == 5 * RETRY_MAX

    listed = command(node, "dlq", "list", "unlucky")
    assert [
        (row["queue_offset"], row["message_id"], row["unique_id"], row["reconsume_times"])
        for row in listed
    ] == [
        (facts["queue_offset"], facts["message_id"], facts["unique_id"], facts["reconsume_times"])
        for facts in dead
    ]
    for row in listed:
        original = originals[row["unique_id"]]
        assert (row["original_topic"], row["original_message_id"], row["redriven"]) == (
            *("failing", original["message_id"], False),
        )

    redrive = ("dlq", "redrive", "unlucky")
    dry = command(node, *redrive, "--dry-run")
    assert (dry["matched"], dry["redriven"], dry["dry_run"]) == (5, 5, True)
    assert len(log_of(node).of("failing")) == 5
    one = command(node, *redrive, "--key", "key-3")
    assert (one["matched"], one["redriven"]) == (1, 1)
    rest = command(node, *redrive, "--topic", "failing")
    assert (rest["matched"], rest["redriven"], rest["skipped"]) == (5, 4, 1)
    again = command(node, *redrive)
    assert (again["redriven"], again["skipped"]) == (0, 5)

    copies = log_of(node).of("failing")[5:]
    assert sorted(facts["properties"][REDRIVE_ORIGIN] for facts in copies) == sorted(
        f"unlucky@{facts['queue_offset']}" for facts in dead
    )
    assert {facts["reconsume_times"] for facts in copies} == {0}
    assert all(row["redriven"] for row in command(node, "dlq", "list", "unlucky"))
    assert sorted(consumed(node, "failing", "unlucky")) == sorted(
        facts["body_text"] for facts in copies
    )


def test_a_redrive_to_the_group_reaches_no_other_group(node: Node) -> None:
    produce(node, "private", ["only for one"])
    fail_until_dead(node, "private", "alone", 1)
    done = command(node, "dlq", "redrive", "alone", "--to", "group")
    assert done["redriven"] == 1
    log = log_of(node)
    assert len(log.of("private")) == 1
    assert REDRIVE_ORIGIN in log.of("%RETRY%alone")[-1]["properties"]
    with sdk.connect_sync(node.api_url) as mq, mq.subscribe("private", group="alone") as messages:
        for message in messages:
            assert (message.topic, message.body) == ("private", b"only for one")
            break


def test_a_trace_shows_the_events_that_are_in_the_log(node: Node) -> None:
    produce(node, "traced", ["followed"], queues=1)
    fail_until_dead(node, "traced", "tracked", 1)
    log = log_of(node)
    (original,) = log.of("traced")
    command(node, "dlq", "redrive", "tracked")
    trace = command(node, "message", "trace", original["message_id"])
    assert trace["message"]["message_id"] == original["message_id"]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in trace["events"]:
        by_kind.setdefault(event["what"], []).append(event)
    assert {"produced", "flushed", "dispatched", "delivered", "retried", "dead", "redriven"} <= (
        by_kind.keys()
    )
    (produced,) = by_kind["produced"]
    assert produced["at_ms"] == original["store_timestamp_ms"]
    assert len(by_kind["retried"]) == RETRY_MAX
    (dead,) = by_kind["dead"]
    assert dead["at_ms"] == log.of("%DLQ%tracked")[0]["store_timestamp_ms"]
    assert len(by_kind["delivered"]) >= RETRY_MAX + 1
    assert {event["group"] for event in by_kind["delivered"]} == {"tracked"}
    known = [event["at_ms"] for event in trace["events"] if event["at_ms"] is not None]
    assert known == sorted(known)
    by_unique_id = command(node, "message", "trace", original["unique_id"], "--topic", "traced")
    assert by_unique_id["message"] == trace["message"]


# -- delays ---------------------------------------------------------------------------------------


def test_delayed_messages_are_listed_cancelled_and_delivered_once_at_their_time(
    node: Node,
) -> None:
    command(node, "topic", "create", "later", "--queues", "1")
    with sdk.connect_sync(node.api_url) as mq:
        due_ms = int(time.time() * 1000) + 8000
        mq.send("later", b"never", deliver_at=due_ms)
        (never,) = waiting_for(log_of(node), "later").values()
        assert mq.delayed.cancel("later", never["unique_id"]) == 1
        mq.send("later", b"level", delay_level=2)
        mq.send("later", b"soon", delay_ms=1500)
        mq.send("later", b"at", deliver_at=due_ms)
        mq.send("later", b"in an hour", delay_ms=HOUR_MS)
        mq.send("later", b"in a day", delay_ms=24 * HOUR_MS)
        log = log_of(node)
        waiting = waiting_for(log, "later")
        assert waiting.keys() == {"never", "level", "soon", "at", "in an hour", "in a day"}
        assert (0, never["queue_offset"]) in log.cancelled

        # The command line sends the ones with time to spare: it is slow on a busy machine.
        far = {waiting[body]["unique_id"]: waiting[body] for body in ("in an hour", "in a day")}
        listed = command(node, "delay", "list", "--topic", "later")
        assert {
            row["unique_id"]: row["deliver_at_ms"] for row in listed if row["unique_id"] in far
        } == {
            unique_id: int(facts["properties"]["TIMER_DELIVER_MS"])
            for unique_id, facts in far.items()
        }
        assert never["unique_id"] not in {row["unique_id"] for row in listed}
        cancel = ("delay", "cancel", "later", waiting["in a day"]["unique_id"])
        assert command(node, *cancel, "--dry-run")["cancelled"] == 0
        assert command(node, *cancel)["cancelled"] == 1
        assert (0, waiting["in a day"]["queue_offset"]) in log_of(node).cancelled
        assert refused(node, *cancel) == "unknown-delayed"

        # Sent first, and due in the same millisecond as the last of these.
        wait_until(lambda: len(mq.pull("later", 0, 0).messages) == 3, "three delivered messages")
    log = log_of(node)
    delivered = {facts["body_text"]: facts for facts in log.of("later")}
    assert delivered.keys() == {"level", "soon", "at"}
    assert len(log.of("later")) == 3
    for body, facts in delivered.items():
        level = 2 if body == "level" else 0
        assert facts["properties"][DELAY_ORIGIN] == f"{level}@{waiting[body]['queue_offset']}"
        assert facts["unique_id"] == waiting[body]["unique_id"]
    assert due_ms <= delivered["at"]["store_timestamp_ms"]
    left = command(node, "delay", "list", "--topic", "later")
    assert [row["unique_id"] for row in left] == [waiting["in an hour"]["unique_id"]]
    trace = command(node, "message", "trace", waiting["soon"]["unique_id"], "--topic", "later")
    assert {"delayed", "released"} <= {event["what"] for event in trace["events"]}


def waiting_for(log: LogFacts, topic: str) -> dict[str, Facts]:
    """Messages to a topic that wait or waited, by their body."""
    return {
        facts["body_text"]: facts
        for facts in (*log.of(LEVEL_TOPIC), *log.of(TIMER_TOPIC))
        if facts["properties"]["REAL_TOPIC"] == topic
    }


def test_a_delay_level_that_there_is_not_is_refused(node: Node) -> None:
    status, answer = node.request_json(
        "POST",
        "/v1/topics/later-still/messages",
        {"messages": [{"body_text": "x", "delay_level": 19}]},
    )
    assert (status, answer["code"]) == (400, "delay-out-of-range")


# -- retention ------------------------------------------------------------------------------------


def test_a_topic_shows_messages_for_its_retention_time(node: Node) -> None:
    command(node, "topic", "create", "short", "--queues", "1")
    with sdk.connect_sync(node.api_url) as mq:
        mq.send("short", b"old")
        assert [message.body for message in mq.pull("short", 0, 0, wait_ms=5000).messages] == [
            b"old"
        ]
        # Only now: a slow machine may need longer to read than a short retention allows.
        made = command(node, "topic", "create", "short", "--retention", "2s")
        assert made["retention_ms"] == 2000
        wait_until(
            lambda: (
                mq.pull("short", 0, 0).status == "OFFSET_TOO_SMALL"
                or mq.pull("short", 0, 0).min_offset == 1
            ),
            "the message to leave sight",
        )
        command(node, "topic", "create", "short", "--retention", "1h")
        mq.send("short", b"new")
        pulled = mq.pull("short", 0, 1, wait_ms=5000)
        assert [message.body for message in pulled.messages] == [b"new"]
    # Only the view is limited: the log still has both.
    assert log_of(node).bodies("short") == [b"old", b"new"]
    (shown,) = command(node, "topic", "show", "short")
    assert (shown["min_offset"], shown["max_offset"]) == (1, 2)


def test_retention_shows_the_log_and_when_the_disk_will_be_full(node: Node) -> None:
    produce(node, "kept", ["x" * 1000] * 100)
    facts = command(node, "retention")
    files = sorted(path.name for path in (node.store_dir / "commitlog").glob("[0-9]*"))
    assert facts["min_offset"] == log_of(node).records[0]["physical_offset"]
    assert facts["oldest_file"]["start"] == int(files[0])
    assert facts["log_files"] <= len(files)  # the next one may have been made, and is not used
    assert (facts["next_deletion"]["at_ms"], facts["next_deletion"]["kept_by"]) == (None, "last")
    disk = os.statvfs(node.store_dir)
    used = disk.f_blocks - disk.f_bfree
    used_percent = 100 * used / (used + disk.f_bavail)
    assert abs(facts["log"]["used_percent"] - used_percent) <= 2
    forecast = facts["forecast"]
    assert (forecast["full_in_s"] is None) == (forecast["reason"] is not None)
    assert tidemark("retention", "--url", node.api_url).startswith(b"full in")
