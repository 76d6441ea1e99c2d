"""A subscription without asyncio: every step runs in the façade's loop, in its thread.

    with mq.subscribe("orders", group="billing") as messages:
        for message in messages:
            ...

Heartbeats, fetches and commits go on in the other thread while the body works. A message costs two
changes of thread; ``batches`` pays them once per batch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tidemark.client.commits import Queue
from tidemark.client.subscription import BATCH_COUNT_MAX, Subscription
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

    @property
    def member(self) -> str:
        """The member's name, as others see it."""
        return self._subscription.member

    @property
    def assignment(self) -> set[Queue]:
        """Queues that are this member's now: (topic, queue)."""
        return self._run(_called(lambda: self._subscription.assignment))

    def __enter__(self) -> SyncSubscription:
        async def enter() -> Subscription:
            return await self._make().__aenter__()

        self._made = self._run(enter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._subscription.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        return one_by_one(self._run, aiter(self._subscription))

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iterator[list[Message]]:
        """Up to ``max`` messages at a time; asking for the next batch commits this one."""
        return one_by_one(self._run, self._subscription.batches(max))

    def nack(self, message: Message, *, delay_level: int = 0) -> None:
        """Send a message back for retry; going on from it then does no more."""
        self._run(self._subscription.nack(message, delay_level=delay_level))

    def commit(self, *, ack: str = "accepted") -> None:
        """Commit now what is done: not the message, or the batch, in hand."""
        self._run(self._subscription.commit(ack=ack))

    def stop(self) -> None:
        """End the loop that asks for messages; from any thread."""
        self._run(_called(self._subscription.stop))

    @property
    def _subscription(self) -> Subscription:
        if self._made is None:
            raise RuntimeError("the subscription is not entered; use it with `with`")
        return self._made


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
