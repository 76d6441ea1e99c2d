"""The programs of a world: producers and consumers that use the client library as anybody does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from tests.simulation.cluster.judge import Judge, MessageId, Violation
from tests.simulation.cluster.loop import Host, Loop
from tidemark.client import client as client_module
from tidemark.client.client import Client
from tidemark.client.cluster_producer import KeyedWhenDown
from tidemark.client.subscription import Subscription
from tidemark.errors import NotPermitted, TidemarkError, UnknownTopic
from tidemark.formats.message import Message

RESTART_S: Final = 0.5
"""Pause of a program after an error."""


class Connecting(NamedTuple):
    """How a program connects."""

    urls: Sequence[str]
    retry_for_s: float
    keyed_when_down: KeyedWhenDown

    def connect(self) -> Client:
        """Return a client that is not open yet."""
        return client_module.connect(
            self.urls, retry_for_s=self.retry_for_s, keyed_when_down=self.keyed_when_down
        )


class Program:
    """A process that uses the client library."""

    def __init__(
        self, name: str, loop: Loop, judge: Judge, connecting: Connecting, seed: int
    ) -> None:
        self.name, self._loop, self._judge, self._connecting = name, loop, judge, connecting
        self.host = Host(name)
        self._random = Random(f"{seed}/{name}")
        self.is_done = False
        """Whether it has ended by itself."""

    def start(self) -> None:
        """Start the process."""
        self._loop.start(self._run(), self.host)

    async def _run(self) -> None:
        raise NotImplementedError

    def crash(self) -> None:
        """End the process at once."""
        self.host.kill()

    async def stall(self, seconds: float) -> None:
        """Stop the process for a while."""
        self.host.stop()
        await asyncio.sleep(seconds)
        self.host.resume(self._loop)


def check_expected(error: TidemarkError, doing: str) -> None:
    """Raise Violation for an error that no fault of a history may cause."""
    if isinstance(error, UnknownTopic) or not (error.retriable or isinstance(error, NotPermitted)):
        raise Violation(f"{doing} is answered with {error!r}") from error


class Load(NamedTuple):
    """What a producer sends."""

    topics: Sequence[str]
    keys: int
    """Number of keys, which no other producer uses; each has a task of its own."""
    unkeyed: int
    """Number of tasks that send messages without a key."""
    pause_s: float
    """Mean pause between two messages of a task."""


class Producer(Program):
    """Sends messages until it is stopped; those with a key one after another."""

    def __init__(
        self, name: str, loop: Loop, judge: Judge, connecting: Connecting, load: Load, seed: int
    ) -> None:
        super().__init__(name, loop, judge, connecting, seed)
        self.load = load
        self.is_ending = False

    async def _run(self) -> None:
        load = self.load
        async with self._connecting.connect() as client:
            await asyncio.gather(
                *(self._send_key(client, f"{self.name}.{key}") for key in range(load.keys)),
                *(self._send_free(client, f"{number}") for number in range(load.unkeyed)),
            )
        self.is_done = True

    async def _send_key(self, client: Client, key: str) -> None:
        topic, number = self._random.choice(self.load.topics), 0
        while not self.is_ending:
            await asyncio.sleep(2 * self.load.pause_s * self._random.random())
            message = MessageId(topic, key, number)
            number += 1
            while True:
                if await self._sent(client, message):
                    break
                await asyncio.sleep(RESTART_S)

    async def _send_free(self, client: Client, task: str) -> None:
        number = 0
        while not self.is_ending:
            await asyncio.sleep(2 * self.load.pause_s * self._random.random())
            topic = self._random.choice(self.load.topics)
            number += 1
            # The name makes it unique; the key of the message is empty.
            await self._sent(client, MessageId(f"{topic}", "", self._number_of(task, number)))

    def _number_of(self, task: str, number: int) -> int:
        """Return a number that no other message without a key has."""
        return (int(self.name[1:]) << 32) + (int(task) << 24) + number

    async def _sent(self, client: Client, message: MessageId) -> bool:
        """Send a message; return whether it is acknowledged."""
        judge = self._judge
        judge.sent += 1
        timeout_ms = self._random.choice((None, None, None, 1500, 15_000))
        began_s = self._loop.time()
        try:
            result = await client.send(
                message.topic,
                message.body,
                sharding_key=message.key or None,
                timeout_ms=timeout_ms,
            )
        except TidemarkError as error:
            within_s = min(self._connecting.retry_for_s, (timeout_ms or 60_000) / 1000)
            is_early = self._loop.time() - began_s < within_s / 2
            if self._connecting.keyed_when_down == "wait" and is_early:
                check_expected(error, f"the send of {message}")
            return False
        judge.acknowledged(message, result)
        return True


class Reading(NamedTuple):
    """How a consumer reads."""

    topics: Sequence[str]
    group: str
    order: bool
    session_ms: int
    concurrency: int
    handling_s: float
    """Mean duration of handling one message."""
    max_in_flight: int


class Consumer(Program):
    """A member of a consumer group until it is asked to leave."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        judge: Judge,
        connecting: Connecting,
        reading: Reading,
        seed: int,
    ) -> None:
        super().__init__(name, loop, judge, connecting, seed)
        self.reading = reading
        self._is_leaving = False
        self._subscription: Subscription | None = None

    async def _run(self) -> None:
        while not self._is_leaving:
            try:
                await self._consume()
            except TidemarkError as error:
                check_expected(error, f"the subscription of {self.name}")
                await asyncio.sleep(RESTART_S)
        self.is_done = True

    async def _consume(self) -> None:
        reading = self.reading
        async with self._connecting.connect() as client:
            subscription = client.subscribe(
                dict.fromkeys(reading.topics, "*"),
                group=reading.group,
                order=True if reading.order else None,
                session_ms=reading.session_ms,
                max_in_flight=reading.max_in_flight,
                member=self.name,
            )
            async with subscription:
                self._subscription = subscription
                if not self._is_leaving:
                    await subscription.run(self._handle, concurrency=reading.concurrency)

    async def _handle(self, message: Message) -> None:
        self._judge.handles(self.reading.group, message.body)
        await asyncio.sleep(2 * self.reading.handling_s * self._random.random())
        self._judge.handled(self.reading.group, message.body)

    def leave(self) -> None:
        """Ask the program to leave its group and to end."""
        self._is_leaving = True
        if self._subscription is not None:
            self._subscription.stop()
