"""The name service of a large cluster: memory, a full registration, routes at a fixed rate.

1,000 broker groups of two nodes register 100,000 topics of 16 queues, each in four of them. Then
routes of topics drawn at random are asked for at 5,000 a second. The latency of a request counts
from the time at which it was due, whether or not the client could send it then.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import msgspec
import uvloop

from bench.harness import Figure, Options, Result, at_most, benchmark
from bench.servers import HOST, LOAD_CORE, pin_to_load_core, start_pinned, wait_until
from shared.cluster.routes import Registration, TopicRoute, registration_path
from shared.runtime import programs
from tidemark.testing.child import ChildProcess
from tidemark.testing.node import is_ready
from tidemark.testing.ports import free_ports

GROUPS: Final = 1000
TOPICS: Final = 100_000
COPIES: Final = 4
"""Broker groups that have one topic."""
QUEUES: Final = 16
LARGE: Final = 50_000
"""Topics of the broker group with the most that the default bound allows."""
RATE: Final = 5_000
CONNECTIONS: Final = 64
MIB: Final = 1 << 20
MEMORY_GOAL_MIB: Final = 1536.0
REGISTER_GOAL_MS: Final = 50.0
ROUTE_GOAL_MS: Final = 5.0


def topic(number: int) -> str:
    return f"shop.events.topic-{number:06}"


def topics_of(group: int, groups: int, topics: int) -> list[str]:
    """The topics of a broker group, so that each topic is in COPIES of them."""
    return [
        topic(number)
        for number in range(topics)
        for copy in range(COPIES)
        if (number + copy * groups // COPIES) % groups == group
    ]


def registration(group: int, node: str, names: list[str] | None, counter: int = 1) -> bytes:
    """The body of a registration; names: topics of a master, None: a slave."""
    entry = TopicRoute(QUEUES, readable=True, writable=True)
    return msgspec.json.encode(
        Registration(
            cluster="tidemark",
            epoch=1,
            counter=counter,
            role="slave" if names is None else "master",
            api=f"http://broker-{group:04}-{node}.shop.example:8080",
            admin=f"http://broker-{group:04}-{node}.shop.example:8083",
            identity=f"{group:04}-{node}",
            topics=None if names is None else dict.fromkeys(names, entry),
        )
    )


@contextlib.contextmanager
def name_service() -> Iterator[tuple[int, ChildProcess]]:
    """Run a name service on the servers' core; yields its port and its process."""
    port, admin_port = free_ports(2)
    ports = ("--port", str(port), "--admin-port", str(admin_port))
    with tempfile.TemporaryDirectory() as directory:
        command = [*programs.service("names"), *ports]
        process = start_pinned(command, Path(directory) / "names.log")
        try:
            wait_until(lambda: is_ready(f"http://{HOST}:{admin_port}"), "the name service")
            yield port, process
        finally:
            process.kill()


class Registering:
    """Registers over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=60)

    def put(self, group: int, node: str, body: bytes) -> float:
        """Register; return the time from the request to its answer [ms]."""
        path = registration_path(f"group-{group:04}", node)
        began = time.perf_counter()
        self._connection.request("PUT", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 204:
            raise OSError(f"{path}: {text[:300]!r}")
        return (time.perf_counter() - began) * 1000


class Asker(asyncio.Protocol):
    """One connection that asks for one route at a time."""

    def __init__(self, idle: asyncio.Queue[Asker], latencies_ms: list[float]) -> None:
        self._idle, self._latencies_ms = idle, latencies_ms
        self._answer = b""
        self._due = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        self._idle.put_nowait(self)

    def ask(self, path: str, due: float) -> None:
        assert self._transport is not None
        self._due = due
        self._transport.write(f"GET {path} HTTP/1.1\r\nHost: names\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(f"a route was refused: {self._answer[:300]!r}")
        self._latencies_ms.append((time.perf_counter() - self._due) * 1000)
        self._answer = b""
        self._idle.put_nowait(self)


async def ask_at_rate(port: int, seconds: float, topics: int) -> list[float]:
    """Ask for RATE routes a second; return the latencies [ms]."""
    loop, latencies_ms = asyncio.get_running_loop(), list[float]()
    idle: asyncio.Queue[Asker] = asyncio.Queue()
    made = [
        await loop.create_connection(lambda: Asker(idle, latencies_ms), HOST, port)
        for _ in range(CONNECTIONS)
    ]
    count, drawn = int(seconds * RATE), random.Random(0)
    began = time.perf_counter()
    for number in range(count):
        due = began + number / RATE
        if (left_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(left_s)
        (await idle.get()).ask(f"/v1/route/{topic(drawn.randrange(topics))}", due)
    for _ in made:  # until the last one is answered
        await idle.get()
    for transport, _ in made:
        transport.close()
    return latencies_ms


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def main(given: Options) -> Result:
    pin_to_load_core()
    groups = given.pick(GROUPS, quick=100)
    topics = given.pick(TOPICS, quick=10_000)
    seconds = given.pick(10.0, quick=2.0)
    bodies = [
        registration(group, "n0", topics_of(group, groups, topics)) for group in range(groups)
    ]
    large_names = [topic(number) for number in range(LARGE)]
    found = defaultdict[str, list[float]](list)
    for _ in range(given.runs):
        with name_service() as (port, process):
            registering = Registering(port)
            first = [registering.put(group, "n0", body) for group, body in enumerate(bodies)]
            for group in range(groups):
                registering.put(group, "n1", registration(group, "n1", None))
            found["memory"].append(process.memory("RssAnon") / MIB)
            found["once"].append(percentile(first, 99))
            second = [registering.put(group, "n0", body) for group, body in enumerate(bodies)]
            found["again"].append(percentile(second, 99))
            before_s, began = process.cpu_s(), time.perf_counter()
            latencies_ms = uvloop.run(ask_at_rate(port, seconds, topics))
            found["cpu"].append((process.cpu_s() - before_s) / (time.perf_counter() - began) * 100)
            found["p99"].append(percentile(latencies_ms, 99))
            found["median"].append(percentile(latencies_ms, 50))
            found["large"].append(
                registering.put(groups, "n0", registration(groups, "n0", large_names))
            )
    figures: list[Figure] = [
        at_most(f"memory of {groups} broker groups and {topics:,} topics", "MiB", found["memory"],
                MEMORY_GOAL_MIB),
        at_most("full registration of a broker group, p99", "ms", found["once"], REGISTER_GOAL_MS),
        at_most("the same again, p99", "ms", found["again"], REGISTER_GOAL_MS),
        at_most(f"full registration of {LARGE:,} topics", "ms", found["large"]),
        at_most(f"route at {RATE:,}/s, p99", "ms", found["p99"], ROUTE_GOAL_MS),
        at_most(f"route at {RATE:,}/s, median", "ms", found["median"]),
        at_most(f"processor time at {RATE:,} routes/s", "% of a core", found["cpu"]),
    ]  # fmt: skip
    return Result(
        figures,
        f"""A name service on core 0, the load on core {LOAD_CORE}. {groups} broker groups of two
        nodes, {topics:,} topics of {QUEUES} queues in {COPIES} of them each, so
        {topics * COPIES // groups} topics for each; registered with all topics one after another,
        then once more, unchanged. RssAnon of the process after that. {seconds:.0f} s of routes of
        topics drawn at random over {CONNECTIONS} connections, JSON; a latency counts from the time
        at which the request was due.""",
    )


if __name__ == "__main__":
    benchmark(main)
