"""Processes several messages at once: a bounded number of workers call the program's handler.

This is the shell around ``key_order`` (which message may start) and ``failures`` (what happens to a
message whose handler raised). The committed offset is the lowest message that is not done
(``progress``), so a slow message delays only the commits of its queue.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple

from tidemark.client.cluster_consumer import ClusterConsumer
from tidemark.client.failures import AfterFailure, after_failure
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.key_order import KeyOrder
from tidemark.client.member import Member
from tidemark.formats import properties
from tidemark.formats.message import Message

RETRY_PAUSE_MS: Final = 1000.0
"""Pause before an ordered group's message is handled again; as in the reference implementation."""
DEAD_LEVEL: Final = -1
CHUNK: Final = 256

log = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A message that waits to be handled."""

    held: HeldQueue
    message: Message


def message_key(message: Message) -> str | None:
    """Return the ordering key of a message: the sharding key, else the first key."""
    sharding_key = message.properties.get(properties.SHARDING_KEY)
    if sharding_key is not None:
        return sharding_key
    return message.keys[0] if message.keys else None


class Handlers:
    """One run of a handler over the messages of a subscription."""

    def __init__(
        self,
        engine: ClusterConsumer,
        handler: Callable[[Message], Awaitable[object]],
        *,
        key_of: Callable[[Message], Hashable | None] | None,
        retry_pause_ms: float,
    ) -> None:
        """key_of: messages of one key are handled in order; None: in any order."""
        self._engine, self._handler, self._key_of = engine, handler, key_of
        self._retry_pause_ms = retry_pause_ms
        self._turns: KeyOrder[_Task] = KeyOrder()
        self._paused: dict[HeldQueue, list[Message]] = {}
        """Waiting messages of paused queues that cannot be fetched again; kept for ``resume``."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Futures of workers that have nothing to do."""
        self._is_over = False
        """Whether no more messages will arrive."""
        self._is_ending = False
        """Whether the workers are being cancelled."""

    async def run(
        self, concurrency: int, first: tuple[HeldQueue, Sequence[Message]] | None
    ) -> None:
        """Handle messages until the engine stops, then wait for those in progress.

        first: messages that were taken from the engine before. Raises the error of a failed part of
        the engine or of a nack.
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
            self._engine.redeliver_given_up()

    def pause(self, held: HeldQueue) -> None:
        """Start no more messages of a queue; those in progress continue.

        Messages that can be fetched again are returned, to leave room for other queues' messages.
        """
        waiting = [task.message for task in self._turns.drop(lambda task: task.held is held)]
        waiting += self._paused.pop(held, [])
        waiting.sort(key=lambda message: message.queue_offset)
        unused_from = held.progress.unused_from({message.queue_offset for message in waiting})
        if unused_from is not None:
            unused = [each for each in waiting if each.queue_offset >= unused_from]
            held.engine.fetching.take_back(held, unused)
            del waiting[-len(unused) :]
        if waiting:
            self._paused[held] = waiting

    def resume(self, held: HeldQueue) -> None:
        """Start the waiting messages of a paused queue again."""
        self._put(held, self._paused.pop(held, []))

    async def _supply(self) -> None:
        """Take messages as they arrive; give up waiting messages of queues no longer owned."""
        engine = self._engine
        try:
            while True:
                while (taken := engine.take(CHUNK)) is not None:
                    self._put(*taken)
                if engine.is_interrupted:
                    engine.raise_failure()
                    return
                self._give_up(lambda held: held.hold is not Hold.OWNED)
                await engine.pulse.wait()
        finally:
            self._give_up(lambda _held: True)
            self._is_over = True
            self._wake(len(self._idle))

    def _put(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        for message in messages:
            self._turns.put(self._key(held, message), _Task(held, message))
        self._wake(len(messages))

    def _key(self, held: HeldQueue, message: Message) -> Hashable | None:
        if held.engine.member.joined.order:
            return held.queue
        return None if self._key_of is None else self._key_of(message)

    def _give_up(self, unwanted: Callable[[HeldQueue], bool]) -> None:
        for held in [held for held in self._paused if unwanted(held)]:
            held.engine.give_up(held, self._paused.pop(held))
        if not len(self._turns):
            return
        for task in self._turns.drop(lambda task: unwanted(task.held)):
            task.held.engine.give_up(task.held, (task.message,))

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
            # Otherwise the run would silently continue with one worker less, in the end with none.
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
        """Handle one message until it is done, nacked or given up."""
        try:
            is_done = await self._until_done(held, message)
        except BaseException:
            # Cancelled, or the nack failed: the message is delivered again.
            held.engine.give_up(held, (message,))
            raise
        if is_done:
            held.engine.finish(held, (message,))
        else:
            held.engine.give_up(held, (message,))

    async def _until_done(self, held: HeldQueue, message: Message) -> bool:
        """Return True when the message is handled or nacked, False if its queue was revoked."""
        engine, failures = held.engine, 0
        while await engine.may_start(held):
            try:
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
                    return True
            except (Exception, asyncio.CancelledError) as error:
                if not is_failure(error):
                    raise
                failures += 1
                verdict = self._judge(engine.member, message, error, failures)
            else:
                raise not_async(self._handler)
            if verdict is AfterFailure.SEND_BACK:
                return await engine.nack_failed(held, message, 0)
            if verdict is AfterFailure.DEAD:
                return await engine.nack_failed(held, message, DEAD_LEVEL)
            if verdict is AfterFailure.LEAVE or message.queue_offset in held.nacked:
                return True
            await asyncio.sleep(self._retry_pause_ms / 1000)
        return False

    @staticmethod
    def _judge(
        member: Member, message: Message, error: BaseException, failures: int
    ) -> AfterFailure:
        """Decide what happens to a message whose handler raised, and log it."""
        calls, joined = member.calls, member.joined
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
    """Raise TypeError if the handler is certainly not a coroutine function.

    A plain function would run once per message, and each message would count as failed. Callables
    such as lambdas can only be checked by their result, at the first message. called: the call as
    the error shows it.
    """
    inner = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner) if callable(inner) else inner
    is_class = isinstance(inner, type) and not hasattr(inner, "__await__")
    if (
        not callable(inner)
        or is_class
        or (
            inspect.isroutine(inner)
            and not inspect.iscoroutinefunction(inner)
            and getattr(inner, "__name__", "") != "<lambda>"
        )
    ):
        raise not_async(handler, called)


def not_async(handler: object, called: str = "handler(message)") -> TypeError:
    """Return the error for a handler whose result cannot be awaited."""
    return TypeError(f"a handler is called as `await {called}`: {handler!r} is not async")


def is_failure(error: BaseException) -> bool:
    """Whether this error means that the message failed, and not that its handling was cancelled.

    Code that awaits a cancelled task raises CancelledError without being cancelled itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception)
