"""The same client without asyncio: a thin façade over an event loop in its own thread.

    with tidemark.connect_sync("http://localhost:8080") as mq:
        mq.send("orders", b"hello")

Every call runs in the one loop, so it may be used from several threads. It contains no logic.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import ssl
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from tidemark.client.batching import Limits
from tidemark.client.changes import Callback
from tidemark.client.client import (
    DEFAULT_URL,
    IN_FLIGHT_MAX,
    SESSION_MS,
    SPAN_MAX,
    Client,
    connect,
)
from tidemark.client.commits import COMMIT_INTERVAL_MS
from tidemark.client.connection import OnConnected, OnDisconnected, ReadFrom
from tidemark.client.consumer import PULL_COUNT_MAX, PULL_SIZE_MAX
from tidemark.client.groups import Start
from tidemark.client.messages import Ack, Message, NewMessage, PullResult, SendResult, Topic
from tidemark.client.subscription import Subscription
from tidemark.client.sync_groups import SyncDeadLetters, SyncDelayed, SyncGroups
from tidemark.client.sync_subscription import SyncSubscription
from tidemark.client.trace import Trace

T = TypeVar("T")

OWN_THREAD: Final = (
    "a blocking call in the client's own thread, where on_assigned and on_revoked run: call it in "
    "another thread (asyncio.to_thread), or use the asyncio client"
)


def connect_sync(
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
) -> SyncClient:
    """Create a blocking client for the broker or group at ``url``; use it with ``with``.

    Arguments as for ``connect``; the callbacks run in the client's own thread.
    """
    return SyncClient(
        connect(
            url,
            linger_ms=linger_ms,
            retry_for_s=retry_for_s,
            request_timeout_s=request_timeout_s,
            limits=limits,
            read_from=read_from,
            trace=trace,
            headers=headers,
            ssl=ssl,
            on_connected=on_connected,
            on_disconnected=on_disconnected,
        )
    )


class SyncClient:
    """``Client`` with blocking calls; see there for their documentation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid: int | None = None
        """Id of the process in which the loop's thread runs."""
        self._lock = threading.Lock()
        """Held while a call is submitted to the loop, and while the loop is removed."""
        self.groups = SyncGroups(self._run, client.groups)
        self.delayed = SyncDelayed(self._run, client.delayed)
        self.dead_letters = SyncDeadLetters(self._run, client.dead_letters)

    def __enter__(self) -> SyncClient:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tidemark-client", daemon=True
        )
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_elsewhere:
            # Loop and sockets belong to the parent process, which still uses them.
            self._loop = self._thread = None
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError(OWN_THREAD)  # before anything is closed: the thread continues
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            with self._lock:  # afterwards no call starts in the loop
                loop, thread = self._loop, self._thread
                self._loop = self._thread = None
            if loop is not None and thread is not None:
                # Cancel calls of other threads: they would wait for the stopped loop for ever.
                asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    def start(self) -> SyncClient:
        """Open the client without ``with``; call ``close`` at the end."""
        return self.__enter__()

    def close(self) -> None:
        """Close the client: open subscriptions leave their groups, pending sends complete."""
        if self._loop is not None:
            self.__exit__(None, None, None)

    def send(
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
        """Store one message."""
        return self._run(
            self._client.send(
                topic,
                body,
                tags=tags,
                keys=keys,
                properties=properties,
                queue=queue,
                sharding_key=sharding_key,
                flag=flag,
                delay_level=delay_level,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                ack=ack,
                timeout_ms=timeout_ms,
            )
        )

    def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | bytes],
        *,
        ack: Ack | None = None,
        queue: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Store many messages in order."""
        return self._run(
            self._client.send_many(topic, messages, ack=ack, queue=queue, timeout_ms=timeout_ms)
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
    ) -> SyncSubscription:
        """Subscribe to topics as a member of a group; use the result with ``with``.

        on_assigned, on_revoked: coroutines; they run in the client's own thread.
        """

        def make() -> Subscription:
            return self._client.subscribe(
                topics,
                group=group,
                tags=tags,
                start=start,
                order=order,
                broadcast=broadcast,
                max_in_flight=max_in_flight,
                max_span=max_span,
                session_ms=session_ms,
                member=member,
                commit_interval_ms=commit_interval_ms,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )

        return SyncSubscription(self._run, make)

    def trace(self, message_id: str, *, topic: str | None = None) -> Trace:
        """Return every recorded step of a message."""
        return self._run(self._client.trace(message_id, topic=topic))

    def pull(
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
        """Messages of one queue from ``offset`` on; an empty list if there are none."""
        return self._run(
            self._client.pull(
                topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
            )
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
    ) -> Iterator[Message]:
        """All messages of one queue, in order."""
        batches = self._client.consumer.batches(
            topic, queue, offset, end=end, follow=follow, tags=tags
        )

        async def following() -> list[Message] | None:
            return await anext(batches, None)

        try:
            while (messages := self._run(following())) is not None:
                yield from messages
        finally:
            if self._loop is not None and not self._is_elsewhere:
                self._run(batches.aclose())

    def offset_by_time(
        self, topic: str, queue: int, timestamp_ms: int, *, boundary: str = "lower"
    ) -> int:
        """Queue offset for a store time."""
        return self._run(self._client.offset_by_time(topic, queue, timestamp_ms, boundary=boundary))

    def message_by_id(self, message_id: str) -> Message:
        """The message with this message id."""
        return self._run(self._client.message_by_id(message_id))

    def message_by_unique_id(self, topic: str, unique_id: str) -> Message:
        """The message with this unique id in a topic."""
        return self._run(self._client.message_by_unique_id(topic, unique_id))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max: int = 32,
    ) -> list[Message]:
        """Messages of a topic with this key, oldest first."""
        return self._run(
            self._client.messages_by_key(topic, key, begin_ms=begin_ms, end_ms=end_ms, max=max)
        )

    def create_topic(
        self, topic: str, *, queues: int | None = None, retention_ms: int | None = None
    ) -> Topic:
        """Create a topic, or change the given settings of an existing one."""
        return self._run(self._client.create_topic(topic, queues=queues, retention_ms=retention_ms))

    def retention(self) -> dict[str, Any]:
        """Disk usage, the next deletion and the time until the disk is full."""
        return self._run(self._client.retention())

    def topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        return self._run(self._client.topics())

    def topic(self, topic: str) -> Topic:
        """One topic."""
        return self._run(self._client.topic(topic))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._run(self._client.delete_topic(topic))

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this process was forked from the one in which the client was connected."""
        return self._pid is not None and self._pid != os.getpid()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the client is closed; use it inside `with`")
        if self._is_elsewhere:
            # A fork copies no threads, so the call would never return.
            work.close()
            raise RuntimeError(
                f"this client was connected in process {self._pid}, and this is process "
                f"{os.getpid()}: a forked process needs its own client; call connect_sync in it"
            )
        if threading.current_thread() is self._thread:
            # The thread would wait for itself.
            work.close()
            raise RuntimeError(OWN_THREAD)
        with self._lock:
            if self._loop is None:
                work.close()
                raise RuntimeError("the client is closed; use it inside `with`")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._loop is None:
                raise RuntimeError("the client was closed during the call") from None
            raise
        except BaseException:
            # For example Ctrl-C in this thread: the work in the loop must not continue unseen.
            future.cancel()
            raise


async def _cancel_others() -> None:
    """Cancel every other task of this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
