"""One end of a flow of messages in its own process: a producer or a consumer that commits.

    python -m bench.flow produce|consume tidemark URL TOPIC GROUP COUNT
    python -m bench.flow produce|consume redis PORT KEY GROUP COUNT

A consumer prints ``ready`` once it has joined. Each prints one line of JSON at its end with its
start and end on the machine's monotonic clock, its number of messages and its CPU time. The
consumer has committed by then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import redis.asyncio
import uvloop

import tidemark
from bench.servers import HOST
from tidemark.client.messages import Message

BODY_SIZE: Final = 256
BATCH: Final = 1000
"""Messages of one ``send_many``, which is what the client puts into one request, and of one
pipeline of Redis."""
SENDERS: Final = 4
"""Batches in flight: while one is synced, the next is built."""
READ_MAX: Final = 1024
"""Messages in one batch of the client by default, and in one XREADGROUP."""


class Sent(NamedTuple):
    began_s: float
    ended_s: float
    messages: int
    cpu_s: float


async def in_turns(count: int, send: Callable[[], Awaitable[object]]) -> None:
    """Send count messages in batches, SENDERS of them concurrently."""
    left = count // BATCH

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send()

    await asyncio.gather(*(work() for _ in range(SENDERS)))


async def produce_tidemark(url: str, topic: str, group: str, count: int) -> int:
    """Send with the client's defaults: ack ``disk``, ids from the broker, queues in turn."""
    bodies = [os.urandom(BODY_SIZE)] * BATCH
    async with tidemark.connect(url) as mq:
        await in_turns(count, lambda: mq.send_many(topic, bodies))
    return count


async def consume_tidemark(url: str, topic: str, group: str, count: int) -> int:
    """Consume batches with the client's defaults; check that offsets have no gap or repetition."""
    seen: Counter[int | str] = Counter()

    def take(messages: Sequence[Message]) -> None:
        for message in messages:
            if message.queue_offset != seen[message.queue]:
                raise ValueError(f"{message.queue_offset} at {seen[message.queue]}")
            seen[message.queue] += 1

    async with tidemark.connect(url) as mq, mq.subscribe(topic, group=group) as messages:
        print("ready", flush=True)
        async for batch in messages.batches():
            take(batch)
            if seen.total() >= count:
                break
    return seen.total()


async def consume_tidemark_each(url: str, topic: str, group: str, count: int) -> int:
    """The same, one message at a time."""
    seen = 0
    async with tidemark.connect(url) as mq, mq.subscribe(topic, group=group) as messages:
        print("ready", flush=True)
        async for _ in messages:
            seen += 1
            if seen >= count:
                break
    return seen


async def produce_redis(port: str, key: str, group: str, count: int) -> int:
    """Send with redis.asyncio: pipelines of XADD over one connection per sender."""
    body = os.urandom(BODY_SIZE)

    async def send() -> None:
        pipe = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipe.xadd(key, {"body": body})
        await pipe.execute()

    async with redis.asyncio.Redis(host=HOST, port=int(port)) as client:
        await in_turns(count, send)
    return count


async def consume_redis(port: str, key: str, group: str, count: int) -> int:
    """Consume with redis.asyncio: XREADGROUP and one XACK for its messages."""
    seen = 0
    async with redis.asyncio.Redis(host=HOST, port=int(port)) as client:
        await client.xgroup_create(key, group, id="0", mkstream=True)
        print("ready", flush=True)
        while seen < count:
            found: Any = await client.xreadgroup(group, "c", {key: ">"}, count=READ_MAX, block=1000)
            for _, messages in found:
                ids = [number for number, _ in messages]
                await client.xack(key, group, *ids)
                seen += len(ids)
    return seen


ENDS: Final = {
    ("produce", "tidemark"): produce_tidemark,
    ("consume", "tidemark"): consume_tidemark,
    ("consume-each", "tidemark"): consume_tidemark_each,
    ("produce", "redis"): produce_redis,
    ("consume", "redis"): consume_redis,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("end", "server", "address", "topic", "group"):
        parser.add_argument(name)
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    os.sched_setaffinity(0, range(min(2, os.cpu_count() or 1)))
    end = ENDS[given.end, given.server]
    began_s, cpu_s = time.monotonic(), time.process_time()
    messages = uvloop.run(end(given.address, given.topic, given.group, given.count))
    sent = Sent(began_s, time.monotonic(), messages, time.process_time() - cpu_s)
    print(json.dumps(sent._asdict()), flush=True)


if __name__ == "__main__":
    main()
