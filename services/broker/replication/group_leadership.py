"""How a node of a group becomes the master for one epoch, and stops being it.

1. The append lock is taken, and the grant is checked again, because ha may have ended it meanwhile.
2. The log is recovered, and the state is read up to its end. 3. SERVING_EPOCH is published: later
records belong to this epoch; EPOCH_RECORD_END is the end of the record that opens the epoch. 4.
When ha reports that the group has confirmed it, and reput has dispatched it, sends and reads open.
5. When the grant has ended and ``master`` has closed the log, the append lock is released. After a
kill between any two steps, ha finds out the state by the lock byte and the nonce.

Step before: ``slave`` saw the grant. Step after: ``master`` serves between these steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.broker.building import BuiltComponents, build_with
from services.broker.log.log_context import LogContext
from services.broker.log.term import GrantedTerm
from services.broker.replication.followed_state import FollowedState
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.role_policy import MasterPolicy, PromotingPolicy, SlavePolicy
from services.broker.roles import RoleContext
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from tidemark.errors import CorruptRecord, DamagedFile, DiskFull, ReadOnlyDisk, StoreError
from tidemark.formats.checkpoint import BrokerPhase, Slot, Trouble
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

LOCK_POLL_S: Final = 0.002


class GroupLeadership:
    """The epoch that ha granted to this start of the broker."""

    poll_s = 0.05

    def __init__(
        self,
        context: RoleContext,
        term: GrantedTerm,
        make_log_context: Callable[[GrantedTerm], LogContext],
        store: GroupedStore,
        followed: FollowedState,
        stop: asyncio.Event,
        *,
        afterwards: SlavePolicy,
    ) -> None:
        """stop: set when the process is to end. afterwards: state of the gate when the term is
        over."""
        self.term = term
        self._make_log_context = make_log_context
        self._store = store
        self._positions = store.positions
        self._followed = followed
        self._metrics = context.metrics
        self._doorbell = context.broker.doorbell
        self._health = context.broker.health
        self._gate = context.gate
        self._stop = stop
        self._afterwards = afterwards
        self._trouble: Trouble | None = None

    async def recover_and_build(self, over: asyncio.Event) -> BuiltComponents | None:
        """Take the append lock, recover the log, and read the state up to the log's end."""
        self._gate.take_role(PromotingPolicy())
        self._health.enter("promoting")
        # Before SERVING_EPOCH: to ha, everything published after that slot belongs to this epoch.
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.RECOVERING)

        def goes_on() -> bool:
            return self.term.is_valid and not over.is_set()

        if not await self._take_append_lock(goes_on):
            return None
        try:
            return await self._recover(goes_on)
        except (CorruptRecord, DamagedFile) as error:
            self._gate.stay_shut(error, self._positions)
            await self._wait_for_another(error, Trouble.DAMAGED, goes_on)
        except (DiskFull, ReadOnlyDisk) as error:
            await self._wait_for_another(error, Trouble.DISK_FULL, goes_on)
        return None

    async def _take_append_lock(self, goes_on: Callable[[], bool]) -> bool:
        """Take the append lock; return whether it is held and the grant still stands."""
        while goes_on():
            if await asyncio.to_thread(self._store.take_append_lock):
                return self.term.is_valid
            await self._doorbell.wait(LOCK_POLL_S)
        return False

    async def _recover(self, goes_on: Callable[[], bool]) -> BuiltComponents:
        """Recover the log, read the state up to its end, and build the components. Raises
        CorruptRecord, DamagedFile."""
        store, progress = self._store, self._health.recovery.progress
        recovered = await asyncio.to_thread(store.recover_for_term, progress)
        while not store.dispatch_is_known and goes_on():
            self._health.add_reason("catching-up", "reput has not begun: check that it runs")
            await self._doorbell.wait(LOCK_POLL_S)
        dispatched = store.dispatched
        self._health.add_reason(
            "catching-up", f"the state is read to the log's end; {_left(dispatched, recovered.end)}"
        )
        log_context = self._make_log_context(self.term)
        await asyncio.to_thread(log_context.start_appender)
        known = recovered.next_queue_offsets
        next_offset = int(known.get((STATE_TOPIC, STATE_QUEUE), 0))
        state = await log_context.unit_checks.healed(
            lambda: asyncio.to_thread(
                self._followed.to_end, dispatched, recovered.end, next_offset
            ),
            goes_on,
        )
        built = build_with(log_context, self._metrics, state, known)
        log.info(
            "the log is recovered for an epoch",
            extra={
                "event": "term-recovered",
                "epoch": self.term.epoch,
                "end_offset": recovered.end,
                "dispatched_offset": dispatched,
                "walked_bytes": recovered.walked_bytes,
                "generation": recovered.generation,
            },
        )
        return built

    async def _wait_for_another(
        self, error: StoreError, trouble: Trouble, goes_on: Callable[[], bool]
    ) -> None:
        """Report that another node would serve better, and wait until ha has switched to it."""
        log.error(
            "this node cannot be the master",
            extra={"event": "cannot-lead", "code": error.code, "detail": error.detail},
        )
        self._health.clear_reason("catching-up")  # it waits for another node now
        self._health.add_reason(
            error.code,
            f"{error.detail} {error.advice}",
            lasting=trouble is Trouble.DAMAGED,
        )
        self._positions.publish(Slot.BROKER_TROUBLE, trouble)
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.UNREADY)
        self._doorbell.ring("ha")
        while goes_on():
            await self._doorbell.wait(self.poll_s)

    def begin(self) -> None:
        """Publish the epoch: ha reads in the page that no record of it is appended yet."""
        self._positions.publish(Slot.EPOCH_RECORD_END, 0)
        self._positions.publish(Slot.SERVING_EPOCH, self.term.epoch)
        self._doorbell.ring("ha")

    def recorded(self, log_context: LogContext, end: PhysicalOffset) -> None:
        """Publish the end of the record that opens the epoch, and flush: ha waits for it."""
        self._positions.publish(Slot.EPOCH_RECORD_END, end)
        log_context.flusher.hurry()
        self._doorbell.ring("ha")

    def is_confirmed(self, log_context: LogContext, end: PhysicalOffset | None) -> bool:
        """Return whether the record that opens the epoch is confirmed and dispatched; otherwise the
        health states what is missing."""
        waits = "the group has not confirmed the record that opens the epoch"
        if end is not None and self.term.is_master:
            dispatched = log_context.dispatched()
            if dispatched >= end:
                return True
            waits = _left(dispatched, end)
        self._health.add_reason("catching-up", waits)
        return False

    def open(self) -> None:
        """Open reads and sends, as long as the lease lasts."""
        self._gate.open_as(MasterPolicy(self.term))
        self._health.clear_reason("catching-up")
        self._health.enter("serving")
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.SERVING)
        self._doorbell.ring("ha")
        log.info("serving as the master", extra={"event": "ready", "epoch": self.term.epoch})

    def watch(self, log_context: LogContext) -> None:
        """Report, when it changes, whether a node with more free disk space would serve better."""
        files = log_context.files
        is_full = files.failure is not None or files.refusal is not None
        trouble = Trouble.DISK_FULL if is_full else Trouble.NONE
        if trouble is not self._trouble:
            self._trouble = trouble
            self._positions.publish(Slot.BROKER_TROUBLE, trouble)
            self._doorbell.ring("ha")
        self._gate.publish_damage(self._positions)

    def shut(self) -> None:
        """Stop presenting this node as the master."""
        self._gate.shut()
        # A node that keeps running becomes a slave: "starting" until it serves reads.
        self._health.enter("stopping" if self._stop.is_set() else "starting")
        self._gate.take_role(self._afterwards)

    def release(self) -> None:
        """Release the append lock."""
        self._store.give_append_lock_back()
        self._doorbell.ring("ha")


def _left(dispatched: int, end: int) -> str:
    """Describe how far reput is behind the end of the log."""
    left = max(0, end - dispatched)
    return f"reput has dispatched {dispatched} of {end} bytes, {left} are left"
