"""Producers that remember their acks, and checks of a store against them.

``Load`` sends from several tasks until it is stopped, over the real client, and survives a
broker that dies under it: an answer goes into the ``Ledger``, no answer is an unknown outcome. No
message is ever sent twice, so nothing may be found twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, NamedTuple

import tidemark
from tests.support.node import Node
from tidemark.client.messages import Ack, Message, NewMessage
from tidemark.errors import TidemarkError

PRODUCERS: Final = 4
MESSAGES_PER_SEND_MAX: Final = 12
PAUSE_AFTER_ERROR_S: Final = 0.1


class Acked(NamedTuple):
    """The ack of one message."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    message_id: str
    level: str


@dataclass(slots=True)
class Ledger:
    """Everything sent, by its body, which names its sender, send and message."""

    acked: dict[bytes, Acked] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    """Sent without an answer: stored or not."""
    refused: int = 0
    keys: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    topics: dict[bytes, str] = field(default_factory=dict)

    def as_of_now(self) -> Ledger:
        """A copy to check against while more is being sent; later messages may be missing."""
        return replace(self, acked=dict(self.acked), unknown=set(self.unknown))

    def violations(self, topic: str, queues: dict[int, list[Message]]) -> list[str]:
        """Errors in a topic's queues, each read whole from its first message on."""
        wrong: list[str] = []
        places: dict[bytes, tuple[int, int]] = {}
        for queue, messages in queues.items():
            for expected, message in enumerate(messages):
                place = (queue, message.queue_offset)
                if message.queue_offset != expected:
                    wrong.append(f"{topic}/{queue}: offset {message.queue_offset} at {expected}")
                if message.body in places:
                    wrong.append(f"{message.body!r} is at {places[message.body]} and {place}")
                if message.body not in self.topics:
                    wrong.append(f"{topic}: {message.body!r} at {place} was never sent")
                places[message.body] = place
        for body, ack in self.acked.items():
            if ack.topic == topic and places.get(body) != (ack.queue, ack.queue_offset):
                wrong.append(f"{body!r} was acked at {ack}, found at {places.get(body)}")
        numbers: dict[tuple[int, int], bytes] = {}
        for body, ack in self.acked.items():
            if ack.topic == topic:
                other = numbers.setdefault((ack.queue, ack.queue_offset), body)
                if other != body:
                    wrong.append(f"{other!r} and {body!r} were both acked at {ack}")
        return wrong


class Load:
    """Four producers against one broker, until ``stop``."""

    def __init__(self, url: str, topics: Iterable[str], random: Random, ledger: Ledger) -> None:
        self._url = url
        self._topics = list(topics)
        self._random = random
        self.ledger = ledger
        self._stop = asyncio.Event()
        self._answered = asyncio.Event()
        self._sends = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def acked(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until that many more messages have been acked: there is load on the store."""
        goal = len(self.ledger.acked) + more
        async with asyncio.timeout(timeout_s):
            while len(self.ledger.acked) < goal:
                self._answered.clear()
                await self._answered.wait()

    async def _produce(self, producer: int) -> None:
        async with tidemark.connect(self._url, retry_for_s=0.0) as mq:
            while not self._stop.is_set():
                try:
                    await self._send_once(mq, producer)
                except TidemarkError:
                    await asyncio.sleep(PAUSE_AFTER_ERROR_S)

    async def _send_once(self, mq: tidemark.Client, producer: int) -> None:
        self._sends += 1
        send, topic = self._sends, self._random.choice(self._topics)
        count = self._random.choice((1, 1, self._random.randint(2, MESSAGES_PER_SEND_MAX)))
        messages = []
        for number in range(count):
            body = f"{producer}.{send}.{number} ".encode() + b"." * self._random.randrange(600)
            keys = (f"s{send}", f"k{self._random.randrange(200)}")
            messages.append(NewMessage(body, keys=keys, tags=f"t{send % 3}"))
            self.ledger.keys[body], self.ledger.topics[body] = keys, topic
        bodies = [message.body for message in messages]
        try:
            # No kill takes page cache away, so `memory` is as good a promise here as `disk`.
            acks: tuple[Ack, ...] = ("disk", "disk", "memory")
            ack = self._random.choice(acks)
            results = await mq.send_many(topic, messages, ack=ack)
        except TidemarkError as error:
            if error.code in ("unreachable", "ack-timeout"):
                self.ledger.unknown.update(bodies)
            else:
                self.ledger.refused += count
            raise
        self._answered.set()
        for body, result in zip(bodies, results, strict=True):
            self.ledger.acked[body] = Acked(
                topic,
                result.queue,
                result.queue_offset,
                result.physical_offset,
                result.message_id,
                result.level,
            )


async def read_topic(url: str, topic: str) -> dict[int, list[Message]]:
    """Every message of a topic, queue by queue, from its first to its last visible one."""
    found: dict[int, list[Message]] = {}
    async with tidemark.connect(url) as mq:
        queues = (await mq.topic(topic)).queues
        for queue in range(queues):
            messages = [message async for message in mq.read(topic, queue)]
            if messages:
                found[queue] = messages
    return found


async def wait_dispatched(node: Node, url: str, ledger: Ledger, timeout_s: float = 60.0) -> None:
    """Wait until the newest acked message of every queue can be pulled."""
    newest: dict[tuple[str, int], int] = {}
    for ack in ledger.acked.values():
        queue = (ack.topic, ack.queue)
        newest[queue] = max(newest.get(queue, 0), ack.queue_offset)
    async with asyncio.timeout(timeout_s), tidemark.connect(url) as mq:
        for (topic, number), offset in newest.items():
            while not (await mq.pull(topic, number, offset, max=1, wait_ms=1000)).messages:
                assert node.is_alive("broker"), "the broker ended"
                assert node.is_alive("reput"), "reput ended"
