"""Operations on delayed messages: list, cancel, carry, count.

Each operation takes the lock of ``delivery``, so a message is either cancelled while it waits, or
delivered; never both. Step before: ``delay_calls`` and retention call it. Step after: the log, in
which a cancellation and a carried message are ordinary records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.broker.delay.delay_queues import DelayQueues
from services.broker.delay.delivery import Delivery
from services.broker.delay.listing import BEGIN, ListTime, Page
from services.broker.delay.waiting import Waiting
from services.broker.log.log_context import LogContext
from shared.state.records import DelayRecord
from tidemark.errors import DispatchBehind, FileNotReady, IndexDisabled, Overloaded, UnknownDelayed
from tidemark.formats import delay
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.offsets import PhysicalOffset

CANCELLED_MAX: Final = 100_000
"""Maximum number of cancelled messages that are not due yet; they are in memory and in
snapshots."""
DISPATCH_POLL_S: Final = 0.005
DISPATCH_POLLS: Final = 200
"""Attempts of a cancellation to find a message that was just sent: one second in total."""
AGAIN_S: Final = 0.01
ASKED_MAX: Final = 500
"""Attempts of a carry while the timer's queue is not fully read: five seconds in total, enough to
read some millions of messages."""


class CarryResult(NamedTuple):
    """Numbers of messages that ``carry_below`` handled."""

    carried: int
    """Messages that were appended again, at the end of the log."""
    lost: int
    """Messages that were dropped, because their topic was deleted or they name none."""


class DelayedMessages:
    """All delayed messages of a store."""

    def __init__(
        self,
        delivery: Delivery,
        waiting: Waiting,
        queues: DelayQueues,
        log_context: LogContext,
    ) -> None:
        self.delivery = delivery
        self._waiting = waiting
        self._queues = queues
        self._clock = log_context.clock
        self._has_index = log_context.store.directory.config.index_enabled
        self._index_is_whole = log_context.index_is_whole

    def begin(self) -> None:
        """Allow delivery: sends are open, and the state is known."""
        self.delivery.begin()

    async def run(self, stop: asyncio.Event, closed: asyncio.Future[bool]) -> None:
        """Deliver until stop is set, but not before ``begin``. closed: see ``Delivery.run``."""
        await self.delivery.run(stop, closed)

    async def finish(self) -> None:
        """Write a last checkpoint, before appending ends. Raises what an append raises."""
        await self.delivery.finish()

    def names_gone(self) -> None:
        """Note that files of queues or of the index were removed."""
        self.delivery.names_gone()

    # -- numbers ---------------------------------------------------------------------------------

    @property
    def pending(self) -> int | None:
        """Number of waiting messages of all topics; None while it is unknown."""
        scan = self.delivery.last_scan
        if scan is None or scan.timer_count is None:
            return None
        progress = self.delivery.known()
        in_levels = sum(
            max(0, self._queues.next_of(delay.place_of(level)) - queue_offset)
            for level, queue_offset in progress.levels.items()
        )
        cancelled = sum(level != TIMER_LEVEL for level, _ in progress.cancelled)
        unread = self._queues.next_of(delay.place_of(TIMER_LEVEL)) - scan.read_to
        return max(0, in_levels - cancelled) + scan.timer_count + max(0, unread)

    @property
    def overdue_s(self) -> float | None:
        """Delay of the most overdue message; 0 if none is overdue, None if it is unknown."""
        scan = self.delivery.last_scan
        if scan is None:
            return None
        late_ms = 0 if scan.next_due_ms is None else self._clock.wall_ms() - scan.next_due_ms
        if late_ms <= 0:
            # No known message is late. One in the unread part of the timer's queue may be.
            return 0.0 if scan.timer_is_known else None
        return late_ms / 1000

    def pending_below(self, physical_offset: int) -> bool:
        """Return whether a waiting message may have its record below physical_offset."""
        scan = self.delivery.last_scan
        if scan is None or scan.timer_count is None:
            return any(
                self._queues.next_of(delay.place_of(level)) > 0 for level in self._queues.levels()
            )
        return scan.oldest is not None and scan.oldest < physical_offset

    # -- calls -----------------------------------------------------------------------------------

    async def page(self, after: ListTime | None, topic: str | None, count_max: int) -> Page:
        """Return waiting messages, next due first. Raises NotServing, CorruptRecord,
        DamagedFile."""
        async with self.delivery.lock:
            self.delivery.known()
            return await self.delivery.in_thread(
                self._waiting.page,
                BEGIN if after is None else after,
                topic,
                count_max,
                self._queues.ends(),
                self._clock.wall_ms(),
            )

    async def cancel(
        self, unique_id: str, topic: str | None, *, is_retry: bool = False
    ) -> Sequence[int]:
        """Cancel every waiting message with this id; return their due times; durable on return.

        topic: restricts the search to this topic. is_retry: the outcome of an earlier call is
        unknown; if no message waits, messages that were already cancelled count. Raises
        UnknownDelayed if no message waits, IndexDisabled, DispatchBehind, Overloaded, NotServing,
        and what an append raises.
        """
        self._check_can_find()
        await self._dispatched_to(self._queues.ends().flushed)
        async with self.delivery.lock:
            progress = self.delivery.known()
            waiting = await self.delivery.in_thread(
                self._waiting.find, unique_id, topic, self._queues.ends(), self._clock.wall_ms()
            )
            if not waiting and is_retry:
                cancelled_before = await self.delivery.in_thread(
                    self._waiting.find_cancelled, unique_id, topic, self._queues.ends()
                )
                if cancelled_before:
                    return cancelled_before
            if not waiting:
                where = "" if topic is None else f" for topic {topic!r}"
                raise UnknownDelayed(
                    f"no message with unique id {unique_id!r} waits{where}. Nothing was changed.",
                    "It was delivered, cancelled, or never delayed; `GET /v1/delayed` lists what "
                    "waits.",
                    unique_id=unique_id,
                )
            if len(progress.cancelled) + len(waiting) > CANCELLED_MAX:
                raise Overloaded(
                    f"{len(progress.cancelled)} cancelled messages have not come to their times "
                    f"yet, {CANCELLED_MAX} are kept. Nothing was changed.",
                    "Try again when some have.",
                    limit=CANCELLED_MAX,
                    used=len(progress.cancelled),
                )
            cancelled = {(entry.level, entry.queue_offset): entry.due_ms for entry in waiting}
            record = DelayRecord(self._queues.ends().flushed, cancelled=cancelled)
            await self.delivery.append_record(record)
            await self.delivery.in_thread(self._waiting.cancelled, waiting)
            self.delivery.wait_no_more(sum(entry.row is not None for entry in waiting))
            await self.delivery.keep()
            return [entry.due_ms for entry in waiting]

    async def carry_below(self, physical_offset: PhysicalOffset) -> CarryResult:
        """Copy waiting messages below physical_offset to the end of the log; durable on return.

        After that, the log files below that offset may be deleted. This works even while sends are
        refused for lack of space. If it raises, messages that were not copied keep waiting. Raises
        NotServing, CorruptRecord, DamagedFile and what an append raises; DiskFull or FileNotReady
        if the timer's queue cannot be read, or takes too long to read.
        """
        carried = lost = asked = 0
        while asked < ASKED_MAX:
            async with self.delivery.lock:
                self.delivery.known()
                slices = await self.delivery.in_thread(
                    self._waiting.to_carry,
                    physical_offset,
                    self._queues.ends(),
                    self._clock.wall_ms(),
                )
                if slices:
                    await self.delivery.append_all(slices, own=True, delivers=False)
                    await self.delivery.keep()
                    carried += sum(each.message_count for each in slices)
                    lost += sum(each.lost_count for each in slices)
                elif slices is not None:
                    self.delivery.scan_again()  # the oldest message has moved
                    return CarryResult(carried, lost)
            asked += slices is None
            await asyncio.sleep(AGAIN_S if slices is None else 0)
        # Retention does not wait longer: it has other work, and tries again.
        raise FileNotReady(
            "the queue of the timer messages is still being read. They stay where they are.",
            "Wait; retention tries again.",
        )

    def _check_can_find(self) -> None:
        """Raise an error if the index is unusable, which would make every message seem absent."""
        if not self._has_index:
            raise IndexDisabled(
                "the store keeps no index (store.index_enabled is false), and without it no "
                "message can be found by its unique id. Nothing was changed.",
                "Run broker and reput with an index; `tidemark store rebuild` makes it.",
            )
        if not self._index_is_whole():
            raise DispatchBehind(
                "the index is being rebuilt; until it is complete, some messages cannot be found "
                "by their unique ids. Nothing was changed.",
                "Try again when reput's /ready says that it has caught up.",
            )

    async def _dispatched_to(self, end: PhysicalOffset) -> None:
        """Wait for a moment until what is stored below end is in the index."""
        for _ in range(DISPATCH_POLLS):
            if self._queues.ends().dispatched >= end:
                return
            await asyncio.sleep(DISPATCH_POLL_S)
