"""Builds, runs and closes all components of a standalone broker whose store is open.

It starts after recovery: it waits until reput has dispatched the recovered log, replays the state,
builds the serving components, opens reads and then sends. After stop it answers the requests in
progress, flushes everything written and closes the log. ``service`` comes before this step.
"""

from __future__ import annotations

import asyncio
import logging

from services.broker.api.connections import ApiServer
from services.broker.building import BuiltComponents, build
from services.broker.log.log_context import LogContext
from services.broker.log.open_store import OpenStore
from services.broker.log.term import EndlessTerm
from services.broker.roles import RoleContext
from shared.runtime.lifecycle import run_parts
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.formats.checkpoint import BrokerState, Slot

log = logging.getLogger(__name__)

CATCH_UP_POLL_S = 0.02
ALONE_EPOCH = 1
"""Serving epoch published by a standalone node; 0 would mean that it does not append."""


class StateNotRead(Exception):
    """The state could not be read because of damage; the process keeps running, not ready."""

    def __init__(self, fault: CorruptRecord | DamagedFile) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Standalone:
    """All components of a standalone broker whose store is open."""

    def __init__(
        self,
        context: RoleContext,
        store: OpenStore,
    ) -> None:
        self._context = context
        self._log_context = LogContext(context.broker, store, term=EndlessTerm())
        self._health = context.broker.health
        self._gate = context.gate
        self._store = store
        self._doorbell = context.broker.doorbell
        self._positions = store.positions

    def start_appender(self) -> None:
        """Start the appender at the end that recovery found. Blocks."""
        self._log_context.start_appender()

    async def run(self, stop: asyncio.Event, server: ApiServer) -> None:
        """Open reads and sends as soon as possible; close everything in order after stop."""
        self._health.enter("catching-up")
        try:
            if not await self._catch_up(stop):
                return
            built = await self._build(stop)
        except (CorruptRecord, DamagedFile) as error:
            self._log_context.abandon()
            raise StateNotRead(error) from error
        self._context.serve(built.components, self._log_context)
        flush_stop = asyncio.Event()
        opened = asyncio.Event()
        closed = asyncio.get_running_loop().create_future()

        async def open_and_close() -> None:
            try:
                self._gate.open_reads()
                end = await built.opening.run(stop)
                if end is not None:
                    await self._log_context.durability.durable(end)
                    self._gate.open_sends()
                    self._health.enter("serving")
                    self._positions.publish(Slot.SERVING_EPOCH, ALONE_EPOCH)
                    self._positions.publish(Slot.BROKER_STATE, BrokerState.SERVING)
                    self._context.on_serving()
                    log.info("serving", extra={"event": "ready"})
                    opened.set()
                await stop.wait()
                opened.set()  # releases parts that still wait for the opening, so that they stop
                self._gate.shut()
                self._health.enter("stopping")
                await built.consuming.finish()
                built.core.append.close()
                built.components.read.puller.long_polls.close()
                await server.close()
                await built.config_files.write_all()
            finally:
                flush_stop.set()  # otherwise a failure above keeps flusher and process running
                closed.set_result(True)

        try:
            await run_parts(
                stop,
                {
                    "flusher": lambda: self._log_context.flusher.run(flush_stop),
                    **self._log_context.committer_part(flush_stop),
                    "files-ahead": lambda: self._log_context.files.run(stop),
                    "pulls": lambda: built.components.read.puller.run(stop, self._doorbell),
                    "snapshots": lambda: built.core.state_log.run(stop),
                    "config-files": lambda: built.config_files.run(stop),
                    **built.consuming.runners(stop, opened, closed),
                    "gate": open_and_close,
                },
            )
        except BaseException:
            self._positions.publish(Slot.SERVING_EPOCH, 0)
            self._log_context.abandon()
            raise
        self._positions.publish(Slot.SERVING_EPOCH, 0)
        self._doorbell.close()
        await asyncio.to_thread(self._log_context.close_clean)

    async def _build(self, stop: asyncio.Event) -> BuiltComponents:
        """Read the state and build the components. Raises CorruptRecord, DamagedFile."""
        return await self._log_context.unit_checks.healed(
            lambda: build(self._log_context, self._context.metrics), lambda: not stop.is_set()
        )

    async def _catch_up(self, stop: asyncio.Event) -> bool:
        """Wait until the queues cover the recovered log; return False if stopped before.

        If the disk does not accept writes, this may take until space is freed. Reads then open for
        the part that the queues cover. Sends stay closed, because the state is not fully known.
        """
        positions, end = self._positions, self._store.recovered.end
        begin: int | None = None
        while not stop.is_set():
            dispatched = self._log_context.dispatched()
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
                built = await build(self._log_context, self._context.metrics)
                self._context.serve(built.components, self._log_context)
                self._gate.open_reads_only(unwritable)
            begin = dispatched if begin is None else begin
            self._health.recovery.progress(dispatched - begin, end - begin)
            self._health.add_reason(
                "catching-up",
                f"reput has dispatched {dispatched} of {end} bytes"
                if follows
                else "reput has not begun: does it run?",
            )
            await self._doorbell.wait(CATCH_UP_POLL_S)
        return False
