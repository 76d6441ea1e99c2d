"""The client that programs use: one object with every call, composed of the parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from types import TracebackType

from tidemark.client.admin import Admin
from tidemark.client.batching import Limits
from tidemark.client.connection import Connection
from tidemark.client.consumer import PULL_COUNT_MAX, PULL_SIZE_MAX, Consumer
from tidemark.client.messages import (
    Message,
    NewMessage,
    PullResult,
    RawPull,
    SendResult,
    Topic,
    check,
    outgoing,
)
from tidemark.client.producer import SEND_TIMEOUT_MS, Producer, as_outgoing

DEFAULT_URL = "http://localhost:8080"


def connect(
    url: str = DEFAULT_URL,
    *,
    linger_ms: float = 0.0,
    retry_for_s: float = 10.0,
    limits: Limits | None = None,
) -> Client:
    """A client for the broker at ``url``; use it with ``async with``.

    Nothing is connected yet: connections are made by the first call, and again after a broker's
    restart. linger_ms: wait so long for more messages before a request leaves. retry_for_s: how
    long a call that may safely be repeated is.
    """
    bounds = limits if limits is not None else Limits()
    return Client(Connection(url, retry_for_s=retry_for_s), bounds._replace(linger_ms=linger_ms))


class Client:
    """Sends, reads and administrates through one broker. Raises ``TidemarkError`` and its kinds."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self.consumer = Consumer(connection)
        self.admin = Admin(connection)
        self.producer = Producer(connection, limits)

    async def __aenter__(self) -> Client:
        await self.connection.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.producer.close()
        finally:
            await self.connection.__aexit__(kind, error, trace)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
        ack: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> SendResult:
        """Store one message and say where, and at which level it is safe.

        ack: ``memory`` or ``disk``; None takes the broker's default. Raises AckTimeout when the
        message is stored but the level was not reached in ``timeout_ms``, Unreachable when there
        was no answer: then it may be stored, and it is not sent again by itself.
        """
        check(body, keys)
        message = outgoing(
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            sharding_key=sharding_key,
            flag=flag,
        )
        return await self.producer.send(topic, message, ack=ack, timeout_ms=timeout_ms)

    async def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | bytes],
        *,
        ack: str | None = None,
        queue: int | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> list[SendResult]:
        """Store many messages, in order; one result for each.

        Split into requests of at most 1000 messages or 1 MiB (``limits``), each all or nothing; if
        a later one fails, the error's fact ``results`` holds what was stored before it.
        """
        return await self.producer.send_many(
            topic, as_outgoing(messages, queue), ack=ack, timeout_ms=timeout_ms
        )

    async def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages of one queue from ``offset`` on; an empty list when there are none."""
        return await self.consumer.pull(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )

    async def pull_raw(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> RawPull:
        """As ``pull``, but the records as stored, neither decoded nor checked."""
        return await self.consumer.pull_raw(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )

    def read(
        self,
        topic: str,
        queue: int,
        offset: int = 0,
        *,
        end: int | None = None,
        follow: bool = False,
        tags: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """All messages of one queue, in order: ``async for message in mq.read("orders", 0)``.

        end: None reads up to where the queue ends at the first pull. follow: waits for more, for
        ever. The next pull runs while you work on what the last one brought.
        """
        return self.consumer.read(topic, queue, offset, end=end, follow=follow, tags=tags)

    async def offset_by_time(
        self, topic: str, queue: int, timestamp_ms: int, *, boundary: str = "lower"
    ) -> int:
        """Queue offset of the first message stored at or after a time; ``upper``: last at it."""
        return await self.consumer.offset_by_time(topic, queue, timestamp_ms, boundary=boundary)

    async def message_by_id(self, message_id: str) -> Message:
        """The message with this (offset) message id; raises UnknownMessage."""
        return await self.consumer.message_by_id(message_id)

    async def message_by_unique_id(self, topic: str, unique_id: str) -> Message:
        """The message with this unique id in a topic; raises UnknownMessage."""
        return await self.consumer.message_by_unique_id(topic, unique_id)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max: int = 32,
    ) -> list[Message]:
        """Messages of a topic with this key, oldest first; empty when there are none."""
        return await self.consumer.messages_by_key(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, max=max
        )

    async def create_topic(self, topic: str, *, queues: int = 4) -> Topic:
        """Make a topic; fine if it exists with as many queues."""
        return await self.admin.create_topic(topic, queues=queues)

    async def topics(self) -> list[Topic]:
        """All topics, by name."""
        return await self.admin.topics()

    async def topic(self, topic: str) -> Topic:
        """One topic; raises UnknownTopic."""
        return await self.admin.topic(topic)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; raises UnknownTopic."""
        await self.admin.delete_topic(topic)
