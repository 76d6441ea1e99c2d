"""Delayed messages of mixed levels and times while the node is SIGKILLed: each is delivered once.

    python -m tests.processes.delay_drill --messages 1000000 --seconds 240 --kills 5

It sends at a steady pace, half with levels and half for any time, and kills broker and reput
together at random instants. Then the node is stopped and its log read: each acked message is there
exactly once, each message without an answer at most once, and none before its time. Lateness is the
store time of the delivered copy minus its due time. Messages that were due while the node was down,
or until the backlog of that time was delivered, are counted apart. Instants and times come from a
seed that is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import aiohttp
import msgpack

from tests.processes.test_memory import rss_anon
from tests.support.node import Node
from tidemark.formats import delay, record
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.record import Record

TOPIC: Final = "drill"
QUEUES: Final = 8
BATCH: Final = 500
BODY_SIZE: Final = 100
ON_TIME_MS: Final = 200
ON_TIME_SHARE_MIN: Final = 0.99
UP_S_MIN: Final = 2.0
WATCH_S: Final = 0.5
FINISH_TIMEOUT_S: Final = 180.0
STORE: Final[dict[str, object]] = {
    "commit_log_file_size": 64 << 20,
    "consume_queue_file_size": 6_000_000,
    "index_slots": 200_000,
    "index_entries": 800_000,
}


class Plan(NamedTuple):
    """Parameters of a drill."""

    messages: int
    seconds: float
    """From the first send to the last due time, kills included."""
    kills: int
    seed: int

    @property
    def sending_s(self) -> float:
        """Duration of sending."""
        return self.seconds / 2

    @property
    def levels_s(self) -> tuple[int, ...]:
        """Delays of the levels, the longest half of the whole time."""
        longest = max(1, int(self.seconds / 2))
        return tuple(sorted({max(1, longest * part // 8) for part in range(1, 9)}))


class Outage(NamedTuple):
    """One kill, in wall clock milliseconds."""

    killed_ms: int
    ready_ms: int


class Sent:
    """The answers to the senders."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.unknown: set[int] = set()


class Verdict(NamedTuple):
    """The contents of the log in the end."""

    acked: int
    unknown: int
    lost: int
    repeated: int
    early: int
    """Delivered before their time."""
    strangers: int
    """Delivered but never sent."""
    judged: int
    """Delivered messages that were due while the node was up."""
    on_time: int
    """Of these, at most ON_TIME_MS late."""
    late_p99_ms: int
    late_max_ms: int
    drains_ms: list[int]
    """Of each outage: time from readiness until the backlog was delivered."""
    delivered: int

    @property
    def on_time_share(self) -> float:
        """Share of the messages judged."""
        return self.on_time / self.judged if self.judged else 1.0

    @property
    def is_exact(self) -> bool:
        """Every acked message was delivered once, none early, and nothing else."""
        return not (self.lost or self.repeated or self.early or self.strangers)


class Result(NamedTuple):
    """A drill's outcome."""

    verdict: Verdict
    memory_bytes: dict[str, int]
    """Largest anonymous memory of each service."""
    timer_bytes: int
    """Size of the sorted file in the end."""
    outages: list[Outage]


def run(plan: Plan, directory: Path) -> Result:
    """Run it. Raises AssertionError if the node does not come back or does not finish."""
    levels = " ".join(f"{seconds}s" for seconds in plan.levels_s)
    with Node(directory, store={**STORE, "delay_levels": levels}) as node:
        node.start()
        node.wait_ready()
        status, _ = node.request_json("PUT", f"/v1/topics/{TOPIC}", {"queues": QUEUES})
        assert status == 200, status
        sent = Sent()
        memory = {"broker": 0, "reput": 0}
        outages = asyncio.run(_drill(plan, node, sent, memory))
        assert node.stop() == {"broker": 0, "reput": 0}
        timer = sum(path.stat().st_size for path in (node.store_dir / "timer").iterdir())
        return Result(judge(node.store_dir, sent, plan, outages), memory, timer, outages)


async def _drill(plan: Plan, node: Node, sent: Sent, memory: dict[str, int]) -> list[Outage]:
    begun = time.monotonic()
    watcher = asyncio.create_task(_watch(node, memory))
    killer = asyncio.create_task(_kill(plan, node, begun))
    try:
        await _send(plan, node, sent, begun)
        outages = await killer
        await asyncio.sleep(max(0.0, begun + plan.seconds - time.monotonic()))
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while (await _pending(node)) != 0:
            assert time.monotonic() < deadline, f"after {FINISH_TIMEOUT_S} s messages still wait"
            await asyncio.sleep(WATCH_S)
        return outages
    finally:
        watcher.cancel()
        killer.cancel()


async def _pending(node: Node) -> int | None:
    _, answer = await asyncio.to_thread(node.request_json, "GET", "/v1/delayed?max=1")
    return None if answer.get("messages") else answer.get("pending")


async def _watch(node: Node, memory: dict[str, int]) -> None:
    """Note the largest memory of each service."""
    while True:
        for role in memory:
            if node.is_alive(role):
                try:
                    memory[role] = max(memory[role], rss_anon(node.pid(role)))
                except (OSError, AssertionError):
                    continue  # it was killed in between
        await asyncio.sleep(WATCH_S)


async def _kill(plan: Plan, node: Node, begun: float) -> list[Outage]:
    """SIGKILL both services at random instants, one in each part of the run, and start them."""
    random = Random(plan.seed)
    part_s = plan.seconds / (plan.kills + 1)
    outages: list[Outage] = []
    for number in range(plan.kills):
        at = begun + part_s * (number + 0.5 + random.random() * 0.5)
        # If a start takes long, the node is up for a while all the same.
        at = max(at, time.monotonic() + UP_S_MIN if outages else at)
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        killed_ms = time.time_ns() // 1_000_000
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.wait_ready)
        outages.append(Outage(killed_ms, time.time_ns() // 1_000_000))
    return outages


async def _send(plan: Plan, node: Node, sent: Sent, begun: float) -> None:
    """Send until all messages of the plan are acked, at a steady pace: outages add time."""
    random = Random(plan.seed + 1)
    url = f"{node.api_url}/v1/topics/{TOPIC}/messages"
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    number = 0
    pace_s = plan.sending_s * BATCH / plan.messages
    next_at = begun
    async with aiohttp.ClientSession(headers=headers) as session:
        while len(sent.acked) < plan.messages:
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            # Sends missed in an outage are not made up for: the pace stays the same.
            next_at = max(next_at + pace_s, time.monotonic())
            count = min(BATCH, plan.messages - len(sent.acked))
            numbers = range(number, number + count)
            # Nothing is due behind the end, whenever it is sent.
            left_ms = max(1000, int(1000 * (begun + plan.seconds - time.monotonic())))
            messages = [_message(plan, each, random, left_ms) for each in numbers]
            try:
                async with session.post(url, data=msgpack.packb({"messages": messages})) as answer:
                    await answer.read()
                    status = answer.status
            except aiohttp.ClientConnectorError:
                status = 503  # no node answered
            except (aiohttp.ClientError, OSError):
                status = 504  # it died with the request
            if status == 503:
                await asyncio.sleep(0.1)  # nothing was stored: the same numbers again
                continue
            assert status in (200, 504), status
            (sent.acked if status == 200 else sent.unknown).update(numbers)
            number += count


def _message(plan: Plan, number: int, random: Random, left_ms: int) -> dict[str, Any]:
    message: dict[str, Any] = {"body": (b"%010d" % number).ljust(BODY_SIZE, b".")}
    if random.random() < 0.5:
        message["delay_level"] = random.randrange(1, 1 + len(plan.levels_s))
    else:
        message["delay_ms"] = random.randrange(1, left_ms)
    return message


# -- judging ---------------------------------------------------------------------------------------


def judge(store_dir: Path, sent: Sent, plan: Plan, outages: list[Outage]) -> Verdict:
    """Read the log of the stopped node."""
    due_ms: dict[int, int] = {}
    copies: list[tuple[int, int]] = []
    for stored in _records(store_dir):
        if stored.topic == delay.TIMER_TOPIC:
            due = delay.timer_due_ms(stored.properties)
            assert due is not None
            due_ms[_number(stored)] = due
        elif stored.topic == SCHEDULE_TOPIC:
            level_ms = plan.levels_s[stored.queue_id] * 1000
            due_ms[_number(stored)] = stored.store_timestamp_ms + level_ms
        elif stored.topic == TOPIC:
            copies.append((stored.store_timestamp_ms, _number(stored)))
    times: dict[int, int] = {}
    repeated = 0
    for stored_ms, number in copies:
        repeated += number in times
        times.setdefault(number, stored_ms)
    late_ms = {number: stored_ms - due_ms.get(number, 0) for number, stored_ms in times.items()}
    drained = [_drained_ms(outage, due_ms, times) for outage in outages]
    judged = [
        late
        for number, late in late_ms.items()
        if number in due_ms
        and not any(
            outage.killed_ms - ON_TIME_MS <= due_ms[number] <= end_ms
            for outage, end_ms in zip(outages, drained, strict=True)
        )
    ]
    judged.sort()
    return Verdict(
        acked=len(sent.acked),
        unknown=len(sent.unknown),
        lost=len(sent.acked - times.keys()) + len(due_ms.keys() - times.keys()),
        repeated=repeated,
        early=sum(late < 0 for late in late_ms.values()),
        strangers=len(times.keys() - due_ms.keys()),
        judged=len(judged),
        on_time=sum(late <= ON_TIME_MS for late in judged),
        late_p99_ms=judged[len(judged) * 99 // 100] if judged else 0,
        late_max_ms=judged[-1] if judged else 0,
        drains_ms=[end - outage.ready_ms for outage, end in zip(outages, drained, strict=True)],
        delivered=len(times),
    )


def _drained_ms(outage: Outage, due_ms: dict[int, int], times: dict[int, int]) -> int:
    """Return when the last of the messages that were due during an outage was delivered."""
    gathered = [
        times[number]
        for number, due in due_ms.items()
        if outage.killed_ms - ON_TIME_MS <= due <= outage.ready_ms and number in times
    ]
    return max(gathered, default=outage.ready_ms)


def _records(store_dir: Path) -> Iterator[Record]:
    """Every record of the log, one file in memory at a time."""
    for path in sorted((store_dir / "commitlog").glob("[0-9]*")):
        data = path.read_bytes()
        at = 0
        while at + record.BLANK_SIZE <= len(data):
            size = record.peek_size(data, at)
            magic = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
            if magic == record.MAGIC_BLANK or size == 0:
                break
            yield record.decode(data, at)
            at += size


def _number(stored: Record) -> int:
    return int(bytes(stored.body[:10]))


def report(plan: Plan, result: Result) -> str:
    """What a drill found, in lines."""
    verdict = result.verdict
    memory = ", ".join(f"{role} {size >> 20} MiB" for role, size in result.memory_bytes.items())
    return "\n".join(
        [
            f"seed {plan.seed}: {verdict.acked} delayed messages acked, {verdict.unknown} without "
            f"an answer, {len(result.outages)} SIGKILLs of broker and reput",
            f"delivered {verdict.delivered}: {verdict.lost} lost, {verdict.repeated} repeated, "
            f"{verdict.early} early, {verdict.strangers} never sent",
            f"{verdict.on_time_share:.2%} of {verdict.judged} that were due while it was up came "
            f"within {ON_TIME_MS} ms; p99 {verdict.late_p99_ms} ms, "
            f"latest {verdict.late_max_ms} ms",
            f"down for {[outage.ready_ms - outage.killed_ms for outage in result.outages]} ms; "
            f"what gathered was delivered {verdict.drains_ms} ms after",
            f"largest anonymous memory: {memory}; pending times on disk: "
            f"{result.timer_bytes >> 10} KiB",
        ]
    )


def main() -> None:
    """Run a drill by hand and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--directory", type=Path, default=None, help="where the store is made")
    given = parser.parse_args()
    plan = Plan(given.messages, given.seconds, given.kills, given.seed)
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        result = run(plan, Path(directory))
    print(report(plan, result))
    in_time = result.verdict.on_time_share >= ON_TIME_SHARE_MIN
    raise SystemExit(0 if result.verdict.is_exact and in_time else 1)


if __name__ == "__main__":
    main()
