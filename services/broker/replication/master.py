"""One epoch of this node as the master, from ha's grant to the release of the append lock.

1. The append lock is taken, and the grant checked again: ha may have ended it meanwhile. 2. The log
is recovered, the state read to its end. 3. SERVING_EPOCH is published: later records are of this
epoch; the record that opens the epoch is appended, and EPOCH_RECORD_END is its end. 4. When ha
reports that the group has confirmed it, and reput has dispatched it, sends and reads open. 5. When
the grant ends, nothing more is appended or answered, waiting callers get an error, the running
flush ends, and only then is the lock released: ha cuts and copies from there. After a kill between
any two steps, ha finds out the state by the lock byte and the nonce.

Step before: ``slave`` saw the grant. Step after: ``slave`` again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from services.broker.building import BuiltComponents, build_with
from services.broker.log.log_context import LogContext
from services.broker.log.term import GrantedTerm
from services.broker.replication.followed_state import FollowedState
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.role_policy import MasterPolicy, PromotingPolicy, SlavePolicy
from services.broker.roles import RoleContext
from shared.runtime.lifecycle import run_parts
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    DiskFull,
    NotServing,
    ReadOnlyDisk,
    StoreError,
    SwitchingOver,
)
from tidemark.formats.checkpoint import BrokerState, Slot, Trouble

log = logging.getLogger(__name__)

LOCK_POLL_S: Final = 0.002
BUSY_POLL_S: Final = 0.001
IDLE_POLL_S: Final = 0.05
"""Poll interval for the end of a grant, in case a doorbell was lost."""
DRAIN_S: Final = 1.0
"""Maximum wait for running sends when the node stops."""
Part = Callable[[], Coroutine[None, None, None]]


class Master:
    """This node's broker for one epoch."""

    def __init__(
        self,
        context: RoleContext,
        term: GrantedTerm,
        make_log_context: Callable[[GrantedTerm], LogContext],
        store: GroupedStore,
        followed: FollowedState,
        *,
        afterwards: SlavePolicy,
    ) -> None:
        """afterwards: state of the gate when the term is over."""
        self._term = term
        self._make_log_context = make_log_context
        self._store = store
        self._positions = store.positions
        self._followed = followed
        self._context = context
        self._doorbell = context.broker.doorbell
        self._health = context.broker.health
        self._gate = context.gate
        self._afterwards = afterwards
        self._over = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._flush_stop = asyncio.Event()
        self._trouble: Trouble | None = None
        self._appending_ended: dict[str, asyncio.Event] = {}

    async def run(self, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        """Serve until the grant ends or stop is set; the append lock is free again on return.

        leaving: set before stop, if the process is to end; the grant may end in between. Raises the
        error that ends a part, for example a failed flush.
        """
        stopper = asyncio.create_task(self._end_on(stop))
        self._gate.take_role(PromotingPolicy())
        self._health.enter("promoting")
        # Before SERVING_EPOCH: ha counts what it reads behind that as of this epoch.
        self._positions.publish(Slot.BROKER_STATE, BrokerState.RECOVERING)
        try:
            if await self._take_append_lock():
                await self._open_and_serve(stop, leaving)
        finally:
            stopper.cancel()
            self._shut()
            self._store.give_append_lock_back()
            self._doorbell.ring("ha")

    # -- start ----------------------------------------------------------------------------------

    async def _take_append_lock(self) -> bool:
        """Take the append lock; return whether it is held and the grant still stands."""
        while self._goes_on:
            if await asyncio.to_thread(self._store.take_append_lock):
                return self._term.is_valid
            await self._doorbell.wait(LOCK_POLL_S)
        return False

    async def _open_and_serve(self, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        try:
            log_context, built = await self._recover_and_build()
        except (CorruptRecord, DamagedFile) as error:
            self._gate.stay_shut(error, self._positions)
            await self._wait_for_another(error, Trouble.DAMAGED)
            return
        except (DiskFull, ReadOnlyDisk) as error:
            await self._wait_for_another(error, Trouble.DISK_FULL)
            return
        try:
            await self._serve(log_context, built, stop, leaving)
        finally:
            # After a failure only: otherwise it is closed in order by then.
            await asyncio.to_thread(log_context.abandon)

    async def _recover_and_build(self) -> tuple[LogContext, BuiltComponents]:
        """Recover, read the state to the log's end, build. Raises CorruptRecord, DamagedFile."""
        store, progress = self._store, self._health.recovery.progress
        recovered = await asyncio.to_thread(store.recover_for_term, progress)
        while not store.dispatch_is_known and self._goes_on:
            self._health.add_reason("catching-up", "reput has not begun: does it run?")
            await self._doorbell.wait(LOCK_POLL_S)
        dispatched = store.dispatched
        self._health.add_reason(
            "catching-up", f"the state is read to the log's end; {_left(dispatched, recovered.end)}"
        )
        log_context = self._make_log_context(self._term)
        await asyncio.to_thread(log_context.start_appender)
        known = recovered.next_queue_offsets
        next_offset = int(known.get((STATE_TOPIC, STATE_QUEUE), 0))
        state = await log_context.unit_checks.healed(
            lambda: asyncio.to_thread(
                self._followed.to_end, dispatched, recovered.end, next_offset
            ),
            lambda: self._goes_on,
        )
        built = build_with(log_context, self._context.metrics, state, known)
        log.info(
            "the log is recovered for an epoch",
            extra={
                "event": "term-recovered",
                "epoch": self._term.epoch,
                "end_offset": recovered.end,
                "dispatched_offset": dispatched,
                "walked_bytes": recovered.walked_bytes,
                "generation": recovered.generation,
            },
        )
        return log_context, built

    @property
    def _goes_on(self) -> bool:
        return self._term.is_valid and not self._over.is_set()

    async def _wait_for_another(self, error: StoreError, trouble: Trouble) -> None:
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
        self._positions.publish(Slot.BROKER_STATE, BrokerState.UNREADY)
        self._doorbell.ring("ha")
        while self._goes_on:
            await self._doorbell.wait(IDLE_POLL_S)

    # -- serving --------------------------------------------------------------------------------

    async def _serve(
        self,
        log_context: LogContext,
        built: BuiltComponents,
        stop: asyncio.Event,
        leaving: asyncio.Event,
    ) -> None:
        self._context.serve(built.components, log_context)
        # From here ha reads this epoch in the page, and that no record of it is appended yet.
        self._positions.publish(Slot.EPOCH_RECORD_END, 0)
        self._positions.publish(Slot.SERVING_EPOCH, self._term.epoch)
        self._doorbell.ring("ha")
        opened = asyncio.Event()
        closed = asyncio.get_running_loop().create_future()
        parts: dict[str, Part] = {
            **self._appending(
                {
                    "flusher": lambda: log_context.flusher.run(self._flush_stop),
                    "files-ahead": lambda: log_context.files.run(self._over),
                    **log_context.committer_part(self._flush_stop),
                }
            ),
            "pulse": lambda: self._pulse(log_context, built, leaving),
            "snapshots": lambda: built.core.state_log.run(self._over),
            "config-files": lambda: built.config_files.run(self._over),
            **built.consuming.runners(self._over, opened, closed),
        }

        async def gate() -> None:
            try:
                await self._open_and_close_gate(log_context, built, stop, opened)
            finally:
                closed.set_result(leaving.is_set())

        await run_parts(self._over, {**parts, "gate": gate})

    async def _open_and_close_gate(
        self,
        log_context: LogContext,
        built: BuiltComponents,
        stop: asyncio.Event,
        opened: asyncio.Event,
    ) -> None:
        """Open when the group has confirmed the epoch, and close in order."""
        try:
            if await self._is_recorded(log_context, built) and await self._is_confirmed():
                self._open()
                opened.set()
            await self._over.wait()
            if stop.is_set() and self._term.is_valid:
                self._shut()
                await built.consuming.finish()
                await self._answer_who_waits(log_context)
                await built.config_files.write_all()
        finally:
            opened.set()  # parts that never began then only see the end
            self._shut()
            self._let_go(log_context, built)
            self._flush_stop.set()
            for ended in self._appending_ended.values():
                await ended.wait()
            await asyncio.to_thread(
                log_context.appender.close, clean=not log_context.flusher.failed
            )
            # Not when all parts have ended: those that only read may take longer.
            self._store.give_append_lock_back()
            self._doorbell.ring("ha")

    async def _answer_who_waits(self, log_context: LogContext) -> None:
        """Let the group confirm what is in the log, for a bounded time: the node stops in order."""
        clock = self._health.clock
        until = clock.monotonic() + DRAIN_S
        while log_context.durability.poll() and self._term.is_valid:
            if clock.monotonic() > until:
                return
            await self._doorbell.wait(BUSY_POLL_S)

    async def _is_recorded(self, log_context: LogContext, built: BuiltComponents) -> bool:
        """Append the records that open the epoch; return False if the term ends before."""
        while self._goes_on:
            try:
                end = await built.opening.run(self._over)
                if end is not None:
                    log_context.epoch_recorded(end)
                return end is not None
            except SwitchingOver:
                await self._tick()  # held by an earlier switch, which ha will end
            except NotServing:
                if self._goes_on:
                    raise
        return False

    async def _tick(self) -> None:
        """Wait for a moment, or for the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_POLL_S):
                await self._over.wait()

    async def _is_confirmed(self) -> bool:
        """Wait until the epoch is confirmed and the queues cover it; False if the term ends
        before."""
        ended = asyncio.create_task(self._over.wait())
        confirmed = asyncio.create_task(self._confirmed.wait())
        try:
            await asyncio.wait({ended, confirmed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            confirmed.cancel()
        return not self._over.is_set()

    def _open(self) -> None:
        self._gate.open_as(MasterPolicy(self._term))
        self._health.clear_reason("catching-up")
        self._health.enter("serving")
        self._positions.publish(Slot.BROKER_STATE, BrokerState.SERVING)
        self._doorbell.ring("ha")
        log.info("serving as the master", extra={"event": "ready", "epoch": self._term.epoch})

    def _shut(self) -> None:
        """Stop presenting this node as the master."""
        self._gate.shut()
        self._gate.take_role(self._afterwards)

    def _let_go(self, log_context: LogContext, built: BuiltComponents) -> None:
        """Wake waiting callers: senders learn that the outcome is unknown, consumers that they must
        pull again."""
        built.core.append.close()
        log_context.durability.end_waits()
        built.components.read.puller.long_polls.close()

    def _appending(self, parts: dict[str, Part]) -> dict[str, Part]:
        """Return the parts that must end before another process may write the log."""

        def noted(name: str, part: Part) -> Part:
            ended = self._appending_ended[name] = asyncio.Event()

            async def run() -> None:
                try:
                    await part()
                finally:
                    ended.set()

            return run

        return {name: noted(name, part) for name, part in parts.items()}

    async def _pulse(
        self, log_context: LogContext, built: BuiltComponents, leaving: asyncio.Event
    ) -> None:
        """Check what the others publish, with every doorbell, and often while a caller waits."""
        durability, puller = log_context.durability, built.components.read.puller
        while not self._over.is_set():
            if not self._term.is_valid:
                # A broker that is stopped has asked ha to switch to another node.
                log.log(
                    logging.INFO if leaving.is_set() else logging.WARNING,
                    "the grant has ended",
                    extra={"event": "fenced", "epoch": self._term.epoch},
                )
                self._over.set()
                return
            self._publish_trouble(log_context)
            senders_wait, pullers_wait = durability.poll(), puller.wake_held()
            opening = not self._confirmed.is_set()
            if opening and self._epoch_record_is_seen(log_context):
                self._confirmed.set()
            busy = senders_wait or pullers_wait or opening
            await self._doorbell.wait(BUSY_POLL_S if busy else IDLE_POLL_S)

    def _publish_trouble(self, log_context: LogContext) -> None:
        """Report, when it changes, whether a node with more free disk space would serve better."""
        files = log_context.files
        is_full = files.failure is not None or files.refusal is not None
        trouble = Trouble.DISK_FULL if is_full else Trouble.NONE
        if trouble is not self._trouble:
            self._trouble = trouble
            self._positions.publish(Slot.BROKER_TROUBLE, trouble)
            self._doorbell.ring("ha")
        self._gate.publish_damage(self._positions)

    def _epoch_record_is_seen(self, log_context: LogContext) -> bool:
        """Return whether the record that opens the epoch is confirmed and dispatched; otherwise the
        health states what is missing."""
        end = self._positions.get(Slot.EPOCH_RECORD_END)
        dispatched = log_context.dispatched()
        if end and self._term.is_master and dispatched >= end:
            return True
        waits = "the group has not confirmed the record that opens the epoch"
        if end and self._term.is_master:
            waits = _left(dispatched, end)
        self._health.add_reason("catching-up", waits)
        return False

    async def _end_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._over.set()
        self._doorbell.wake()


def _left(dispatched: int, end: int) -> str:
    """Describe how far reput is behind the end of the log."""
    left = max(0, end - dispatched)
    return f"reput has dispatched {dispatched} of {end} bytes, {left} are left"
