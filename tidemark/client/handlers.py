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
SEND_BACK_LEVEL: Final = 0
"""Delay level that the broker derives from the number of tries."""
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
        """Waiting messages of queues that are paused, or whose session may have expired, and that
        cannot be fetched again; kept for ``resume``."""
        self._nacks: set[asyncio.Task[bool]] = set()
        """Nacks in progress. A broker that does not answer one must not keep a worker."""
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
        work = asyncio.gather(supply, *workers)
        self._failed = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait((work, self._failed), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            self._is_ending = True
            self._give_up(lambda _held: True)
            tasks = [supply, *workers, *self._nacks]
            for task in (*tasks, self._failed):
                task.cancel()
            await asyncio.gather(work, self._failed, *tasks, return_exceptions=True)
            self._engine.redeliver_given_up()

    def pause(self, held: HeldQueue, *unstarted: Message) -> None:
        """Start no more messages of a queue; those in progress continue.

        Messages that can be fetched again are returned, to leave room for other queues' messages.
        unstarted: messages of the queue that wait besides.
        """
        waiting = [task.message for task in self._turns.drop(lambda task: task.held is held)]
        waiting += unstarted
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
                for held in [held for held in self._paused if held.engine.member.may_deliver]:
                    if not held.is_paused:
                        self.resume(held)  # before the messages that come after these
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
                if task.held.hold is Hold.OWNED and not task.held.engine.member.may_deliver:
                    self._put_back(key, task)
                    continue
                delay_level: int | None = None
                try:
                    delay_level = await self._handle(*task)
                finally:
                    if delay_level is None:
                        self._turns.end(key)
                if delay_level is not None:
                    self._nack(key, task, delay_level)
            elif self._is_over and not self._nacks:
                return
            else:
                idle = asyncio.get_running_loop().create_future()
                self._idle.append(idle)
                await idle

    def _put_back(self, key: Hashable | None, task: _Task) -> None:
        """Start no messages of a queue whose session may have expired; other queues go on."""
        fetching = task.held.engine.fetching
        fetching.drop(task.held)
        self.pause(task.held, task.message)
        self._turns.end(key)
        fetching.interrupt()

    def _nack(self, key: Hashable | None, task: _Task, delay_level: int) -> None:
        """Nack a message whose handler failed; the next one of its key starts afterwards."""
        nack = asyncio.create_task(
            task.held.engine.nack_failed(task.held, task.message, delay_level)
        )
        self._nacks.add(nack)
        nack.add_done_callback(functools.partial(self._nacked, key, task))

    def _nacked(self, key: Hashable | None, task: _Task, nack: asyncio.Task[bool]) -> None:
        failure = None if nack.cancelled() else nack.exception()
        if not nack.cancelled() and failure is None and nack.result():
            task.held.engine.finish(task.held, (task.message,))
        else:
            task.held.engine.give_up(task.held, (task.message,))  # it is delivered again
        if failure is not None and not self._failed.done():
            self._failed.set_exception(failure)
        self._nacks.discard(nack)
        self._turns.end(key)
        self._wake(len(self._idle))

    async def _handle(self, held: HeldQueue, message: Message) -> int | None:
        """Handle one message until it is done, given up or has failed.

        Returns the delay level with which it is nacked if it has failed, otherwise None.
        """
        try:
            outcome = await self._until_done(held, message)
        except BaseException:
            # Cancelled: the message is delivered again.
            held.engine.give_up(held, (message,))
            raise
        if outcome is True:
            held.engine.finish(held, (message,))
        elif outcome is False:
            held.engine.give_up(held, (message,))
        else:
            return outcome
        return None

    async def _until_done(self, held: HeldQueue, message: Message) -> bool | int:
        """Return True when the message is handled, False if its queue was revoked, and otherwise
        the delay level with which it is to be nacked."""
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
                return SEND_BACK_LEVEL
            if verdict is AfterFailure.DEAD:
                return DEAD_LEVEL
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
