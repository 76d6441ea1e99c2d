"""The broker of a standalone node: the master of a group of one, whose store is held for good.

1. The log is recovered. 2. When reput has dispatched it, the state is read, and reads open. 3. The
first records of this start are appended; when they are on disk, sends open. With a damaged store
the node keeps running but is not ready. If the disk takes no writes, reads open for the part that
the queues cover. Step before: ``service`` opened store and ports. Step after: ``master`` serves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from services.broker.building import BuiltComponents, build
from services.broker.log.log_context import LogContext
from services.broker.log.open_store import OpenStore
from services.broker.log.term import EndlessTerm
from services.broker.replication.master import Master
from services.broker.roles import RoleContext
from tidemark.errors import CorruptRecord, DamagedFile, StoreError, StrayFile, WrongFileSize
from tidemark.formats.checkpoint import BrokerPhase, Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

CATCH_UP_POLL_S: Final = 0.02
SERVING_EPOCH: Final = 1
"""Serving epoch published by a standalone node; 0 would mean that it does not append."""


class StandaloneNode:
    """One start of the broker of a standalone node."""

    is_slave: Final = False
    poll_s = 0.1

    def __init__(self, context: RoleContext, store: OpenStore) -> None:
        self.term = EndlessTerm()
        self._context = context
        self._health = context.broker.health
        self._gate = context.gate
        self._store = store
        self._doorbell = context.broker.doorbell
        self._positions = store.positions
        self.closed_in_order = False
        """Whether it served, and has flushed and closed the log."""

    @property
    def is_master(self) -> bool:
        """Whether sends are open."""
        return self._gate.sends_open

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stop; with a damaged store, wait for stop. Raises errors that end a part."""
        self.closed_in_order = await Master(self._context, self).run(stop, leaving=stop)

    # -- start ----------------------------------------------------------------------------------

    async def recover_and_build(self, over: asyncio.Event) -> BuiltComponents | None:
        """Recover, wait until the queues cover the log, and read the state."""
        store = self._store
        self._health.enter("recovering")
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.RECOVERING)
        try:
            await store.recover(self._health.recovery.progress, over)
        except (CorruptRecord, DamagedFile, StrayFile, WrongFileSize) as error:
            await self._stay_unready(error, over)
            return None
        if over.is_set():
            return None
        self._log_recovered()
        self._doorbell.ring("reput")
        log_context = LogContext(self._context.broker, store, term=self.term)
        await asyncio.to_thread(log_context.start_appender)
        self._health.enter("catching-up")
        try:
            if await self._catch_up(log_context, over):
                return await log_context.unit_checks.healed(
                    lambda: build(log_context, self._context.metrics), lambda: not over.is_set()
                )
        except (CorruptRecord, DamagedFile) as error:
            log_context.abandon()
            await self._stay_unready(error, over)
            return None
        log_context.abandon()
        return None

    async def _catch_up(self, log_context: LogContext, over: asyncio.Event) -> bool:
        """Wait until the queues cover the recovered log; return False if stopped first.

        If the disk does not accept writes, this may take until space is freed. Reads then open for
        the part that the queues cover. Sends stay closed, because the state is not fully known.
        """
        positions, end = self._positions, self._store.recovered.end
        begin: int | None = None
        while not over.is_set():
            dispatched = log_context.dispatched()
            follows = positions.get(Slot.REPUT_GENERATION) == positions.get(Slot.GENERATION)
            unwritable = self._store.unwritable
            if dispatched >= end and (follows or unwritable is not None):
                self._health.clear_reason("catching-up")
                self._gate.close_reads(unwritable)
                return True
            if unwritable is not None and not self._gate.reads_open:
                log.warning(
                    "reads end before the end of the log: the disk takes no writes",
                    extra={
                        "event": "short-queues",
                        "dispatched_offset": dispatched,
                        "end_offset": end,
                    },
                )
                built = await build(log_context, self._context.metrics)
                self._context.serve(built.components, log_context)
                self._gate.open_reads_only(unwritable)
            begin = dispatched if begin is None else begin
            self._health.recovery.progress(dispatched - begin, end - begin)
            self._health.add_reason(
                "catching-up",
                f"reput has dispatched {dispatched} of {end} bytes"
                if follows
                else "reput has not begun: check that it runs",
            )
            await self._doorbell.wait(CATCH_UP_POLL_S)
        return False

    async def _stay_unready(self, error: StoreError, over: asyncio.Event) -> None:
        log.error(
            "the store is damaged; nothing was cut, nothing is served",
            extra={"event": "corrupt", "code": error.code, "detail": error.detail, **error.facts},
        )
        self._gate.fail(error)
        self._health.add_reason(error.code, f"{error.detail} {error.advice}")
        self._health.enter("unready")
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.UNREADY)
        await over.wait()

    def _log_recovered(self) -> None:
        recovered = self._store.recovered
        log.info(
            "recovered",
            extra={
                "event": "recovered",
                "end_offset": recovered.end,
                "min_offset": recovered.min_offset,
                "walked_bytes": recovered.walked_bytes,
                "generation": recovered.generation,
                "queues": len(recovered.next_queue_offsets),
            },
        )
        if not recovered.is_min_recorded:
            log.warning(
                "no record says where the log starts: files before its first one may be missing",
                extra={"event": "log-start-unknown", "min_offset": recovered.min_offset},
            )
        if recovered.cut is not None:
            log.warning(
                "a torn tail was cut and kept aside",
                extra={
                    "event": "tail-cut",
                    "start_offset": recovered.cut.start,
                    "end_offset": recovered.cut.end,
                    "path": str(recovered.cut.path),
                    "reason": recovered.cut.reason,
                },
            )

    # -- serving --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open reads: the queues cover the log."""
        self._gate.open_reads()

    def recorded(self, log_context: LogContext, end: PhysicalOffset) -> None:
        """Flush the first records at once."""
        log_context.flusher.hurry()

    def is_confirmed(self, log_context: LogContext, end: PhysicalOffset | None) -> bool:
        """Return whether the first records are on this node's disk."""
        return end is not None and log_context.flushed() >= end

    def open(self) -> None:
        """Open sends as well; reads are open."""
        self._gate.open_sends()
        self._health.enter("serving")
        self._positions.publish(Slot.SERVING_EPOCH, SERVING_EPOCH)
        self._positions.publish(Slot.BROKER_STATE, BrokerPhase.SERVING)
        self._context.on_serving()
        log.info("serving", extra={"event": "ready"})

    def watch(self, log_context: LogContext) -> None:
        """Do nothing: no other node could serve better."""

    def shut(self) -> None:
        """Refuse reads and sends."""
        self._gate.shut()
        self._health.enter("stopping")

    def release(self) -> None:
        """Publish that nothing is appended any more; the locks are released with the store."""
        self._positions.publish(Slot.SERVING_EPOCH, 0)
