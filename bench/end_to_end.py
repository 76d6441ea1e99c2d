"""Figure 13: from a producer through the broker to a consumer group that commits, client to client.

Four processes share two cores without pinning: broker, reput, a producer and a consumer. The last
two use the client like its users do. The time runs from the producer's first call until everything
is consumed and committed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import redis

from bench.exchange import LoadFailed
from bench.flow import BATCH, BODY_SIZE, READ_MAX, SENDERS, Sent
from bench.harness import Figure, Options, Result, benchmark, interleave
from bench.servers import (
    HOST,
    Node,
    redis_server,
    settle,
    start_pinned,
    version_of,
    wait_until,
    work_dir,
)
from tidemark.testing.child import ChildProcess

REDIS_SHARE: Final = 5
"""Redis gets this many times fewer messages, because it takes as long for them."""
QUEUES: Final = 4
TIMEOUT_S: Final = 300.0
GOAL: Final = 350_000
BASELINE: Final = "Redis Streams always, a consumer group, redis.asyncio"


class Flows:
    def __init__(self, running: ExitStack, count: int) -> None:
        self._count = count
        self._logs = work_dir("flow")
        running.callback(shutil.rmtree, self._logs, ignore_errors=True)
        self._node = running.enter_context(Node())
        self._redis = running.enter_context(redis_server("always"))
        for pid in (self._node.pid("broker"), self._node.pid("reput"), self._redis.process.pid):
            _on_two_cores(pid)
        self._runs = 0
        self.shares: dict[str, str] = {}
        """CPU usage of all processes in the last run of each kind."""

    def tidemark(self, consumer: str, queue_type: str = "simple") -> float:
        """Execute one run through the broker; return messages per second. Raises LoadFailed."""
        self._runs += 1
        topic, group, count = f"flow-{self._runs}", f"group-{self._runs}", self._count
        self._node.make_topic(topic, QUEUES, queue_type)
        settle()
        server_s = self._node.cpu_s()
        rate = self._run("tidemark", self._node.url, topic, group, count, consumer)
        servers_us = (self._node.cpu_s() - server_s) / count * 1e6
        shares = self.shares.pop(consumer)
        self.shares[f"{consumer}, {queue_type} queues"] = f"{shares}; servers {servers_us:.2f} µs"
        lag = self._node.call("GET", f"/v1/groups/{group}")["lag"]
        if lag["messages"] != 0 or self._node.message_count(topic) != count:
            raise LoadFailed(f"{self._node.message_count(topic)} messages, lag {lag}")
        return rate

    def redis(self) -> float:
        """Execute one run through Redis; return messages per second. Raises LoadFailed."""
        count = self._count // REDIS_SHARE
        settle()
        rate = self._run("redis", str(self._redis.port), "stream", "group", count, "consume")
        with redis.Redis(host=HOST, port=self._redis.port) as client:
            stored = client.xlen("stream")
            pending = client.xpending("stream", "group")["pending"]
            client.delete("stream")
        if stored != count or pending:
            raise LoadFailed(f"{stored} messages of {count}, {pending} not acknowledged")
        return rate

    def _run(
        self, server: str, address: str, topic: str, group: str, count: int, consumer: str
    ) -> float:
        arguments = [server, address, topic, group, str(count)]
        with contextlib.ExitStack() as ends:
            reading = self._end(ends, consumer, arguments)
            wait_until(lambda: "ready" in _lines(reading), "the consumer to join", TIMEOUT_S)
            writing = self._end(ends, "produce", arguments)
            wait_until(lambda: _done(writing) and _done(reading), "the flow to end", TIMEOUT_S)
            sent, received = _sent(writing), _sent(reading)
        if sent.messages != count or received.messages != count:
            raise LoadFailed(f"{sent.messages} sent, {received.messages} received, of {count}")
        seconds = received.ended_s - sent.began_s
        self.shares[consumer if server == "tidemark" else server] = (
            f"producer {sent.cpu_s / count * 1e6:.2f} µs, consumer "
            f"{received.cpu_s / count * 1e6:.2f} µs of CPU time per message"
        )
        return count / seconds

    def _end(
        self, ends: ExitStack, name: str, arguments: Sequence[str]
    ) -> tuple[ChildProcess, Path]:
        """Start one end of the flow; it is killed when the run ends for any reason."""
        log = self._logs / f"{self._runs}-{name}-{arguments[0]}.log"
        log.unlink(missing_ok=True)
        process = start_pinned([sys.executable, "-m", "bench.flow", name, *arguments], log)
        ends.callback(process.kill)
        return process, log


def _on_two_cores(pid: int) -> None:
    """Let all threads of a running server use both cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), range(min(2, os.cpu_count() or 1)))


def _lines(end: tuple[ChildProcess, Path]) -> list[str]:
    process, log = end
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if not any(line.startswith("{") for line in lines):
        process.check_alive()
    return lines


def _done(end: tuple[ChildProcess, Path]) -> bool:
    return any(line.startswith("{") for line in _lines(end))


def _sent(end: tuple[ChildProcess, Path]) -> Sent:
    (line,) = (line for line in _lines(end) if line.startswith("{"))
    return Sent(**json.loads(line))


def main(given: Options) -> Result:
    count = given.pick(1_500_000, quick=300_000)
    with ExitStack() as running:
        flows = Flows(running, count)
        jobs: dict[str, Callable[[], float]] = {
            "batches": lambda: flows.tidemark("consume"),
            "each": lambda: flows.tidemark("consume-each"),
            "batch queues": lambda: flows.tidemark("consume", "batch"),
            "redis": flows.redis,
        }
        rates = interleave(jobs, given.runs)
        notes = [f"{name}, last run: {seen}" for name, seen in flows.shares.items()]
    figures = []
    for job, how, goal in (
        ("batches", "consumed in batches", GOAL),
        ("each", "consumed one by one", None),
        ("batch queues", "in a topic with batch queues, consumed in batches", GOAL),
    ):
        what = f"produced, {how} and committed, {BODY_SIZE} B, disk"
        figures.append(Figure(what, "msg/s", rates[job], goal, BASELINE, rates["redis"]))
    method = f"""Broker, reput, a producer and a consumer, each a process, on two cores together and
        not pinned to either; default profile. The producer sends {count} messages of {BODY_SIZE} B
        by send_many of {BATCH} ({SENDERS} calls in flight), ack disk, to a topic of {QUEUES}
        queues; the consumer is the one member of a group and commits as the client does by default,
        every 100 ms what it has handled. From the producer's first call until the consumer has
        committed everything and left; making the producer's connections is in it. Checked: each
        queue's messages come in order without a gap, the group's lag is 0, the topic has as many
        messages. Redis: appendonly, appendfsync always, pipelines of {BATCH} XADD, XREADGROUP of
        {READ_MAX} and one XACK for them, {REDIS_SHARE} times fewer messages. Clients run on uvloop.
        {given.runs} runs of each in turn after a warm-up; the disk is synced between runs."""
    return Result(
        figures, method, versions={"redis-server": version_of("redis-server")}, notes=notes
    )


if __name__ == "__main__":
    benchmark(main)
