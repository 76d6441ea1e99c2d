"""The broker as a whole: opens the store, builds the parts, runs them, closes them in reverse.

The API port listens from the start and says how far the start is. In order: locks, recovery in a
thread, the log opened for appending, the wait until reput has dispatched the recovered log, the
state replayed, then everything is served. Damage keeps the node up and unready; a full or read-only
disk keeps it up and reading; a failed flush, or a part that ends, ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from services.broker.append import Append
from services.broker.config import BrokerConfig
from services.broker.connections import BoundedServer
from services.broker.files_ahead import FilesAhead
from services.broker.flusher import Flusher, Pace
from services.broker.gate import Gate
from services.broker.http_api import Api, Parts
from services.broker.messages import Rules
from services.broker.metrics import BrokerMetrics
from services.broker.open_store import OpenStore
from services.broker.produce import Sends
from services.broker.pull import Puller
from services.broker.query import Queries
from services.broker.queue_offsets import Queue
from services.broker.state_log import StateLog, next_offsets, replay
from services.broker.topic_file import TopicFile
from services.broker.topic_views import TopicViews
from services.broker.topics import Topics
from services.broker.unique_ids import UniqueIds
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.files.os_disk import OsDisk
from shared.runtime.clock import SystemClock
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import run_parts, stop_on_signals
from shared.runtime.metrics import new_registry
from tidemark import __version__
from tidemark.errors import CorruptRecord, DamagedFile, ReplacedPositions, StoreError
from tidemark.formats.checkpoint import BrokerState, Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

SERVICE = "broker"
REPUT = "reput"
HEARTBEAT_S = 0.5
CATCH_UP_POLL_S = 0.02
PAGE_SIZE = 4096
ALONE_EPOCH = 1
"""What a node alone says it appends under: 0 would mean that it does not append."""


async def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or until a part fails."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    await Broker(config, stop).run()


class Broker:
    """One broker process."""

    def __init__(self, config: BrokerConfig, stop: asyncio.Event) -> None:
        self._config = config
        self._stop = stop
        self._clock = SystemClock()
        self._health = Health(self._clock)
        self._gate = Gate(self._health)
        self._registry = new_registry(SERVICE, __version__)
        self._metrics = BrokerMetrics(self._registry)

    async def run(self) -> None:
        """Everything, from the locks to the locks."""
        config = self._config
        disk = OsDisk()
        async with AsyncExitStack() as closing:
            store = await asyncio.to_thread(OpenStore.open, config, disk, self._clock)
            closing.callback(store.close)
            doorbell = Doorbell(config.sockets_dir, SERVICE)
            closing.callback(doorbell.close)
            self._add_store_metrics(store)
            api = self._api()
            server = BoundedServer(
                api.app,
                self._metrics,
                connections_max=config.connections_max,
                read_timeout_s=config.read_timeout_s,
                idle_timeout_s=config.idle_timeout_s,
                write_timeout_s=config.write_timeout_s,
            )
            self._metrics.read(
                "tidemark_broker_connections",
                "Open client connections.",
                lambda: server.connections,
            )
            admin = AdminServer(
                self._health, self._registry, host=config.admin_host, port=config.admin_port
            )
            await closing.enter_async_context(admin)
            await server.start(config.host, config.port)
            closing.push_async_callback(server.close)
            log.info(
                "listening",
                extra={
                    "event": "listening",
                    "api": f"http://{config.host}:{server.port}",
                    "admin": f"http://{config.admin_host}:{admin.port}",
                    "store": str(config.store_dir),
                },
            )
            watch = Watch(store, self._health, self._stop, config.dispatch_lag_max)
            await run_parts(
                self._stop,
                {
                    "serve": lambda: self._serve(store, doorbell, api, server, watch),
                    "watch": watch.run,
                },
            )

    def _api(self) -> Api:
        config = self._config
        return Api(
            self._gate,
            Rules(config.message_size_max, config.store.record_crc),
            self._clock,
            self._metrics,
            UniqueIds(self._clock, config.store_host(config.port)),
            request_size_max=config.request_size_max,
            waiting_bytes_max=config.waiting_bytes_max,
            read_timeout_s=config.read_timeout_s,
            delay_levels_ms=config.store.delay_levels_ms,
            version=__version__,
        )

    # -- start ----------------------------------------------------------------------------------

    async def _serve(
        self,
        store: OpenStore,
        doorbell: Doorbell,
        api: Api,
        server: BoundedServer,
        watch: Watch,
    ) -> None:
        """Recover, build, run until stop; a damaged log waits for somebody to repair it."""
        self._health.state = "recovering"
        store.positions.publish(Slot.BROKER_STATE, BrokerState.RECOVERING)
        try:
            await store.recover(self._health.recovery.progress, self._stop)
        except CorruptRecord as error:
            await self._stay_unready(store, error)
            return
        if self._stop.is_set():
            return
        self._log_recovered(store)
        doorbell.ring(REPUT)
        serving = Serving(
            self._config, self._clock, self._metrics, self._health, store, doorbell, server.port
        )
        await asyncio.to_thread(serving.start_appender)
        try:
            await serving.run(self._stop, self._gate, api, server, watch)
        except StateNotRead as error:
            await self._stay_unready(store, error.fault)

    async def _stay_unready(self, store: OpenStore, error: CorruptRecord | DamagedFile) -> None:
        log.error(
            "the store is damaged; nothing was cut, nothing is served",
            extra={"event": "corrupt", "code": error.code, "detail": error.detail, **error.facts},
        )
        self._gate.shut()
        self._gate.fault = error
        self._health.add_reason(error.code, f"{error.detail} {error.advice}")
        self._health.state = "unready"
        store.positions.publish(Slot.BROKER_STATE, BrokerState.UNREADY)
        await self._stop.wait()

    def _log_recovered(self, store: OpenStore) -> None:
        recovered = store.recovered
        log.info(
            "recovered",
            extra={
                "event": "recovered",
                "end": recovered.end,
                "min_offset": recovered.min_offset,
                "walked_bytes": recovered.walked_bytes,
                "generation": recovered.generation,
                "queues": len(recovered.next_queue_offsets),
            },
        )
        if recovered.cut is not None:
            log.warning(
                "a torn tail was cut and kept aside",
                extra={
                    "event": "tail-cut",
                    "start": recovered.cut.start,
                    "end": recovered.cut.end,
                    "path": str(recovered.cut.path),
                    "reason": recovered.cut.reason,
                },
            )

    def _add_store_metrics(self, store: OpenStore) -> None:
        read, positions, recovery = self._metrics.read, store.positions, self._health.recovery
        for name, definition, slot in (
            ("min", "Lowest physical offset still in the log.", Slot.MIN),
            ("max", "Physical offset behind the last appended byte.", Slot.WRITTEN),
            ("flushed", "Physical offset up to which bytes are on disk.", Slot.FLUSHED),
            ("dispatched", "Physical offset up to which queues and index cover.", Slot.DISPATCHED),
        ):
            read(
                f"tidemark_log_{name}_offset_bytes",
                definition,
                lambda slot=slot: positions.get(slot),  # type: ignore[misc]
            )
        read(
            "tidemark_log_confirm_offset_bytes",
            "Physical offset up to which consumers may see; of a node alone, what is on disk.",
            lambda: positions.get(store.confirm_slot),
        )
        read("tidemark_broker_ready", "1 while /ready says 200.", lambda: int(self._health.ready))
        read(
            "tidemark_recovery_done_bytes",
            "Bytes of log that recovery, then dispatch, has passed since the start.",
            lambda: recovery.done_bytes,
        )
        read(
            "tidemark_recovery_total_bytes",
            "Bytes of log that recovery, then dispatch, has to pass.",
            lambda: recovery.total_bytes,
        )
        read(
            "tidemark_recovery_eta_seconds",
            "Estimated time left of it; NaN while unknown.",
            lambda: eta if (eta := recovery.eta_seconds()) is not None else float("nan"),
        )
        read(
            "tidemark_store_free_bytes",
            "Free bytes of the file system that holds the store.",
            lambda: store.directory.disk.free_bytes(store.directory.root),
        )


class Watch:
    """Twice a second: heartbeat, and what must not be true of a running node."""

    def __init__(
        self, store: OpenStore, health: Health, stop: asyncio.Event, dispatch_lag_max: int
    ) -> None:
        self._dispatch_lag_max = dispatch_lag_max
        self._store = store
        self._health = health
        self._stop = stop
        self._clock = health.clock
        self.queues: ConsumeQueues | None = None
        """Told to look anew when reput has begun anew."""
        self._reput: tuple[int, int] | None = None

    async def run(self) -> None:
        """Until stop. Raises ReplacedPositions."""
        positions = self._store.positions
        while not self._stop.is_set():
            positions.publish(Slot.BROKER_HEARTBEAT_MS, self._clock.boot_ms())
            if not positions.is_current():
                raise ReplacedPositions(
                    f"{positions.path} is no longer the file that this process has mapped. What "
                    "was acknowledged is on disk.",
                    "Start the node's processes again; do not replace files of a running node.",
                    path=positions.path,
                )
            self._judge_dispatch()
            reput = (positions.get(Slot.REPUT_PID), positions.get(Slot.REPUT_GENERATION))
            if self._reput != reput:
                self._reput = reput
                if self.queues is not None:
                    self.queues.forget()  # its files may have been made anew
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._stop.wait()
            except TimeoutError:
                continue

    def _judge_dispatch(self) -> None:
        """Be unready while sends are refused because dispatch is too far behind."""
        if self._health.state != "serving":
            return
        behind = self._store.positions.get(Slot.FLUSHED) - self._store.dispatched
        if behind > self._dispatch_lag_max:
            self._health.add_reason(
                "dispatch-behind",
                f"{behind} bytes are not dispatched, {self._dispatch_lag_max} are allowed; see "
                "reput's /ready",
            )
        else:
            self._health.clear_reason("dispatch-behind")


class Built(NamedTuple):
    """The parts that know the replayed state."""

    parts: Parts
    append: Append
    state_log: StateLog
    topic_file: TopicFile
    state_known: bool


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
        clock: SystemClock,
        metrics: BrokerMetrics,
        health: Health,
        store: OpenStore,
        doorbell: Doorbell,
        port: int,
    ) -> None:
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
        self._appender = CommitLogAppender(store.directory, store.positions)
        self._files = FilesAhead(
            self._prepare,
            lambda: self._appender.written,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=self._writes_changed,
        )
        self._rings_at_append = config.store.visible_after == "written"
        self._flusher = Flusher(
            self._appender, self._pace(), clock, metrics, on_flushed=self._flushed
        )

    def _pace(self) -> Pace:
        config = self._config
        if config.store.visible_after == "flushed":
            return Pace(config.flush_interval_ms / 1000)
        return Pace(
            config.interval_flush_ms / 1000,
            config.interval_flush_pages * PAGE_SIZE,
            config.interval_flush_thorough_ms / 1000,
        )

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
        if not self._rings_at_append:
            self._doorbell.ring(REPUT)

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

        async def open_and_close() -> None:
            gate.reads_open = True
            await built.topic_file.take_over(state_known=built.state_known, stop=stop)
            gate.sends_open = True
            self._health.state = "serving"
            self._positions.publish(Slot.SERVING_EPOCH, ALONE_EPOCH)
            self._positions.publish(Slot.BROKER_STATE, BrokerState.SERVING)
            # What was made so far lives as long as the process: the collector need not look at it.
            gc.collect()
            gc.freeze()
            log.info("serving", extra={"event": "ready"})
            await stop.wait()
            gate.shut()
            self._health.state = "stopping"
            built.append.close()
            built.parts.puller.held.close()
            await server.close()
            flush_stop.set()

        try:
            await run_parts(
                stop,
                {
                    "flusher": lambda: self._flusher.run(flush_stop),
                    "files-ahead": lambda: self._files.run(stop),
                    "pulls": lambda: built.parts.puller.run(stop, self._doorbell),
                    "snapshots": lambda: built.state_log.run(stop),
                    "topic-file": lambda: built.topic_file.run(stop),
                    "door": open_and_close,
                },
            )
        except BaseException:
            self._positions.publish(Slot.SERVING_EPOCH, 0)
            self._appender.close(clean=False)
            raise
        self._positions.publish(Slot.SERVING_EPOCH, 0)
        await asyncio.to_thread(self._close_clean)

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
        )
        topics = Topics(
            state,
            state_log,
            offsets,
            flushed=lambda: self._appender.flushed,
            queues_in_store={*store.directory.queues(), *store.recovered.next_queue_offsets},
            auto_create_queues=config.auto_create_queues if config.auto_create_topics else None,
            on_change=lambda: topic_file.changed(),
        )
        topic_file = TopicFile(store.directory, topics, self._clock, lambda: self._appender.flushed)
        views = TopicViews(
            topics,
            self._queues,
            self._reader,
            self._dispatched,
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
            written=lambda: self._appender.written,
            held_max=config.held_pulls_max,
        )
        append = Append(
            self._appender,
            offsets,
            self._files,
            self._clock,
            self._metrics,
            file_size=config.store.commit_log_file_size,
            record_crc=config.store.record_crc,
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
        queries = Queries(
            self._reader,
            self._queues,
            IndexReader(store.directory, self._reader),
            self._dispatched,
            views.is_shown,
        )
        sends = Sends(append, self._flusher, topics, self._clock, self._metrics, self._host)
        parts = Parts(sends, puller, queries, views)
        return Built(parts, append, state_log, topic_file, state.is_known)

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
                gate.reads_open, gate.send_fault = False, None
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

    def _appended(self, puller: Puller, queues: Sequence[Queue], end: PhysicalOffset) -> None:
        self._flusher.appended()
        if puller.held.appended(queues, end):
            self._doorbell.wake()  # to poll often until it is dispatched
        if self._rings_at_append:
            self._doorbell.ring(REPUT)

    def _clock_stepped(self, step_ms: int) -> None:
        self._metrics.clock_steps.inc()
        log.warning(
            "the wall clock stepped back; store times follow it, look-ups by time may be inexact",
            extra={"event": "clock-step", "step_ms": step_ms, "pid": os.getpid()},
        )
