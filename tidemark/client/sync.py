"""The same client without asyncio: a thin façade over an event loop in its own thread.

    with tidemark.connect_sync("http://localhost:8080") as mq:
        mq.send("orders", b"hello")

Every call runs in the one loop, so it may be used from several threads. It contains no logic.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tidemark.client.client import Client, connect
from tidemark.client.cluster_groups import ClusterDeadLetters, ClusterDelayed, ClusterGroups
from tidemark.client.messages import Message
from tidemark.client.queue_names import QueueName
from tidemark.client.subscription import Subscription
from tidemark.client.sync_calls import Runs, blocking, iterating, with_texts_of
from tidemark.client.sync_subscription import SyncSubscription

P = ParamSpec("P")
T = TypeVar("T")

OWN_THREAD: Final = (
    "a blocking call in the client's own thread, where on_assigned and on_revoked run: call it in "
    "another thread (asyncio.to_thread), or use the asyncio client"
)


def _opening(connect: Callable[P, Client]) -> Callable[P, SyncClient]:
    def connect_sync(*args: P.args, **kwargs: P.kwargs) -> SyncClient:
        return SyncClient(connect(*args, **kwargs))

    with_texts_of(connect, connect_sync, returns="SyncClient")
    connect_sync.__doc__ = """Create a blocking client for the broker or group at ``url``.

    Use it with ``with``. Arguments as for ``connect``; callbacks run in the client's own thread.
    """
    return connect_sync


def _subscribing(
    subscribe: Callable[Concatenate[Any, P], Subscription],
) -> Callable[Concatenate[SyncClient, P], SyncSubscription]:
    def subscribed(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncSubscription:
        make = functools.partial(subscribe, self._target, *args, **kwargs)
        return SyncSubscription(self._run, make)

    return with_texts_of(subscribe, subscribed, returns=SyncSubscription)


class SyncGroups:
    """``ClusterGroups`` with blocking calls."""

    def __init__(self, run: Runs, groups: ClusterGroups) -> None:
        self._run, self._target = run, groups

    create = blocking(ClusterGroups.create)
    get = blocking(ClusterGroups.get)
    delete = blocking(ClusterGroups.delete)
    offsets = blocking(ClusterGroups.offsets)
    reset = blocking(ClusterGroups.reset)
    list = blocking(ClusterGroups.list)


class SyncDelayed:
    """``ClusterDelayed`` with blocking calls."""

    def __init__(self, run: Runs, delayed: ClusterDelayed) -> None:
        self._run, self._target = run, delayed

    list = blocking(ClusterDelayed.list)
    iterate = iterating(ClusterDelayed.iterate)
    cancel = blocking(ClusterDelayed.cancel)


class SyncDeadLetters:
    """``ClusterDeadLetters`` with blocking calls."""

    def __init__(self, run: Runs, dead_letters: ClusterDeadLetters) -> None:
        self._run, self._target = run, dead_letters

    list = blocking(ClusterDeadLetters.list)
    iterate = iterating(ClusterDeadLetters.iterate)
    redrive = blocking(ClusterDeadLetters.redrive)


class SyncClient:
    """``Client`` with blocking calls; see there for their documentation."""

    def __init__(self, client: Client) -> None:
        self._target = client
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
        self._run(self._target.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is None:
            return  # closed before; an error here would hide the one of the body
        if self._is_elsewhere:
            # Loop and sockets belong to the parent process, which still uses them.
            self._loop = self._thread = None
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError(OWN_THREAD)  # before anything is closed: the thread continues
        try:
            self._run(self._target.__aexit__())
        finally:
            with self._lock:  # afterwards no call starts in the loop
                loop, thread = self._loop, self._thread
                self._loop = self._thread = None
            if loop is not None and thread is not None:
                # Cancel calls of other threads: they would wait for the stopped loop forever.
                asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    def start(self) -> SyncClient:
        """Open the client without ``with``; call ``close`` at the end."""
        return self.__enter__()

    def close(self) -> None:
        """Close the client: open subscriptions leave their groups, pending sends complete.

        May be called again.
        """
        self.__exit__()

    send = blocking(Client.send)
    send_many = blocking(Client.send_many)
    subscribe = _subscribing(Client.subscribe)
    trace = blocking(Client.trace)
    pull = blocking(Client.pull)
    offset_by_time = blocking(Client.offset_by_time)
    message_by_id = blocking(Client.message_by_id)
    message_by_unique_id = blocking(Client.message_by_unique_id)
    messages_by_key = blocking(Client.messages_by_key)
    create_topic = blocking(Client.create_topic)
    retention = blocking(Client.retention)
    topics = blocking(Client.topics)
    topic = blocking(Client.topic)
    extend_topic = blocking(Client.extend_topic)
    sync_topic = blocking(Client.sync_topic)
    routes = blocking(Client.routes)
    drain = blocking(Client.drain)
    undrain = blocking(Client.undrain)
    left = blocking(Client.left)
    delete_topic = blocking(Client.delete_topic)

    def read(
        self,
        topic: str,
        queue: QueueName,
        offset: int = 0,
        *,
        end: int | None = None,
        follow: bool = False,
        tags: str | None = None,
    ) -> Iterator[Message]:
        """All messages of one queue, in order."""
        batches = self._target.batches(topic, queue, offset, end=end, follow=follow, tags=tags)

        async def following() -> list[Message] | None:
            return await anext(batches, None)

        try:
            while (messages := self._run(following())) is not None:
                yield from messages
        finally:
            if self._loop is not None and not self._is_elsewhere:
                self._run(batches.aclose())

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


connect_sync = _opening(connect)


async def _cancel_others() -> None:
    """Cancel every other task of this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
