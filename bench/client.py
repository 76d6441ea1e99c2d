"""Figures 23 and 24: a producer and a consumer group in Python, against aiokafka with Kafka.

One process on the load core uses a client like a program does; the CPU time of the process is the
client's. Both clients run with their defaults on asyncio's loop, and at their best. Kafka is
optional, as in ``compared``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import metadata
from typing import Final

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import tidemark
from bench import kafka, redis_streams
from bench.compared import WARM_UP_S, left_out
from bench.exchange import LoadFailed, Outcome, repeated
from bench.harness import Figure, Options, Result, at_most, benchmark, interleave
from bench.load import Shape, measured, produce
from bench.servers import (
    HOST,
    Compared,
    Node,
    kafka_server,
    kafka_version,
    pin_to_load_core,
    settle,
)

TASKS: Final = 32
"""Tasks that send single messages."""
BATCH: Final = 256
SENDERS: Final = 4
"""Tasks that send batches: while one waits for its answer, others build theirs."""
BODY_SIZE: Final = 256
QUEUES: Final = 4
"""Queues of a topic, and partitions of Kafka's."""
KAFKA_SHARE: Final = 4
"""aiokafka reads this many times fewer messages, because it takes longer for them."""
LOOPS: Final = {"defaults": asyncio.run, "best": uvloop.run}
OUR_TYPES: Final = {"Tidemark": "simple", "Tidemark, batch queues": "batch"}
"""Type of the queues by the name of a server."""
AIOKAFKA: Final = "aiokafka"
CALLS: Final = {"send": (TASKS, 1), "send_many": (SENDERS, BATCH)}
"""Tasks, and messages per call."""
GOALS: Final = {"send": 120_000, "send_many": 450_000, "async for": 500_000}
"""For our client at its best [msg/s]."""
FETCH_SIZE: Final = 4 << 20
"""Bytes per partition in one fetch of aiokafka at its best, as many as ours; its default is 1 MiB.
A ``linger_ms`` only delays closed loops."""
_group_numbers: Final = itertools.count()


async def send_ours(url: str, topic: str, call: str, seconds: float) -> Outcome:
    """Send with ack ``memory``, which is answered like Kafka's acks=1."""
    body = os.urandom(BODY_SIZE)
    bodies = [body] * BATCH
    tasks, messages = CALLS[call]
    async with tidemark.connect(url) as mq:
        if call == "send":
            return await repeated(
                [mq] * tasks, lambda mq: mq.send(topic, body, ack="memory"), messages, seconds
            )
        return await repeated(
            [mq] * tasks, lambda mq: mq.send_many(topic, bodies, ack="memory"), messages, seconds
        )


async def send_theirs(address: str, topic: str, call: str, seconds: float, kind: str) -> Outcome:
    """Send with aiokafka, acks=1. kind ``best``: build whole batches for one partition at a time.

    With defaults, ``send_many`` sends single messages and waits for all their answers.
    """
    body = os.urandom(BODY_SIZE)
    tasks, messages = CALLS[call]
    partitions = itertools.cycle(range(QUEUES))

    async def send_each(producer: AIOKafkaProducer) -> None:
        await asyncio.gather(*[await producer.send(topic, body) for _ in range(BATCH)])

    async def send_batch(producer: AIOKafkaProducer) -> None:
        batch = producer.create_batch()
        for _ in range(BATCH):
            batch.append(key=None, value=body, timestamp=None)
        await (await producer.send_batch(batch, topic, partition=next(partitions)))

    send_many = send_batch if kind == "best" else send_each
    batch_size = {"max_batch_size": 1 << 18} if kind == "best" else {}
    async with AIOKafkaProducer(bootstrap_servers=address, acks=1, **batch_size) as producer:
        if call == "send":
            return await repeated(
                [producer] * tasks, lambda one: one.send_and_wait(topic, body), messages, seconds
            )
        return await repeated([producer] * tasks, send_many, messages, seconds)


async def handle(messages: AsyncIterator[object], count: int) -> tuple[float, float]:
    """Handle this many messages; return clock and CPU time at the first one."""
    await anext(messages)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    left = count - 1
    async for _ in messages:
        left -= 1
        if left == 0:
            break
    return began_s, cpu_s


def until_now(began_s: float, cpu_s: float, count: int) -> Outcome:
    """Return the outcome of a reader that has left its group."""
    return Outcome(count, 0, time.perf_counter() - began_s, time.process_time() - cpu_s)


async def read_ours(url: str, topic: str, group: str, count: int) -> Outcome:
    async with (
        tidemark.connect(url) as mq,
        mq.subscribe(topic, group=group, start="first") as messages,
    ):
        began = await handle(aiter(messages), count)
    return until_now(*began, count)


async def read_theirs(address: str, topic: str, group: str, count: int, kind: str) -> Outcome:
    fetch_size = {"max_partition_fetch_bytes": FETCH_SIZE} if kind == "best" else {}
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        **fetch_size,
    ) as consumer:
        began = await handle(consumer, count)
    return until_now(*began, count)


class Kafka:
    """A running Kafka, asked through aiokafka."""

    def __init__(self, server: Compared, *, quick: bool) -> None:
        self.address = f"{HOST}:{server.port}"
        small = redis_streams.Shape(BATCH, 16)
        kafka.prepare(server, small, WARM_UP_S / (10 if quick else 1))

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def make_topic(self, topic: str) -> None:
        async def make() -> None:
            async with self._admin() as admin:
                await admin.create_topics([NewTopic(topic, QUEUES, 1)])

        asyncio.run(make())

    def message_count(self, topic: str) -> int:
        async def count() -> int:
            async with AIOKafkaConsumer(bootstrap_servers=self.address) as consumer:
                partitions = [TopicPartition(topic, number) for number in range(QUEUES)]
                return sum((await consumer.end_offsets(partitions)).values())

        return asyncio.run(count())

    def committed_count(self, group: str) -> int:
        async def count() -> int:
            async with self._admin() as admin:
                committed = await admin.list_consumer_group_offsets(group)
                return sum(each.offset for each in committed.values())

        return asyncio.run(count())


class Clients:
    """The servers, running, and one method per kind of run; each returns messages per second."""

    def __init__(self, running: ExitStack, given: Options) -> None:
        self.seconds = given.pick(2.0, quick=0.5)
        self.count = given.pick(1_000_000, quick=200_000)
        """Messages that a run of our consumer reads."""
        self._node = running.enter_context(Node())
        for name, queue_type in OUR_TYPES.items():
            for topic in (f"sent-{queue_type}", f"read-{queue_type}"):
                self._node.make_topic(topic, QUEUES, queue_type)
            self._fill_ours(name)
        self._kafka: Kafka | None = None
        if kafka_version() is not None:
            self._kafka = Kafka(running.enter_context(kafka_server()), quick=given.quick)
            for topic in ("sent", "read"):
                self._kafka.make_topic(topic)
            while self._kafka.message_count("read") < self.count // KAFKA_SHARE:
                self._send_theirs("read", "send_many", "best")
        self.cpu_us: defaultdict[str, list[float]] = defaultdict(list)
        """CPU time of the client per message [µs], for every run."""

    @property
    def servers(self) -> list[str]:
        return [*OUR_TYPES, *([AIOKAFKA] if self._kafka else [])]

    def _fill_ours(self, name: str) -> None:
        topic = f"read-{OUR_TYPES[name]}"
        shape = Shape(BATCH, BODY_SIZE, ids="batch" if OUR_TYPES[name] == "batch" else "made")
        while self._node.message_count(topic) < self.count:
            produce(self._node, topic, shape, connections=2, seconds=0.2)

    def _send_theirs(self, topic: str, call: str, kind: str) -> Outcome:
        assert self._kafka is not None, "measured only if it runs"
        before = self._kafka.message_count(topic)
        outcome = LOOPS[kind](send_theirs(self._kafka.address, topic, call, self.seconds, kind))
        stored = self._kafka.message_count(topic) - before
        if stored != outcome.messages:
            raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} in Kafka")
        return outcome

    def produced(self, name: str, server: str, call: str, kind: str) -> float:
        settle()
        if server == AIOKAFKA:
            return self._noted(name, self._send_theirs("sent", call, kind))
        topic = f"sent-{OUR_TYPES[server]}"
        work = partial(send_ours, self._node.url, topic, call, self.seconds)
        return self._noted(name, measured(self._node, topic, lambda: LOOPS[kind](work())).outcome)

    def consumed(self, name: str, server: str, kind: str) -> float:
        """Read a filled topic in a new group; check that all that was read is committed."""
        group = f"group-{next(_group_numbers)}"
        if server == AIOKAFKA:
            assert self._kafka is not None, "measured only if it runs"
            count = self.count // KAFKA_SHARE
            outcome = LOOPS[kind](read_theirs(self._kafka.address, "read", group, count, kind))
            committed = self._kafka.committed_count(group)
        else:
            topic = f"read-{OUR_TYPES[server]}"
            outcome = LOOPS[kind](read_ours(self._node.url, topic, group, self.count))
            offsets = self._node.call("GET", f"/v1/groups/{group}/offsets")["offsets"]
            committed = sum(int(each["offset"]) for each in offsets)
        if committed != outcome.messages:
            raise LoadFailed(f"{outcome.messages} messages handled, {committed} committed")
        return self._noted(name, outcome)

    def _noted(self, name: str, outcome: Outcome) -> float:
        self.cpu_us[name].append(outcome.cpu_s / outcome.messages * 1e6)
        return outcome.rate


def main(given: Options) -> Result:
    pin_to_load_core()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it retries what it warns of
    with ExitStack() as running:
        clients = Clients(running, given)
        jobs: dict[str, Callable[[], float]] = {}
        for server, kind in itertools.product(clients.servers, LOOPS):
            for call in CALLS:
                name = job_name(call, server, kind)
                jobs[name] = partial(clients.produced, name, server, call, kind)
            name = job_name("async for", server, kind)
            jobs[name] = partial(clients.consumed, name, server, kind)
        rates = interleave(jobs, given.runs)
        found = figures(rates, clients.cpu_us)
    versions = {AIOKAFKA: metadata.version(AIOKAFKA), "Kafka": kafka_version() or "left out"}
    return Result(found, method(clients, given.runs), versions=versions, notes=left_out("Kafka"))


def job_name(call: str, server: str, kind: str) -> str:
    return f"{call}, {server}, {kind}"


def figures(
    rates: Mapping[str, Sequence[float]], cpu_us: Mapping[str, Sequence[float]]
) -> list[Figure]:
    """Build rate and CPU time of every job, ours against aiokafka in the same set-up."""
    found = []
    for name, values in rates.items():
        call, *_, kind = name.split(", ")
        base = job_name(call, AIOKAFKA, kind)
        baseline = rates.get(base, ()) if base != name else ()
        goal = GOALS[call] if kind == "best" and base != name else None
        found.append(Figure(name, "msg/s", values, goal, base, baseline))
        cpu = cpu_us[name][-len(values) :]
        base_cpu = cpu_us[base][-len(values) :] if baseline else ()
        what = f"CPU time of the client per message, {name}"
        found.append(at_most(what, "µs", cpu, None, base, base_cpu))
    return found


def method(clients: Clients, runs: int) -> str:
    return f"""Each server on core 0 (broker and reput together, default profile; Kafka with KRaft,
        its JVM warm), one process with the client on core 1; {clients.seconds} s per run of a
        producer, {runs} runs of each kind in turn after a warm-up; {BODY_SIZE} B, {QUEUES} queues
        or partitions per topic. send: {TASKS} tasks send single messages over one client;
        send_many: {SENDERS} tasks send lists of {BATCH}. Ack memory, acks=1. Defaults: asyncio's
        loop, and all settings as they are; aiokafka's send_many is then {BATCH} sends whose answers
        are awaited together. Best: uvloop; aiokafka builds whole batches for one partition at a
        time (create_batch), with max_batch_size 256 KiB, and fetches up to 4 MiB per partition. Its
        compiled extensions are in use. async for: a filled topic, a new group with one member,
        commits on as by default (ours every 100 ms, aiokafka's every 5 s); from the first message
        to the end of the last commit of {clients.count} messages, of {KAFKA_SHARE} times fewer with
        aiokafka. Checked: the store has what was acknowledged, and exactly what was handled is
        committed. CPU time is that of the client's process, in user and kernel."""


if __name__ == "__main__":
    benchmark(main)
