"""Figure 5: 256 messages per HTTP request, 8 connections; also Redis, NATS, Kafka and RocketMQ.

Every server is measured over raw connections that send prebuilt requests, which shows the capacity
of the server; Redis and NATS also through their Python asyncio clients, which show what a program
gets. Only like is compared with like; the notes say which side was saturated.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Final

import uvloop

import tidemark
from bench import nats_jetstream, redis_streams
from bench.compared import RAW, cpu_figures, left_out, start_all, versions
from bench.exchange import Outcome, repeated
from bench.harness import Figure, Options, Result, Series, benchmark, interleave, of_ratios
from bench.load import Produced, Shape, measured, produce
from bench.servers import Compared, Node, pin_to_load_core, settle

CONNECTIONS: Final = 8
MESSAGES: Final = 256
BODY_SIZE: Final = 256
SERIES_SECONDS: Final = 0.7
BODY_SIZES: Final = (16, 64, 256, 1024, 4096)
BATCH_SIZES: Final = (1, 4, 16, 64, 256, 1024)
TOPIC: Final = "batch"
BATCH_TOPIC: Final = "inner"
"""A topic with batch queues."""
OURS: Final = {
    "memory, no ids": (Shape(MESSAGES, BODY_SIZE, "memory", "none"), 1_000_000, "Redis everysec"),
    "memory, unique ids": (Shape(MESSAGES, BODY_SIZE, "memory", "given"), 850_000, "NATS"),
    "disk, unique ids": (Shape(MESSAGES, BODY_SIZE, "disk", "given"), 750_000, "Redis always"),
    "memory, batch queues": (Shape(MESSAGES, BODY_SIZE, "memory", "batch"), 2_000_000, "Kafka"),
    "disk, batch queues": (Shape(MESSAGES, BODY_SIZE, "disk", "batch"), None, "Redis always"),
}
"""Shape, goal [msg/s], and the server with the same guarantees over raw connections."""
CPU_GOALS: Final = {
    "memory, no ids": 0.9,
    "memory, unique ids": 1.1,
    "disk, unique ids": 1.1,
    "memory, batch queues": 0.45,
}
"""CPU time of broker and reput per message [µs], at most."""

THEIRS: Final = {
    **RAW,
    "Redis always, redis-benchmark": redis_streams.own_tool,
    "Redis always, redis.asyncio": redis_streams.python_client,
    "Redis everysec, redis.asyncio": redis_streams.python_client,
    "NATS, nats-py": nats_jetstream.python_client,
}
"""Client by the name of its runs, which begins with that of the server."""


class Compare:
    """All servers, running, and one method per kind of run; each returns messages per second."""

    def __init__(self, running: ExitStack, seconds: float, *, quick: bool) -> None:
        self.seconds = seconds
        self.node = running.enter_context(Node())
        small = redis_streams.Shape(MESSAGES, BODY_SIZES[0], CONNECTIONS)
        self.servers = start_all(running, small, quick=quick)
        self.node.make_topic(TOPIC, 4)
        self.node.make_topic(BATCH_TOPIC, 4, "batch")
        self.shares: dict[str, str] = {}
        """CPU usage of server and load in the last run of each kind."""
        self.cpu_us: defaultdict[str, list[float]] = defaultdict(list)
        """CPU time of the server per message [µs], for every run."""
        self.dispatched: dict[str, list[float]] = {name: [] for name in OURS}
        """Messages per second until everything was dispatched, for every run."""

    def ours(self, name: str) -> float:
        produced = self.produce(OURS[name][0])
        self.shares[name] = produced.shares
        self.cpu_us[name].append(produced.cpu_us)
        self.dispatched[name].append(produced.outcome.messages / produced.dispatched_s)
        return produced.outcome.rate

    def produce(self, shape: Shape) -> Produced:
        """Execute one run of a shape and count its messages in the store."""
        settle()
        topic = BATCH_TOPIC if shape.ids == "batch" else TOPIC
        return produce(self.node, topic, shape, connections=CONNECTIONS, seconds=self.seconds)

    def our_client(self) -> float:
        """Send with the asyncio client at ``disk``; one client per connection."""
        settle()
        produced = measured(self.node, TOPIC, lambda: client_load(self.node.url, self.seconds))
        self.shares["disk, tidemark.Client"] = produced.shares
        self.cpu_us["disk, tidemark.Client"].append(produced.cpu_us)
        return produced.outcome.rate

    def theirs(
        self,
        name: str,
        client: Callable[[Compared, redis_streams.Shape, float], Outcome],
        shape: redis_streams.Shape | None = None,
    ) -> float:
        """Send with one of another server's clients; the run's name begins with the server's."""
        server = self.servers[name.partition(",")[0]]
        settle()
        with server.running():
            outcome = client(server, shape or redis_streams.Shape(), self.seconds)
        self.shares[name] = outcome.shares
        self.cpu_us[name].append(outcome.server_cpu_us)
        return outcome.rate


def client_load(url: str, seconds: float) -> Outcome:
    """Send lists of bodies through the client like its users do."""
    bodies = [os.urandom(BODY_SIZE)] * MESSAGES

    async def run() -> Outcome:
        async with AsyncExitStack() as open_clients:
            clients = [
                await open_clients.enter_async_context(tidemark.connect(url))
                for _ in range(CONNECTIONS)
            ]
            return await repeated(
                clients, lambda mq: mq.send_many(TOPIC, bodies, ack="disk"), MESSAGES, seconds
            )

    return uvloop.run(run())


def main(given: Options) -> Result:
    seconds = given.pick(2.0, quick=0.5)
    pin_to_load_core()
    with ExitStack() as running:
        compare = Compare(running, seconds, quick=given.quick)
        jobs: dict[str, Callable[[], float]] = {
            **{name: partial(compare.ours, name) for name in OURS},
            "disk, tidemark.Client": compare.our_client,
            **{
                name: partial(compare.theirs, name, client)
                for name, client in THEIRS.items()
                if name.partition(",")[0] in compare.servers
            },
        }
        rates = interleave(jobs, given.runs)
        dispatched = {name: each[-given.runs :] for name, each in compare.dispatched.items()}
        found = figures(rates, dispatched) + cpu_figures(
            rates, compare.cpu_us, given.runs, CPU_GOALS
        )
        notes = [f"CPU in the last run, {name}: {seen}" for name, seen in compare.shares.items()]
        series = [] if given.quick else all_series(compare)
    return Result(
        found,
        method(seconds, given.runs),
        versions=versions(),
        series=series,
        notes=left_out() + notes,
    )


def figures(rates: dict[str, list[float]], dispatched: dict[str, list[float]]) -> list[Figure]:
    """Build all figures: ours with goals, comparisons, and the rate of every server."""
    shape = f"HTTP, {MESSAGES} messages per request, {CONNECTIONS} connections, {BODY_SIZE} B"
    raw, clients = "raw connections", "asyncio clients"
    streams, jetstream = "Redis Streams always", "NATS JetStream (no sync)"
    found = []
    for name, (_, goal, base) in OURS.items():
        what, baseline = f"{shape}, {name}", f"{base}, {raw}"
        found.append(Figure(what, "msg/s", rates[name], goal, baseline, rates.get(base, ())))
    found += [
        Figure(f"{shape}, {name}, until all was dispatched", "msg/s", dispatched[name])
        for name in OURS
    ]
    found += [
        of_ratios(f"disk, unique ids, {what}", rates[ours], rates[theirs], 1.0, baseline)
        for what, ours, theirs, baseline in (
            (raw, "disk, unique ids", "Redis always", streams),
            (raw, "disk, unique ids", "NATS", jetstream),
            (clients, "disk, tidemark.Client", "Redis always, redis.asyncio", streams),
            (clients, "disk, tidemark.Client", "NATS, nats-py", jetstream),
        )
    ]
    if "Kafka" in rates:
        ours = "memory, no ids"
        found.append(of_ratios(f"{ours}, {raw}", rates[ours], rates["Kafka"], None, "Kafka acks=1"))
    found += [Figure(name, "msg/s", rates[name]) for name in rates if name not in OURS]
    return found


def method(seconds: float, runs: int) -> str:
    """Describe the measurement, and the guarantee of each acknowledgement."""
    return f"""Each server on core 0 (broker and reput together, default profile), load on core 1;
        {seconds} s per run, {runs} runs of each kind in turn after a warm-up; {CONNECTIONS}
        connections, each sends {MESSAGES} messages of {BODY_SIZE} B and waits for all their
        acknowledgements; the disk is synced between runs; after each run the server is asked for
        its count, which must be the acknowledged one. Raw connections send requests built once
        (ours with fresh unique ids) and count answers. CPU time is that of all processes of a
        server (ours: broker and reput until all was dispatched), in user and kernel. What an answer
        means: memory, in the page cache (outlives the process); disk, after fdatasync. Redis
        Streams: XADD, appendonly yes; always answers after fdatasync of the append-only file,
        everysec after write. NATS JetStream, file storage: answers after pwrite, syncs every two
        minutes; this version has no setting to sync before an answer, so it is held against disk
        although it promises what memory does. Kafka: one broker with KRaft, one partition, acks=1;
        one record batch per request, uncompressed, without keys; answers from the page cache.
        RocketMQ: one broker, four queues, batches without ids, until all was dispatched; async
        answers from the page cache, sync after fsync. Each JVM compiles in a longer warm-up of its
        own; a server is stopped (SIGSTOP) while another one is measured."""


def all_series(compare: Compare) -> list[Series]:
    """Measure by body size and by messages per request; one short run each, raw connections."""
    compare.seconds = SERIES_SECONDS

    def lines(shapes: Sequence[tuple[int, int, int]]) -> dict[str, list[tuple[float, float]]]:
        """Measure each server at each shape: (x coordinate, messages per request, body size)."""
        found: dict[str, list[tuple[float, float]]] = {}
        for x, messages, body_size in shapes:
            theirs = redis_streams.Shape(messages, body_size, CONNECTIONS)
            for ack in ("memory", "disk"):
                rate = compare.produce(Shape(messages, body_size, ack, "given")).outcome.rate
                found.setdefault(f"Tidemark {ack}", []).append((x, rate))
            for name in compare.servers:
                found.setdefault(name, []).append((x, compare.theirs(name, RAW[name], theirs)))
        return found

    by_size = lines([(size, MESSAGES, size) for size in BODY_SIZES])
    by_count = lines([(count, count, BODY_SIZE) for count in BATCH_SIZES])
    per_request, load = "messages per request", f"{CONNECTIONS} connections, unique ids"
    sizes, counts = f"{MESSAGES} {per_request}, {load}", f"{BODY_SIZE} B bodies, {load}"
    return [
        Series("http_batch_body_size", sizes, "body [bytes]", "messages/s", by_size),
        Series("http_batch_messages", counts, per_request, "messages/s", by_count),
    ]


if __name__ == "__main__":
    benchmark(main)
