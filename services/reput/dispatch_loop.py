"""The main loop of reput: follow the published end, sync, retry, and detect a recovered log.

This is the only place where dispatch meets time and the event loop. Small steps run on the loop
itself, for low latency. Longer steps run in one worker thread, so that /live responds during a long
catch-up. Syncs run in another thread, concurrently with dispatch. There is never more than one step
or one sync at a time.

Read path, step 1: the broker rings the doorbell after FLUSHED moved, in a group ha after CONFIRM
moved; reput rings the broker's after DISPATCHED moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from services.reput.config import ReputConfig
from services.reput.metrics import ReputMetrics
from services.reput.open_store import OpenStore
from services.reput.pace import Pace
from services.reput.resume import QueueMode
from services.reput.sync_job import SyncJob
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.traced_ranges import TracedRange, TracedRanges
from tidemark.errors import (
    DamagedFile,
    FlushFailed,
    OutOfResources,
    ReplacedPositions,
    StoreError,
    code_of,
)
from tidemark.formats.checkpoint import Slot, Trouble
from tidemark.formats.native import COMPILED

log = logging.getLogger(__name__)
T = TypeVar("T")

BROKER: Final = "broker"
INLINE_SIZE: Final = 2 << 20 if COMPILED else 64 * 1024
"""Bytes of log dispatched on the loop: about a millisecond. A thread switch would add to that."""
SYNC_THREADS: Final = 4
SYNC_ALONE_MAX: Final = 4
"""Up to this number of touched files is synced by one thread."""
WATCH_INTERVAL_S: Final = 0.5
CLEAN_INTERVAL_S: Final = 0.1
"""Interval of checks for expired files that cannot be removed yet."""
BUSY_FOR_S: Final = 0.05
"""Duration of fast polling after data was found."""


class DispatchLoop:
    """Dispatches until stopped. One task runs ``run``."""

    def __init__(
        self,
        config: ReputConfig,
        store: OpenStore,
        doorbell: Doorbell,
        health: Health,
        metrics: ReputMetrics,
        traced: TracedRanges,
    ) -> None:
        self._config = config
        self._store = store
        self._dispatcher = store.dispatcher
        self._positions = store.positions
        self._doorbell = doorbell
        self._health = health
        self._metrics = metrics
        self._clock = health.clock
        self._worker = ThreadPoolExecutor(1, "dispatch")
        self._syncer = ThreadPoolExecutor(1, "sync")
        self._sync_helpers = ThreadPoolExecutor(SYNC_THREADS, "sync-file")
        self._sync: asyncio.Future[float] | None = None
        self._sync_job: SyncJob | None = None
        self._synced_at = self._watched_at = self._clock.monotonic()
        self._queues_watched_at = self._watched_at
        self._synced_position = 0
        self._generation = 0
        self._begin_at = self._begin_end = 0
        self._blocked: str | None = None
        self._unremovable = False
        self._unit_check: int | None = None
        """The request (``Slot.UNIT_CHECK_COUNT``) that is being processed."""
        self._unit_check_at = 0.0
        self._unmended: str | None = None
        """Error code of the reason that a damaged unit cannot be replaced."""
        self._clean_at = self._synced_at
        self._pace = Pace()
        self._traced = traced

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the log, resume, follow; after stop dispatch the rest, sync and return.

        Raises FlushFailed and ReplacedPositions, and DamagedFile if a queue file was removed; the
        next start rebuilds it. A damaged log does not raise: the process stays up but unready, and
        reports the location.
        """
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self._doorbell.wake())
        try:
            if await self._begin(stop):
                await self._follow(stop)
                await self._finish()
        finally:
            stopping.cancel()
            self._worker.shutdown(wait=True)
            self._syncer.shutdown(wait=True)
            self._sync_helpers.shutdown(wait=True)

    # -- beginning ----------------------------------------------------------------------------

    async def _begin(self, stop: asyncio.Event) -> bool:
        """Wait until the log is recovered, then resume; return False if stopped first."""
        while not stop.is_set():
            self._watch()  # also while the disk prevents a resume, because ha may empty the store
            if self._store.is_recovered:
                self._health.clear_reason("waiting-for-recovery")
                self._store.mark_running()
                if await self._resume():
                    return True
                await self._wait(self._config.retry_interval_ms / 1000)
                continue
            self._health.add_reason(
                "waiting-for-recovery",
                "no process that is up has recovered the log yet: check that "
                f"{self._config.recovered_by} runs",
            )
            await self._wait(self._config.idle_poll_ms / 1000)
        return False

    async def _resume(self) -> bool:
        """Resume in the worker; return False if the disk does not allow it yet."""
        await self._end_sync()
        self._health.enter("recovering")
        generation = self._positions.get(Slot.GENERATION)
        try:
            resumed = asyncio.ensure_future(self._in_worker(self._dispatcher.resume))
            while not (await asyncio.wait({resumed}, timeout=WATCH_INTERVAL_S))[0]:
                self._watch()  # it may take minutes, without being a stall
            decision = resumed.result()
        except (StoreError, OSError) as error:
            self._note_blocked(error)
            return False
        self._note_free()
        self._generation = generation
        self._unit_check = None  # the log may be a different one, so the comparison starts again
        self._synced_position = self._dispatcher.position
        is_usual = decision.queue_mode is not QueueMode.REBUILD
        level = logging.INFO if is_usual else logging.WARNING
        log.log(
            level,
            "resuming dispatch at %d: %s",
            self._dispatcher.position,
            decision.reason,
            extra={
                "event": "resumed",
                "position_offset": self._dispatcher.position,
                "dispatched_offset": self._dispatcher.dispatched,
                "end_offset": self._dispatcher.end,
                "queues": decision.queue_mode.value,
                "index": decision.index_mode.value,
                "generation": generation,
            },
        )
        self._begin_at, self._begin_end = self._dispatcher.position, self._dispatcher.end
        self._health.recovery.progress(0, max(0, self._begin_end - self._begin_at))
        self._doorbell.ring(BROKER)
        return True

    # -- following ----------------------------------------------------------------------------

    async def _follow(self, stop: asyncio.Event) -> None:
        busy_until = 0.0
        while not stop.is_set():
            self._watch()
            if not await self._follow_generation():
                await self._wait(self._config.retry_interval_ms / 1000)
                continue
            done = await self._step()
            await self._watch_queues()
            await self._clean()
            await self._check_units()
            self._note_progress()
            if self._traced:
                self._traced.reached(self._dispatcher.dispatched, _log_dispatched)
            await self._sync_if_due()
            now = self._clock.monotonic()
            if done:
                busy_until = now + BUSY_FOR_S
            waiting = self._dispatcher.end - self._dispatcher.position if done else 0
            rest_s = self._pace.rest_s(now)
            if waiting > INLINE_SIZE or (waiting > 0 and not rest_s):
                await asyncio.sleep(0)  # let the loop answer probes between two steps
            elif rest_s:
                await self._doorbell.rest(rest_s)
            else:
                await self._wait(self._pause_s(now < busy_until))

    async def _wait(self, seconds: float) -> None:
        """Wait for the doorbell or a timeout, with heartbeats: without them, ha considers reput
        dead.
        """
        clock = self._clock.monotonic
        until = clock() + seconds
        while not await self._doorbell.wait(min(WATCH_INTERVAL_S, max(0.0, until - clock()))):
            if clock() >= until:
                return
            self._watch()

    def _pause_s(self, is_busy: bool) -> float:
        config = self._config
        if self._blocked is not None:
            return config.retry_interval_ms / 1000
        if is_busy and self._dispatcher.stopped is None:
            return config.busy_poll_ms / 1000
        return min(config.idle_poll_ms, config.sync_interval_ms) / 1000

    async def _step(self) -> int:
        """Do one step; return 0 if there was nothing to do or it failed."""
        dispatcher = self._dispatcher
        if dispatcher.stopped is not None:
            return 0
        waiting = dispatcher.end - dispatcher.position
        if waiting <= 0 and not dispatcher.is_catching_up:
            return 0
        before, started = dispatcher.dispatched, self._clock.monotonic()
        records = dispatcher.records_count
        try:
            if 0 < waiting <= INLINE_SIZE and not dispatcher.is_catching_up:
                done = dispatcher.step(INLINE_SIZE)
            else:
                size = self._config.step_size
                done = await self._in_worker(lambda: dispatcher.step(size))
        except (StoreError, OSError) as error:
            if dispatcher.stopped is not None:
                self._note_stopped(dispatcher.stopped)
            else:
                self._note_blocked(error)
            return 0
        self._note_free()
        if done:
            self._metrics.step_duration.observe(self._clock.monotonic() - started)
            self._pace.stepped(started, dispatcher.records_count - records)
        if dispatcher.dispatched != before:
            began = self._clock.monotonic()
            self._doorbell.ring(BROKER)
            self._metrics.notify.observe(self._clock.monotonic() - began)
        if done and dispatcher.took is not None:
            self._metrics.stepped(dispatcher.took, self._clock.wall_ms())
        return done

    async def _clean(self) -> None:
        """Remove some expired files; the rest follows after the next step."""
        self._dispatcher.release()
        now = self._clock.monotonic()
        if now < self._clean_at or not self._dispatcher.may_clean:
            return
        self._clean_at = now + CLEAN_INTERVAL_S
        try:
            removed = await self._in_worker(self._dispatcher.clean)
        except (StoreError, OSError) as error:
            self._note_unremovable(error)
            return
        if self._unremovable:
            self._unremovable = False
            log.info("files of expired records can be removed", extra={"event": "cleaning-goes-on"})
        if removed:  # there may be more
            self._clean_at = now
            self._doorbell.wake()

    async def _check_units(self) -> None:
        """Process part of a request to check a damaged unit; the rest follows after a step."""
        get, mending = self._positions.get, self._dispatcher.mending
        asked = get(Slot.UNIT_CHECK_COUNT)
        if asked == get(Slot.UNIT_CHECKED) >> 1:
            return
        if not self._dispatcher.may_mend:
            # the log itself is damaged, and the damage is reported
            if self._dispatcher.stopped is not None:
                self._positions.publish(Slot.UNIT_CHECKED, asked << 1)
            return
        if (now := self._clock.monotonic()) < self._unit_check_at:
            return
        if asked != self._unit_check:
            mending.begin(get(Slot.UNIT_CHECK_QUEUE), get(Slot.UNIT_CHECK_OFFSET))
            self._unit_check = asked
        end, size = self._dispatcher.position, self._config.step_size
        try:
            goes_on = await self._in_worker(lambda: mending.step(end, size))
        except DamagedFile:
            raise
        except (StoreError, OSError) as error:
            self._unit_check_at = now + WATCH_INTERVAL_S
            self._note_unmended(error)
            return
        if self._unmended is not None:
            self._health.clear_reason(self._unmended)
            self._unmended = None
        if goes_on:
            self._doorbell.wake()
            return
        if mending.replaced:
            topic, queue, number = mending.replaced[0]
            log.warning(
                "units of a consume queue were damaged and are rebuilt from the log",
                extra={
                    "event": "units-mended",
                    "topic": topic,
                    "queue": queue,
                    "queue_offset": number,
                    "units": len(mending.replaced),
                },
            )
        self._positions.publish(Slot.UNIT_CHECKED, asked << 1 | bool(mending.replaced))
        self._doorbell.ring(BROKER)

    def _note_unmended(self, error: StoreError | OSError) -> None:
        """Report that a damaged unit cannot be replaced: reads of it fail until it can."""
        self._unmended = code_of(error)
        if self._health.add_reason(
            self._unmended, f"a damaged queue unit cannot be replaced: {error}"
        ):
            log.error(
                "a damaged queue unit cannot be replaced; it is tried again and again",
                extra={"event": "mending-waits", "detail": str(error)},
            )

    def _note_unremovable(self, error: StoreError | OSError) -> None:
        """Report that files of expired records cannot be removed, which only costs disk space."""
        if not self._unremovable:
            self._unremovable = True
            log.error(
                "files of expired records cannot be removed; it is tried again and again",
                extra={"event": "cleaning-waits", "detail": str(error)},
            )

    async def _follow_generation(self) -> bool:
        """Detect a new recovery of the log; return False while the disk prevents resuming."""
        generation = self._positions.get(Slot.GENERATION)
        if generation == self._generation:
            return True
        if not self._store.is_recovered:
            return False
        if self._dispatcher.stopped is None and self._dispatcher.adopt_generation():
            self._generation = generation
            log.info(
                "the log was recovered; dispatch continues",
                extra={"event": "generation", "generation": generation},
            )
            self._doorbell.ring(BROKER)
            return True
        self._health.clear_reason("corrupt-record")
        self._health.clear_reason("queue-gap")
        return await self._resume()

    async def _watch_queues(self) -> None:
        """Check twice a second that the queue files exist. Raises DamagedFile."""
        now = self._clock.monotonic()
        if now >= self._queues_watched_at:
            self._queues_watched_at = now + WATCH_INTERVAL_S
            await self._in_worker(self._dispatcher.watch_queues)

    def _watch(self) -> None:
        """Twice a second, publish the heartbeat and check that the mapped page is still the
        store's.
        """
        now = self._clock.monotonic()
        if now < self._watched_at:
            return
        self._watched_at = now + WATCH_INTERVAL_S
        self._positions.publish(Slot.REPUT_HEARTBEAT_MS, self._clock.boot_ms())
        if not self._positions.is_current():
            raise ReplacedPositions(
                f"{self._positions.path} was replaced or overwritten. No record is affected.",
                "Start the node's processes again; do not replace files of a running node.",
                path=self._positions.path,
            )
        self._store.watch()

    # -- syncing ------------------------------------------------------------------------------

    async def _sync_if_due(self) -> None:
        """Start a sync when it is due; finish a completed one. Waits only if far behind."""
        if self._sync is not None:
            behind = self._dispatcher.position - self._synced_position
            if not self._sync.done() and behind < 2 * self._config.sync_bytes:
                return
            await self._end_sync()
        now = self._clock.monotonic()
        is_due = now - self._synced_at >= self._config.sync_interval_ms / 1000
        if is_due or self._dispatcher.position - self._synced_position >= self._config.sync_bytes:
            self._begin_sync(now)

    def _begin_sync(self, now: float) -> None:
        self._synced_at = now
        job = self._dispatcher.begin_sync()
        if job is None:
            return
        self._synced_position = self._dispatcher.position
        self._sync_job = job
        self._sync = asyncio.get_running_loop().run_in_executor(self._syncer, self._run_job, job)
        # Wake the loop when the sync ends, because DISPATCHED_DURABLE can move.
        self._sync.add_done_callback(lambda _: self._doorbell.wake())

    def _run_job(self, job: SyncJob) -> float:
        """Run in the sync thread; return the duration [s], because the loop updates metrics."""
        started = self._clock.monotonic()
        job.run(self._sync_helpers.map if len(job.files) > SYNC_ALONE_MAX else map)
        return self._clock.monotonic() - started

    async def _end_sync(self, *, is_last: bool = False) -> None:
        """Wait for the pending sync and publish what it made durable. Raises FlushFailed.

        If no file descriptor is available, the next sync includes the files, whose pages are still
        dirty. is_last: there is no next sync; raise OutOfResources in this case.
        """
        sync, job = self._sync, self._sync_job
        self._sync = self._sync_job = None
        if sync is None or job is None:
            return
        try:
            self._metrics.sync_duration.observe(await sync)
        except FlushFailed as failed:
            self._metrics.errors.labels(FlushFailed.code).inc()
            self._dispatcher.dispatched_mark.distrust_cache(failed.paths)
            raise
        except OutOfResources as error:
            self._metrics.errors.labels(error.code).inc()
            if is_last:
                raise
            self._dispatcher.dispatched_mark.give_back(job)
            if self._health.add_reason(error.code, f"a sync waits: {error}"):
                log.error(
                    "what was dispatched cannot be synced; it is tried again",
                    extra={"event": "sync-waits", "code": error.code, "detail": str(error)},
                )
            return
        if self._blocked != OutOfResources.code and self._health.clear_reason(OutOfResources.code):
            log.info("what was dispatched is synced", extra={"event": "sync-goes-on"})
        self._dispatcher.finish_sync(job)

    # -- ending -------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """After SIGTERM, dispatch the rest of the log for a limited time and sync a last time."""
        self._health.enter("stopping")
        deadline = self._clock.monotonic() + self._config.stop_timeout_s
        while self._clock.monotonic() < deadline and await self._step():
            pass
        await self._end_sync()
        self._begin_sync(self._clock.monotonic())
        await self._end_sync(is_last=True)
        log.info(
            "dispatch has stopped",
            extra={
                "event": "stopped",
                "dispatched_offset": self._dispatcher.dispatched,
                "durable_offset": self._dispatcher.dispatched_mark.offset,
                "end_offset": self._dispatcher.end,
            },
        )

    # -- reporting --------------------------------------------------------------------------------

    def _note_progress(self) -> None:
        health, dispatcher = self._health, self._dispatcher
        if health.state == "recovering":
            done = min(dispatcher.position, self._begin_end) - self._begin_at
            health.recovery.progress(max(0, done), max(0, self._begin_end - self._begin_at))
            if dispatcher.position >= self._begin_end and not dispatcher.is_catching_up:
                health.enter("serving")
                log.info(
                    "dispatching",
                    extra={"event": "ready", "dispatched_offset": dispatcher.dispatched},
                )

    def _note_stopped(self, error: StoreError) -> None:
        self._positions.publish(Slot.REPUT_TROUBLE, Trouble.DAMAGED)
        self._metrics.errors.labels(error.code).inc()
        self._health.add_reason(error.code, f"{error.detail} {error.advice}")
        log.error(
            "dispatch has stopped: %s",
            error,
            extra={"event": "dispatch-stopped", "code": error.code, **error.facts},
        )

    def _note_blocked(self, error: StoreError | OSError) -> None:
        """Report that a file cannot be created or extended; dispatch waits and tries again."""
        code = code_of(error)
        self._positions.publish(Slot.REPUT_TROUBLE, Trouble.DISK_FULL)
        self._metrics.errors.labels(code).inc()
        if self._blocked is not None and self._blocked != code:
            self._health.clear_reason(self._blocked)
        self._blocked = code
        if self._health.add_reason(code, f"dispatch waits: {error}"):
            log.error(
                "dispatch waits and tries again: %s",
                error,
                extra={"event": "dispatch-blocked", "code": code},
            )

    def _note_free(self) -> None:
        self._positions.publish(Slot.REPUT_TROUBLE, Trouble.NONE)
        if self._blocked is None:
            return
        self._health.clear_reason(self._blocked)
        log.info("dispatch continues", extra={"event": "dispatch-unblocked", "code": self._blocked})
        self._blocked = None

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _log_dispatched(traced: TracedRange) -> None:
    log.info(
        "messages are in their queues",
        extra={
            "event": "trace-dispatched",
            "trace": traced.trace,
            "start_offset": traced.start_offset,
            "end_offset": traced.end_offset,
        },
    )
