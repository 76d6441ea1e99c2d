"""Put some hundred messages of every shape into a node, through the client."""

from __future__ import annotations

import random
from typing import NamedTuple

import tidemark


class Sent(NamedTuple):
    """One acked message, and what was said of it."""

    topic: str
    body: bytes
    keys: tuple[str, ...]
    queue: int
    queue_offset: int
    physical_offset: int
    message_id: str


async def fill(url: str, *, seed: int, requests: int, topics: tuple[str, ...]) -> list[Sent]:
    """Send seeded batches of 1 to 20 messages to four queues of each topic, at ``disk``."""
    rng = random.Random(seed)
    sent: list[Sent] = []
    async with tidemark.connect(url) as mq:
        for topic in topics:
            await mq.create_topic(topic, queues=4)
        for number in range(requests):
            topic = rng.choice(topics)
            queue = rng.randrange(4)
            batch = [
                tidemark.NewMessage(
                    rng.randbytes(rng.choice((0, 1, 30, 300, 3000))),
                    tags=rng.choice((None, "new", "größer", "old")),
                    keys=[f"key-{rng.randrange(200)}" for _ in range(rng.randrange(3))],
                    properties={"Größe": "中文😀"} if rng.random() < 0.2 else {"n": str(number)},
                    queue=queue,
                )
                for _ in range(rng.choice((1, 1, 5, 20)))
            ]
            results = await mq.send_many(topic, batch, ack="disk")
            sent += [
                Sent(
                    topic,
                    bytes(message.body),
                    tuple(message.keys),
                    result.queue,
                    result.queue_offset,
                    result.physical_offset,
                    result.message_id,
                )
                for message, result in zip(batch, results, strict=True)
            ]
    return sent
