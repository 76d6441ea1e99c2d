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
import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from tidemark import errors
from tidemark.client.commits import CommitAck, Queue
from tidemark.client.feed import Feed
from tidemark.client.handlers import (
    RETRY_PAUSE_MS,
    Handlers,
    check_is_async,
    is_failure,
    message_key,
)
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.formats.message import Message, Source

T = TypeVar("T")
Asker = asyncio.Task[Any] | threading.Thread
"""Who asks for messages: a task, or a thread of a program without asyncio."""

BATCH_COUNT_MAX: Final = 1024
CHUNK: Final = 256
"""Messages that ``async for`` takes from the buffer at once."""
TURN_MS: Final = 10.0
"""A program that never waits for anything gives way to the heartbeats this often."""


def _none() -> None:
    """What a weak reference to nothing answers."""


class Subscription:
    """Messages of a group for one member of it. Use it with ``async with``, or start and close it.

    One iteration at a time asks for messages; ``getone``, ``getmany`` and ``ack`` are for several
    tasks.
    """

    def __init__(self, feed: Feed, open_ones: set[Subscription]) -> None:
        """open_ones: where it stands while it is entered: who closes the client leaves for it."""
        self._feed, self._open_ones = feed, open_ones
        self._member = feed.member
        self._held: HeldQueue | None = None
        self._rest: deque[Message] = deque()
        """Taken from the buffer, of the queue ``_held``, and not given to the program yet."""
        self._in_hand: list[tuple[HeldQueue, Sequence[Message]]] = []
        """What the program has and has not asked on from."""
        self._unacked: dict[Source, tuple[HeldQueue, Message]] = {}
        """What ``getone`` and ``getmany`` gave, until ``ack`` or ``nack``."""
        self._iteration: Callable[[], Iteration[Any] | None] = _none
        """Weakly, the iteration that asked last."""
        self._asked_by: Callable[[], Asker | None] = _none
        """Weakly, the task or thread that did."""
        self._handlers: set[Handlers] = set()
        """Of each ``run`` that runs."""
        self._turn_at_ms = 0.0
        self._is_entered = self._is_left = self._is_asked = False

    @property
    def is_open(self) -> bool:
        """Whether it is entered, and the group is not left."""
        return self._is_entered and not self._is_left

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
        self._open_ones.add(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave(error, asyncio.current_task())

    async def leave(self, error: BaseException | None, asker: Asker | None) -> None:
        """Leave the group, as at the end of ``async with``. error: what ended the body.

        asker: who leaves. What another one that still runs has in hand is neither done nor failed.
        """
        is_mine = not self._has_other_asker(asker)
        await self._leave(
            error,
            is_done=is_mine and error is None,
            sends_back=is_mine and error is not None and is_failure(error),
        )

    async def _leave(self, error: BaseException | None, *, is_done: bool, sends_back: bool) -> None:
        """error: what ended the body. is_done, sends_back: what becomes of what is in hand; if
        neither, it is delivered again."""
        self._feed.stop()
        if self._is_left:
            return
        self._is_left = True
        self._feed.begin_leaving()
        self._open_ones.discard(self)
        try:
            try:
                await self._settle_in_hand(is_done=is_done, sends_back=sends_back)
            finally:
                await self._feed.leave()
        except errors.TidemarkError as failure:
            if error is None:
                raise
            # What ended the body matters more; what leaving met stands with it.
            error.add_note(f"On leaving the group: {failure}")

    async def start(self) -> Subscription:
        """Join the group, as ``async with`` does; ``close`` is to follow."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Leave the group as at the end of ``async with``; nothing if that is done already.

        A message that another task has in hand is delivered again.
        """
        if self._is_entered:
            await self.__aexit__(None, None, None)

    async def abandon(self) -> None:
        """The client closes: leave the group; what is in hand is delivered again."""
        closed = RuntimeError("the client was closed; what was in hand is delivered again")
        try:
            await self._leave(closed, is_done=False, sends_back=False)
        finally:
            self._feed.fail(closed)

    def __aiter__(self) -> Iteration[Message]:
        self._check_entered()
        return Iteration(self, self._take_one)

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iteration[list[Message]]:
        """Up to ``max`` messages at a time, whatever is here, none of it empty.

        Each queue's messages are in order. Asking for the next batch commits this one; an exception
        in the body sends all of it back.
        """
        if max < 1:
            raise ValueError(f"max must be 1 or more, not {max}")
        self._check_entered()
        return Iteration(self, functools.partial(self._take_batch, max))

    async def getone(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """The next message, for ``ack`` or ``nack``; None if none comes in ``timeout`` seconds.

        Also None when ``stop`` is called meanwhile. Several tasks may ask at once. Raises
        RuntimeError after ``stop``.
        """
        taken = await self.getmany(1, timeout)
        return taken[0] if taken else None

    async def getmany(
        self,
        max: int = BATCH_COUNT_MAX,
        timeout: float | None = None,  # noqa: ASYNC109 — as programs expect it
    ) -> list[Message]:
        """Up to ``max`` messages, as ``getone``: what is here, or what comes first.

        Each is to be followed by ``ack`` or ``nack``; what is neither when the group is left is
        delivered again. Empty if none comes in ``timeout`` seconds.
        """
        if max < 1:
            raise ValueError(f"max must be 1 or more, not {max}")
        self._check_entered()
        self._feed.raise_failure()
        if self._feed.is_interrupted:
            raise RuntimeError("the subscription was stopped: there are no more messages")
        if self._member.clock() >= self._turn_at_ms:
            await self._give_way()
        found: list[Message] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                taken = await self._next(max)
            # No await from here on: who cancels this call loses none of the messages.
            while taken is not None:
                held, messages = taken
                for message in messages:
                    if (before := self._unacked.get(message.source)) is not None:
                        # It came again after a `seek`, or as the queue was lost and came again.
                        self._feed.give_up(before[0], (before[1],))
                    self._unacked[message.source] = (held, message)
                found += messages
                taken = self._here(max - len(found)) if len(found) < max else None
        return found

    async def ack(self, *messages: Message) -> int:
        """These messages of ``getone`` or ``getmany`` are done: they are committed soon.

        Returns how many of them; the others were delivered again, or are, because their queue was
        lost or moved back. Raises ValueError for a message that is not in hand.
        """
        count = 0
        for message in messages:
            if (taken := self._unacked.get(message.source)) is None:
                raise ValueError(f"{message.source} is not in hand: acknowledged, or sent back")
            held, mine = taken
            if mine is not message:
                continue  # an earlier delivery; the later one is in hand
            del self._unacked[message.source]
            count += held.hold is not Hold.LOST
            self._feed.finish(held, (mine,))
        return count

    def position(self, topic: str, queue: int) -> int | None:
        """Queue offset of the next message that is handed out; None while that is not known.

        Raises NotAssigned.
        """
        held = self._held_queue((topic, queue))
        if self._held is held and self._rest:
            return self._rest[0].queue_offset
        return held.progress.reached

    async def seek(self, topic: str, queue: int, offset: int) -> None:
        """Go on at a queue offset. Raises NotAssigned, OffsetBeyondEnd.

        Forward: what is skipped is committed. Back: messages come again, and the group's committed
        offset stays until they are behind it. Messages in hand of the queue are not committed by
        themselves any more.
        """
        held = self._held_queue((topic, queue))
        end = await self._feed.end_of(held.queue)
        if not 0 <= offset <= end:
            raise errors.OffsetBeyondEnd(
                f"queue {queue} of topic {topic!r} ends at queue offset {end}; {offset} is not in "
                "it. Nothing was changed.",
                topic=topic,
                queue=queue,
                offset=offset,
                max_offset=end,
            )
        held = self._held_queue((topic, queue))
        self._put_back(held)
        self._feed.restart(held, offset)

    def pause(self, *queues: Queue) -> None:
        """Hand out nothing of these queues until ``resume``. Raises NotAssigned.

        They stay this member's. A queue that goes to another member and comes back is not paused.
        """
        for held in [self._held_queue(queue) for queue in queues]:
            self._put_back(held)
            held.is_paused = True

    def resume(self, *queues: Queue) -> None:
        """Go on with these queues where ``pause`` stopped. Raises NotAssigned."""
        for held in [self._held_queue(queue) for queue in queues]:
            if held.is_paused:
                held.is_paused = False
                for handlers in self._handlers:
                    handlers.resume(held)
                self._feed.fetching.want(held)
                if not held.is_placed:
                    # The fetch under way may ask for it behind what `pause` has dropped.
                    self._feed.fetching.interrupt()

    @property
    def paused(self) -> set[Queue]:
        """Queues that are paused."""
        return {held.queue for held in self._member.holdings if held.is_paused}

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
        key_of = message_key if by_key is True else (by_key or None)
        handlers = Handlers(self._feed, handler, key_of=key_of, retry_pause_ms=retry_pause_ms)
        self.ask(None)
        self._handlers.add(handlers)
        try:
            await handlers.run(concurrency, self._here(len(self._rest)) if self._rest else None)
        finally:
            self._handlers.remove(handlers)

    async def nack(
        self,
        message: Message,
        *,
        delay_level: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send a message back for retry, durably; going on from it then does no more.

        delay_level: 0 lets the number of tries choose it; −1 sends it to the dead letters now.
        timeout: so many seconds for a broker that does not answer, then Unreachable is raised, and
        the message stays in hand; None: the client's ``request_timeout_s`` if it was given one,
        else as long as it takes. Once is enough: a message in hand is sent back
        once, whatever is asked or raised later. Raises NotAssigned (another member has the queue,
        and gets the message), UnknownMessage (it has expired), BroadcastGroup, DelayOutOfRange.
        """
        async with self._in_time(timeout, "did not take the message back; it stays in hand"):
            await self._nack(message, delay_level)

    async def _nack(self, message: Message, delay_level: int) -> None:
        source = message.source
        taken = self._unacked.get(source)
        if taken is not None and taken[1] is not message:
            taken = None  # an earlier delivery; the later one is in hand
        held = taken[0] if taken else self._member.holdings.get((source.topic, source.queue))
        reached = None if held is None else held.progress.reached
        # What a queue that was lost and came again has not reached, it hands out again.
        is_sent_back = (
            held is not None
            and reached is not None
            and source.queue_offset < reached
            and await self._feed.send_back(held, source, delay_level=delay_level)
        )
        if taken is not None and self._unacked.get(source) is taken:
            del self._unacked[source]
            self._feed.give_up(taken[0], (message,))  # counts as done if it was sent back
        if not is_sent_back:
            raise errors.NotAssigned(
                f"queue {source.queue} of topic {source.topic!r} is not this member's any more: "
                "whoever has it is given the message. It was not sent back.",
                "Nothing has to be done.",
                topic=source.topic,
                queue=source.queue,
            )

    async def commit(
        self,
        *,
        ack: CommitAck = "accepted",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Commit now what is done: not the message, or the batch, in hand.

        ack: ``disk`` returns when the commit survives a power cut of the broker. timeout: as of
        ``nack``; what is done is committed in the background all the same, once the broker answers.
        """
        if ack not in ("accepted", "disk"):
            raise ValueError(f"ack must be accepted or disk, not {ack!r}")
        self._check_entered()
        async with self._in_time(timeout, "did not take the commit; it is sent again"):
            await self._feed.commit(ack)

    @contextlib.asynccontextmanager
    async def _in_time(
        self,
        timeout: float | None,  # noqa: ASYNC109
        otherwise: str,
    ) -> AsyncIterator[None]:
        """End by a time-out, else by the client's. otherwise: what is true then."""
        connection = self._member.calls.connection
        within_s = connection.given_timeout_s if timeout is None else timeout
        try:
            async with asyncio.timeout(within_s):
                yield
        except TimeoutError:
            raise errors.Unreachable(
                f"{connection.url} {otherwise}: no answer within {within_s} s.",
                "Check the node's /ready, or allow more time.",
                url=connection.url,
            ) from None

    def stop(self) -> None:
        """End the loop that asks for messages, or ``run``, after what is in hand."""
        self._feed.stop()

    def _check_entered(self) -> None:
        """Who is no member gets no messages: without this the loop would wait for ever."""
        if not self._is_entered:
            raise RuntimeError("the subscription is not entered; use it with `async with`")

    def _held_queue(self, queue: Queue) -> HeldQueue:
        self._check_entered()
        held = self._member.holdings.get(queue)
        if held is None or held.hold is not Hold.OWNED:
            topic, number = queue
            raise errors.NotAssigned(
                f"queue {number} of topic {topic!r} is not assigned to this member, or not yet. "
                "Nothing was changed.",
                "`assignment` has the queues; `on_assigned` is called before one is read.",
                topic=topic,
                queue=number,
            )
        return held

    def ask(self, iteration: Iteration[Any] | None) -> None:
        """An iteration asks for more, or ``run`` does: what was in hand is done.

        Raises RuntimeError for the second of two iterations, or of two tasks or threads that share
        one. Whoever iterates says by asking that all in hand is done. So two cannot: one would
        commit the other's messages. An iteration that is over, as after ``break``, is not in the
        way, nor is a task or thread that has ended.
        """
        last = self._iteration()
        if last is not iteration:
            if last is not None and not last.is_over and self._in_hand:
                raise RuntimeError(
                    "another iteration of this subscription has messages in hand, which this one "
                    "would commit; use run(concurrency=…), getone() and ack(), or a subscription "
                    "for each task"
                )
            self._iteration = _none if iteration is None else weakref.ref(iteration)
        thread = None if iteration is None else iteration.thread
        kind = "task" if thread is None else "thread"
        if self._is_asked:
            raise RuntimeError(f"two {kind}s ask one iteration for its next message at once")
        asker = thread or asyncio.current_task()
        is_shared = iteration is not None and last is iteration
        if is_shared and self._in_hand and self._has_other_asker(asker):
            raise RuntimeError(
                f"another {kind} has messages of this iteration in hand, which this one would "
                f"commit; use getone() and ack(), or a subscription for each {kind}"
            )
        self._asked_by = _none if asker is None else weakref.ref(asker)
        self._finish_in_hand()

    def _has_other_asker(self, asker: Asker | None) -> bool:
        """Whether another one than this asked last, and still runs."""
        before = self._asked_by()
        if before is None or before is asker:
            return False
        return before.is_alive() if isinstance(before, threading.Thread) else not before.done()

    async def _take_one(self) -> Message | None:
        """The next message, in hand from now on; None after ``stop``."""
        while True:
            held, now_ms = self._held, self._member.clock()
            if (
                self._rest
                and held is not None
                and held.hold is Hold.OWNED
                and not self._feed.is_interrupted
                and now_ms < self._member.lease.ends_at_ms
            ):
                if now_ms >= self._turn_at_ms:
                    await self._give_way()
                    continue
                message = self._rest.popleft()
                self._in_hand.append((held, (message,)))
                return message
            taken = await self._waited(CHUNK)
            if taken is None:
                return None
            self._held = taken[0]
            self._rest.extend(taken[1])

    async def _take_batch(self, max: int) -> list[Message] | None:
        """As ``_take_one``, up to max messages."""
        if self._member.clock() >= self._turn_at_ms:
            await self._give_way()
        taken = await self._waited(max)
        batch: list[Message] = []
        while taken is not None:
            self._in_hand.append(taken)
            batch += taken[1]
            taken = self._here(max - len(batch)) if len(batch) < max else None
        return batch or None

    async def _waited(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """As ``_next``, for the one iteration that may ask."""
        self._is_asked = True
        try:
            return await self._next(count)
        finally:
            self._is_asked = False

    async def _next(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Up to ``count`` messages of one queue; waits for them. None after ``stop``."""
        while (taken := self._here(count)) is None:
            if self._feed.is_interrupted:
                self._feed.raise_failure()
                return None
            await self._member.pulse.wait()
        return taken

    def _here(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """As ``_next``, of what is here: first what another way of asking left behind."""
        if self._rest and self._held is not None:
            if self._held.hold is not Hold.OWNED or self._feed.is_interrupted:
                self._give_up_rest()
            elif not self._member.may_hand_out:
                return None
            else:
                rest = self._rest
                return self._held, [rest.popleft() for _ in range(min(count, len(rest)))]
        return self._feed.take(count)

    async def _give_way(self) -> None:
        """Let the background parts run: a program may never wait for anything itself."""
        await asyncio.sleep(0)
        self._turn_at_ms = self._member.clock() + TURN_MS

    def _put_back(self, held: HeldQueue) -> None:
        """What was fetched of a queue and not given to the program is fetched again later."""
        self._feed.fetching.drop(held)
        for handlers in self._handlers:
            handlers.pause(held)
        if self._held is held and self._rest:
            self._feed.fetching.take_back(held, list(self._rest))
            self._rest.clear()

    def _give_up_rest(self) -> None:
        if self._held is not None:
            self._feed.give_up(self._held, list(self._rest))
        self._rest.clear()

    def _finish_in_hand(self) -> None:
        """The program asked on: what it had is done."""
        in_hand, self._in_hand = self._in_hand, []
        for held, messages in in_hand:
            self._feed.finish(held, messages)

    async def _settle_in_hand(self, *, is_done: bool, sends_back: bool) -> None:
        """The body ended: say what becomes of what it had in hand."""
        joined = self._member.joined
        self._give_up_rest()
        for held, message in self._unacked.values():
            self._feed.give_up(held, (message,))
        self._unacked.clear()
        if is_done:
            self._finish_in_hand()
            return
        in_hand, self._in_hand = self._in_hand, []
        # Cancelled, or a signal: the message did not fail, so it is not counted as a failure.
        sends_back = sends_back and not (joined.order or joined.broadcast)
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


class Iteration(AsyncIterator[T]):
    """One way through a subscription's messages. A cancelled ``anext`` does not end it."""

    def __init__(self, subscription: Subscription, take: Callable[[], Awaitable[T | None]]) -> None:
        """take: hands out what comes next; None after the end."""
        self._subscription, self._take = subscription, take
        self.is_over = False
        """Whether it surely asks no more."""
        self.thread: threading.Thread | None = None
        """That asks from outside of the loop; None: the task that asks does so for itself."""

    async def __anext__(self) -> T:
        self._subscription.ask(self)
        taken = await self._take()
        if taken is None:
            raise StopAsyncIteration
        return taken
