"""The client that programs use: one object with all calls, composed of the parts."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

from tidemark.client.batching import Limits
from tidemark.client.changes import Callback
from tidemark.client.cluster import Cluster
from tidemark.client.cluster_admin import ClusterAdmin
from tidemark.client.cluster_consumer import ClusterConsumer
from tidemark.client.cluster_groups import ClusterDeadLetters, ClusterDelayed, ClusterGroups
from tidemark.client.cluster_producer import ClusterProducer, KeyedWhenDown
from tidemark.client.cluster_reads import ClusterReads
from tidemark.client.commits import COMMIT_INTERVAL_MS
from tidemark.client.connection import (
    RETRY_FOR_S,
    Connection,
    ConnectionSettings,
    OnConnected,
    OnDisconnected,
    ReadFrom,
)
from tidemark.client.consumer_engine import MemberSettings
from tidemark.client.groups import Start, group_settings
from tidemark.client.handlers import check_is_async
from tidemark.client.messages import Ack, NewMessage, SendResult, outgoing
from tidemark.client.options import check_options
from tidemark.client.producer import as_outgoing
from tidemark.client.queue_names import QueueName
from tidemark.client.subscription import Subscription
from tidemark.client.times import as_ms

DEFAULT_URL: Final = "http://localhost:8080"
IN_FLIGHT_MAX: Final = 8192
SPAN_MAX: Final = 2000
"""Per queue; the same default as the reference implementation."""
SESSION_MS: Final = 30_000
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def connect(
    url: str | Sequence[str] = DEFAULT_URL,
    *,
    linger_ms: float = 0.0,
    retry_for_s: float = RETRY_FOR_S,
    request_timeout_s: float | None = None,
    limits: Limits | None = None,
    read_from: ReadFrom = "master",
    trace: str | None = None,
    headers: Mapping[str, str] | None = None,
    ssl: ssl.SSLContext | None = None,
    keyed_when_down: KeyedWhenDown = "wait",
    on_connected: OnConnected | None = None,
    on_disconnected: OnDisconnected | None = None,
) -> Client:
    """Create a client for the broker at ``url``, or for the cluster of which it is a part.

    Use it with ``async with``. The client connects at the first call, and again after a restart or
    a failover. It learns the other nodes from any node or name service; several URLs, in a list or
    separated by commas, help if one of them may be down at that moment.

    linger_ms: how long a request waits for more messages before it is sent.
    retry_for_s: how long a call that may safely be repeated is retried. The default is longer than
    a failover in every time profile of a group.
    request_timeout_s: time limit of a call without its own timeout, including all retries. None:
    30 s, or retry_for_s if that is longer; a subscription's ``nack`` and ``commit`` then wait
    without a limit.
    limits: bounds of memory, requests and connections for sends.
    read_from: with ``any``, plain reads (pulls, messages by id or key, topics) go to the given
    nodes, slaves first. They return confirmed data that may be slightly behind the master.
    trace: an id of 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen. The services
    log each step of this client's messages under it. Use it for a few messages while debugging.
    headers: added to every request, for example for a proxy.
    ssl: how certificates of https addresses are verified; None uses Python's defaults.
    keyed_when_down: in a cluster, what a message with a sharding key does while its broker group
    does not serve. ``wait``: it waits within the time of the call, and Unreachable is raised then.
    ``reject``: BrokerGroupDown is raised at once.
    on_connected, on_disconnected: plain functions that are called in the loop with the address of a
    node when it first answers, and with the address and the error when it stops answering. A client
    that makes no calls does not notice either.

    Raises TypeError, ValueError.
    """
    check_options(locals())
    settings = ConnectionSettings(
        retry_for_s=retry_for_s,
        request_timeout_s=request_timeout_s,
        read_from=read_from,
        trace=trace,
        headers=headers,
        ssl=ssl,
    )
    if keyed_when_down not in get_args(KeyedWhenDown):
        raise ValueError(f"keyed_when_down must be wait or reject, not {keyed_when_down!r}")
    addresses = url.split(",") if isinstance(url, str) else list(url)
    bounds = (limits if limits is not None else Limits())._replace(linger_ms=linger_ms)
    cluster = Cluster(
        [each.strip() for each in addresses if each.strip()],
        settings,
        bounds,
        on_connected=on_connected,
        on_disconnected=on_disconnected,
    )
    producer = ClusterProducer(
        cluster, bounds, retry_for_s=retry_for_s, keyed_when_down=keyed_when_down
    )
    return Client(cluster, producer)


class Client(ClusterAdmin, ClusterReads):
    """Sends, reads and administrates through one broker, or through the broker groups of a cluster.

    Raises ``TidemarkError`` subclasses.
    """

    def __init__(self, cluster: Cluster, producer: ClusterProducer) -> None:
        super().__init__(cluster)
        self.producer = producer
        self.groups = ClusterGroups(cluster)
        self.delayed = ClusterDelayed(cluster)
        self.dead_letters = ClusterDeadLetters(cluster)
        self._subscriptions: set[Subscription] = set()
        """Subscriptions that start or are entered."""

    @property
    def connection(self) -> Connection:
        """The connection to the given addresses; in a cluster without use."""
        return self._cluster.home.connection

    async def start(self) -> Client:
        """Open the client without ``async with``; call ``close`` at the end."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Close the client: open subscriptions leave their groups, pending sends complete."""
        await self.__aexit__()

    async def __aenter__(self) -> Client:
        self._cluster.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        open_ones = list(self._subscriptions)
        try:
            left = await asyncio.gather(
                *(each.abandon() for each in open_ones), return_exceptions=True
            )
            await self._cluster.drain()
            await self.producer.close()
        finally:
            await self._cluster.close()
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
        queue: QueueName | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        ack: Ack | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message. Returns its position and the ack level that it reached.

        Give at most one of delay_level (1 is the store's shortest), delay_ms and deliver_at (a
        datetime with time zone, or milliseconds since 1970) to delay the delivery to consumers.
        queue: a number; in a cluster a name such as ``g0/3``, or a number if one broker group has
        the topic.
        ack: ``memory``, ``disk`` or ``replicated``; None uses the broker's default.

        A send whose outcome is unknown is retried with the same unique id and stored once. When the
        retries end, AckTimeout is raised if the message is stored and the level was not reached,
        and Unreachable if there was no answer: the message may have been stored.

        timeout_ms: time limit of the call, including queueing and retries. None: the call waits for
        its turn as long as the broker answers other sends, and then for ``request_timeout_s``.
        An invalid message is rejected alone, usually before it is sent, with TypeError, BadRequest,
        BadProperty, DelayOutOfRange or MessageTooLarge.
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
        alone = self._cluster.alone
        producer = self.producer if alone is None else alone.producer
        return await producer.send(topic, message, ack=ack, timeout_ms=timeout_ms)

    async def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | bytes],
        *,
        ack: Ack | None = None,
        queue: QueueName | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Store many messages in order; returns one result for each.

        They are split into requests of at most 1000 messages or 1 MiB (``limits``), each of which
        is stored as a whole or not at all. If a later request fails, the error's fact ``results``
        holds the results of the requests before it; in a cluster, ``indexes`` has the indexes of
        their messages. All messages are checked before the first
        request is sent; the fact ``index`` identifies the rejected one. timeout_ms: time limit of
        each request.
        """
        made = as_outgoing(messages, queue)
        alone = self._cluster.alone
        producer = self.producer if alone is None else alone.producer
        return await producer.send_many(topic, made, ack=ack, timeout_ms=timeout_ms)

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
        """Subscribe to topics as a member of a group; use the result with ``async with``.

        The blocking client uses ``with``, and runs the callbacks in its own thread.

        topics: one topic, filtered by ``tags`` (``a || b``, or ``*`` for all), or a map of topics
        to tag expressions.
        start (``first``, ``last``, a time), order, broadcast: group settings that are set before
        joining. None leaves an existing group unchanged; a new one gets the broker's default.
        max_in_flight: messages fetched and not done. A small value makes pulls small, a large one
        uses memory.
        max_span: maximum distance in one queue from the lowest message not done to the newest
        delivered one, and so the number of messages delivered again after a crash. A queue at this
        limit pauses while other queues continue.
        session_ms: how long after this program's death its queues are assigned to other members.
        member: a unique member name; None generates one.
        on_assigned, on_revoked: coroutine functions that are awaited with the queues, on_revoked
        before another member gets them. Raises TypeError for a plain function.
        """
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 1 or more, not {max_in_flight}")
        if max_span < 1:
            raise ValueError(f"max_span must be 1 or more, not {max_span}")
        if commit_interval_ms < 0:
            raise ValueError(f"commit_interval_ms must be 0 or more, not {commit_interval_ms}")
        if tags != "*" and not isinstance(topics, str):
            raise ValueError("tags apply to one topic; give each of several topics its expression")
        wanted = {topics: tags} if isinstance(topics, str) else dict(topics)
        if not wanted:
            raise ValueError("subscribe to at least one topic")
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if callback is not None:
                check_is_async(callback, f"{name}(queues)")
        consumer = ClusterConsumer(
            self._cluster,
            group,
            _member_name() if member is None else member,
            wanted,
            MemberSettings(
                group=group_settings(order=order, broadcast=broadcast, start=start),
                max_in_flight=max_in_flight,
                max_span=max_span,
                session_ms=session_ms,
                commit_interval_ms=commit_interval_ms,
            ),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            clock=boot_ms,
        )
        return Subscription(consumer, self._subscriptions)


def boot_ms() -> float:
    """Milliseconds since boot, including time in suspend where the system has such a clock.

    A member whose machine was suspended must not consider an expired session valid.
    """
    seconds = time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)
    return seconds * 1000


def _member_name() -> str:
    """A unique member name that shows on which host and in which process the member runs."""
    host = re.sub(r"[^a-zA-Z0-9_-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
