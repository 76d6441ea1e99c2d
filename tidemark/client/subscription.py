"""What a program subscribes with: asks for messages, and by asking for the next says it is done.

    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            ...

Asking for the next message commits this one. An exception in the body sends the message back for
retry, in an ordered group leaves it where it is, and leaves the group; so does the end of the
body, which counts the message in hand as done. A cancelled body leaves its message undone: it is
delivered again. The parts at work are ``feed``; several messages at once are ``handlers``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Sequence
from types import TracebackType
from typing import Final

from tidemark import errors
from tidemark.client.commits import Queue
from tidemark.client.feed import Feed
from tidemark.client.handlers import (
    RETRY_PAUSE_MS,
    Handlers,
    check_is_async,
    is_failure,
    message_key,
)
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.formats.message import Message

BATCH_COUNT_MAX: Final = 1024
CHUNK: Final = 256
"""Messages that ``async for`` takes from the buffer at once."""
TURN_MS: Final = 10.0
"""A program that never waits for anything gives way to the heartbeats this often."""


class Subscription:
    """Messages of a group for one member of it. Use it with ``async with``; one task asks."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._member = feed.member
        self._held: HeldQueue | None = None
        self._rest: deque[Message] = deque()
        """Taken from the buffer, of the queue ``_held``, and not given to the program yet."""
        self._in_hand: list[tuple[HeldQueue, Sequence[Message]]] = []
        """What the program has and has not asked on from."""
        self._turn_at_ms = 0.0
        self._is_entered = False

    @property
    def member(self) -> str:
        """The member's name, as others see it."""
        return self._member.calls.member

    @property
    def generation(self) -> int:
        """The group's generation as last heard of."""
        return self._member.generation

    @property
    def assignment(self) -> set[Queue]:
        """Queues that are this member's now: (topic, queue)."""
        holdings = self._member.holdings
        return {held.queue for held in holdings.of(Hold.ARRIVING, Hold.OWNED)}

    async def __aenter__(self) -> Subscription:
        if self._is_entered:
            raise RuntimeError("a subscription is entered once; call subscribe() again")
        await self._feed.start()
        self._is_entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._feed.stop()
        try:
            try:
                await self._settle_in_hand(error)
            finally:
                await self._feed.leave()
        except errors.TidemarkError as failure:
            if error is None:
                raise
            # What ended the body matters more; what leaving met stands with it.
            error.add_note(f"On leaving the group: {failure}")

    def __aiter__(self) -> AsyncIterator[Message]:
        self._check_entered()
        return self._each()

    async def batches(self, max: int = BATCH_COUNT_MAX) -> AsyncGenerator[list[Message], None]:
        """Up to ``max`` messages at a time, whatever is here, none of it empty.

        Each queue's messages are in order. Asking for the next batch commits this one; an exception
        in the body sends all of it back.
        """
        if max < 1:
            raise ValueError(f"max must be 1 or more, not {max}")
        self._check_entered()
        self._finish_in_hand()
        while (taken := self._take_rest(max) or await self._feed.next(max)) is not None:
            batch: list[Message] = []
            following: tuple[HeldQueue, Sequence[Message]] | None = taken
            while following is not None:
                self._in_hand.append(following)
                batch += following[1]
                following = self._feed.take(max - len(batch)) if len(batch) < max else None
            yield batch
            self._finish_in_hand()
            if self._member.clock() >= self._turn_at_ms:
                await self._give_way()

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 1,
        by_key: bool | Callable[[Message], Hashable | None] = True,
        retry_pause_ms: float = RETRY_PAUSE_MS,
    ) -> None:
        """Call ``handler`` for every message, ``concurrency`` at once, until ``stop`` or cancelled.

        by_key: messages of one key (sharding key, else first key; or what the callable says) are
        handled one after another, in order. In an ordered group all messages of one queue are.
        Committed is the lowest message that is not done. A message whose handler raises is sent
        back; in an ordered group it is handled again after ``retry_pause_ms``, and after the
        group's ``retry_max`` times goes to the dead letters; in a broadcast group it is logged.
        Raises TypeError for a handler that is not async.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {concurrency}")
        check_is_async(handler)
        self._check_entered()
        self._finish_in_hand()
        key_of = message_key if by_key is True else (by_key or None)
        handlers = Handlers(self._feed, handler, key_of=key_of, retry_pause_ms=retry_pause_ms)
        await handlers.run(concurrency, self._take_rest(len(self._rest)))

    async def nack(self, message: Message, *, delay_level: int = 0) -> None:
        """Send a message back for retry, durably; going on from it then does no more.

        delay_level: 0 lets the number of tries choose it; −1 sends it to the dead letters now.
        Waits for a broker that does not answer. Once is enough: a message in hand is sent back
        once, whatever is asked or raised later. Raises NotAssigned (another member has the queue,
        and gets the message), UnknownMessage (it has expired), BroadcastGroup, DelayOutOfRange.
        """
        source = message.source
        held = self._member.holdings.get((source.topic, source.queue))
        # Of a queue that was lost and came again it is not in hand, whatever the program has.
        reached = None if held is None else held.progress.reached
        is_ours = held is not None and reached is not None and source.queue_offset < reached
        if is_ours and held is not None:
            is_ours = await self._feed.send_back(held, source, delay_level=delay_level)
        if not is_ours:
            raise errors.NotAssigned(
                f"queue {source.queue} of topic {source.topic!r} is not this member's any more: "
                "whoever has it is given the message. It was not sent back.",
                "Nothing has to be done.",
                topic=source.topic,
                queue=source.queue,
            )

    async def commit(self, *, ack: str = "accepted") -> None:
        """Commit now what is done: not the message, or the batch, in hand.

        ack: ``disk`` returns when the commit survives a power cut of the broker.
        """
        if ack not in ("accepted", "disk"):
            raise ValueError(f"ack must be accepted or disk, not {ack!r}")
        self._check_entered()
        await self._feed.commit(ack)

    def stop(self) -> None:
        """End the loop that asks for messages, or ``run``, after what is in hand."""
        self._feed.stop()

    def _check_entered(self) -> None:
        """Who is no member gets no messages: without this the loop would wait for ever."""
        if not self._is_entered:
            raise RuntimeError("the subscription is not entered; use it with `async with`")

    async def _each(self) -> AsyncGenerator[Message, None]:
        feed, rest = self._feed, self._rest
        clock, lease = self._member.clock, self._member.lease
        self._finish_in_hand()
        while True:
            while rest:
                held = self._held
                assert held is not None
                now_ms = clock()
                if held.hold is not Hold.OWNED or feed.is_interrupted:
                    self._give_up_rest()
                elif now_ms >= lease.ends_at_ms:
                    await feed.may_start(held)
                elif now_ms >= self._turn_at_ms:
                    await self._give_way()
                else:
                    message = rest.popleft()
                    in_hand = (held, (message,))
                    self._in_hand.append(in_hand)
                    yield message
                    self._in_hand.clear()
                    feed.finish(*in_hand)
            taken = await feed.next(CHUNK)
            if taken is None:
                return
            self._held = taken[0]
            rest.extend(taken[1])

    async def _give_way(self) -> None:
        """Let the background parts run: a program may never wait for anything itself."""
        await asyncio.sleep(0)
        self._turn_at_ms = self._member.clock() + TURN_MS

    def _take_rest(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """What another way of asking left behind, up to ``count`` messages."""
        if not self._rest or self._held is None:
            return None
        if self._held.hold is not Hold.OWNED or self._feed.is_interrupted:
            self._give_up_rest()
            return None
        return self._held, [self._rest.popleft() for _ in range(min(count, len(self._rest)))]

    def _give_up_rest(self) -> None:
        if self._held is not None:
            self._feed.give_up(self._held, list(self._rest))
        self._rest.clear()

    def _finish_in_hand(self) -> None:
        """The program asked on: what it had is done."""
        in_hand, self._in_hand = self._in_hand, []
        for held, messages in in_hand:
            self._feed.finish(held, messages)

    async def _settle_in_hand(self, error: BaseException | None) -> None:
        """The body ended: say what becomes of what it had in hand."""
        joined = self._member.joined
        self._give_up_rest()
        if error is None:
            self._finish_in_hand()
            return
        in_hand, self._in_hand = self._in_hand, []
        # Cancelled, or a signal: the message did not fail, so it is not counted as a failure.
        sends_back = is_failure(error) and not (joined.order or joined.broadcast)
        for held, messages in in_hand:
            for message in messages:
                if sends_back:
                    await self._send_back(held, message)
                else:
                    self._feed.give_up(held, (message,))

    async def _send_back(self, held: HeldQueue, message: Message) -> None:
        is_done = False
        try:
            is_done = await self._feed.send_back_failed(held, message, 0)
        finally:
            # Not sent back, so it must not be committed either: then it is delivered again.
            if is_done:
                self._feed.finish(held, (message,))
            else:
                self._feed.give_up(held, (message,))
