"""A subscription without asyncio: every step runs in the façade's loop, in its thread.

    with mq.subscribe("orders", group="billing") as messages:
        for message in messages:
            ...

Heartbeats, fetches and commits go on in the other thread while the body works. A message costs two
changes of thread; ``batches`` pays them once per batch.
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
        """The work's result."""
        ...


class SyncSubscription:
    """``Subscription`` with every step blocking; see there for what each does."""

    def __init__(self, run: Runs, make: Callable[[], Subscription]) -> None:
        """make: called in the loop's thread, where a subscription belongs."""
        self._run, self._make = run, make
        self._made: Subscription | None = None
        self._pid: int | None = None
        """Process that is the group's member; one forked from it leaves nothing."""

    @property
    def member(self) -> str:
        """The member's name, as others see it."""
        return self._subscription.member

    @property
    def assignment(self) -> set[Queue]:
        """Queues that are this member's now: (topic, queue)."""
        return self._run(_called(lambda: self._subscription.assignment))

    def start(self) -> SyncSubscription:
        """Join the group, as ``with`` does; ``close`` is to follow."""
        return self.__enter__()

    def close(self) -> None:
        """Leave the group as at the end of ``with``; nothing if that is done already.

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
        # Not open: the client was closed, and left the group for it.
        if self._pid == os.getpid() and self._subscription.is_open:
            self._run(self._subscription.leave(error, threading.current_thread()))

    def __iter__(self) -> Iterator[Message]:
        return _Each(self._run, aiter(self._subscription))

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iterator[list[Message]]:
        """Up to ``max`` messages at a time; asking for the next batch commits this one."""
        return _Each(self._run, self._subscription.batches(max))

    def getone(self, timeout: float | None = None) -> Message | None:
        """The next message, for ``ack`` or ``nack``; None if none comes in ``timeout`` seconds."""
        return self._run(self._subscription.getone(timeout))

    def getmany(self, max: int = BATCH_COUNT_MAX, timeout: float | None = None) -> list[Message]:
        """Up to ``max`` messages, each for ``ack`` or ``nack``; empty if none comes in time."""
        return self._run(self._subscription.getmany(max, timeout))

    def ack(self, *messages: Message) -> int:
        """These messages of ``getone`` or ``getmany`` are done; how many count."""
        return self._run(self._subscription.ack(*messages))

    def position(self, topic: str, queue: int) -> int | None:
        """Queue offset of the next message that is handed out; None while that is not known."""
        return self._run(_called(lambda: self._subscription.position(topic, queue)))

    def seek(self, topic: str, queue: int, offset: int) -> None:
        """Go on at a queue offset."""
        self._run(self._subscription.seek(topic, queue, offset))

    def pause(self, *queues: Queue) -> None:
        """Hand out nothing of these queues until ``resume``."""
        self._run(_called(lambda: self._subscription.pause(*queues)))

    def resume(self, *queues: Queue) -> None:
        """Go on with these queues where ``pause`` stopped."""
        self._run(_called(lambda: self._subscription.resume(*queues)))

    @property
    def paused(self) -> set[Queue]:
        """Queues that are paused."""
        return self._run(_called(lambda: self._subscription.paused))

    def nack(self, message: Message, *, delay_level: int = 0, timeout: float | None = None) -> None:
        """Send a message back for retry; going on from it then does no more."""
        self._run(self._subscription.nack(message, delay_level=delay_level, timeout=timeout))

    def commit(self, *, ack: CommitAck = "accepted", timeout: float | None = None) -> None:
        """Commit now what is done: not the message, or the batch, in hand."""
        self._run(self._subscription.commit(ack=ack, timeout=timeout))

    def stop(self) -> None:
        """End the loop that asks for messages; from any thread."""
        self._run(_called(self._subscription.stop))

    @property
    def _subscription(self) -> Subscription:
        if self._made is None:
            raise RuntimeError("the subscription is not entered; use it with `with`")
        return self._made


class _Each(Iterator[T]):
    """One way through a subscription's messages, of one thread.

    Not a generator: that would be over, without a word, for the thread that works, once another one
    had asked it and been refused.
    """

    def __init__(self, run: Runs, iteration: Iteration[T]) -> None:
        self._run, self._iteration = run, iteration

    def __next__(self) -> T:
        found = self._run(self._following(threading.current_thread()))
        if found is None:
            raise StopIteration
        return found[0]

    def __del__(self) -> None:
        self._iteration.is_over = True  # the other thread may hold a reference for a moment yet

    async def _following(self, asker: threading.Thread) -> tuple[T] | None:
        self._iteration.thread = asker  # in the same step as the question
        async for element in self._iteration:
            return (element,)
        return None


def one_by_one(run: Runs, asked: AsyncIterator[T]) -> Iterator[T]:
    """The elements of an iterator that lives in the other thread: two changes of thread each."""

    async def following() -> tuple[T] | None:
        # StopAsyncIteration cannot leave a coroutine, and None may be an element elsewhere.
        async for element in asked:
            return (element,)
        return None

    while (found := run(following())) is not None:
        yield found[0]


async def _called(call: Callable[[], T]) -> T:
    """A plain call, to be run in the loop's thread."""
    return call()
