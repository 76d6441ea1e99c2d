"""Several messages at once: a program's handler, called by a bounded number of workers.

The shell around ``key_order`` (whose turn it is) and ``failures`` (what becomes of a message whose
handler raised). What is committed is the lowest message that is not done (``progress``), so a slow
message holds up its queue's commit and nothing else.
"""

from __future__ import annotations

import asyncio
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
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that found nothing to start."""
        self._is_over = False

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
            self._give_up(lambda _task: True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
                self._give_up(lambda task: task.held.hold is not Hold.OWNED)
                await feed.member.pulse.wait()
        finally:
            self._give_up(lambda _task: True)
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

    def _give_up(self, unwanted: Callable[[_Task], bool]) -> None:
        if not len(self._turns):
            return
        for task in self._turns.drop(unwanted):
            self._feed.give_up(task.held, (task.message,))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)

    async def _work(self) -> None:
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
        feed, failures = self._feed, 0
        try:
            while await feed.may_start(held):
                try:
                    await self._handler(message)
                except Exception as error:  # noqa: BLE001 — a program's handler raises what it likes
                    failures += 1
                    if not await self._again(message, error, failures):
                        break
                else:
                    break
            else:
                feed.give_up(held, (message,))
                return
        except BaseException:
            # Cancelled, or it could not be sent back: it is delivered again.
            feed.give_up(held, (message,))
            raise
        feed.finish(held, (message,))

    async def _again(self, message: Message, error: Exception, failures: int) -> bool:
        """Whether the message is to be handled again here; if not, it has been sent on."""
        joined = self._feed.member.joined
        verdict = after_failure(
            order=joined.order,
            broadcast=joined.broadcast,
            failures=failures,
            retry_max=joined.retry_max,
        )
        log.warning(
            "a handler failed",
            exc_info=error,
            extra={
                "event": "handler-failed",
                "then": verdict.name,
                "message_id": message.message_id,
                "topic": message.topic,
                "failures": failures,
            },
        )
        match verdict:
            case AfterFailure.AGAIN:
                await asyncio.sleep(self._retry_pause_ms / 1000)
                return True
            case AfterFailure.SEND_BACK:
                await self._feed.send_back(message.source, delay_level=0)
            case AfterFailure.DEAD:
                await self._feed.send_back(message.source, delay_level=DEAD_LEVEL)
            case AfterFailure.LEAVE:
                pass
        return False
