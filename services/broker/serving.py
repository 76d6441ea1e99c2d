"""All parts of a broker whose store is open: built, run, closed in order.

Begins where recovery ended: waits until reput has dispatched the recovered log, replays the state,
builds what serves with it, opens reads and then sends. After stop: callers in hand are answered,
everything written is flushed, the log is closed. Before: ``service``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import NamedTuple

from services.broker.append import Append
from services.broker.committer import Committer
from services.broker.config import BrokerConfig
from services.broker.config_files import ConfigFiles
from services.broker.connections import BoundedServer
from services.broker.consuming import Consuming, Foundation
from services.broker.files_ahead import FilesAhead
from services.broker.flusher import Flusher, Pace
from services.broker.gate import Gate
from services.broker.http_api import Api
from services.broker.metrics import BrokerMetrics
from services.broker.open_store import OpenStore
from services.broker.opening import Opening
from services.broker.paced_bell import PacedBell
from services.broker.parts import Parts
from services.broker.produce import Sends
from services.broker.pull import Puller
from services.broker.query import Queries
from services.broker.queue_offsets import Queue
from services.broker.state_log import StateLog
from services.broker.state_replay import expired_queues, next_offsets, replay
from services.broker.topic_views import TopicViews
from services.broker.topics import Topics
from services.broker.watch import Watch
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.files.write_pool import CommitPace
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from shared.state.records import STATE_TOPIC, ForeignRange
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, DamagedFile, StoreError
from tidemark.formats.checkpoint import BrokerState, Slot
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

REPUT = "reput"
CATCH_UP_POLL_S = 0.02
PAGE_SIZE = 4096
COLLECTOR_THRESHOLDS = (50_000, 20, 50)
"""Objects until the first generation is collected (a few MiB of cycles at most), and how many
collections of one generation until the next."""
ALONE_EPOCH = 1
"""What a node alone says it appends under: 0 would mean that it does not append."""


def settle_collector() -> None:
    """Keep the garbage collector out of the way of requests.

    What was made until now lives as long as the process: it is frozen, so that no collection walks
    it. And the first generation is collected after many more objects than the usual 700, for a
    request of 256 messages in JSON makes more than that, all of them alive when they are counted:
    each such request would pay for a collection that finds nothing. Nearly everything here goes by
    its reference count; what does not, cycles of exceptions and tasks, is rare and small.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class Built(NamedTuple):
    """The parts that know the replayed state."""

    parts: Parts
    append: Append
    consuming: Consuming
    state_log: StateLog
    config_files: ConfigFiles
    opening: Opening


class StateNotRead(Exception):
    """Damage met while the state was read; the process stays, unready, and says so."""

    def __init__(self, fault: CorruptRecord | DamagedFile) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Serving:
    """All parts of a broker whose store is open."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metrics: BrokerMetrics,
        health: Health,
        store: OpenStore,
        doorbell: Doorbell,
        port: int,
        *,
        on_serving: Callable[[], None],
    ) -> None:
        """on_serving: called once, when sends open."""
        self._on_serving = on_serving
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._health = health
        self._store = store
        self._doorbell = doorbell
        self._host = config.store_host(port)
        self._positions = store.positions
        self._reader = CommitLogReader(store.directory, store.positions)
        self._queues = ConsumeQueues(store.directory, self._reader)
        self._appender = CommitLogAppender(
            store.directory,
            store.positions,
            pool_size=config.write_buffer_pool_size,
            warm_up=config.warm_up_files,
            lock_memory=config.lock_files_memory,
        )
        self._files = FilesAhead(
            self._prepare,
            lambda: self._appender.appended,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=self._writes_changed,
        )
        self._bell = PacedBell(doorbell, REPUT, clock)
        self._shows_written = config.store.visible_after == "written"
        self._flusher = Flusher(
            self._appender, self._pace(), clock, metrics, on_flushed=self._flushed
        )
        self._committer = self._make_committer() if self._appender.pooled else None

    def _pace(self) -> Pace:
        config = self._config
        if config.store.visible_after == "flushed":
            return Pace(config.flush_interval_ms / 1000)
        return Pace(
            config.interval_flush_ms / 1000,
            config.interval_flush_pages * PAGE_SIZE,
            config.interval_flush_thorough_ms / 1000,
        )

    def _make_committer(self) -> Committer:
        config = self._config
        pace = CommitPace(
            config.commit_interval_ms / 1000,
            config.commit_least_pages * PAGE_SIZE,
            config.commit_thorough_ms / 1000,
        )
        return Committer(self._appender, pace, self._clock, on_committed=self._written)

    def start_appender(self) -> None:
        """Go on where recovery found the end. Blocks."""
        self._appender.start_at(self._store.recovered.end)

    def _prepare(self) -> None:
        """All that appending needs. Blocks, in the thread of FilesAhead."""
        # The marker first: it tells whether the disk takes writes at all, and before it is there
        # nothing may be appended.
        self._store.directory.mark_running()
        if self._store.needs_restart:
            raise self._store.restart_needed()
        if self._store.recover_again():
            self._appender.start_at(self._store.recovered.end)
        self._appender.prepare_next()

    def _writes_changed(self, failure: StoreError | None) -> None:
        if failure is None:
            for code in ("disk-full", "read-only-disk"):
                self._health.clear_reason(code)
        else:
            self._health.add_reason(failure.code, f"{failure.detail} {failure.advice}")

    def _flushed(self) -> None:
        if self._committer is not None:
            self._committer.flushed()
        if self._committer is not None or not self._shows_written:
            self._bell.ring()

    def _written(self) -> None:
        """More of the log is in its file."""
        if self._shows_written:
            self._bell.ring()

    def _dispatched(self) -> PhysicalOffset:
        return self._store.dispatched

    async def run(
        self,
        stop: asyncio.Event,
        gate: Gate,
        api: Api,
        server: BoundedServer,
        watch: Watch,
    ) -> None:
        """Open for reads and sends as soon as each may be; close in order after stop."""
        self._health.state = "catching-up"
        try:
            if not await self._catch_up(stop, gate, api):
                return
            built = await self._build()
        except (CorruptRecord, DamagedFile) as error:
            self._appender.close(clean=False)
            raise StateNotRead(error) from error
        api.parts = built.parts
        watch.queues = self._queues
        flush_stop = asyncio.Event()
        opened = asyncio.Event()

        async def open_and_close() -> None:
            try:
                gate.reads_open = True
                if await built.opening.run(stop):
                    gate.sends_open = True
                    self._health.state = "serving"
                    self._positions.publish(Slot.SERVING_EPOCH, ALONE_EPOCH)
                    self._positions.publish(Slot.BROKER_STATE, BrokerState.SERVING)
                    self._on_serving()
                    log.info("serving", extra={"event": "ready"})
                    opened.set()
                await stop.wait()
                opened.set()  # parts that never began have nothing to do but to see the stop
                gate.shut()
                self._health.state = "stopping"
                await built.consuming.finish()
                built.append.close()
                built.parts.puller.held.close()
                await server.close()
                await built.config_files.write_all()
            finally:
                flush_stop.set()  # else a failure up there keeps the flusher, and the process, up

        try:
            await run_parts(
                stop,
                {
                    "flusher": lambda: self._flusher.run(flush_stop),
                    **self._committer_part(flush_stop),
                    "files-ahead": lambda: self._files.run(stop),
                    "pulls": lambda: built.parts.puller.run(stop, self._doorbell),
                    "snapshots": lambda: built.state_log.run(stop),
                    "config-files": lambda: built.config_files.run(stop),
                    **built.consuming.runners(stop, opened),
                    "door": open_and_close,
                },
            )
        except BaseException:
            self._positions.publish(Slot.SERVING_EPOCH, 0)
            self._appender.close(clean=False)
            raise
        self._positions.publish(Slot.SERVING_EPOCH, 0)
        await asyncio.to_thread(self._close_clean)

    def _committer_part(
        self, stop: asyncio.Event
    ) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """The committer, if there is one, as a part to run."""
        committer = self._committer
        return {} if committer is None else {"committer": lambda: committer.run(stop)}

    async def _build(self) -> Built:
        """Replay the state and make the parts that serve with it."""
        config, store = self._config, self._store
        state = await asyncio.to_thread(replay, self._queues, self._reader, self._dispatched())
        offsets = next_offsets(store.recovered.next_queue_offsets, state)
        state_log = StateLog(
            state.copy(),
            offsets,
            self._clock,
            self._host,
            flushed=lambda: self._appender.flushed,
            file_size=config.store.commit_log_file_size,
            log_start=lambda: self._reader.min_offset,
        )
        topics = Topics(
            state,
            state_log,
            offsets,
            flushed=lambda: self._appender.flushed,
            queues_in_store={*store.directory.queues(), *store.recovered.next_queue_offsets},
            auto_create_queues=config.auto_create_queues if config.auto_create_topics else None,
            always={
                STATE_TOPIC: 1,
                SCHEDULE_TOPIC: len(config.store.delay_levels_ms),
                TIMER_TOPIC: 1,
            },
            expired=expired_queues(store.recovered.next_queue_offsets, state),
            on_change=lambda: topics_changed(),
        )
        views = TopicViews(
            topics,
            self._queues,
            self._reader,
            self._dispatched,
            clock=self._clock,
            auto_create=config.auto_create_topics,
            queues_default=config.auto_create_queues,
        )
        puller = Puller(
            self._queues,
            self._reader,
            offsets,
            self._clock,
            self._metrics,
            floor=views.floor,
            dispatched=self._dispatched,
            written=lambda: self._appender.appended,
            held_max=config.held_pulls_max,
        )
        append = Append(
            self._appender,
            offsets,
            self._files,
            self._clock,
            self._metrics,
            file_size=config.store.commit_log_file_size,
            reserve=config.reserve,
            clock_step_max_ms=config.clock_step_max_ms,
            last_store_time_ms=store.recovered.last_store_timestamp_ms,
            snapshot=state_log.snapshot,
            undispatched=lambda: self._appender.flushed - self._dispatched(),
            dispatch_lag_max=config.dispatch_lag_max,
            on_appended=lambda queues, end: self._appended(puller, queues, end),
            on_clock_step=self._clock_stepped,
            on_fault=self._flusher.fail,
        )
        state_log.connect(append, self._flusher)
        index = IndexReader(store.directory, self._reader)
        queries = Queries(self._reader, self._queues, index, self._dispatched, views.is_shown)
        sends = Sends(
            append,
            self._flusher,
            topics,
            self._clock,
            self._metrics,
            self._host,
            self._committer,
            delay_levels_ms=config.store.delay_levels_ms,
        )
        consuming = Consuming(
            Foundation(
                config,
                self._clock,
                self._metrics,
                self._host,
                self._health,
                store.directory,
                self._positions,
                state,
                state_log,
                self._appender,
                self._files,
                append,
                self._flusher,
                offsets,
                topics,
                views,
                puller,
                queries,
                index,
                self._queues,
                self._reader,
                dispatched=self._dispatched,
                confirmed=lambda: PhysicalOffset(self._positions.get(store.confirm_slot)),
                ring_reput=lambda: self._doorbell.ring(REPUT),
            ),
            on_group_change=lambda: config_files.groups_changed(),
        )
        config_files = ConfigFiles(
            store.directory,
            state,
            topics,
            consuming.offsets,
            lambda: state_log.delay_now(),
            self._clock,
            flushed=lambda: self._appender.flushed,
        )

        def topics_changed() -> None:
            config_files.topics_changed()
            consuming.groups.coordinator.topics_changed()

        opening = Opening(
            state,
            state_log,
            config_files,
            topics,
            consuming.offsets,
            flushed=lambda: self._appender.flushed,
            foreign=self._foreign_range(),
        )
        parts = Parts(
            sends,
            puller,
            queries,
            views,
            consuming.configs,
            consuming.groups,
            consuming.views,
            consuming.send_back,
            consuming.redrive,
            consuming.tracer,
            consuming.delayed,
            consuming.retention,
        )
        return Built(parts, append, consuming, state_log, config_files, opening)

    def _foreign_range(self) -> ForeignRange | None:
        """What recovery says that RocketMQ wrote."""
        start, end = (self._positions.get(slot) for slot in (Slot.FOREIGN_FROM, Slot.FOREIGN_UNTIL))
        return ForeignRange(start, end) if end else None

    async def _catch_up(self, stop: asyncio.Event, gate: Gate, api: Api) -> bool:
        """Wait until the queues cover the recovered log; False if stopped before.

        On a disk that takes no writes this may take until somebody makes room: reads open on what
        the queues cover. Sends do not: the state is not known to its end.
        """
        positions, end = self._positions, self._store.recovered.end
        begin: int | None = None
        while not stop.is_set():
            dispatched = self._dispatched()
            follows = positions.get(Slot.REPUT_GENERATION) == positions.get(Slot.GENERATION)
            unwritable = self._store.unwritable
            if dispatched >= end and (follows or unwritable is not None):
                self._health.clear_reason("catching-up")
                gate.reads_open, gate.send_fault = False, unwritable
                return True
            if unwritable is not None and not gate.reads_open:
                log.warning(
                    "reads end before the end of the log: the disk takes no writes",
                    extra={"event": "short-queues", "dispatched": dispatched, "end": end},
                )
                api.parts = (await self._build()).parts
                gate.reads_open, gate.send_fault = True, unwritable
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

    def _close_clean(self) -> None:
        self._appender.close(clean=True)
        self._store.stopped_clean()

    def _appended(self, puller: Puller, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        self._flusher.appended()
        if puller.held.appended(queues, end):
            self._doorbell.wake()  # to poll often until it is dispatched
        if self._committer is not None:
            self._committer.appended()
        else:
            self._written()

    def _clock_stepped(self, step_ms: int) -> None:
        self._metrics.clock_steps.inc()
        log.warning(
            "the wall clock stepped back; store times follow it, look-ups by time may be inexact",
            extra={"event": "clock-step", "step_ms": step_ms, "pid": os.getpid()},
        )
