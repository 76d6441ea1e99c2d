"""Several messages at once: a program's handler, called by a bounded number of workers.

The shell around ``key_order`` (whose turn it is) and ``failures`` (what becomes of a message whose
handler raised). What is committed is the lowest message that is not done (``progress``), so a slow
message holds up its queue's commit and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple

from tidemark.client.failures import AfterFailure, after_failure
from tidemark.client.feed import Feed
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.key_order import KeyOrder
from tidemark.formats import properties
from tidemark.formats.message import Message

RETRY_PAUSE_MS: Final = 1000.0
"""Between two tries of an ordered group's message; as long as the reference implementation's."""
DEAD_LEVEL: Final = -1
CHUNK: Final = 256

log = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A message that waits for its turn."""

    held: HeldQueue
    message: Message


def message_key(message: Message) -> str | None:
    """What orders messages among each other: the sharding key, else the first key."""
    sharding_key = message.properties.get(properties.SHARDING_KEY)
    if sharding_key is not None:
        return sharding_key
    return message.keys[0] if message.keys else None


class Handlers:
    """One run of a handler over the messages of a feed."""

    def __init__(
        self,
        feed: Feed,
        handler: Callable[[Message], Awaitable[object]],
        *,
        key_of: Callable[[Message], Hashable | None] | None,
        retry_pause_ms: float,
    ) -> None:
        """key_of: messages of one key one after another; None: in any order."""
        self._feed, self._handler, self._key_of = feed, handler, key_of
        self._retry_pause_ms = retry_pause_ms
        self._turns: KeyOrder[_Task] = KeyOrder()
        self._paused: dict[HeldQueue, list[Message]] = {}
        """Messages of paused queues that are behind others in work: they wait for ``resume``."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that found nothing to start."""
        self._is_over = False
        """Whether no more messages come."""
        self._is_ending = False
        """Whether the workers are cancelled."""

    async def run(
        self, concurrency: int, first: tuple[HeldQueue, Sequence[Message]] | None
    ) -> None:
        """Handle messages until the feed stops; then wait for those under way.

        first: messages taken from the feed before. Raises what a part of the feed died of, and what
        sending a message back met.
        """
        if first is not None:
            self._put(*first)
        supply = asyncio.create_task(self._supply(), name="tidemark-supply")
        workers = [
            asyncio.create_task(self._work(), name=f"tidemark-handler-{n}")
            for n in range(concurrency)
        ]
        tasks = [supply, *workers]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            self._is_ending = True
            self._give_up(lambda _held: True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._feed.bring_again()

    def pause(self, held: HeldQueue) -> None:
        """Start no more messages of a queue; those in work go on.

        What can be fetched again is given back: it would take the room of other queues' messages.
        """
        waiting = [task.message for task in self._turns.drop(lambda task: task.held is held)]
        waiting += self._paused.pop(held, [])
        waiting.sort(key=lambda message: message.queue_offset)
        unused_from = held.progress.unused_from({message.queue_offset for message in waiting})
        if unused_from is not None:
            unused = [each for each in waiting if each.queue_offset >= unused_from]
            self._feed.fetching.take_back(held, unused)
            del waiting[-len(unused) :]
        if waiting:
            self._paused[held] = waiting

    def resume(self, held: HeldQueue) -> None:
        """Start messages of a paused queue again."""
        self._put(held, self._paused.pop(held, []))

    async def _supply(self) -> None:
        """Take messages as they come, and back what waits of queues that are taken away."""
        feed = self._feed
        try:
            while True:
                while (taken := feed.take(CHUNK)) is not None:
                    self._put(*taken)
                if feed.is_interrupted:
                    feed.raise_failure()
                    return
                self._give_up(lambda held: held.hold is not Hold.OWNED)
                await feed.member.pulse.wait()
        finally:
            self._give_up(lambda _held: True)
            self._is_over = True
            self._wake(len(self._idle))

    def _put(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        for message in messages:
            self._turns.put(self._key(held, message), _Task(held, message))
        self._wake(len(messages))

    def _key(self, held: HeldQueue, message: Message) -> Hashable | None:
        if self._feed.member.joined.order:
            return held.queue
        return None if self._key_of is None else self._key_of(message)

    def _give_up(self, unwanted: Callable[[HeldQueue], bool]) -> None:
        for held in [held for held in self._paused if unwanted(held)]:
            self._feed.give_up(held, self._paused.pop(held))
        if not len(self._turns):
            return
        for task in self._turns.drop(lambda task: unwanted(task.held)):
            self._feed.give_up(task.held, (task.message,))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)

    async def _work(self) -> None:
        try:
            await self._work_on()
        except asyncio.CancelledError:
            if self._is_ending:
                raise
            # Else the run would go on with one worker less, at last with none, and say nothing.
            raise RuntimeError("a handler cancelled the task that it runs in") from None

    async def _work_on(self) -> None:
        while True:
            turn = self._turns.start()
            if turn is not None:
                key, task = turn
                try:
                    await self._handle(*task)
                finally:
                    self._turns.end(key)
            elif self._is_over:
                return
            else:
                idle = asyncio.get_running_loop().create_future()
                self._idle.append(idle)
                await idle

    async def _handle(self, held: HeldQueue, message: Message) -> None:
        """Handle one message to its end: done, sent back, or given up."""
        try:
            is_done = await self._until_done(held, message)
        except BaseException:
            # Cancelled, or it could not be sent back: it is delivered again.
            self._feed.give_up(held, (message,))
            raise
        if is_done:
            self._feed.finish(held, (message,))
        else:
            self._feed.give_up(held, (message,))

    async def _until_done(self, held: HeldQueue, message: Message) -> bool:
        """Whether the message is done: handled, or sent back; False: it is for somebody else."""
        feed, failures = self._feed, 0
        while await feed.may_start(held):
            try:
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
                    return True
            except (Exception, asyncio.CancelledError) as error:
                if not is_failure(error):
                    raise
                failures += 1
                verdict = self._judge(message, error, failures)
            else:
                raise not_async(self._handler)
            if verdict is AfterFailure.SEND_BACK:
                return await feed.send_back_failed(held, message, 0)
            if verdict is AfterFailure.DEAD:
                return await feed.send_back_failed(held, message, DEAD_LEVEL)
            if verdict is AfterFailure.LEAVE or message.queue_offset in held.sent_back:
                return True
            await asyncio.sleep(self._retry_pause_ms / 1000)
        return False

    def _judge(self, message: Message, error: BaseException, failures: int) -> AfterFailure:
        """What becomes of a message whose handling failed; the log says it."""
        calls, joined = self._feed.member.calls, self._feed.member.joined
        verdict = after_failure(
            order=joined.order,
            broadcast=joined.broadcast,
            failures=failures,
            retry_max=joined.retry_max,
        )
        log.warning(
            "%s: a handler failed: %s",
            calls,
            error,
            exc_info=error,
            extra={
                "event": "handler-failed",
                "group": calls.group,
                "member": calls.member,
                "reason": str(error),
                "then": verdict.name,
                "message_id": message.message_id,
                "topic": message.topic,
                "failures": failures,
            },
        )
        return verdict


def check_is_async(handler: object, called: str = "handler(message)") -> None:
    """Raise TypeError for a handler that is surely no coroutine function. called: how it is.

    A plain function would run once per message, and each message would be taken for failed. What
    only its call can tell, such as a lambda, is found out at the first message.
    """
    inner = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner) if callable(inner) else inner
    if not callable(inner) or (
        inspect.isroutine(inner)
        and not inspect.iscoroutinefunction(inner)
        and getattr(inner, "__name__", "") != "<lambda>"
    ):
        raise not_async(handler, called)


def not_async(handler: object, called: str = "handler(message)") -> TypeError:
    """The error for a handler that is not awaited."""
    return TypeError(f"a handler is called as `await {called}`: {handler!r} is not async")


def is_failure(error: BaseException) -> bool:
    """Whether a message failed with this error; False: its handling was cancelled, or killed.

    Code that awaits something that was cancelled raises CancelledError, too, and is not cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception)
