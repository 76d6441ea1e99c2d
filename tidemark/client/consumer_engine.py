"""Runs the parts of a subscription: joins the group, runs four tasks, and leaves in order.

The tasks are ``member`` (heartbeats), ``changes`` (queues assigned and revoked), ``fetching``
(messages) and ``committing`` (positions). If one of them fails, every call that waits for messages
raises its error, so a subscription never stops without an error. Leaving commits what is done,
notifies the program, and releases the queues for other members at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from tidemark import errors
from tidemark.client.admin import Admin
from tidemark.client.changes import Callback, Changes
from tidemark.client.commits import CommitLedger
from tidemark.client.committing import OTHER_GENERATION, Committing
from tidemark.client.consumer import Consumer
from tidemark.client.fetching import Fetching
from tidemark.client.group_calls import GroupCalls
from tidemark.client.groups import Groups
from tidemark.client.holdings import HeldQueue, Hold, Holdings
from tidemark.client.member import Member
from tidemark.client.pulse import Pulse
from tidemark.client.queue_names import Queue, QueueName
from tidemark.client.retries import delay_s, is_transient
from tidemark.client.tags import wanted_tags
from tidemark.client.unique_ids import UniqueIds
from tidemark.formats.message import Message, Source

CONFIGURE_TRIES: Final = 10
LEAVE_TIMEOUT_S: Final = 10.0
"""Total time that leaving waits for a broker that does not answer; the session then expires."""
SETTLED_BY: Final = 0.8
"""Share of that time for the last commits; the rest is kept for the leave request."""

CANCEL_AGAIN_S: Final = 0.1
GONE: Final = (errors.UnknownMessage, errors.UnknownTopic, errors.UnknownQueue)
"""Errors of a nack whose message has expired or whose topic was deleted."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class MemberSettings(NamedTuple):
    """Settings of one member of a group; ``Client.subscribe`` describes them."""

    group: Mapping[str, object]
    """Settings of its group, which are set before joining."""
    max_in_flight: int
    max_span: int
    session_ms: int
    commit_interval_ms: float


class ConsumerEngine:
    """Delivers messages to one member of one group, from one queue at a time."""

    def __init__(
        self,
        calls: GroupCalls,
        topics: Mapping[str, str],
        settings: MemberSettings,
        *,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        clock: Callable[[], float],
        pulse: Pulse,
        on_failed: Callable[[ConsumerEngine, BaseException], None],
    ) -> None:
        """topics: maps a topic to its tag expression.

        pulse: rings when queues, session limit, generation, commits or buffered messages changed.
        on_failed: called when a part has failed.
        """
        self._group_settings, self._on_failed = settings.group, on_failed
        self.member = Member(
            calls,
            topics,
            session_ms=settings.session_ms,
            ledger=CommitLedger(settings.commit_interval_ms),
            holdings=Holdings(self),
            clock=clock,
            pulse=pulse,
        )
        self.committing = Committing(self.member)
        self.fetching = Fetching(
            self.member,
            self.committing,
            {topic: wanted_tags(tags) for topic, tags in topics.items()},
            max_in_flight=settings.max_in_flight,
            max_span=settings.max_span,
            session_ms=settings.session_ms,
        )
        self._changes = Changes(
            self.member, self.committing, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._nacks_in_progress: dict[tuple[HeldQueue, int], asyncio.Future[bool]] = {}
        """Nack calls in progress, by queue and queue offset of the message."""
        self._nack_ids = UniqueIds()
        self._failure: BaseException | None = None
        self._failure_is_known = self._is_ending = False
        self._leave_from: float | None = None
        """When leaving began, on the loop's clock; None before."""
        self.is_interrupted = False
        """Whether no more messages are delivered: stopped, left, or a part has failed."""

    async def start(self) -> None:
        """Configure the group if there are settings, join it, start the parts. Raises errors."""
        async with self.member.calls.connection.joining():
            if self._group_settings:
                await self._configure()
            await self._join()
        if self.member.joined.broadcast:
            try:
                await self._resolve_starts()
            except BaseException:
                self.begin_leaving()
                await self._send_leave()
                raise
        parts = {
            "heartbeats": self.member.beat,
            "changes": self._changes.run,
            "fetches": self.fetching.run,
        }
        if not self.member.joined.broadcast:
            parts["commits"] = self.committing.run
        self._tasks = {
            name: asyncio.create_task(run(), name=f"tidemark-{name}") for name, run in parts.items()
        }
        for task in self._tasks.values():
            task.add_done_callback(self._ended)

    async def _join(self) -> None:
        """Join the group; if the task is cancelled, leave the group again.

        1. The broker receives the join; 2. the task is cancelled and its connection closed; 3. the
        broker adds the member, which would keep queues until its session expires. The leave is sent
        after the join has ended, since a leave sent at once could overtake it.
        """
        joining = asyncio.create_task(self.member.join())
        try:
            await asyncio.shield(joining)
        except asyncio.CancelledError:
            self.begin_leaving()
            try:
                async with asyncio.timeout_at(self._leave_by(SETTLED_BY)):
                    await joining
            except (errors.TidemarkError, TimeoutError):
                pass  # the member may have joined all the same
            await self._send_leave()
            raise

    async def _configure(self) -> None:
        """Set the group's settings. Raises GroupInUse if it has members with other settings."""
        for attempt in range(1, CONFIGURE_TRIES + 1):
            try:
                await self.member.calls.configure(self._group_settings)
                return
            except errors.GroupInUse as error:
                # Without members, another member is setting the same settings at this moment:
                # members of one program start together.
                if "members" in error.facts or attempt == CONFIGURE_TRIES:
                    raise
                await asyncio.sleep(delay_s(attempt, jitter=random.random()))

    async def _resolve_starts(self) -> None:
        """Resolve the start offsets of a broadcast member once, and keep its positions here.

        It does not commit, and the broker forgets its positions at a restart. If the broker
        resolved ``last`` again then, the member would skip the messages that arrived meanwhile.
        """
        calls = self.member.calls
        start = (await Groups(calls.connection, calls.names).get(calls.group)).group.start
        arriving = {held.queue: held for held in self.member.holdings.of(Hold.ARRIVING)}
        for topic in sorted({topic for topic, _ in arriving}):
            for each in (await Admin(calls.connection, calls.names).topic(topic)).ranges:
                held = arriving.get((topic, each.queue))
                if held is None:
                    continue
                if isinstance(start, int):
                    consumer = Consumer(calls.connection, calls.names)
                    held.start_at(await consumer.offset_by_time(topic, each.queue, start))
                else:
                    held.start_at(each.max_offset if start == "last" else each.min_offset)

    def begin_leaving(self) -> None:
        """Start the time limit that applies to all calls of leaving together."""
        if self._leave_from is None:
            self._leave_from = asyncio.get_running_loop().time()

    @property
    def _leave_timeout_s(self) -> float:
        return min(LEAVE_TIMEOUT_S, self.member.calls.connection.request_timeout_s)

    def _leave_by(self, share: float = 1.0) -> float:
        """Return when this share of the time for leaving has passed, on the loop's clock."""
        began = asyncio.get_running_loop().time() if self._leave_from is None else self._leave_from
        return began + share * self._leave_timeout_s

    def stop(self) -> None:
        """Deliver no more messages; calls that wait for messages return without any."""
        self.is_interrupted = True
        self.member.pulse.ring()

    def fail(self, failure: BaseException) -> None:
        """Make current and later calls that wait for messages raise this error."""
        self._failure = self._failure or failure
        self.stop()

    def raise_failure(self) -> None:
        """Raise the error of a part that failed, if one did."""
        if self._failure is not None:
            self._failure_is_known = True
            raise self._failure

    def take(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Take up to ``count`` fetched messages of one queue; None if there are none."""
        return None if self.is_interrupted else self.fetching.take(count)

    async def may_start(self, held: HeldQueue) -> bool:
        """Whether processing a message of this queue may start now. Waits while it is uncertain.

        Returns False if the queue is no longer assigned or the subscription ends; the caller then
        gives the message up.
        """
        while held.hold is Hold.OWNED and not self.is_interrupted:
            if self.member.may_deliver:
                return True
            await self.member.pulse.wait()
        return False

    def finish(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Mark delivered messages as done."""
        offsets = [message.queue_offset for message in messages]
        held.progress.finish_all(offsets)
        if held.nack_ids:
            for offset in offsets:
                held.nack_ids.pop(offset, None)
        if held.nacked:
            held.nacked.difference_update(offsets)
        self._after_finish(held, messages)

    def give_up(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Mark delivered messages as not done: they are delivered again.

        Messages that were nacked are done, so they are not delivered again from here.
        """
        for message in messages:
            held.nack_ids.pop(message.queue_offset, None)
            if message.queue_offset in held.nacked:
                held.nacked.remove(message.queue_offset)
                held.progress.finish(message.queue_offset)
            else:
                held.progress.give_up(message.queue_offset)
        self._after_finish(held, messages)

    def redeliver_given_up(self) -> None:
        """Deliver given-up messages of queues that are still assigned to this member again.

        1. A program cancels ``run``, which gives up its messages; 2. it calls ``run`` again; 3.
        without this step the messages would not come, and the commits of their queues would stop.
        """
        if self.is_interrupted:
            return
        for held in self.member.holdings.of(Hold.OWNED):
            position = held.progress.position
            if held.progress.has_given_up and position is not None:
                self.fetching.drop(held)
                self.restart(held, position)

    def _after_finish(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        self.fetching.done(held, messages)
        self.committing.moved()
        if not held.progress.is_idle:
            return
        if held.hold is Hold.LEAVING:
            self.member.pulse.ring()  # the queue can be released
        elif self.member.joined.order:
            self.committing.hurry()  # the broker delivers no more of an ordered queue before

    async def commit(self, ack: str) -> None:
        """Commit what is done (see ``Committing.commit``). Raises the error of a failed part."""
        await self._run_with_parts(self.committing.commit(ack), *self._tasks)

    def queue_name(self, queue: QueueName) -> QueueName:
        """Return the name of one of the broker group's queues, which may be given as a number."""
        return self.member.calls.names.name(queue) if isinstance(queue, int) else queue

    async def end_of(self, queue: Queue) -> int:
        """The queue offset after the last message of a queue. Raises UnknownTopic."""
        topic, number = queue
        calls = self.member.calls
        found = await Admin(calls.connection, calls.names).topic(topic)
        return next((each.max_offset for each in found.ranges if each.queue == number), 0)

    def restart(self, held: HeldQueue, offset: int) -> None:
        """Continue a queue at another offset; messages in progress are not committed."""
        self.member.holdings.restart(held, offset)
        self.committing.moved()
        self.fetching.interrupt()
        self.member.pulse.ring()

    async def _run_with_parts(self, work: Coroutine[object, object, T], *parts: str) -> T:
        """Run work that needs these parts. Raises the error of a part that failed.

        For example: 1. a commit is rejected for good, and the commit task ends; 2. without this
        check, a caller that waits for the commit would wait forever.
        """
        task = asyncio.ensure_future(work)
        needed = [self._tasks[name] for name in parts if name in self._tasks]
        try:
            await asyncio.wait({task, *needed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.raise_failure()
            return await task
        finally:
            # In a loop, because a cancellation that coincides with the call's timeout is lost.
            while not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)
            if not task.cancelled():
                task.exception()

    async def nack(self, held: HeldQueue, source: Source, *, delay_level: int) -> bool:
        """Nack a message whose processing failed. Returns False if its queue was revoked.

        In that case the new owner of the queue gets the message. A message in progress is nacked
        once, however many calls there are and whichever answers are lost. Waits for a broker that
        does not answer, unless the subscription ends. Raises UnknownMessage, UnknownTopic or
        UnknownQueue if the message is gone, MessageTooLarge if the copy does not fit a record.
        """
        key = held, source.queue_offset
        while (before := self._nacks_in_progress.get(key)) is not None:
            await asyncio.wait((before,))
            if before.result():
                return True
        if source.queue_offset in held.nacked:
            return True
        going = self._nacks_in_progress[key] = asyncio.get_running_loop().create_future()
        is_ours = False
        try:
            is_ours = await self._nack_once(held, source, delay_level=delay_level)
        finally:
            del self._nacks_in_progress[key]
            going.set_result(is_ours)
        return is_ours

    async def _nack_once(self, held: HeldQueue, source: Source, *, delay_level: int) -> bool:
        ends_at = self._leave_by(SETTLED_BY) if self.is_interrupted else None
        try:
            async with asyncio.timeout_at(ends_at):
                is_ours = await self._run_with_parts(
                    self._nack(held, source, delay_level), "heartbeats"
                )
        except TimeoutError:
            raise errors.Unreachable(
                f"the broker has not taken a nack of group {self.member.calls.group} within "
                f"{SETTLED_BY * self._leave_timeout_s:g} s. The message is delivered again.",
                "Check the node's /ready.",
            ) from None
        if is_ours and held.progress.is_in_progress(source.queue_offset):
            held.nacked.add(source.queue_offset)
        return is_ours

    async def _nack(self, held: HeldQueue, source: Source, delay_level: int) -> bool:
        member, failed = self.member, 0
        nack_id = held.nack_ids.get(source.queue_offset)
        is_repeat = nack_id is not None
        if nack_id is None:
            nack_id = self._nack_ids.make()
            if held.progress.is_in_progress(source.queue_offset):
                held.nack_ids[source.queue_offset] = nack_id
        while held.hold is not Hold.LOST:
            generation = member.generation
            try:
                await member.calls.nack(
                    source,
                    generation=generation,
                    delay_level=delay_level,
                    nack_id=nack_id,
                    is_repeat=is_repeat,
                )
                return True
            except OTHER_GENERATION:
                await member.until_other_than(generation)
            except errors.NotAssigned:
                member.lose([held])
            except errors.TidemarkError as error:
                if not is_transient(error) or self.is_interrupted:
                    raise
                failed += 1
                is_repeat = True
                await member.calls.connection.pause(failed, error)
        return False

    async def nack_failed(self, held: HeldQueue, message: Message, delay_level: int) -> bool:
        """Nack a message whose handler raised. An error about the message does not end the member.

        1. A message cannot be nacked, and that is raised; 2. the member ends, and its queue goes to
        another member; 3. that member meets the same message and ends. Therefore a message that is
        gone or can never be stored is logged and skipped.
        """
        source = message.source
        try:
            return await self.nack(held, source, delay_level=delay_level)
        except GONE as error:
            log.warning(
                "%s: a message that was to be nacked has expired: %s",
                self.member.calls,
                error,
                extra={"event": "nack-expired", "reason": str(error), **self._facts(source)},
            )
        except errors.MessageTooLarge as error:
            log.error(
                "%s: a message can be neither nacked nor dead-lettered; it is skipped: %s",
                self.member.calls,
                error,
                extra={"event": "nack-refused", "reason": str(error), **self._facts(source)},
            )
        return True

    def _facts(self, source: Source) -> dict[str, object]:
        calls = self.member.calls
        return {"group": calls.group, "member": calls.member, **source._asdict()}

    async def leave(self) -> None:
        """Commit what is done, notify the program, release the queues.

        Raises the error of a failed part unless it was raised before. Raises Unreachable if the
        broker does not answer: the last commits may be missing, and those messages are delivered
        again.
        """
        self.is_interrupted = True
        self.begin_leaving()
        await self._end("fetches", "changes")
        try:
            async with asyncio.timeout_at(self._leave_by(SETTLED_BY)):
                await self._release_all()
        except TimeoutError:
            raise errors.Unreachable(
                f"the broker has not taken the last commits of group {self.member.calls.group} "
                f"within {SETTLED_BY * self._leave_timeout_s:g} s. Those messages are delivered "
                "again.",
                "Check the node's /ready.",
            ) from None
        finally:
            self.committing.end()
            await self._end(*self._tasks)
            await self._send_leave()
        if not self._failure_is_known:
            self.raise_failure()

    async def _release_all(self) -> None:
        """Release every queue while the heartbeat and commit tasks are still running."""
        left = [held for held in self.member.holdings if held.is_notified]
        for held in left:
            held.hold = Hold.LEAVING
        releasing = asyncio.create_task(self._changes.release(left))
        helpers = [task for name, task in self._tasks.items() if name in ("heartbeats", "commits")]
        try:
            await asyncio.wait({releasing, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            if releasing.done():
                releasing.result()
        finally:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)

    async def _send_leave(self) -> None:
        try:
            async with asyncio.timeout_at(self._leave_by()):
                await self.member.calls.leave()
        except (errors.TidemarkError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            # Not raised: everything is committed, and the broker reassigns the queues when the
            # session expires. The log line explains why that took so long.
            log.warning(
                "%s has left, but the broker did not confirm it; its queues are reassigned when "
                "its session expires: %s",
                self.member.calls,
                reason,
                extra={
                    "event": "leave-failed",
                    "reason": reason,
                    "group": self.member.calls.group,
                    "member": self.member.calls.member,
                },
            )

    async def _end(self, *names: str) -> None:
        self._is_ending = True
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        failure: BaseException | None
        if not task.cancelled():
            failure = task.exception()
        elif self._is_ending:
            return
        else:
            # A callback awaited something that was cancelled: treat it as any failure of the part.
            failure = RuntimeError(f"{task.get_name()} was cancelled, but not by leaving the group")
        if failure is not None:
            self.fail(failure)
            self._on_failed(self, failure)
