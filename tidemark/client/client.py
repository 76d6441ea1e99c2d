"""The client that programs use: one object with every call, composed of the parts."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from tidemark.client.admin import Admin
from tidemark.client.batching import Limits
from tidemark.client.boot_clock import boot_ms
from tidemark.client.changes import Callback
from tidemark.client.commits import COMMIT_INTERVAL_MS
from tidemark.client.connection import Connection, OnConnected, OnDisconnected, ReadFrom
from tidemark.client.consumer import PULL_COUNT_MAX, PULL_SIZE_MAX, Consumer
from tidemark.client.dead_letters import DeadLetters
from tidemark.client.delayed import Delayed
from tidemark.client.feed import Feed
from tidemark.client.group_calls import GroupCalls
from tidemark.client.groups import Groups, Start, group_settings
from tidemark.client.handlers import check_is_async
from tidemark.client.messages import (
    Ack,
    Message,
    NewMessage,
    PullResult,
    RawPull,
    SendResult,
    Topic,
    outgoing,
)
from tidemark.client.producer import Producer, as_outgoing
from tidemark.client.subscription import Subscription
from tidemark.client.times import as_ms
from tidemark.client.trace import Trace, trace

DEFAULT_URL: Final = "http://localhost:8080"
IN_FLIGHT_MAX: Final = 8192
SPAN_MAX: Final = 2000
"""Of one queue; as the reference implementation has it."""
SESSION_MS: Final = 30_000


def connect(
    url: str | Sequence[str] = DEFAULT_URL,
    *,
    linger_ms: float = 0.0,
    retry_for_s: float = 15.0,
    request_timeout_s: float | None = None,
    limits: Limits | None = None,
    read_from: ReadFrom = "master",
    trace: str | None = None,
    headers: Mapping[str, str] | None = None,
    ssl: ssl.SSLContext | None = None,
    on_connected: OnConnected | None = None,
    on_disconnected: OnDisconnected | None = None,
) -> Client:
    """A client for the broker at ``url``, or for the group that it is a node of; use it with
    ``async with``.

    Nothing is connected yet: connections are made by the first call, and again after a restart or
    a failover; the other nodes of a group are learned from any of them. Several URLs help where
    one of the nodes may be away at that moment. linger_ms: wait so long for more messages before a
    request leaves. retry_for_s: how long a call that may safely be repeated is; longer than a
    failover takes. request_timeout_s: a call without a time-out of its own ends by then, with all
    its repetitions; None: 30 s, or retry_for_s if that is longer, but a subscription's ``nack`` and
    ``commit`` wait for as long as it takes. limits: bounds of memory, requests and
    connections for sends. read_from: ``any`` has plain reads (pulls, messages by id or key, topics)
    answered by the nodes given, slaves first: what is confirmed, perhaps a little late. trace: an
    id of 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen, under which the services
    log each step of this client's messages; for a few of them, to look into something. headers: of
    every request, for a proxy that asks for them. ssl: how https addresses are checked; None: by
    what Python trusts. on_connected, on_disconnected: plain functions, called in the loop with a
    node's address when it first answers, and with the error too when it does not any more; a client
    that makes no calls does not notice.
    """
    bounds = limits if limits is not None else Limits()
    connection = Connection(
        url,
        retry_for_s=retry_for_s,
        request_timeout_s=request_timeout_s,
        read_from=read_from,
        trace=trace,
        headers=headers,
        ssl=ssl,
        on_connected=on_connected,
        on_disconnected=on_disconnected,
    )
    return Client(connection, bounds._replace(linger_ms=linger_ms))


class Client:
    """Sends, reads and administrates through one broker. Raises ``TidemarkError`` and its kinds."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self.consumer = Consumer(connection)
        self.admin = Admin(connection)
        self.producer = Producer(connection, limits)
        self.groups = Groups(connection)
        self.delayed = Delayed(connection)
        self.dead_letters = DeadLetters(connection)
        self._subscriptions: set[Subscription] = set()
        """Those that are entered."""

    async def start(self) -> Client:
        """As ``async with``; ``close`` is to follow."""
        return await self.__aenter__()

    async def close(self) -> None:
        """As at the end of ``async with``: open subscriptions leave their groups, sends end."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Client:
        await self.connection.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        open_ones = list(self._subscriptions)
        try:
            left = await asyncio.gather(
                *(each.abandon() for each in open_ones), return_exceptions=True
            )
            await self.producer.close()
        finally:
            await self.connection.__aexit__(kind, error, trace)
        for failure in left:
            if isinstance(failure, BaseException):
                raise failure

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
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        ack: Ack | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message and say where, and at which level it is safe.

        At most one of delay_level (1: the store's shortest), delay_ms, and deliver_at (a datetime
        with time zone, or milliseconds since 1970) keeps it from consumers until its time. ack:
        ``memory``, ``disk`` or ``replicated``; None takes the broker's default. What may have been
        stored is sent again with the same unique id, and stored once, for as long as the client
        repeats calls. Then AckTimeout is raised if it is stored and the level was not reached;
        Unreachable if there was no answer: it may be stored. timeout_ms: the call ends by then,
        with all its waiting and repetitions; None: it waits for its turn as long as the broker
        answers other sends, and then for ``request_timeout_s``. A message that cannot be stored is
        refused alone, most at once: TypeError, BadRequest, BadProperty, DelayOutOfRange,
        MessageTooLarge.
        """
        message = outgoing(
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            sharding_key=sharding_key,
            flag=flag,
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_at_ms=None if deliver_at is None else as_ms(deliver_at, "deliver_at"),
        )
        return await self.producer.send(topic, message, ack=ack, timeout_ms=timeout_ms)

    async def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | bytes],
        *,
        ack: Ack | None = None,
        queue: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Store many messages, in order; one result for each.

        Split into requests of at most 1000 messages or 1 MiB (``limits``), each all or nothing; if
        a later one fails, the error's fact ``results`` holds what was stored before it. All are
        checked before the first leaves; ``index`` names the one that is refused. timeout_ms: of
        each request.
        """
        return await self.producer.send_many(
            topic, as_outgoing(messages, queue), ack=ack, timeout_ms=timeout_ms
        )

    def subscribe(
        self,
        topics: str | Mapping[str, str],
        *,
        group: str,
        tags: str = "*",
        start: Start | None = None,
        order: bool | None = None,
        broadcast: bool | None = None,
        max_in_flight: int = IN_FLIGHT_MAX,
        max_span: int = SPAN_MAX,
        session_ms: int = SESSION_MS,
        member: str | None = None,
        commit_interval_ms: float = COMMIT_INTERVAL_MS,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> Subscription:
        """Messages of topics, shared with the other members of a group: ``async with`` it.

        topics: one, of which ``tags`` (``a || b``, or ``*`` for all) are taken, or several with an
        expression each. start (``first``, ``last``, a time), order, broadcast: set for the group
        before joining it; None leaves it as it is, or as the broker makes groups. max_in_flight:
        messages fetched and not done; few: a broker's answer brings little, many: memory. max_span:
        messages of one queue from the lowest that is not done to the newest handed out: as many
        come again after a crash; a queue at its limit waits, others go on.
        session_ms: so long after this program's death its queues go to others. member: a name that
        no other member has; None makes one. on_assigned, on_revoked: awaited with the queues, the
        latter before they go to another. Raises TypeError for one that is a plain function.
        """
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 1 or more, not {max_in_flight}")
        if max_span < 1:
            raise ValueError(f"max_span must be 1 or more, not {max_span}")
        if tags != "*" and not isinstance(topics, str):
            raise ValueError("tags are of one topic; with several each has its own expression")
        wanted = {topics: tags} if isinstance(topics, str) else dict(topics)
        if not wanted:
            raise ValueError("subscribe to at least one topic")
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if callback is not None:
                check_is_async(callback, f"{name}(queues)")
        calls = GroupCalls(self.connection, group, _member_name() if member is None else member)
        return Subscription(
            Feed(
                calls,
                wanted,
                settings=group_settings(order=order, broadcast=broadcast, start=start),
                max_in_flight=max_in_flight,
                max_span=max_span,
                session_ms=session_ms,
                commit_interval_ms=commit_interval_ms,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                clock=boot_ms,
            ),
            self._subscriptions,
        )

    async def trace(self, message_id: str, *, topic: str | None = None) -> Trace:
        """Every step of a message that the node can tell; raises UnknownMessage.

        topic: if ``message_id`` is a unique id.
        """
        return await trace(self.connection, message_id, topic)

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

        end: None reads up to where the queue ends at the first pull; what was stored a moment
        before may not be dispatched into it yet. follow: waits for more, for ever. The next pull
        runs while you work on what the last one brought.
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

    async def create_topic(
        self, topic: str, *, queues: int | None = None, retention_ms: int | None = None
    ) -> Topic:
        """Make a topic, or give an existing one this many queues. The same call may be repeated.

        queues: None leaves them as they are; a new topic gets 4. retention_ms: messages older than
        this are not shown, 0: all are; None leaves it as it is.
        """
        return await self.admin.create_topic(topic, queues=queues, retention_ms=retention_ms)

    async def retention(self) -> dict[str, Any]:
        """How full the disk is, what is deleted next, and when it will be full; as answered."""
        return await self.admin.retention()

    async def topics(self) -> list[Topic]:
        """All topics, by name."""
        return await self.admin.topics()

    async def topic(self, topic: str) -> Topic:
        """One topic; raises UnknownTopic."""
        return await self.admin.topic(topic)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; raises UnknownTopic."""
        await self.admin.delete_topic(topic)


def _member_name() -> str:
    """A name that tells people where a member runs, and that no other has."""
    host = re.sub(r"[^a-zA-Z0-9_-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
