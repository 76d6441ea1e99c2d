"""The delivery commands: their requests to a broker, and their output for its answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.command import PROJECT
from tests.unit.cli.canned_broker import Asked, CannedBroker
from tidemark.cli.main import cli
from tidemark.formats.message import Message

HEX_ID = "7F000001000078BF0000000000001000"


@pytest.fixture
def broker() -> Iterator[CannedBroker]:
    with CannedBroker().serve() as serving:
        yield serving


def run(broker: CannedBroker, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(
        cli, [*arguments], input=stdin, env={"TIDEMARK_URL": broker.url}, catch_exceptions=False
    )


def printed(broker: CannedBroker, *arguments: str) -> Any:
    done = run(broker, *arguments, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def config(name: str, **more: object) -> dict[str, Any]:
    return {
        "group": name,
        "order": False,
        "broadcast": False,
        "start": "first",
        "retry_max": 16,
        "lag_objective_ms": None,
        **more,
    }


def lag_of(**numbers: object) -> dict[str, Any]:
    return {
        "messages": 0,
        "bytes": 0,
        "seconds": 0.0,
        "in_flight": 0,
        "lost": 0,
        "ahead": 0,
        "expiring_messages": 0,
        "reasons": {},
        **numbers,
    }


def described(name: str) -> dict[str, Any]:
    """A group of one member that has read a part of one queue and nothing of another."""
    unknown = lag_of(
        messages=None,
        bytes=None,
        seconds=None,
        reasons=dict.fromkeys(("messages", "bytes", "seconds"), "never_committed"),
    )
    queues = [
        {
            "queue": 0,
            "member": "m-1",
            "committed": 7,
            "min_offset": 0,
            "max_offset": 10,
            **lag_of(messages=3, bytes=600, seconds=12.25),
        },
        {
            "queue": 1,
            "member": None,
            "committed": None,
            "min_offset": 0,
            "max_offset": 4,
            **unknown,
        },
    ]
    total = lag_of(
        messages=3, bytes=600, seconds=12.25, queues=2, unknown_queues=1, lagging_queues=1
    )
    return {
        **config(name, lag_objective_ms=30_000),
        "state": "active",
        "generation": 5,
        "at_ms": 1_795_168_800_000,
        "members": [
            {
                "member": "m-1",
                "subscriptions": [{"topic": "orders", "tags": "a || b"}],
                "assignment": [["orders", 1], ["orders", 0], ["%RETRY%billing", 0]],
                "session_ms": 30_000,
                "last_seen_ms": 1200,
            }
        ],
        "lag": total,
        "topics": [
            {
                "topic": "orders",
                "kind": "main",
                "subscribed": True,
                "lag": total,
                "queues": queues,
            }
        ],
    }


# -- group ----------------------------------------------------------------------------------------


def test_a_group_is_created_with_the_given_fields_only(broker: CannedBroker) -> None:
    broker.answers["PUT", "groups/billing"] = lambda asked: config("billing", **asked.body)
    made = printed(
        broker, "group", "create", "billing", "--order", "--retry-max", "3", "--start", "last",
        "--lag-objective", "30s",
    )  # fmt: skip
    given = {"order": True, "retry_max": 3, "start": "last", "lag_objective_ms": 30_000}
    assert broker.asked[-1].body == given
    assert made == config("billing", **given)
    printed(broker, "group", "create", "billing")
    assert broker.asked[-1].body == {}
    printed(broker, "group", "create", "billing", "--no-order", "--start", "1795168800000")
    assert broker.asked[-1].body == {"order": False, "start": 1_795_168_800_000}


def test_groups_are_listed(broker: CannedBroker) -> None:
    groups = [
        {**config("billing"), "members": 2, "state": "active"},
        {**config("audit", start=1_795_168_800_000), "members": 0, "state": "empty"},
    ]
    broker.answers["GET", "groups"] = {"groups": groups}
    assert {row["group"] for row in printed(broker, "group", "list")} == {"billing", "audit"}
    table = run(broker, "group", "list").stdout.splitlines()
    assert table[0].split() == [
        *("group", "state", "members", "order", "broadcast", "start", "retry", "max")
    ]
    assert any("2026-11-20T" in line for line in table)


def test_a_group_is_described_with_its_members_and_queues(broker: CannedBroker) -> None:
    broker.answers["GET", "groups/billing"] = described("billing")
    assert printed(broker, "group", "describe", "billing") == described("billing")
    table = run(broker, "group", "describe", "billing").stdout
    assert "lag objective  30s" in table
    assert "orders(a || b)" in table
    assert "%RETRY%billing:0 orders:0,1" in table
    assert "never_committed" in table
    assert "12.2" in table


@pytest.mark.parametrize(
    ("options", "to"),
    [
        (["--to", "first"], "first"),
        (["--to", "last"], "last"),
        (["--to-time", "1795168800000"], {"timestamp_ms": 1_795_168_800_000}),
        (["--to-offset", "7"], {"offset": 7}),
    ],
)
def test_a_reset_says_from_where_to_where(
    broker: CannedBroker, options: list[str], to: object
) -> None:
    def reset(asked: Asked) -> dict[str, Any]:
        moves = [{"queue": 1, "from": 9, "to": 7}]
        return {"queues": moves, "dry_run": asked.body.get("dry_run", False)}

    broker.answers["POST", "groups/billing/reset"] = reset
    command = ("group", "reset", "billing", "orders", *options)
    rows = printed(broker, *command, "--queue", "1", "--dry-run")
    assert rows == [{"topic": "orders", "queue": 1, "from": 9, "to": 7}]
    asked = broker.asked[-1].body
    assert (asked["topic"], asked["to"], asked["queue"], asked["dry_run"]) == (
        *("orders", to, 1, True),
    )
    assert (
        "would move group billing in 1 queue of orders" in run(broker, *command, "--dry-run").stderr
    )
    run(broker, *command)
    assert not broker.asked[-1].body.get("dry_run", False)
    assert broker.asked[-1].body.get("queue") is None


def test_a_deleted_group_is_named_again_before(broker: CannedBroker) -> None:
    broker.answers["GET", "groups/billing"] = described("billing")
    broker.answers["DELETE", "groups/billing"] = None
    delete = ("group", "delete", "billing")
    dry = run(broker, *delete, "--dry-run")
    assert "would delete group billing: its offsets in 2 queues" in dry.stderr
    assert run(broker, *delete, stdin=b"audit\n").exit_code == 1
    assert broker.calls("DELETE", "groups/billing") == []
    assert run(broker, *delete, stdin=b"billing\n").exit_code == 0
    assert run(broker, *delete, "--yes").exit_code == 0
    assert len(broker.calls("DELETE", "groups/billing")) == 2


# -- lag ------------------------------------------------------------------------------------------


def test_lag_of_a_group_is_shown_by_queue_and_unknown_values_have_a_reason(
    broker: CannedBroker,
) -> None:
    broker.answers["GET", "groups/billing"] = described("billing")
    known, unknown = printed(broker, "lag", "billing")
    assert (known["messages"], known["bytes"], known["seconds"], known["why"]) == (
        *(3, 600, 12.25, None),
    )
    assert (unknown["messages"], unknown["why"]) == (None, "never_committed")
    assert known["reasons"] == {}
    assert known["in_flight"] == 0
    other = run(broker, "lag", "billing", "--topic", "other", "-o", "json")
    assert (other.exit_code, json.loads(other.stdout)) == (0, [])
    assert "does not read topic other; its topics: orders" in other.stderr
    table = run(broker, "lag", "billing").stdout.splitlines()
    assert len(table) == 3
    assert table[2].split()[:3] == ["orders", "1", "-"]


def test_lag_of_all_groups_is_a_line_each_without_deleted_groups(
    broker: CannedBroker,
) -> None:
    names = [f"g-{number}" for number in range(30)]
    broker.answers["GET", "groups"] = {
        "groups": [{**config(name), "members": 1, "state": "active"} for name in [*names, "gone"]]
    }
    for name in names:
        broker.answers["GET", f"groups/{name}"] = described(name)
    rows = printed(broker, "lag")
    assert [row["group"] for row in rows] == sorted(names)
    assert {(row["messages"], row["members"], row["unknown_queues"]) for row in rows} == {(3, 1, 1)}


def test_watch_repeats_until_it_is_interrupted(broker: CannedBroker) -> None:
    samples = iter(range(1, 1_000_000))

    def look(_asked: Asked) -> dict[str, Any]:
        facts = described("billing")
        facts["topics"][0]["queues"][0]["messages"] = next(samples)
        return facts

    broker.answers["GET", "groups/billing"] = look
    watcher = subprocess.Popen(
        [
            # As a terminal starts it: who runs the tests in the background ignores SIGINT.
            *("env", "--default-signal=INT", sys.executable, "-m", "tidemark.cli.main"),
            *("lag", "billing", "--watch", "--interval", "0.1", "-o", "json"),
        ],
        cwd=PROJECT,
        env={**os.environ, "TIDEMARK_URL": broker.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert watcher.stdout is not None
    assert watcher.stderr is not None
    seen = [json.loads(watcher.stdout.readline())[0]["messages"] for _ in range(3)]
    assert seen == [1, 2, 3]
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(30) == 0
    assert watcher.stderr.read() == b""
    watcher.stdout.close()
    watcher.stderr.close()


# -- delay ----------------------------------------------------------------------------------------


def waiting(number: int, topic: str = "orders") -> dict[str, Any]:
    return {
        "unique_id": f"{number:032X}",
        "message_id": HEX_ID,
        "topic": topic,
        "queue": 0,
        "deliver_at_ms": 1_795_168_800_000 + number,
        "delay_level": None,
        "store_timestamp_ms": 1_795_168_000_000,
        "size": 200,
    }


def paged(count: int) -> Any:
    """Return pages of at most 4 out of this many messages."""

    def page(asked: Asked) -> dict[str, Any]:
        start = int(asked.query.get("after", 0))
        end = min(start + min(4, int(asked.query.get("max", 4))), count)
        return {
            "messages": [waiting(number) for number in range(start, end)],
            "pending": count,
            "next": str(end) if end < count else None,
        }

    return page


def test_delayed_messages_are_listed_over_pages_up_to_a_number(broker: CannedBroker) -> None:
    broker.answers["GET", "delayed"] = paged(10)
    rows = printed(broker, "delay", "list", "--topic", "orders")
    assert [row["deliver_at_ms"] - 1_795_168_800_000 for row in rows] == list(range(10))
    assert {one.query["topic"] for one in broker.asked} == {"orders"}
    few = run(broker, "delay", "list", "--max", "6")
    assert len(few.stdout.splitlines()) == 7
    assert "6 listed, 10 waiting in all" in few.stderr


def test_a_delayed_message_is_cancelled_or_only_found_in_a_dry_run(broker: CannedBroker) -> None:
    broker.answers["GET", "delayed"] = paged(10)
    wanted = waiting(9)["unique_id"]
    broker.answers["DELETE", f"delayed/{wanted}"] = {"cancelled": 1}
    cancel = ("delay", "cancel", "orders", wanted)
    dry = run(broker, *cancel, "--dry-run")
    assert dry.exit_code == 0
    assert "would cancel 1 message to orders" in dry.stderr
    assert broker.calls("DELETE", f"delayed/{wanted}") == []
    assert printed(broker, *cancel)["cancelled"] == 1
    assert broker.asked[-1].query["topic"] == "orders"
    none = run(broker, "delay", "cancel", "orders", "F" * 32, "--dry-run")
    assert none.exit_code == 1
    assert "[unknown-delayed]" in none.stderr


# -- dlq ------------------------------------------------------------------------------------------


def letter(number: int) -> dict[str, Any]:
    return {
        "queue_offset": number,
        "message_id": HEX_ID,
        "unique_id": f"{number:032X}",
        "original_topic": "orders",
        "original_message_id": HEX_ID,
        "reconsume_times": 16,
        "dead_at_ms": 1_795_168_800_000,
        "born_timestamp_ms": 1_795_168_000_000,
        "tags": None,
        "keys": ["order-1"],
        "size": 300,
        "redriven": False,
    }


def test_dead_letters_are_listed_over_pages_up_to_a_number(broker: CannedBroker) -> None:
    def page(asked: Asked) -> dict[str, Any]:
        start = int(asked.query.get("from_offset", 0))
        end = min(start + 3, 10)
        return {
            "messages": [letter(number) for number in range(start, end)],
            "next_offset": end,
            "min_offset": 0,
            "max_offset": 10,
            "done": end == 10,
        }

    broker.answers["GET", "groups/billing/dead"] = page
    rows = printed(broker, "dlq", "list", "billing", "--topic", "orders")
    assert [row["queue_offset"] for row in rows] == list(range(10))
    assert {one.query.get("topic") for one in broker.asked} == {"orders"}
    assert len(printed(broker, "dlq", "list", "billing", "--max", "5")) == 5
    assert len(printed(broker, "dlq", "list", "billing", "--from-offset", "8")) == 2
    assert "2026-11-20T" in run(broker, "dlq", "list", "billing").stdout


def redriving(letters: int, refused: int = 0) -> Any:
    """Calls that each read at most 400 of this many letters."""

    def step(asked: Asked) -> dict[str, Any]:
        start = asked.body.get("from_offset") or 0
        end = min(start + min(400, asked.body.get("max") or 1000), letters)
        refusals = [{"topic": "gone", "code": "unknown-topic", "detail": "It went.", "count": 1}]
        return {
            "matched": end - start,
            "redriven": end - start - refused,
            "skipped": 0,
            "refused": refused,
            "refusals": refusals if refused else [],
            "next_offset": end,
            "max_offset": letters,
            "done": end == letters,
            "dry_run": asked.body.get("dry_run", False),
        }

    return step


def test_a_redrive_goes_on_until_the_end_of_the_dead_letters(broker: CannedBroker) -> None:
    broker.answers["POST", "groups/billing/redrive"] = redriving(1000)
    facts = printed(
        broker, "dlq", "redrive", "billing", "--topic", "orders", "--key", "order-1",
        "--begin", "1795168800000", "--to", "group", "--dry-run",
    )  # fmt: skip
    assert (facts["matched"], facts["redriven"], facts["dry_run"]) == (1000, 1000, True)
    assert [one.body.get("from_offset") or 0 for one in broker.asked] == [0, 400, 800]
    for one in broker.asked:
        asked = one.body
        assert (asked["to"], asked["topic"], asked["key"], asked["dry_run"]) == (
            *("group", "orders", "order-1", True),
        )
        assert asked["begin_ms"] == 1_795_168_800_000
        assert asked.get("end_ms") is None
    assert "redriven 1000 of 1000" in run(broker, "dlq", "redrive", "billing").stderr


def test_a_redrive_stops_after_as_many_as_were_asked_for(broker: CannedBroker) -> None:
    broker.answers["POST", "groups/billing/redrive"] = redriving(1000)
    assert printed(broker, "dlq", "redrive", "billing", "--max", "500")["matched"] == 500
    assert [one.body["max"] for one in broker.asked] == [500, 100]


def test_letters_that_cannot_be_sent_are_listed_and_fail_the_command(broker: CannedBroker) -> None:
    broker.answers["POST", "groups/billing/redrive"] = redriving(10, refused=1)
    done = run(broker, "dlq", "redrive", "billing", "-o", "json")
    assert done.exit_code == 1
    assert "refused 1 to gone: It went." in done.stderr
    assert json.loads(done.stdout)["redriven"] == 9


# -- trace, retention -----------------------------------------------------------------------------


def test_a_trace_is_shown_in_lines(broker: CannedBroker) -> None:
    message = {"topic": "orders", "queue": 1, "queue_offset": 7, "message_id": HEX_ID}
    trace: dict[str, Any] = {
        "message": {**message, "body": b"hello"},
        "events": [
            {"what": "produced", "at_ms": 1_795_168_800_000, "queue": 1},
            {"what": "flushed", "at_ms": None, "reason": "not_recorded"},
            {"what": "delivered", "at_ms": 1_795_168_800_005, "group": "billing", "member": "m-1"},
        ],
    }
    broker.answers["GET", f"messages/{HEX_ID}/trace"] = trace
    assert printed(broker, "message", "trace", HEX_ID) == {
        **trace,
        "message": {**message, "body_text": "hello"},
    }
    # With a topic the id was once always treated as a unique id: message ids were not found.
    assert run(broker, "message", "trace", HEX_ID, "--topic", "orders").exit_code == 0
    assert broker.asked[-1].query == {}
    lines = run(broker, "message", "trace", HEX_ID).stdout.splitlines()
    events = lines[lines.index("") + 2 :]
    assert [line.split()[1] for line in events] == ["produced", "flushed", "delivered"]
    assert events[1].startswith("-")
    assert "time=not_recorded" in events[1]
    assert "group=billing member=m-1" in events[2]


def test_a_message_of_a_batch_is_named_by_its_queue_offset_too(broker: CannedBroker) -> None:
    message = dict.fromkeys(Message._fields, 0) | {"keys": [], "properties": {}, "body": b"5"}
    broker.answers["GET", f"messages/{HEX_ID}"] = message
    broker.answers["GET", f"messages/{HEX_ID}/trace"] = {"message": {}, "events": []}
    for verb in ("get", "trace"):
        assert run(broker, "message", verb, HEX_ID, "--queue-offset", "5").exit_code == 0
        assert broker.asked[-1].query == {"queue_offset": "5"}


def retention_facts(full_in_s: float | None) -> dict[str, Any]:
    space = {"path": "/store", "used_bytes": 15, "available_bytes": 85, "used_percent": 15}
    return {
        "pressure": "none",
        "sends_refused": False,
        "log": space,
        "queues": space,
        "policy": {
            "age_ms": 259_200_000,
            "delete_hours": [4],
            "size_max": 0,
            "used_percent_max": 75,
            "forcible_percent": 85,
            "warning_percent": 90,
            "forcibly": True,
        },
        "log_files": 3,
        "min_offset": 0,
        "oldest_file": {"start": 0, "end": 10, "modified_ms": 1_795_168_800_000, "age_ms": 7},
        "next_deletion": {
            "at_ms": None,
            "why": None,
            "kept_by": "last",
            "groups_with_unread_messages": 0,
        },
        "deleted_files": {"age": 2, "size": 0, "disk_pressure": 0},
        "forecast": {
            "full_in_s": full_in_s,
            "growth_bytes_per_s": None,
            "reason": "too_few_samples" if full_in_s is None else None,
        },
    }


@pytest.mark.parametrize(
    ("full_in_s", "shown"), [(2280.0, "38 min"), (None, "unknown: too_few_samples")]
)
def test_retention_is_shown_with_its_forecast(
    broker: CannedBroker, full_in_s: float | None, shown: str
) -> None:
    facts = retention_facts(full_in_s)
    broker.answers["GET", "retention"] = facts
    assert printed(broker, "retention") == facts
    lines = run(broker, "retention").stdout.splitlines()
    assert lines[0].split(maxsplit=2) == ["full", "in", shown]
    assert any(line.endswith("none, kept by: last") for line in lines)
    assert any(line.split()[-1] == "3d" for line in lines)


def test_a_topic_gets_a_retention_and_keeps_its_queues(broker: CannedBroker) -> None:
    facts = {
        "topic": "orders",
        "queues": 8,
        "write_queues": 8,
        "retention_ms": 604_800_000,
        "queue_type": "simple",
    }
    broker.answers["PUT", "topics/orders"] = facts
    printed(broker, "topic", "create", "orders")
    assert broker.asked[-1].body == {}
    # The client once sent four queues where none were given: a topic with more lost the others.
    assert printed(broker, "topic", "create", "orders", "--retention", "7d") == facts
    assert broker.asked[-1].body == {"retention_ms": 604_800_000}
    # With eight queues it answered 8, and status 0.
    broker.answers["PUT", "topics/orders"] = facts | {"write_queues": 2}
    done = run(broker, "topic", "create", "orders", "--queues", "2")
    assert broker.asked[-1].body == {"queues": 2}
    assert done.exit_code == 1
    assert "keeps its 8 queues" in done.stderr
    assert "first 2" in done.stderr


def test_a_topic_is_made_and_shown_with_its_queue_type(broker: CannedBroker) -> None:
    ranges = [{"queue": 0, "min_offset": 0, "max_offset": 2}]
    one = {"topic": "orders", "queue_type": "batch", "write_queues": 1}
    broker.answers["PUT", "topics/orders"] = one | {"queues": 1}
    made = printed(broker, "topic", "create", "orders", "--queue-type", "batch")
    assert broker.asked[-1].body == {"queue_type": "batch"}
    assert made["queue_type"] == "batch"
    broker.answers["GET", "topics/orders"] = one | {"queues": ranges}
    assert printed(broker, "topic", "show", "orders")[0]["queue_type"] == "batch"
    assert run(broker, "topic", "create", "orders", "--queue-type", "other").exit_code == 2


# -- what is not understood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "create", "billing", "--start", "yesterday-ish"],
        ["group", "reset", "billing", "orders"],
        ["group", "reset", "billing", "orders", "--to", "first", "--to-offset", "3"],
        ["group", "reset", "billing", "orders", "--to", "middle"],
        ["lag", "--topic", "orders"],
        ["lag", "--watch", "--interval", "0"],
        ["delay", "cancel", "orders"],
        ["dlq", "redrive", "billing", "--to", "nowhere"],
        ["dlq", "list", "billing", "--max", "0"],
        ["consume", "orders", "--group", "billing", "--queue", "1"],
        ["consume", "orders", "--group", "billing", "--offset", "1"],
        ["topic", "create", "orders", "--retention", "7"],
    ],
)
def test_invalid_arguments_end_with_two(broker: CannedBroker, arguments: list[str]) -> None:
    done = run(broker, *arguments)
    assert done.exit_code == 2, done.output
    assert broker.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "describe", "none"],
        ["group", "delete", "none", "--yes"],
        ["group", "reset", "none", "orders", "--to", "first"],
        ["lag", "none"],
        ["dlq", "list", "none"],
        ["dlq", "redrive", "none"],
    ],
)
def test_a_missing_group_fails_with_its_code(broker: CannedBroker, arguments: list[str]) -> None:
    done = run(broker, *arguments, "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "unknown-group"
