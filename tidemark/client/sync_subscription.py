"""A subscription without asyncio: every step runs in the client's loop, in its own thread.

    with mq.subscribe("orders", group="billing") as messages:
        for message in messages:
            ...

Heartbeats, fetches and commits continue in the other thread while the body runs. Each message costs
two thread switches; ``batches`` costs two per batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tidemark.client.commits import CommitAck, Queue
from tidemark.client.subscription import BATCH_COUNT_MAX, Iteration, Subscription
from tidemark.formats.message import Message

T = TypeVar("T")


class Runs(Protocol):
    """Runs work in the loop's thread and waits for it (``SyncClient``)."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work."""
        ...


class SyncSubscription:
    """``Subscription`` with blocking calls; see there for their documentation."""

    def __init__(self, run: Runs, make: Callable[[], Subscription]) -> None:
        """make: called in the loop's thread, because a subscription belongs to the loop."""
        self._run, self._make = run, make
        self._made: Subscription | None = None
        self._pid: int | None = None
        """Id of the process that joined the group; a process forked from it does not leave it."""

    @property
    def member(self) -> str:
        """The member's name in the group."""
        return self._subscription.member

    @property
    def assignment(self) -> set[Queue]:
        """Queues currently assigned to this member: (topic, queue)."""
        return self._run(_called(lambda: self._subscription.assignment))

    def start(self) -> SyncSubscription:
        """Join the group without ``with``; call ``close`` at the end."""
        return self.__enter__()

    def close(self) -> None:
        """Leave the group, as at the end of ``with``. May be called again.

        A message that another thread has in hand is delivered again.
        """
        if self._made is not None:
            self.__exit__(None, None, None)

    def __enter__(self) -> SyncSubscription:
        async def enter() -> Subscription:
            return await self._make().__aenter__()

        self._made = self._run(enter())
        self._pid = os.getpid()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If it is not open, the client was closed and has left the group.
        if self._pid == os.getpid() and self._subscription.is_open:
            self._run(self._subscription.leave(error, threading.current_thread()))

    def __iter__(self) -> Iterator[Message]:
        return _Each(self._run, aiter(self._subscription))

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iterator[list[Message]]:
        """Lists of up to ``max`` messages; asking for the next batch commits this one."""
        return _Each(self._run, self._subscription.batches(max))

    def getone(self, timeout: float | None = None) -> Message | None:
        """Return the next message, for ``ack`` or ``nack``; None after ``timeout`` seconds."""
        return self._run(self._subscription.getone(timeout))

    def getmany(self, max: int = BATCH_COUNT_MAX, timeout: float | None = None) -> list[Message]:
        """Return up to ``max`` messages, each for ``ack`` or ``nack``; empty on timeout."""
        return self._run(self._subscription.getmany(max, timeout))

    def ack(self, *messages: Message) -> int:
        """Mark messages of ``getone`` or ``getmany`` as done; return how many count."""
        return self._run(self._subscription.ack(*messages))

    def position(self, topic: str, queue: int) -> int | None:
        """Queue offset of the next message to be delivered; None while it is not known."""
        return self._run(_called(lambda: self._subscription.position(topic, queue)))

    def seek(self, topic: str, queue: int, offset: int) -> None:
        """Continue at a queue offset."""
        self._run(self._subscription.seek(topic, queue, offset))

    def pause(self, *queues: Queue) -> None:
        """Deliver nothing of these queues until ``resume``."""
        self._run(_called(lambda: self._subscription.pause(*queues)))

    def resume(self, *queues: Queue) -> None:
        """Continue these queues where ``pause`` stopped."""
        self._run(_called(lambda: self._subscription.resume(*queues)))

    @property
    def paused(self) -> set[Queue]:
        """Queues that are paused."""
        return self._run(_called(lambda: self._subscription.paused))

    def nack(self, message: Message, *, delay_level: int = 0, timeout: float | None = None) -> None:
        """Nack a message durably, so that it is delivered again later."""
        self._run(self._subscription.nack(message, delay_level=delay_level, timeout=timeout))

    def commit(self, *, ack: CommitAck = "accepted", timeout: float | None = None) -> None:
        """Commit now what is done, which does not include the message or batch in hand."""
        self._run(self._subscription.commit(ack=ack, timeout=timeout))

    def stop(self) -> None:
        """End the loop that asks for messages. May be called from any thread."""
        self._run(_called(self._subscription.stop))

    @property
    def _subscription(self) -> Subscription:
        if self._made is None:
            raise RuntimeError("the subscription is not entered; use it with `with`")
        return self._made


class _Each(Iterator[T]):
    """One thread's iteration over a subscription's messages.

    It is not a generator: a generator that raised in another thread's call would be exhausted
    without an error for the thread that uses it.
    """

    def __init__(self, run: Runs, iteration: Iteration[T]) -> None:
        self._run, self._iteration = run, iteration

    def __next__(self) -> T:
        found = self._run(self._following(threading.current_thread()))
        if found is None:
            raise StopIteration
        return found[0]

    def __del__(self) -> None:
        self._iteration.is_over = True  # the other thread may still hold a reference for a moment

    async def _following(self, caller: threading.Thread) -> tuple[T] | None:
        self._iteration.thread = caller  # without an await before the request
        async for element in self._iteration:
            return (element,)
        return None


def one_by_one(run: Runs, asked: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an iterator of the loop's thread; each element costs two thread switches."""

    async def following() -> tuple[T] | None:
        # Wrapped, because StopAsyncIteration cannot leave a coroutine and None may be an element.
        async for element in asked:
            return (element,)
        return None

    while (found := run(following())) is not None:
        yield found[0]


async def _called(call: Callable[[], T]) -> T:
    """Make a plain call as a coroutine, so that it runs in the loop's thread."""
    return call()
