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
from collections.abc import Callable, Iterator
from typing import TypeVar

from tidemark.client.commits import Queue
from tidemark.client.subscription import BATCH_COUNT_MAX, Iteration, Subscription
from tidemark.client.sync_calls import Runs, blocking, called, in_loop
from tidemark.formats.message import Message

T = TypeVar("T")


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
        return self._target.member

    @property
    def assignment(self) -> set[Queue]:
        """Queues currently assigned to this member: (topic, queue)."""
        return self._run(called(lambda: self._target.assignment))

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

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        # If it is not open, the client was closed and has left the group.
        if self._pid == os.getpid() and self._target.is_open:
            self._run(self._target.leave(error, threading.current_thread()))

    def __iter__(self) -> Iterator[Message]:
        return _Each(self._run, aiter(self._target))

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iterator[list[Message]]:
        """Lists of up to ``max`` messages; asking for the next batch commits this one."""
        return _Each(self._run, self._target.batches(max))

    getone = blocking(Subscription.getone)
    getmany = blocking(Subscription.getmany)
    ack = blocking(Subscription.ack)
    nack = blocking(Subscription.nack)
    commit = blocking(Subscription.commit)
    seek = blocking(Subscription.seek)
    position = in_loop(Subscription.position)
    pause = in_loop(Subscription.pause)
    resume = in_loop(Subscription.resume)
    stop = in_loop(Subscription.stop)

    @property
    def paused(self) -> set[Queue]:
        """Queues that are paused."""
        return self._run(called(lambda: self._target.paused))

    @property
    def _target(self) -> Subscription:
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
