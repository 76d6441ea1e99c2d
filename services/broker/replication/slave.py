"""The broker of a slave: it serves reads that any node may serve, follows the state, deletes files.

It appends nothing. Reads open once ha has published that this node follows a master, and reput has
published the dispatched offset. They never show more than what is confirmed. The role ends when ha
grants an epoch to this start. Step before: ``node``. Step after: ``master``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from services.broker.building import BuiltComponents, build_with
from services.broker.log.log_context import LogContext
from services.broker.log.unit_checks import UNIT_WAITS
from services.broker.replication.followed_state import FollowedState
from services.broker.replication.grouped_store import GroupedStore
from services.broker.roles import RoleContext
from shared.state.records import DrainRecord, TopicRecord
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.formats.checkpoint import BrokerPhase, Slot, Trouble
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Poll interval for grants and confirmed records, in case a doorbell was lost."""


class Slave:
    """This node's broker until it is granted an epoch."""

    def __init__(
        self,
        context: RoleContext,
        log_context: LogContext,
        store: GroupedStore,
        followed: FollowedState,
    ) -> None:
        """log_context: the log as opened by a node that does not append."""
        self._log_context = log_context
        self._store = store
        self._followed = followed
        self._context = context
        self._doorbell = context.broker.doorbell
        self._health = context.broker.health
        self._gate = context.gate
        self._served = 0
        self._built: BuiltComponents | None = None
        self._seen = -1, PhysicalOffset(-1)
        """Number of changes of the queues, and the dispatched offset, when held pulls were last
        woken."""
        self._trouble: Trouble | None = None
        self._waits_for_unit = False
        """Whether the state has to wait until reput has checked a unit of its queue."""
        self._over = asyncio.Event()
        self._kept = asyncio.Event()
        """Set when the parts whose retention runs no longer serve."""
        self._keeping: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event, served: int) -> int | None:
        """Serve until ha grants an epoch above ``served``; return it, or None if stopped first.

        Raises RestartNeeded, and errors that end a part.
        """
        self._served = served
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                self._store.check_not_emptied()
                epoch = self._granted()
                if epoch is not None:
                    return epoch
                await self._refresh()
                if self._keeping is not None and self._keeping.done():
                    self._keeping.result()
                await self._doorbell.wait(POLL_S)
            return None
        finally:
            stopper.cancel()
            self._gate.close_reads()
            if stop.is_set():
                self._health.enter("stopping")
                if self._built is not None:
                    await self._built.config_files.write_all()
            await self._end()

    def _granted(self) -> int | None:
        return self._store.granted(self._served)

    async def _refresh(self) -> None:
        """Open or close reads, apply what was dispatched, wake callers that wait for it."""
        if not self._store.follows or not self._store.dispatch_is_known:
            self._gate.close_reads()
            self._answer_held()
            self._health.enter("starting")
            self._health.add_reason("no-role", self._why_shut())
            return
        self._health.clear_reason("no-role")
        if self._gate.fault is not None and not self._gate.is_repaired(self._store.positions):
            return
        try:
            await self._follow()
        except (CorruptRecord, DamagedFile) as error:
            if not self._log_context.unit_checks.may_heal(error):
                self._stay_damaged(error)
                return
            self._health.add_reason(
                UNIT_WAITS, f"{error.detail} Reput compares that unit with the log now."
            )
            self._waits_for_unit = True
            return
        if self._waits_for_unit:
            self._waits_for_unit = False
            self._health.clear_reason(UNIT_WAITS)

    def _answer_held(self) -> None:
        """Answer the calls that wait, as reads are closed: their consumers ask another node."""
        if self._built is not None:
            self._built.components.read.puller.long_polls.answer_all()

    def _why_shut(self) -> str:
        if self._store.is_halted:
            return "ha has halted this node: /ready of ha has the reason and the remedy"
        if not self._store.follows:
            return "ha has not published the role of this node in its group yet"
        return "reput has not begun: check that it runs"

    async def _follow(self) -> None:
        # The changes must be read first: reput publishes where it continues before its restart is
        # counted. In the other order: 1. the dispatched offset is read; 2. reput restarts before
        # that offset, and the restart is noted; 3. a pull reads the shorter queue and is
        # held; 4. reput reaches the same offset again, and the pull is not woken.
        changes = self._log_context.unit_checks.changes()
        dispatched = self._store.dispatched
        if self._built is None or self._followed.is_far_behind(dispatched):
            self._gate.close_reads()
            await asyncio.to_thread(self._followed.replay, dispatched)
            if self._granted() is not None:
                return  # the rest is for slaves only
            ends = await asyncio.to_thread(self._followed.queue_ends, dispatched)
            await self._show(ends).config_files.begin_following(self._followed.epoch)
        applied = self._followed.follow(dispatched)
        if applied and self._built is not None:
            self._built.config_files.followed(self._followed.changed, self._followed.epoch)
            self._doorbell.wake()  # there may be more: in the next turn, after the others
            if self._followed.changed & {TopicRecord, DrainRecord}:
                self._context.own_route.topics_followed()
        built = self._built
        if built is not None:
            self._publish_trouble(is_full=built.consuming.retention.fullness.sends_refused)
        if not self._gate.reads_open:
            if not self._followed.is_whole():
                self._health.enter("starting")
                self._health.add_reason(
                    "no-state",
                    "the copied log has no whole snapshot of topics, groups and offsets yet",
                )
                return
            self._health.clear_reason("no-state")
            self._gate.open_reads()
            self._health.enter("serving")
            self._store.positions.publish(Slot.BROKER_STATE, BrokerPhase.SERVING)
            log.info("following", extra={"event": "following", "dispatched_offset": dispatched})
        if built is not None and (changes, dispatched) != self._seen:
            self._seen = changes, dispatched
            built.components.read.puller.long_polls.wake_all_queues()

    def _publish_trouble(self, *, is_full: bool) -> None:
        """Report, when it changes, whether this node would make a good master."""
        trouble = Trouble.DISK_FULL if is_full else Trouble.NONE
        if trouble is not self._trouble:
            self._trouble = trouble
            self._store.positions.publish(Slot.BROKER_TROUBLE, trouble)
        self._gate.publish_damage(self._store.positions)

    def _show(self, queue_ends: Mapping[Queue, QueueOffset]) -> BuiltComponents:
        """Serve with the state that was just read."""
        if self._built is not None:
            self._built.components.read.puller.long_polls.close()
        built = self._built = build_with(
            self._log_context, self._context.metrics, self._followed.state, queue_ends
        )
        self._context.serve(built.components, self._log_context)
        self._kept.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="retention")
        return built

    async def _keep(self) -> None:
        """Run retention and the JSON files with the parts that serve now: earlier parts have a
        state that is no longer updated."""
        while not self._over.is_set():
            self._kept = kept = asyncio.Event()
            assert self._built is not None, "it is shown first"
            built = self._built
            async with asyncio.TaskGroup() as parts:
                parts.create_task(built.consuming.retention.run(kept), name="retention")
                parts.create_task(built.config_files.run(kept), name="config-files")

    def _stay_damaged(self, error: CorruptRecord | DamagedFile) -> None:
        log.error(
            "the state cannot be read; nothing is served",
            extra={"event": "corrupt", "code": error.code, "detail": error.detail, **error.facts},
        )
        self._gate.stay_shut(error, self._store.positions)
        self._answer_held()
        self._trouble = Trouble.DAMAGED
        self._health.add_reason(error.code, f"{error.detail} {error.advice}", lasting=True)
        self._store.positions.publish(Slot.BROKER_TROUBLE, Trouble.DAMAGED)

    async def _end(self) -> None:
        self._over.set()
        self._kept.set()
        if self._built is not None:
            self._built.components.read.puller.long_polls.close()
        if self._keeping is not None:
            await asyncio.gather(self._keeping, return_exceptions=True)
        await asyncio.to_thread(self._log_context.abandon)

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._doorbell.wake()
