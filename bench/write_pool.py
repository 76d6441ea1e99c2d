"""Effect of write buffer pool, warm-up and memory lock of log files on appends."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from bench.harness import Figure, Options, Result, at_most, benchmark, interleave
from bench.servers import SERVER_CORE, pin_to, settle, work_dir
from bench.stores import IMPLEMENTATION, STORED_MS, OpenStore, drop_cache, message, run_of
from shared.files.commit_log import CommitLogAppender
from shared.files.store_config import StoreConfig
from tidemark.errors import FileNotReady
from tidemark.formats.runs import Run

FILE_SIZE: Final = 64 << 20
POOL_SIZE: Final = 16 << 20
GROUP: Final = 64
"""Number of senders that share one commit or flush."""
FLUSH_SIZE: Final = 1 << 20
"""Bytes per flush while whole files are filled."""
FILLED_FILES: Final = 6
QUICK: Final = 10
"""A quick run has this many times fewer steps."""


class Way(NamedTuple):
    pool_size: int = 0
    warm_up: bool = False
    lock_memory: bool = False


PLAIN: Final = "neither"
WAYS: Final = {
    PLAIN: Way(),
    "pool": Way(pool_size=POOL_SIZE),
    "warm-up": Way(warm_up=True),
    "lock": Way(lock_memory=True),
    "pool, warm-up and lock": Way(POOL_SIZE, warm_up=True, lock_memory=True),
}


class Trial:
    """A new store, written in one way. ``close`` removes it."""

    def __init__(self, way: Way, *, background: bool = False) -> None:
        """background: a thread creates files ahead, as in a broker; else they are created first."""
        self._root = work_dir("write-pool")
        config = StoreConfig(commit_log_file_size=FILE_SIZE)
        ahead = 2 if background else 1
        self._store = OpenStore(
            self._root, config, ahead=ahead, background=background, **way._asdict()
        )
        self.appender = self._store.appender
        self._number = 0
        self.append(one_message())
        self.appender.flush()
        locked = self.appender.files.locked
        if locked is not None and not background:
            locked.lock(0)
            if locked.refused is not None:
                raise locked.refused

    def append(self, run: Run) -> None:
        """Append a run; wait for the next file if necessary."""
        try:
            self.appender.append([run], [self._number], STORED_MS)
        except FileNotReady:
            self.appender.ensure_next()
            self.appender.append([run], [self._number], STORED_MS)
        self._number += run.message_count

    def close(self) -> None:
        self.appender.close(clean=True)
        self._store.positions.close()
        shutil.rmtree(self._root)


def one_message() -> Run:
    """Build a message of 128 bytes with tags, one key and a unique id."""
    return run_of([message(1, bytes(128), ("TAGS", "KEYS", "UNIQ_KEY"))])


def one_batch() -> Run:
    """Build 256 messages of 256 bytes with unique ids."""
    return run_of([message(1, bytes(256), ["UNIQ_KEY"])] * 256)


class Load(NamedTuple):
    steps: int
    messages: int
    """Messages per step."""
    step: Callable[[Trial], None]
    before: Callable[[Trial], None] | None = None
    """Runs before each step, without being timed."""


def _singles(count: int, after: Callable[[CommitLogAppender], object]) -> Callable[[Trial], None]:
    run = one_message()

    def step(trial: Trial) -> None:
        for _ in range(count):
            trial.append(run)
        after(trial.appender)

    return step


def _batches(after: Callable[[CommitLogAppender], object]) -> Callable[[Trial], None]:
    run = one_batch()

    def step(trial: Trial) -> None:
        trial.append(run)
        after(trial.appender)

    return step


def _flush_and_drop(trial: Trial) -> None:
    trial.appender.flush()
    drop_cache(trial.appender.files.path(0))


COMMIT: Final = CommitLogAppender.commit
FLUSH: Final = CommitLogAppender.flush
LOADS: Final = {
    f"{GROUP} × 128 B, then a commit": Load(1500, GROUP, _singles(GROUP, COMMIT)),
    "batch of 256 × 256 B, then a commit": Load(400, 256, _batches(COMMIT)),
    "128 B, then a flush": Load(3000, 1, _singles(1, FLUSH)),
    f"{GROUP} × 128 B, then a flush": Load(700, GROUP, _singles(GROUP, FLUSH)),
    "batch of 256 × 256 B, then a flush": Load(400, 256, _batches(FLUSH)),
    "128 B with the log's end out of the cache": Load(
        200, 1, _singles(1, COMMIT), before=_flush_and_drop
    ),
}
FILLING: Final = "whole files of 64 MiB, a flush per MiB"
FILLED_WAYS: Final = (PLAIN, "warm-up")


def run_load(way: Way, load: Load, steps: int) -> tuple[float, float]:
    """Return messages per second, and the p99 of a step in microseconds."""
    settle()
    clock, times = time.perf_counter_ns, []
    with closing(Trial(way)) as trial:
        for _ in range(steps):
            if load.before is not None:
                load.before(trial)
            began = clock()
            load.step(trial)
            times.append(clock() - began)
    times.sort()
    rate = steps * load.messages / (sum(times) / 1e9)
    return rate, times[len(times) * 99 // 100] / 1000


def fill_files(way: Way, files: int) -> float:
    """Return MB/s while files are created, warmed up, filled and flushed."""
    settle()
    with closing(Trial(way, background=True)) as trial:
        run, appender = one_batch(), trial.appender
        began = time.perf_counter()
        while appender.appended < files * FILE_SIZE:
            trial.append(run)
            if appender.appended - appender.flushed >= FLUSH_SIZE:
                appender.flush()
            appender.prepare_next()
        return appender.flush() / (time.perf_counter() - began) / 1e6


def main(given: Options) -> Result:
    pin_to(SERVER_CORE)
    slowest: dict[str, list[float]] = defaultdict(list)
    jobs: dict[str, Callable[[], float]] = {}

    def job(name: str, way: Way, load: Load) -> Callable[[], float]:
        def measure() -> float:
            steps = given.pick(load.steps, quick=load.steps // QUICK)
            rate, p99 = run_load(way, load, steps)
            slowest[name].append(p99)
            return rate

        return measure

    for what, load in LOADS.items():
        for name, way in WAYS.items():
            jobs[f"{what}: {name}"] = job(f"{what}: {name}", way, load)
    files = given.pick(FILLED_FILES, quick=2)
    for name in FILLED_WAYS:
        jobs[f"{FILLING}: {name}"] = partial(fill_files, WAYS[name], files)
    found = interleave(jobs, runs=given.runs)
    p99 = {name: values[-given.runs :] for name, values in slowest.items()}
    figures = []
    for what in LOADS:
        for name in WAYS:
            if name == PLAIN:
                continue
            key, plain = f"{what}: {name}", f"{what}: {PLAIN}"
            figures += [
                Figure(key, "msg/s", found[key], None, PLAIN, found[plain]),
                at_most(f"{key}, p99", "µs", p99[key], None, PLAIN, p99[plain]),
            ]
    for name in FILLED_WAYS[1:]:
        key, plain = f"{FILLING}: {name}", f"{FILLING}: {PLAIN}"
        figures.append(Figure(key, "MB/s", found[key], None, PLAIN, found[plain]))
    return Result(
        figures,
        f"""CommitLogAppender in this process, one thread, {IMPLEMENTATION} implementation, no HTTP;
        every run in a new
        store of 64 MiB log files, reserved and, where it says so, warmed up and locked before the
        clock starts; pool of 16 MiB. 128 B messages carry tags, one key and a unique id (300 B
        records), batches unique ids. p99: of one step, that is of all its appends and the commit
        or flush after them. Out of the cache: all pages of the file are dropped before each
        append. Whole files: as a broker does it, files ahead made by a thread on the same core.""",
    )


if __name__ == "__main__":
    benchmark(main)
