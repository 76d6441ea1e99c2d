"""The object with which a program consumes: asking for the next message commits the current one.

    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            ...

An exception in the body nacks the message in hand for retry, or leaves it in place in an ordered
group, and leaves the group. The end of the body counts the message as done and leaves the group. If
the body is cancelled, its message is delivered again. ``consumer_engine`` runs the parts;
``handlers`` processes several messages at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from numbers import Integral
from typing import Any, Final, TypeVar

from tidemark import errors
from tidemark.client.cluster_consumer import ClusterConsumer
from tidemark.client.commits import CommitAck
from tidemark.client.consumer_engine import GONE
from tidemark.client.handlers import (
    RETRY_PAUSE_MS,
    Handlers,
    check_is_async,
    is_failure,
    message_key,
)
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.queue_names import Queue, QueueName
from tidemark.formats.message import Message, Source

T = TypeVar("T")
Caller = asyncio.Task[Any] | threading.Thread
"""Caller that asks for messages: a task, or a thread of a program without asyncio."""

BATCH_COUNT_MAX: Final = 1024
CHUNK: Final = 256
"""Messages that ``async for`` takes from the buffer at once."""
OWNED: Final = Hold.OWNED
"""A member of an enumeration takes Python 3.11 longer to look up than all else per message."""
TURN_MS: Final = 10.0
"""Interval at which a program that never awaits anything yields to the heartbeats."""


def _none() -> None:
    """Return None, like a dead weak reference."""


class Subscription:
    """Messages of a group for one of its members. Use ``async with``, or ``start`` and ``close``.

    Only one iteration may ask for messages at a time; ``getone``, ``getmany`` and ``ack`` are for
    several tasks.
    """

    def __init__(self, engine: ClusterConsumer, open_ones: set[Subscription]) -> None:
        """open_ones: contains the subscription from its start until it has left the group; the
        client closes those."""
        self._engine, self._open_ones = engine, open_ones
        self._held: HeldQueue | None = None
        self._rest: deque[Message] = deque()
        """Messages of the queue ``_held`` taken from the buffer, not yet given to the program."""
        self._in_hand: list[tuple[HeldQueue, Sequence[Message]]] = []
        """Messages that the program has until it asks for the next ones."""
        self._handed: list[Message] = []
        """Messages of ``_held`` that ``async for`` has handed out, the one entry of ``_in_hand``.
        The program has the last one; the others are done, which ``_record`` notes for all at once.
        """
        self._is_record_due = False
        """Whether ``_record`` is called in the next iteration of the loop."""
        self._unacked: dict[Source, tuple[HeldQueue, Message]] = {}
        """Messages from ``getone`` and ``getmany`` until ``ack`` or ``nack``."""
        self._iteration: Callable[[], Iteration[Any] | None] = _none
        """Weak reference to the iteration that asked last."""
        self._asked_by: Callable[[], Caller | None] = _none
        """Weak reference to the task or thread that asked last."""
        self._handlers: set[Handlers] = set()
        """One per ``run`` in progress."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which it was entered."""
        self._turn_at_ms = 0.0
        self._starting: asyncio.Task[None] | None = None
        self._is_entered = self._is_left = self._is_asked = False

    @property
    def is_open(self) -> bool:
        """Whether it is entered and has not left the group."""
        return self._is_entered and not self._is_left

    @property
    def member(self) -> str:
        """The member's name in the group."""
        return self._engine.member

    @property
    def generation(self) -> int:
        """The group's generation as of the last heartbeat; in a cluster, the sum of those of its
        broker groups, which changes with each."""
        return sum(engine.member.generation for engine in self._engine.engines)

    @property
    def assignment(self) -> set[Queue]:
        """Queues currently assigned to this member: (topic, queue)."""
        return {held.queue for held in self._engine.held_queues(Hold.ARRIVING, Hold.OWNED)}

    async def __aenter__(self) -> Subscription:
        if self._is_entered:
            raise RuntimeError("a subscription is entered once; call subscribe() again")
        self._open_ones.add(self)
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.create_task(self._engine.start(), name="tidemark-start")
        try:
            await self._starting
        except BaseException as error:
            self._open_ones.discard(self)
            if self._is_left and isinstance(error, asyncio.CancelledError):
                raise RuntimeError("the client was closed while the subscription started") from None
            raise
        self._is_entered = True
        return self

    async def __aexit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        await self.leave(error, asyncio.current_task())

    async def leave(
        self, error: BaseException | None, caller: Caller | None, *, is_seen: bool = True
    ) -> None:
        """Leave the group, as at the end of ``async with``. error: the exception of the body.

        caller: task or thread that leaves. is_seen: whether the program got all messages in hand.
        Messages in hand count neither as done nor as failed if they were not all seen, or if they
        belong to another caller that still runs.
        """
        is_mine = is_seen and not self._has_other_caller(caller)
        await self._leave(
            error,
            is_done=is_mine and error is None,
            is_nacked=is_mine and error is not None and is_failure(error),
        )

    async def _leave(self, error: BaseException | None, *, is_done: bool, is_nacked: bool) -> None:
        """Leave the group. error: the exception of the body.

        is_done, is_nacked: whether the messages in hand are done or nacked; if neither, they are
        delivered again.
        """
        self._engine.stop()
        if self._is_left:
            return
        self._is_left = True
        self._engine.begin_leaving()
        self._open_ones.discard(self)
        try:
            try:
                await self._settle_in_hand(is_done=is_done, is_nacked=is_nacked)
            finally:
                await self._engine.leave()
        except errors.TidemarkError as failure:
            if error is None:
                raise
            # The exception of the body is raised, with this failure as a note.
            error.add_note(f"On leaving the group: {failure}")

    async def start(self) -> Subscription:
        """Join the group without ``async with``; call ``close`` at the end."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Leave the group, as at the end of ``async with``. May be called again.

        A message that another task has in hand is delivered again.
        """
        if self._is_entered:
            await self.__aexit__(None, None, None)

    async def abandon(self) -> None:
        """Leave the group because the client closes; messages in hand are delivered again."""
        if self._starting is not None and not self._starting.done():
            self._is_left = True
            self._starting.cancel()  # leaves the group if it has joined
            await asyncio.wait((self._starting,))
            return
        closed = RuntimeError("the client was closed; messages in hand are delivered again")
        try:
            await self._leave(closed, is_done=False, is_nacked=False)
        finally:
            self._engine.fail(closed)

    def __aiter__(self) -> Iteration[Message]:
        self._check_entered()
        return MessageIteration(self, self._take_one)

    def batches(self, max: int = BATCH_COUNT_MAX) -> Iteration[list[Message]]:
        """Iterate over lists of up to ``max`` buffered messages; lists are not empty.

        The messages of each queue are in order. Asking for the next batch commits this one; an
        exception in the body nacks the whole batch.
        """
        if max < 1:
            raise ValueError(f"max must be 1 or more, not {max}")
        self._check_entered()
        return Iteration(self, functools.partial(self._take_batch, max))

    async def getone(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """Return the next message, for ``ack`` or ``nack``; None after ``timeout`` seconds.

        Also returns None when ``stop`` is called meanwhile. Several tasks may call it at once.
        Raises RuntimeError after ``stop``.
        """
        taken = await self.getmany(1, timeout)
        return taken[0] if taken else None

    async def getmany(
        self,
        max: int = BATCH_COUNT_MAX,
        timeout: float | None = None,  # noqa: ASYNC109 — as programs expect it
    ) -> list[Message]:
        """Return up to ``max`` buffered messages, like ``getone``; waits for the first.

        Call ``ack`` or ``nack`` for each. The others are delivered again after the group is left.
        Returns an empty list if none arrives in ``timeout`` seconds.
        """
        if max < 1:
            raise ValueError(f"max must be 1 or more, not {max}")
        self._check_entered()
        self._engine.raise_failure()
        if self._engine.is_interrupted:
            raise RuntimeError("the subscription was stopped: there are no more messages")
        if self._engine.clock() >= self._turn_at_ms:
            await self._give_way()
        found: list[Message] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                taken = await self._next(max)
            # No await from here on, so that a cancellation loses no messages.
            while taken is not None:
                held, messages = taken
                for message in messages:
                    if (before := self._unacked.get(message.source)) is not None:
                        # Delivered again after a `seek`, or after the queue was lost and assigned.
                        before[0].engine.give_up(before[0], (before[1],))
                    self._unacked[message.source] = (held, message)
                found += messages
                taken = self._here(max - len(found)) if len(found) < max else None
        return found

    async def ack(self, *messages: Message) -> int:
        """Mark messages of ``getone`` or ``getmany`` as done: they are committed soon.

        Returns the number of those that count. The others are or were delivered again, because
        their queue was lost or moved back. Raises ValueError for a message that is not in hand.
        """
        count = 0
        for message in messages:
            if (taken := self._unacked.get(message.source)) is None:
                raise ValueError(f"{message.source} is not in hand: acknowledged or nacked already")
            held, mine = taken
            if mine is not message:
                continue  # an earlier delivery; the later one is in hand
            del self._unacked[message.source]
            count += held.hold is not Hold.LOST
            held.engine.finish(held, (mine,))
        return count

    def position(self, topic: str, queue: QueueName) -> int | None:
        """Queue offset of the next message to be delivered; None while it is not known.

        Raises NotAssigned.
        """
        held = self._held_queue((topic, queue))
        if self._held is held and self._rest:
            return self._rest[0].queue_offset
        return held.progress.reached

    async def seek(self, topic: str, queue: QueueName, offset: int) -> None:
        """Continue at a queue offset. Raises NotAssigned, OffsetBeyondEnd, TypeError.

        Forward: the skipped messages are committed. Backward: messages are delivered again, and the
        group's committed offset stays until they are done. Messages in hand of this queue are no
        longer committed.
        """
        if not isinstance(offset, Integral) or isinstance(offset, bool):
            raise TypeError(f"offset must be a whole number, not {type(offset).__name__}")
        offset = int(offset)  # NumPy's could not be sent
        held = self._held_queue((topic, queue))
        end = await held.engine.end_of(held.queue)
        if not 0 <= offset <= end:
            reason = "an offset is at least 0" if offset < 0 else f"{offset} is beyond it"
            raise errors.OffsetBeyondEnd(
                f"queue {queue} of topic {topic!r} ends at queue offset {end}; {reason}. "
                "Nothing was changed.",
                topic=topic,
                queue=queue,
                offset=offset,
                max_offset=end,
            )
        held = self._held_queue((topic, queue))
        self._put_back(held)
        held.engine.restart(held, offset)

    def pause(self, *queues: Queue) -> None:
        """Deliver nothing of these queues until ``resume``. Raises NotAssigned.

        They stay assigned. A queue that is assigned again after it was revoked is not paused.
        """
        for held in [self._held_queue(queue) for queue in queues]:
            self._put_back(held)
            held.is_paused = True

    def resume(self, *queues: Queue) -> None:
        """Continue these queues where ``pause`` stopped. Raises NotAssigned."""
        for held in [self._held_queue(queue) for queue in queues]:
            if held.is_paused:
                held.is_paused = False
                for handlers in self._handlers:
                    handlers.resume(held)
                held.engine.fetching.refetch(held)
                if not held.is_placed:
                    # The fetch in progress may ask for messages after those that `pause` dropped.
                    held.engine.fetching.interrupt()

    @property
    def paused(self) -> set[Queue]:
        """Queues that are paused."""
        return {held.queue for held in self._engine.held_queues() if held.is_paused}

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 1,
        by_key: bool | Callable[[Message], Hashable | None] = True,
        retry_pause_ms: float = RETRY_PAUSE_MS,
    ) -> None:
        """Call ``handler`` for every message, ``concurrency`` at once, until ``stop`` or cancelled.

        by_key: messages with the same key (sharding key, else first key; or the callable's result)
        are handled in order, one at a time. In an ordered group this holds for all messages of one
        queue. The lowest message that is not done is committed. A message whose handler raises is
        nacked. In an ordered group it is handled again after ``retry_pause_ms``, and becomes a dead
        letter after ``retry_max`` retries; in a broadcast group it is logged. Raises TypeError for
        a handler that is not async.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {concurrency}")
        check_is_async(handler)
        self._check_entered()
        key_of = message_key if by_key is True else (by_key or None)
        handlers = Handlers(self._engine, handler, key_of=key_of, retry_pause_ms=retry_pause_ms)
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
        """Nack a message durably, so that it is delivered again later, to any member.

        delay_level: 0 derives it from the number of tries; −1 moves the message to the dead letters
        now. timeout: seconds to wait for a broker that does not answer. Then Unreachable is raised
        and the message stays in hand. None: the client's ``request_timeout_s`` if one was given,
        else no limit. A message in hand is nacked once, even if it is nacked again or the body
        raises later. Raises NotAssigned (another member owns the queue and gets the message),
        UnknownMessage, UnknownTopic, UnknownQueue (it has expired or its topic was deleted: the
        message is done), BroadcastGroup, DelayOutOfRange.
        """
        async with self._in_time(timeout, "did not take the nack; the message stays in hand"):
            await self._nack(message, delay_level)

    async def _nack(self, message: Message, delay_level: int) -> None:
        self._record()
        source = message.source
        taken = self._unacked.get(source)
        if taken is not None and taken[1] is not message:
            taken = None  # an earlier delivery; the later one is in hand
        held = taken[0] if taken else self._engine.held((source.topic, source.queue))
        reached = None if held is None else held.progress.reached
        # A queue that was lost and assigned again delivers the messages after its position again.
        try:
            is_nacked = (
                held is not None
                and reached is not None
                and source.queue_offset < reached
                and await held.engine.nack(held, source, delay_level=delay_level)
            )
        except GONE:
            # Nothing can bring it back, so it must not hold back the commits of its queue.
            if taken is not None and self._unacked.get(source) is taken:
                del self._unacked[source]
                taken[0].engine.finish(taken[0], (message,))
            raise
        if taken is not None and self._unacked.get(source) is taken:
            del self._unacked[source]
            taken[0].engine.give_up(taken[0], (message,))  # counts as done if it was nacked
        if not is_nacked:
            raise errors.NotAssigned(
                f"queue {source.queue} of topic {source.topic!r} is not assigned to this member "
                "any more: its new owner gets the message. It was not nacked.",
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
        """Commit now what is done, which does not include the message or batch in hand.

        ack: ``disk`` returns when the commit survives a power failure of the broker. timeout: as in
        ``nack``; the commit continues in the background once the broker answers.
        """
        if ack not in ("accepted", "disk"):
            raise ValueError(f"ack must be accepted or disk, not {ack!r}")
        self._check_entered()
        self._record()
        async with self._in_time(timeout, "did not take the commit; it is sent again"):
            await self._engine.commit(ack)

    @contextlib.asynccontextmanager
    async def _in_time(
        self,
        timeout: float | None,  # noqa: ASYNC109
        otherwise: str,
    ) -> AsyncIterator[None]:
        """Limit the body by ``timeout``, else by the client's. otherwise: text of the error."""
        url = self._engine.url
        within_s = self._engine.given_timeout_s if timeout is None else timeout
        try:
            async with asyncio.timeout(within_s):
                yield
        except TimeoutError:
            raise errors.Unreachable(
                f"{url} {otherwise}: no answer within {within_s} s.",
                "Check the node's /ready, or allow more time.",
                url=url,
            ) from None

    def stop(self) -> None:
        """End the loop that asks for messages, or ``run``, after the messages in hand."""
        self._engine.stop()

    def _check_entered(self) -> None:
        """Raise RuntimeError if not entered; without this check a loop would wait forever."""
        if not self._is_entered:
            raise RuntimeError("the subscription is not entered; use it with `async with`")

    def _held_queue(self, queue: Queue) -> HeldQueue:
        self._check_entered()
        held = self._engine.held(queue)
        if held is None or held.hold is not Hold.OWNED:
            topic, number = queue
            raise errors.NotAssigned(
                f"queue {number} of topic {topic!r} is not assigned to this member, or not yet. "
                "Nothing was changed.",
                "`assignment` lists the queues; `on_assigned` is called before one is read.",
                topic=topic,
                queue=number,
            )
        return held

    def ask(self, iteration: Iteration[Any] | None) -> None:
        """Mark the messages in hand as done, because an iteration or ``run`` asks for more.

        By asking, an iteration declares all messages in hand as done, so a second iteration would
        commit the messages of the first. Therefore RuntimeError is raised for the second of two
        iterations, or of two tasks or threads that share one. An iteration that is over, for
        example after ``break``, and a task or thread that has ended do not count.
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
        caller = thread or asyncio.current_task()
        is_shared = iteration is not None and last is iteration
        if is_shared and self._in_hand and self._has_other_caller(caller):
            raise RuntimeError(
                f"another {kind} has messages of this iteration in hand, which this one would "
                f"commit; use getone() and ack(), or a subscription for each {kind}"
            )
        self._asked_by = _none if caller is None else weakref.ref(caller)
        self._finish_in_hand()

    def _has_other_caller(self, caller: Caller | None) -> bool:
        """Whether a caller other than this one asked last and still runs."""
        before = self._asked_by()
        if before is None or before is caller:
            return False
        return before.is_alive() if isinstance(before, threading.Thread) else not before.done()

    async def _take_one(self) -> Message | None:
        """Return the next message, which is then in hand; None after ``stop``."""
        while True:
            held, now_ms = self._held, self._engine.clock()
            if (
                self._rest
                and held is not None
                and held.hold is Hold.OWNED
                and not self._engine.is_interrupted
                and now_ms < held.engine.member.session_limit.ends_at_ms
            ):
                if now_ms >= self._turn_at_ms:
                    await self._give_way()
                    continue
                message = self._rest.popleft()
                self._handed = [message]
                self._in_hand.append((held, self._handed))
                return message
            taken = await self._waited(CHUNK)
            if taken is None:
                return None
            self._held = taken[0]
            self._rest.extend(taken[1])

    async def _take_batch(self, max: int) -> list[Message] | None:
        """Like ``_take_one``, for up to max messages."""
        if self._engine.clock() >= self._turn_at_ms:
            await self._give_way()
        taken = await self._waited(max)
        batch: list[Message] = []
        while taken is not None:
            self._in_hand.append(taken)
            batch += taken[1]
            taken = self._here(max - len(batch)) if len(batch) < max else None
        return batch or None

    async def _waited(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Like ``_next``, for the one iteration that may ask."""
        self._is_asked = True
        try:
            return await self._next(count)
        finally:
            self._is_asked = False

    async def _next(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Wait for messages; return up to ``count`` of one queue. None after ``stop``."""
        while (taken := self._here(count)) is None:
            if self._engine.is_interrupted:
                self._engine.raise_failure()
                return None
            await self._engine.pulse.wait()
        return taken

    def _here(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Like ``_next`` without waiting; first the messages that another caller left behind."""
        if self._rest and self._held is not None:
            if self._held.hold is not Hold.OWNED or self._engine.is_interrupted:
                self._give_up_rest()
            elif not self._held.engine.member.may_deliver:
                # The other broker groups go on meanwhile.
                fetching = self._held.engine.fetching
                self._put_back(self._held)
                fetching.interrupt()
            else:
                rest = self._rest
                return self._held, [rest.popleft() for _ in range(min(count, len(rest)))]
        return self._engine.take(count)

    async def _give_way(self) -> None:
        """Let the background tasks run, because a program may never await anything itself."""
        await asyncio.sleep(0)
        self._turn_at_ms = self._engine.clock() + TURN_MS

    def _put_back(self, held: HeldQueue) -> None:
        """Return messages of a queue that were not given to the program; they are fetched again."""
        held.engine.fetching.drop(held)
        for handlers in self._handlers:
            handlers.pause(held)
        if self._held is held and self._rest:
            held.engine.fetching.take_back(held, list(self._rest))
            self._rest.clear()

    def _give_up_rest(self) -> None:
        if self._held is not None:
            self._held.engine.give_up(self._held, list(self._rest))
        self._rest.clear()

    def take_next(self, iteration: MessageIteration) -> Message | None:
        """Return the next message of the queue in hand, like ``ask`` and ``_take_one``.

        Returns None if these have to check something again or wait. Nothing is noted per message:
        ``_record`` does so as soon as another task can run.
        """
        held, handed = self._held, self._handed
        if (
            not self._rest
            or not handed
            or held is None
            or held.hold is not OWNED
            or self._engine.is_interrupted
            or self._iteration() is not iteration
            or self._asked_by() is not (iteration.thread or asyncio.current_task(self._loop))
            or not self._turn_at_ms
            > self._engine.clock()
            < held.engine.member.session_limit.ends_at_ms
        ):
            return None
        if not self._is_record_due:
            self._is_record_due = True
            asyncio.get_running_loop().call_soon(self._record)
        message = self._rest.popleft()
        handed.append(message)
        return message

    def _record(self) -> None:
        """Finish the messages before the one that the program has from ``async for``."""
        self._is_record_due = False
        if self._held is not None and len(self._handed) > 1:
            done = self._handed[:-1]
            del self._handed[:-1]
            self._held.engine.finish(self._held, done)

    def _finish_in_hand(self) -> None:
        """Finish the messages in hand, because the program asked for more."""
        in_hand = self._take_in_hand()
        for held, messages in in_hand:
            held.engine.finish(held, messages)

    def _take_in_hand(self) -> list[tuple[HeldQueue, Sequence[Message]]]:
        """Return the messages in hand, which are then none."""
        in_hand, self._in_hand, self._handed = self._in_hand, [], []
        return in_hand

    async def _settle_in_hand(self, *, is_done: bool, is_nacked: bool) -> None:
        """Finish, nack or give up the messages in hand, because the body ended."""
        self._record()
        self._give_up_rest()
        for held, message in self._unacked.values():
            held.engine.give_up(held, (message,))
        self._unacked.clear()
        if is_done:
            self._finish_in_hand()
            return
        in_hand = self._take_in_hand()
        # After a cancellation or a signal the message did not fail, so it is not nacked.
        for held, messages in in_hand:
            joined = held.engine.member.joined
            for message in messages:
                if is_nacked and not (joined.order or joined.broadcast):
                    await self._nack_or_give_up(held, message)
                else:
                    held.engine.give_up(held, (message,))

    async def _nack_or_give_up(self, held: HeldQueue, message: Message) -> None:
        is_done = False
        try:
            is_done = await held.engine.nack_failed(held, message, 0)
        finally:
            # If it was not nacked, it must not be committed either: it is delivered again.
            if is_done:
                held.engine.finish(held, (message,))
            else:
                held.engine.give_up(held, (message,))


class Iteration(AsyncIterator[T]):
    """One iteration over a subscription's messages. A cancelled ``anext`` does not end it."""

    def __init__(self, subscription: Subscription, take: Callable[[], Awaitable[T | None]]) -> None:
        """take: returns the next element; None after the end."""
        self._subscription, self._take = subscription, take
        self.is_over = False
        """Whether it will certainly not ask for more."""
        self.thread: threading.Thread | None = None
        """The thread that asks from outside the loop; None if the current task asks for itself."""

    async def __anext__(self) -> T:
        self._subscription.ask(self)
        taken = await self._take()
        if taken is None:
            raise StopAsyncIteration
        return taken


class MessageIteration(Iteration[Message]):
    """``async for`` over single messages."""

    async def __anext__(self) -> Message:
        message = self._subscription.take_next(self)
        return await super().__anext__() if message is None else message
