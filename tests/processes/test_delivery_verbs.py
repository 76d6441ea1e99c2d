"""Every verb of delivery, used once on real processes, its output compared with the log.

``tidemark store dump`` reads the log while the node runs: everything that a command or the client
reports must be there as records. Delay levels are short here, all other settings are the defaults.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as sdk
from tests.support.command import PROJECT
from tests.support.node import Node, wait_until
from tests.support.verbs import (
    QUEUES,
    WAIT_S,
    command,
    consumed,
    log_of,
    produce,
    refused,
    running_node,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("verbs")) as running:
        yield running


# -- groups, offsets, lag -------------------------------------------------------------------------


def test_a_group_is_made_listed_described_and_deleted(node: Node) -> None:
    made = command(
        node, "group", "create", "made", "--order", "--start", "last", "--retry-max", "3",
        "--lag-objective", "30s",
    )  # fmt: skip
    assert (made["group"], made["order"], made["start"], made["retry_max"]) == (
        *("made", True, "last", 3),
    )
    config = log_of(node).groups["made"]
    assert (config.order, config.start, config.retry_max, config.lag_objective_ms) == (
        *(True, "last", 3, 30_000),
    )
    assert "made" in {group["group"] for group in command(node, "group", "list")}
    described = command(node, "group", "describe", "made")
    assert (described["state"], described["members"], described["topics"]) == ("empty", [], [])
    assert command(node, "group", "delete", "made", "--dry-run")["deleted"] is False
    assert not log_of(node).groups["made"].deleted
    command(node, "group", "delete", "made", "--yes")
    assert log_of(node).groups["made"].deleted
    assert refused(node, "group", "describe", "made") == "unknown-group"


def test_a_group_reads_every_line_once_and_its_offsets_are_in_the_log(node: Node) -> None:
    lines = [f"line {number}" for number in range(1000)]
    produce(node, "lines", lines)
    first = consumed(node, "lines", "billing", "--max", "10")
    assert len(first) == 10

    # Unread messages, counted from the log.
    log = log_of(node)
    committed = log.offsets["billing"]
    unread = [
        facts
        for facts in log.of("lines")
        if facts["queue_offset"] >= committed["lines", facts["queue"]]
    ]
    assert len(unread) == 990
    rows = [row for row in command(node, "lag", "billing", "--topic", "lines")]
    assert {row["queue"]: row["committed"] for row in rows} == {
        queue: offset for (topic, queue), offset in committed.items() if topic == "lines"
    }
    assert sum(row["messages"] for row in rows) == 990
    assert sum(row["bytes"] for row in rows) == sum(facts["size"] for facts in unread)
    assert all(row["seconds"] >= 0 for row in rows if row["messages"])
    (total,) = [row for row in command(node, "lag") if row["group"] == "billing"]
    assert (total["messages"], total["bytes"]) == (990, sum(facts["size"] for facts in unread))

    rest = consumed(node, "lines", "billing")
    assert Counter(first + rest) == Counter(lines)
    assert consumed(node, "lines", "billing") == []
    log = log_of(node)
    assert log.ends("lines").items() <= log.offsets["billing"].items()
    rows = command(node, "lag", "billing", "--topic", "lines")
    assert [(row["messages"], row["bytes"], row["seconds"]) for row in rows] == [(0, 0, 0)] * QUEUES


def test_a_reset_moves_a_group_to_the_first_message_to_a_time_or_to_an_offset(node: Node) -> None:
    produce(node, "again", [f"old {number}" for number in range(40)])
    before = log_of(node)
    assert len(consumed(node, "again", "replay")) == 40
    ends = before.ends("again")

    reset = ("group", "reset", "replay", "again")
    dry = command(node, *reset, "--to", "first", "--dry-run")
    assert [(row["from"], row["to"]) for row in dry] == [(10, 0)] * QUEUES
    assert ends.items() <= log_of(node).offsets["replay"].items()
    assert command(node, *reset, "--to", "first") == dry
    assert {log_of(node).offsets["replay"]["again", queue] for queue in range(QUEUES)} == {0}
    assert sorted(consumed(node, "again", "replay")) == sorted(
        body.decode() for body in before.bodies("again")
    )

    command(node, *reset, "--to-offset", "7", "--queue", "1")
    assert consumed(node, "again", "replay") == [
        facts["body_text"]
        for facts in before.of("again")
        if (facts["queue"], facts["queue_offset"] >= 7) == (1, True)
    ]
    since_ms = 1 + max(facts["store_timestamp_ms"] for facts in before.of("again"))
    produce(node, "again", ["new"])
    command(node, *reset, "--to-time", str(since_ms))
    assert consumed(node, "again", "replay") == ["new"]


@pytest.mark.parametrize("start", ["first", "last", "time"])
def test_a_new_group_starts_at_its_configured_start(node: Node, start: str) -> None:
    topic, group = f"from-{start}", f"starts-{start}"
    produce(node, topic, ["old"] * 8)
    since_ms = 1 + max(facts["store_timestamp_ms"] for facts in log_of(node).of(topic))
    wait_until(lambda: node_time_ms(node) > since_ms, "the next millisecond")
    value = str(since_ms) if start == "time" else start
    command(node, "group", "create", group, "--start", value)
    if start == "last":
        assert consumed(node, topic, group) == []
    produce(node, topic, ["new"] * 4)
    assert Counter(consumed(node, topic, group)) == (
        {"old": 8, "new": 4} if start == "first" else {"new": 4}
    )


def node_time_ms(node: Node) -> int:
    """The node's time, from its answer about a group."""
    command(node, "group", "create", "clock")
    return int(command(node, "group", "describe", "clock")["at_ms"])


# -- members --------------------------------------------------------------------------------------


async def test_every_member_of_a_broadcast_group_gets_everything_and_commits_nothing(
    node: Node,
) -> None:
    produce(node, "news", [f"item {number}" for number in range(20)])
    command(node, "group", "create", "readers", "--broadcast", "--start", "first")

    async def read() -> list[bytes]:
        got: list[bytes] = []
        async with (
            sdk.connect(node.api_url) as mq,
            mq.subscribe("news", group="readers") as messages,
        ):
            async for message in messages:
                got.append(message.body)
                if len(got) == 20:
                    return got
        return got

    async with asyncio.timeout(WAIT_S):
        both = await asyncio.gather(read(), read())
    log = log_of(node)
    assert [sorted(got) for got in both] == [sorted(log.bodies("news"))] * 2
    assert "readers" not in log.offsets
    (total,) = [row for row in command(node, "lag") if row["group"] == "readers"]
    assert (total["messages"], total["why"]) == (None, "broadcasting")


async def test_a_subscription_gets_only_its_tags(node: Node) -> None:
    async with sdk.connect(node.api_url) as mq, asyncio.timeout(WAIT_S):
        await mq.create_topic("tagged", queues=1)
        for number in range(30):
            await mq.send("tagged", b"%d" % number, tags="abc"[number % 3])
        wanted = [
            facts["body_text"] for facts in log_of(node).of("tagged") if facts["tags"] in ("a", "c")
        ]
        got: list[str] = []
        async with mq.subscribe({"tagged": "a || c"}, group="choosy") as messages:
            async for message in messages:
                got.append(message.body.decode())
                if len(got) == len(wanted):
                    break
        assert got == wanted


async def test_an_ordered_group_gets_each_queue_in_the_order_of_the_log(node: Node) -> None:
    produce(node, "steps", [f"step {number}" for number in range(200)])
    command(node, "group", "create", "strict", "--order")
    got: dict[int | str, list[bytes]] = defaultdict(list)
    async with (
        asyncio.timeout(WAIT_S),
        sdk.connect(node.api_url) as mq,
        mq.subscribe("steps", group="strict", order=True) as messages,
    ):
        async for batch in messages.batches(max=7):
            for message in batch:
                got[message.queue].append(message.body)
            if sum(map(len, got.values())) >= 200:
                break
    log = log_of(node)
    assert dict(got) == {
        queue: [facts["body_text"].encode() for facts in log.of("steps") if facts["queue"] == queue]
        for queue in range(QUEUES)
    }


async def test_keys_are_handled_in_their_order_while_others_run_beside_them(node: Node) -> None:
    async with sdk.connect(node.api_url) as mq, asyncio.timeout(WAIT_S):
        await mq.create_topic("keyed", queues=2)
        for number in range(60):
            key = f"customer-{number % 5}"
            await mq.send("keyed", b"%d" % number, keys=[key], sharding_key=key)
        by_key: dict[str, list[int]] = defaultdict(list)
        running, running_most = 0, 0
        async with mq.subscribe("keyed", group="parallel") as messages:

            async def handle(message: sdk.Message) -> None:
                nonlocal running, running_most
                running += 1
                running_most = max(running, running_most)
                await asyncio.sleep(0.002)
                by_key[message.keys[0]].append(int(message.body))
                running -= 1
                if sum(map(len, by_key.values())) == 60:
                    messages.stop()

            await messages.run(handle, concurrency=4, by_key=True)
    log = log_of(node)
    assert by_key == {
        f"customer-{n}": [
            int(facts["body_text"])
            for facts in log.of("keyed")
            if facts["keys"] == [f"customer-{n}"]
        ]
        for n in range(5)
    }
    assert running_most > 1
    assert log.ends("keyed").items() <= log.offsets["parallel"].items()


async def test_queues_move_to_a_member_that_joins_and_back_when_it_leaves(node: Node) -> None:
    produce(node, "shared", ["x"])
    assigned: list[tuple[str, int]] = []
    revoked: list[tuple[str, int]] = []

    async def on_assigned(queues: list[tuple[str, int]]) -> None:
        assigned.extend(queue for queue in queues if queue[0] == "shared")

    async def on_revoked(queues: list[tuple[str, int]]) -> None:
        revoked.extend(queue for queue in queues if queue[0] == "shared")

    def owners() -> Counter[str]:
        topics = command(node, "group", "describe", "team")["topics"]
        (shared,) = [topic for topic in topics if topic["topic"] == "shared"]
        return Counter(queue["member"] for queue in shared["queues"])

    async with (
        asyncio.timeout(WAIT_S),
        sdk.connect(node.api_url) as mq,
        mq.subscribe(
            "shared", group="team", member="first", on_assigned=on_assigned, on_revoked=on_revoked
        ) as first,
    ):
        reading = asyncio.create_task(_read_on(first))
        await until(lambda: len(assigned) == QUEUES, "the first member's queues")
        async with mq.subscribe("shared", group="team", member="second") as second:
            also = asyncio.create_task(_read_on(second))
            # With the retry topic's queue there are five: two for one of them, three for the other.
            await until(
                lambda: sorted(owners()) == ["first", "second"] and None not in owners(),
                "a share for both",
            )
            assert len(revoked) in (1, 2)
            assert await asyncio.to_thread(owners) == {
                "first": QUEUES - len(revoked),
                "second": len(revoked),
            }
            second.stop()
            await also
        await until(lambda: owners() == {"first": QUEUES}, "all queues back with the first")
        first.stop()
        await reading
    assert log_of(node).groups["team"].name == "team"


def test_a_follower_that_is_interrupted_leaves_its_group_and_gets_nothing_again(
    node: Node,
) -> None:
    produce(node, "followed", [f"line {number}" for number in range(50)])
    follower = subprocess.Popen(
        [
            # With the signals of a terminal: tests in the background of a script ignore SIGINT.
            *("env", "--default-signal=INT", sys.executable, "-m", "tidemark.cli.main"),
            *("consume", "followed", "--group", "watchers", "--follow", "--url", node.api_url),
        ],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert follower.stderr is not None
    lines = [follower.stdout.readline() for _ in range(50)]
    assert len(set(lines)) == 50
    wait_until(
        lambda: log_of(node).ends("followed").items() <= log_of(node).offsets["watchers"].items(),
        "all of it to be committed",
    )
    assert len(command(node, "group", "describe", "watchers")["members"]) == 1
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 0
    assert (follower.stdout.read(), follower.stderr.read()) == (b"", b"")
    follower.stdout.close()
    follower.stderr.close()
    # It has left: its session need not expire first.
    assert command(node, "group", "describe", "watchers")["members"] == []
    assert consumed(node, "followed", "watchers") == []


async def until(condition: Callable[[], object], what: str) -> None:
    """``wait_until`` beside a running loop."""
    await asyncio.to_thread(wait_until, condition, what)


async def _read_on(messages: Any) -> None:
    async for _ in messages:
        pass


def test_messages_of_a_dead_member_are_delivered_again(node: Node) -> None:
    produce(node, "held", ["precious"], queues=1)
    member = "/v1/groups/fragile/members"
    join = {"subscriptions": [{"topic": "held"}], "session_ms": 5000}
    status, joined = node.request_json("POST", f"{member}/doomed", join)
    assert status == 200, joined
    fetch = {"generation": joined["generation"], "wait_ms": 5000}
    status, fetched = node.request_json("POST", f"{member}/doomed/fetch", fetch)
    assert [
        message["body_text"] for queue in fetched["queues"] for message in queue["messages"]
    ] == ["precious"]
    (facts,) = log_of(node).of("held")

    def delivered_to() -> list[str]:
        trace = command(node, "message", "trace", facts["unique_id"], "--topic", "held")
        return [event["member"] for event in trace["events"] if event["what"] == "delivered"]

    assert delivered_to() == ["doomed"]
    # No heartbeat, no commit: after its session another member gets it.
    assert consumed(node, "held", "fragile") == ["precious"]
    assert delivered_to()[-1] != "doomed"
