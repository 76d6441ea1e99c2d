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
from typing import Any, TypeVar

from tidemark.client.queue_names import Queue
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
        self.last = Handover()
        """The last request of an iteration that took messages. Belongs to the client's loop."""

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
            self._run(self._leave(error, threading.current_thread()))

    async def _leave(self, error: BaseException | None, caller: threading.Thread) -> None:
        await self._target.leave(error, caller, is_seen=not self.last.is_unseen)

    def __iter__(self) -> Iterator[Message]:
        return _Each(self, self._run, aiter(self._target), is_batch=False)

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iterator[list[Message]]:
        """Lists of up to ``max`` messages; asking for the next batch commits this one."""
        return _Each(self, self._run, self._target.batches(max), is_batch=True)

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


class Handover:
    """The messages that one request of an iteration took, until the program has them.

    1. Ctrl-C, or another signal handler, raises in the thread that waits; 2. the client's loop has
    just taken a message for it; 3. the program leaves the group or asks again. Neither may commit
    the message: it is delivered again after leaving, or returned by the next request.
    """

    __slots__ = ("is_waiting", "messages")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_waiting = True
        """Whether the thread still waits for the messages."""

    @property
    def is_unseen(self) -> bool:
        """Whether messages are left that no thread waits for."""
        return bool(self.messages) and not self.is_waiting


class _Each(Iterator[T]):
    """One thread's iteration over a subscription's messages or batches.

    It is not a generator: a generator that raised in another thread's call would be exhausted
    without an error for the thread that uses it.
    """

    def __init__(
        self,
        subscription: SyncSubscription,
        run: Runs,
        iteration: Iteration[Any],
        *,
        is_batch: bool,
    ) -> None:
        self._subscription, self._run, self._iteration = subscription, run, iteration
        self._is_batch = is_batch

    def __next__(self) -> T:
        handover = Handover()
        try:
            self._run(self._following(handover, threading.current_thread()))
            # No function call from here on, because Python runs signal handlers at calls.
            taken: Any = handover.messages
            if not taken:
                raise StopIteration
            element: T = taken if self._is_batch else taken[0]
            handover.messages = [] if self._is_batch else taken[1:]
            return element
        finally:
            handover.is_waiting = False

    def __del__(self) -> None:
        self._iteration.is_over = True  # the other thread may still hold a reference for a moment

    async def _following(self, handover: Handover, caller: threading.Thread) -> None:
        last = self._subscription.last
        if last.is_unseen:
            handover.messages, last.messages = last.messages, []
        else:
            self._iteration.thread = caller  # without an await before the request
            try:
                taken = await anext(self._iteration)
            except StopAsyncIteration:
                return
            handover.messages = taken if self._is_batch else [taken]
        self._subscription.last = handover
