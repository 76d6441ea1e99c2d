"""Figure 8: durable appends of 128 B in process, without HTTP; messages per fdatasync."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Final, NamedTuple, cast

import uvloop

from bench.harness import Figure, Options, Result, Series, benchmark, interleave
from bench.servers import SERVER_CORE, pin_to, settle, work_dir
from bench.stores import HOST, OpenStore
from services.broker.config import BrokerConfig
from services.broker.log.append import Append
from services.broker.log.dispatch_lag import DispatchLag
from services.broker.log.flusher import Flusher, FlushIntervals
from services.broker.log.log_context import LogContext
from services.broker.log.preallocator import Preallocator
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.term import EndlessTerm
from services.broker.metrics import BrokerMetrics
from services.broker.read.long_polls import LongPolls
from services.broker.state.state_log import StateLog
from shared.files.commit_log_appender import CommitLogAppender
from shared.metrics.catalogue.log import LOG_GROUP_COMMIT_REQUESTS
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.clock import SystemClock
from tidemark.formats import batch, native, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue

WINDOWS: Final = 6
"""Number of parts of the long run: the medians of its first and last half are compared."""
WAITERS: Final = (1, 16, 64)
GOALS: Final = {1: 5_000.0, 16: 30_000.0, 64: 80_000.0}
THREAD_GOAL: Final = 7_000.0
PER_FLUSH_GOAL: Final = 16.0
STEADY_GOAL: Final = 0.95
"""Last half over first half; allows for the variation of a virtual machine's disk."""
BODY_SIZE: Final = 128
TIMEOUT_S: Final = 60.0
WARM_UP_TIMEOUT_S: Final = 120.0
SIZES: Final = (16, 128, 1024, 4096)
TOPIC: Final = "orders"


def entry(body_size: int) -> bytes:
    """Encode one message with tags, a key and a unique id, as in a produce request."""
    named = {"TAGS": "new", "KEYS": "order-1", "UNIQ_KEY": "7F" * 16}
    return batch.encode([WireMessage(bytes(body_size), properties.encode(named))])


class Rate(NamedTuple):
    per_second: float
    per_flush: float
    """Number of messages acknowledged by one fdatasync."""
    windows: list[float]
    """The rate in each of WINDOWS equal parts of the run."""


class StandaloneLog:
    """The parts that ``Append`` needs if the log is not read, dispatched or replicated."""

    term = EndlessTerm()
    committer = None
    host = HOST

    def __init__(
        self, config: BrokerConfig, appender: CommitLogAppender, metrics: BrokerMetrics
    ) -> None:
        self.config, self.appender, self.metrics = config, appender, metrics
        self.clock = SystemClock()
        self.store = SimpleNamespace(last_store_timestamp_ms=0)
        pace = FlushIntervals(config.flush_interval_ms / 1000)
        self.flusher = Flusher(appender, pace, self.clock, metrics, on_flushed=lambda: None)
        self.durability = self.flusher
        self.flushed = lambda: appender.flushed
        self.files = Preallocator(
            appender.prepare_next,
            appender,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=lambda failure: None,
        )

    def append(self) -> Append:
        return Append(
            cast(LogContext, self), QueueOffsets({}), cast(StateLog, _NoSnapshots()), LongPolls()
        )

    def dispatched(self) -> PhysicalOffset:
        return self.appender.flushed

    def dispatch_lag(self) -> DispatchLag:
        flushed = self.appender.flushed
        return DispatchLag(flushed=flushed, confirmed=flushed, dispatched=flushed)

    def appended(self, long_polls: LongPolls, queues: Iterable[Queue], end: PhysicalOffset) -> None:
        self.flusher.appended()

    def clock_stepped(self, step_ms: int) -> None:
        pass


class _NoSnapshots:
    def snapshot(self) -> list[Run]:
        return []


class Log:
    """An empty store on the measured disk, appended to like in the broker."""

    def __init__(self, root: Path, *, warm_up: bool) -> None:
        """warm_up: the broker's setting ``warm_up_files``; the files are ready on return."""
        self._config = BrokerConfig(store_dir=root / "store", warm_up_files=warm_up)
        self._config.store_dir.parent.mkdir(parents=True, exist_ok=True)
        store = OpenStore(self._config.store_dir, self._config.store, warm_up=warm_up)
        self._positions, self.appender = store.positions, store.appender
        self.appender.ensure_next(WARM_UP_TIMEOUT_S)
        self._clock = SystemClock()

    def close(self) -> None:
        self.appender.close(clean=True)
        self._positions.close()

    def run_of(self, raw: bytes) -> Run:
        return Run(TOPIC, 0, raw, 1, HOST, HOST, self._clock.wall_ms())

    def from_thread(self, raw: bytes, seconds: float) -> float:
        """Append and flush alternately without a loop; return durable appends per second."""
        appender, clock = self.appender, self._clock
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            appender.append([self.run_of(raw)], [done], clock.wall_ms())
            appender.flush()
            done += 1
        rate = done / (time.perf_counter() - began)
        appender.ensure_next(WARM_UP_TIMEOUT_S)
        return rate

    def on_loop(self, raw: bytes, waiters: int, seconds: float) -> Rate:
        """Let the waiters append and wait for the disk, each with one message at a time."""
        return uvloop.run(self._on_loop(raw, waiters, seconds))

    async def _on_loop(self, raw: bytes, waiters: int, seconds: float) -> Rate:
        registry = Registry("broker")
        log_context = StandaloneLog(self._config, self.appender, BrokerMetrics(registry))
        append, flusher, clock = log_context.append(), log_context.flusher, log_context.clock
        stop = asyncio.Event()
        parts = [asyncio.create_task(part.run(stop)) for part in (flusher, log_context.files)]
        await log_context.files.wait()
        collector.settle()
        counts = [0] * WINDOWS
        began = clock.monotonic()

        async def sender() -> None:
            while (now := clock.monotonic()) < began + seconds:
                appended = await append.append([self.run_of(raw)])
                if not await flusher.durable(appended.end, now + TIMEOUT_S):
                    raise TimeoutError(f"{TIMEOUT_S} s without an answer of the disk")
                window = int((now - began) / seconds * WINDOWS)
                counts[window] += 1

        await asyncio.gather(*(sender() for _ in range(waiters)))
        took_s = clock.monotonic() - began
        flushes = registry.get_sample_value(f"{LOG_GROUP_COMMIT_REQUESTS.name}_count")
        stop.set()
        await asyncio.gather(*parts)
        gc.unfreeze()
        done = sum(counts)
        return Rate(done / took_s, done / (flushes or 1), [n * WINDOWS / seconds for n in counts])


class Bare:
    """A preallocated file of the log's size for plain pwrite and fdatasync."""

    def __init__(self, path: Path) -> None:
        self._size = BrokerConfig().store.commit_log_file_size
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._descriptor, 0, self._size)
        self._at = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def rate(self, data: bytes, messages: int, seconds: float) -> float:
        """Messages per second if each step writes and syncs data, which contains ``messages``."""
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            if self._at + len(data) > self._size:
                self._at = 0
            os.pwrite(self._descriptor, data, self._at)
            os.fdatasync(self._descriptor)
            self._at += len(data)
            done += messages
        return done / (time.perf_counter() - began)


def main(given: Options) -> Result:
    seconds = given.pick(3.0, quick=0.5)
    pin_to(SERVER_CORE)
    with ExitStack() as opened:
        root = work_dir("durable")
        opened.callback(shutil.rmtree, root)
        log = opened.enter_context(closing(Log(root / "warm", warm_up=True)))
        cold = opened.enter_context(closing(Log(root / "cold", warm_up=False)))
        bare = opened.enter_context(closing(Bare(root / "bare")))
        raw = entry(BODY_SIZE)
        record = bytes(native.runs_size([log.run_of(raw)], record_crc=True))
        seen: dict[int, list[Rate]] = {waiters: [] for waiters in WAITERS}

        def on_loop(waiters: int) -> float:
            settle()
            rate = log.on_loop(raw, waiters, seconds)
            seen[waiters].append(rate)
            return rate.per_second

        def by_default(waiters: int) -> float:
            settle()
            return cold.on_loop(raw, waiters, seconds).per_second

        def beneath(waiters: int) -> float:
            return bare.rate(record * waiters, waiters, seconds)

        jobs: dict[str, Callable[[], float]] = {
            "thread": lambda: log.from_thread(raw, seconds),
            **{f"loop {waiters}": partial(on_loop, waiters) for waiters in WAITERS},
            "cold thread": lambda: cold.from_thread(raw, seconds),
            **{f"cold {waiters}": partial(by_default, waiters) for waiters in WAITERS},
            **{f"bare {waiters}": partial(beneath, waiters) for waiters in WAITERS},
        }
        found = interleave(jobs, given.runs)
        long_seconds = given.pick(60.0, quick=3.0)
        long = log.on_loop(raw, WAITERS[-1], long_seconds)
        series = []
        if not given.quick:
            lines = {
                f"{waiters} waiting": [
                    (size, log.on_loop(entry(size), waiters, seconds).per_second) for size in SIZES
                ]
                for waiters in WAITERS
            }
            title = "Durable appends in process, by senders waiting at a time"
            series = [Series("durable", title, "bytes of body", "messages/s", lines)]
    first, last = median(long.windows[: WINDOWS // 2]), median(long.windows[WINDOWS // 2 :])
    window_s = long_seconds / WINDOWS
    many, thread, cold_files = WAITERS[-1], "one waiter, from a thread", "files not warmed up"
    rows = [
        ("thread", 1, thread, THREAD_GOAL),
        *((f"loop {n}", n, f"{n} waiting on the loop", GOALS[n]) for n in WAITERS),
        ("cold thread", 1, f"{thread}, {cold_files}", None),
        *((f"cold {n}", n, f"{n} waiting on the loop, {cold_files}", None) for n in WAITERS),
    ]
    figures = []
    for job, waiters, how, goal in rows:
        what, bare_rates = f"durable appends of {BODY_SIZE} B, {how}", found[f"bare {waiters}"]
        baseline = f"bare pwrite + fdatasync, {waiters} records at a time"
        figures.append(Figure(what, "messages/s", found[job], goal, baseline, bare_rates))
    per_flush = [rate.per_flush for rate in seen[many][-given.runs :]]
    waiting = f"{many} waiting for {long_seconds:.0f} s"
    in_each = f"{waiting}, in each {window_s:.3g} s"
    figures += [
        Figure(f"messages per fdatasync, {many} waiting", "messages", per_flush, PER_FLUSH_GOAL),
        Figure(in_each, "messages/s", long.windows, GOALS[many]),
        Figure(f"{waiting}, last half against first", "×", [last / first], STEADY_GOAL),
    ]
    notes = [f"{in_each}: {', '.join(f'{rate:,.0f}' for rate in long.windows)} messages/s"]
    method = f"""
        The broker's own Append and Flusher, or from a thread the appender alone, on one core
        and a real file system; records of {len(record)} B (body of {BODY_SIZE} B, tags, one
        key, a unique id, record CRC) in log files of {
        BrokerConfig().store.commit_log_file_size >> 20
    } MiB whose blocks are reserved and, unless stated otherwise, which were warmed up
        (the broker's setting warm_up_files, off by default: a flush then waits for no change of
        the file's extents). Every waiter sends its next message when the last one is on disk.
        Runs of {seconds:g} s, jobs interleaved with bare pwrite + fdatasync of the same bytes,
        as many records at a time as senders wait."""
    return Result(figures, method, series=series, notes=notes)


if __name__ == "__main__":
    benchmark(main)
