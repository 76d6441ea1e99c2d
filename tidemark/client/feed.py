"""The parts of a subscription at work: enters the group, runs them, and leaves in order.

``member`` beats, ``changes`` lets queues come and go, ``fetching`` brings messages, ``committing``
tells how far the program is: four tasks. If one dies, whoever waits for messages gets its error:
a subscription never falls silent. Leaving gives back everything: what is done is committed, the
program is told, the queues are free for others at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, TypeVar

from tidemark import errors
from tidemark.client.admin import Admin
from tidemark.client.broadcast_starts import broadcast_starts
from tidemark.client.changes import Callback, Changes
from tidemark.client.commits import CommitLedger, Queue
from tidemark.client.committing import OTHER_GENERATION, Committing
from tidemark.client.fetching import Fetching
from tidemark.client.group_calls import GroupCalls
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.retries import delay_s, is_transient
from tidemark.client.tags import wanted_tags
from tidemark.client.unique_ids import UniqueIds
from tidemark.formats.message import Message, Source

CONFIGURE_TRIES: Final = 10
LEAVE_TIMEOUT_S: Final = 10.0
"""How long leaving waits in all for a broker that does not answer; its session ends by itself."""
SETTLED_BY: Final = 0.8
"""Share of that time for what is to be settled before; the rest is kept for the leave itself."""

CANCEL_AGAIN_S: Final = 0.1

log = logging.getLogger(__name__)

T = TypeVar("T")


class Feed:
    """Messages for one member of one group, some of one queue at a time."""

    def __init__(
        self,
        calls: GroupCalls,
        topics: Mapping[str, str],
        *,
        settings: Mapping[str, object],
        max_in_flight: int,
        max_span: int,
        session_ms: int,
        commit_interval_ms: float,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        clock: Callable[[], float],
    ) -> None:
        """topics: to tag expressions. settings: of the group, set before joining if there are any.

        max_in_flight, max_span: see ``Fetching``. commit_interval_ms: between two commits.
        """
        self._settings = settings
        self.member = Member(
            calls,
            topics,
            session_ms=session_ms,
            ledger=CommitLedger(commit_interval_ms),
            clock=clock,
        )
        self.committing = Committing(self.member)
        self.fetching = Fetching(
            self.member,
            self.committing,
            {topic: wanted_tags(tags) for topic, tags in topics.items()},
            max_in_flight=max_in_flight,
            max_span=max_span,
            session_ms=session_ms,
        )
        self._changes = Changes(
            self.member, self.committing, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sending_back: dict[tuple[HeldQueue, int], asyncio.Future[bool]] = {}
        """Calls under way that send a message back, by its queue and offset."""
        self._nack_ids = UniqueIds()
        self._failure: BaseException | None = None
        self._failure_is_known = self._is_ending = False
        self._leave_from: float | None = None
        """When leaving began, on the loop's clock."""
        self.is_interrupted = False
        """Whether nothing more is handed out: stopped, left, or a part has died."""

    async def start(self) -> None:
        """Configure the group if asked to, join it, start the parts; raises what they meet."""
        async with self.member.calls.connection.joining():
            if self._settings:
                await self._configure()
            await self._join()
        if self.member.joined.broadcast:
            try:
                await self._begin()
            except BaseException:
                self.begin_leaving()
                await self._sign_off()
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
        """Join the group; if that is cancelled, leave it again.

        1. The broker is asked to make a member; 2. the task is cancelled, and its connection
        closed; 3. the broker goes on, and the queues would be the member's until its session ends.
        A leave that is sent at once may be done before the join.
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
                pass  # the member may be there all the same
            await self._sign_off()
            raise

    async def _configure(self) -> None:
        """Set the group's settings. Raises GroupInUse if its members have been told others."""
        for attempt in range(1, CONFIGURE_TRIES + 1):
            try:
                await self.member.calls.configure(self._settings)
                return
            except errors.GroupInUse as error:
                # Without members it is another member that sets the same at this moment: those of
                # one program start together.
                if "members" in error.facts or attempt == CONFIGURE_TRIES:
                    raise
                await asyncio.sleep(delay_s(attempt, jitter=random.random()))

    async def _begin(self) -> None:
        """Resolve the group's start for a member that keeps its places itself."""
        calls, arriving = self.member.calls, self.member.holdings.of(Hold.ARRIVING)
        starts = await broadcast_starts(
            calls.connection, calls.group, [held.queue for held in arriving]
        )
        for held in arriving:
            if held.queue in starts:
                held.start_at(starts[held.queue])

    def begin_leaving(self) -> None:
        """From now on runs the one time in which all ends that leaving asks of the broker."""
        if self._leave_from is None:
            self._leave_from = asyncio.get_running_loop().time()

    @property
    def _leave_timeout_s(self) -> float:
        return min(LEAVE_TIMEOUT_S, self.member.calls.connection.request_timeout_s)

    def _leave_by(self, share: float = 1.0) -> float:
        """When so much of the time for leaving is over, on the loop's clock."""
        began = asyncio.get_running_loop().time() if self._leave_from is None else self._leave_from
        return began + share * self._leave_timeout_s

    def stop(self) -> None:
        """Hand out nothing more: who waits for messages hears that there are none."""
        self.is_interrupted = True
        self.member.pulse.ring()

    def fail(self, failure: BaseException) -> None:
        """Who waits for messages, and who asks later, gets this error."""
        self._failure = self._failure or failure
        self.stop()

    def raise_failure(self) -> None:
        """Raise what a part died of."""
        if self._failure is not None:
            self._failure_is_known = True
            raise self._failure

    def take(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Up to ``count`` messages of one queue if some are here: they are handed out."""
        return None if self.is_interrupted else self.fetching.take(count)

    async def may_start(self, held: HeldQueue) -> bool:
        """Whether work on a message of this queue may start now; waits while nobody can say.

        False: the queue is not ours any more, or all is over. The message is to be given up.
        """
        while held.hold is Hold.OWNED and not self.is_interrupted:
            if self.member.may_hand_out:
                return True
            await self.member.pulse.wait()
        return False

    def finish(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Messages that were handed out are done."""
        for message in messages:
            held.progress.finish(message.queue_offset)
            held.nacks.pop(message.queue_offset, None)
        if held.sent_back:
            held.sent_back.difference_update([message.queue_offset for message in messages])
        self._went_on(held, messages)

    def give_up(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Messages that were handed out stay undone: they are delivered again.

        All but those that were sent back: these are done.
        """
        for message in messages:
            held.nacks.pop(message.queue_offset, None)
            if message.queue_offset in held.sent_back:
                held.sent_back.remove(message.queue_offset)
                held.progress.finish(message.queue_offset)
            else:
                held.progress.give_up(message.queue_offset)
        self._went_on(held, messages)

    def bring_again(self) -> None:
        """Messages given up of queues that are still ours are handed out again, to this member.

        1. A program cancels ``run``, which gives up what it has; 2. it calls ``run`` again; 3. what
        was given up would not come, and the queues' commits would stand still until it leaves.
        """
        if self.is_interrupted:
            return
        for held in self.member.holdings.of(Hold.OWNED):
            position = held.progress.position
            if held.progress.has_given_up and position is not None:
                self.fetching.drop(held)
                self.restart(held, position)

    def _went_on(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        self.fetching.done(held, messages)
        self.committing.moved()
        if not held.progress.is_idle:
            return
        if held.hold is Hold.LEAVING:
            self.member.pulse.ring()  # it can be let go
        elif self.member.joined.order:
            self.committing.hurry()  # the broker gives no more of it before

    async def commit(self, ack: str) -> None:
        """Commit what is done, as ``Committing.commit``. Raises what a part died of."""
        await self._beside(self.committing.commit(ack), *self._tasks)

    async def end_of(self, queue: Queue) -> int:
        """The queue offset behind the last message of a queue. Raises UnknownTopic."""
        topic, number = queue
        found = await Admin(self.member.calls.connection).topic(topic)
        return next((each.max_offset for each in found.ranges if each.queue == number), 0)

    def restart(self, held: HeldQueue, offset: int) -> None:
        """Go on with a queue at another offset; what is under way of it is not committed."""
        self.member.holdings.restart(held, offset)
        self.committing.moved()
        self.fetching.interrupt()
        self.member.pulse.ring()

    async def _beside(self, work: Coroutine[object, object, T], *parts: str) -> T:
        """Do something for which these parts are needed. Raises what one of them died of.

        For instance: 1. a commit is refused for good, and the part that commits dies; 2. who waits
        for the commit would wait for ever.
        """
        task = asyncio.ensure_future(work)
        needed = [self._tasks[name] for name in parts if name in self._tasks]
        try:
            await asyncio.wait({task, *needed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.raise_failure()
            return await task
        finally:
            # Again: a cancellation in the same moment as a time-out of the call is lost in it.
            while not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)
            if not task.cancelled():
                task.exception()

    async def send_back(self, held: HeldQueue, source: Source, *, delay_level: int) -> bool:
        """Send back a message whose handling failed; False if it is not ours any more.

        Then whoever has the queue is given the message. A message under way is sent back once,
        however often that is asked for, and whichever answers are lost. Waits for a broker that
        does not answer, unless all is over. Raises UnknownMessage, UnknownTopic or UnknownQueue if
        the message is gone, and MessageTooLarge if there is no room for it.
        """
        key = held, source.queue_offset
        while (before := self._sending_back.get(key)) is not None:
            await asyncio.wait((before,))
            if before.result():
                return True
        if source.queue_offset in held.sent_back:
            return True
        going = self._sending_back[key] = asyncio.get_running_loop().create_future()
        is_ours = False
        try:
            is_ours = await self._send_back_once(held, source, delay_level=delay_level)
        finally:
            del self._sending_back[key]
            going.set_result(is_ours)
        return is_ours

    async def _send_back_once(self, held: HeldQueue, source: Source, *, delay_level: int) -> bool:
        ends_at = self._leave_by(SETTLED_BY) if self.is_interrupted else None
        try:
            async with asyncio.timeout_at(ends_at):
                is_ours = await self._beside(
                    self._send_back(held, source, delay_level), "heartbeats"
                )
        except TimeoutError:
            raise errors.Unreachable(
                f"the broker has not taken a message of group {self.member.calls.group} back in "
                f"{SETTLED_BY * self._leave_timeout_s:g} s. It is delivered again.",
                "Check the node's /ready.",
            ) from None
        if is_ours and held.progress.is_under_way(source.queue_offset):
            held.sent_back.add(source.queue_offset)
        return is_ours

    async def _send_back(self, held: HeldQueue, source: Source, delay_level: int) -> bool:
        member, failed = self.member, 0
        nack_id = held.nacks.get(source.queue_offset)
        is_repeat = nack_id is not None
        if nack_id is None:
            nack_id = self._nack_ids.make()
            if held.progress.is_under_way(source.queue_offset):
                held.nacks[source.queue_offset] = nack_id
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

    async def send_back_failed(self, held: HeldQueue, message: Message, delay_level: int) -> bool:
        """As ``send_back``, for a message whose handling raised: nothing about it ends the member.

        1. A message cannot be sent back, and that is raised; 2. the member ends, and its queue goes
        to another; 3. that one meets the same message, and ends. So what is gone, or can never be
        stored, is named in the log and passed over.
        """
        source = message.source
        try:
            return await self.send_back(held, source, delay_level=delay_level)
        except (errors.UnknownMessage, errors.UnknownTopic, errors.UnknownQueue) as error:
            log.warning(
                "%s: a message that was to be sent back has expired: %s",
                self.member.calls,
                error,
                extra={"event": "nack-expired", "reason": str(error), **self._facts(source)},
            )
        except errors.MessageTooLarge as error:
            log.error(
                "%s: a message can be neither sent back nor a dead letter; it is passed over: %s",
                self.member.calls,
                error,
                extra={"event": "nack-refused", "reason": str(error), **self._facts(source)},
            )
        return True

    def _facts(self, source: Source) -> dict[str, object]:
        calls = self.member.calls
        return {"group": calls.group, "member": calls.member, **source._asdict()}

    async def leave(self) -> None:
        """Commit what is done, tell the program, give the queues back.

        Raises what a part died of, unless it was raised already, and Unreachable if the broker does
        not answer: the last commits may be missing then, and those messages are delivered again.
        """
        self.is_interrupted = True
        self.begin_leaving()
        await self._end("fetches", "changes")
        try:
            async with asyncio.timeout_at(self._leave_by(SETTLED_BY)):
                await self._let_all_go()
        except TimeoutError:
            raise errors.Unreachable(
                f"the broker has not taken the last commits of group {self.member.calls.group} in "
                f"{SETTLED_BY * self._leave_timeout_s:g} s. Those messages are delivered again.",
                "Check the node's /ready.",
            ) from None
        finally:
            self.committing.end()
            await self._end(*self._tasks)
            await self._sign_off()
        if not self._failure_is_known:
            self.raise_failure()

    async def _let_all_go(self) -> None:
        """Release every queue, as long as those live who beat and commit for it."""
        left = [held for held in self.member.holdings if held.told]
        for held in left:
            held.hold = Hold.LEAVING
        letting_go = asyncio.create_task(self._changes.let_go(left))
        helpers = [task for name, task in self._tasks.items() if name in ("heartbeats", "commits")]
        try:
            await asyncio.wait({letting_go, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            if letting_go.done():
                letting_go.result()
        finally:
            letting_go.cancel()
            await asyncio.gather(letting_go, return_exceptions=True)

    async def _sign_off(self) -> None:
        try:
            async with asyncio.timeout_at(self._leave_by()):
                await self.member.calls.leave()
        except (errors.TidemarkError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            # Not raised: all is committed, and the broker gives the queues away when the session
            # ends. Who waits for them wants to know why it took so long.
            log.warning(
                "%s has left, and the broker did not take its leave; its queues go to others when "
                "its session ends: %s",
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
            # A callback awaited something that was cancelled: the part is gone as with any error.
            failure = RuntimeError(f"{task.get_name()} was cancelled, and not by leaving the group")
        if failure is not None:
            self.fail(failure)
