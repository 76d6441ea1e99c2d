"""Figure 3: dispatch of an existing log by reput's own code: queue units, units and index keys."""

from __future__ import annotations

import functools
import shutil
import statistics
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from bench.harness import Figure, Options, Result, Series, benchmark, interleave
from bench.servers import SERVER_CORE, pin_to, settle, work_dir
from bench.stores import IMPLEMENTATION, STORED_MS, OpenStore, message, run_of
from services.reput.config import ReputConfig
from services.reput.dispatch_loop import SYNC_THREADS
from services.reput.dispatcher import Dispatcher
from shared.files.store_config import StoreConfig
from tidemark.formats.checkpoint import Slot
from tidemark.formats.runs import Run

UNITS_GOAL: Final = 5e6
KEYS_GOAL: Final = 1.5e6
BYTES: Final = 512 << 20
"""Approximate size of the log in each measured run."""
BYTES_QUICK: Final = 64 << 20
BYTES_PLOT: Final = 128 << 20
BODY_SIZES: Final = (128, 256, 1024)
QUEUES: Final = (1, 48, 1000)
TOPICS: Final = ("orders", "payments", "shipments")
MESSAGES_AT_ONCE: Final = 4096
CHUNK_SIZE: Final = 1 << 20
BASELINE: Final = "memcpy + zlib CRC-32 of the same log"
REPUT_SLOTS: Final = (
    Slot.DISPATCHED,
    Slot.DISPATCHED_DURABLE,
    Slot.REPUT_GENERATION,
    Slot.REPUT_BOOT_ID_HIGH,
    Slot.REPUT_BOOT_ID_LOW,
    Slot.RESUME_UNITS,
    Slot.RESUME_FIRSTS,
    Slot.RESUME_INDEX_ENTRIES,
    Slot.RESUME_CHECK,
)


class Shape(NamedTuple):
    """Describes a log: one record per queue in turn."""

    body_size: int = 128
    queues: int = 48
    keys: bool = False
    """Whether each message has a unique id and one key, i.e. two index rows; else no index."""


class Log:
    """A log on disk and in the page cache that can be dispatched repeatedly."""

    def __init__(self, root: Path, shape: Shape, size: int) -> None:
        self.shape = shape
        self.root = root
        self._store = OpenStore(root, StoreConfig(index_enabled=shape.keys), ahead=1)
        self._positions, appender = self._store.positions, self._store.appender
        self._sync_helpers = ThreadPoolExecutor(SYNC_THREADS)
        self.records = 0
        while appender.written < size:
            runs, firsts = _batch(shape, self.records)
            appender.prepare_next()
            appender.append(runs, firsts, STORED_MS + self.records)
            self.records += len(runs)
        appender.flush()
        self.size = int(appender.written)
        appender.close(clean=True)

    def dispatch(self, step_size: int, *, unmeasured: int = 0) -> float:
        """Dispatch the log from start to end and sync; return records/s.

        unmeasured: bytes at the start that are not measured, including the creation of queues.
        """
        for directory in (self._store.dir.consume_queues_dir, self._store.dir.index_dir):
            shutil.rmtree(directory)
            directory.mkdir()
        for slot in REPUT_SLOTS:
            self._positions.publish(slot, 0)
        settle()
        with (
            closing(self._store.reader()) as log,
            closing(self._store.dispatcher(log)) as dispatcher,
        ):
            while dispatcher.position < unmeasured:
                dispatcher.step(unmeasured)
            dispatcher.sync()
            first = dispatcher.units_count
            began = time.perf_counter()
            while dispatcher.step(step_size):
                pass
            self._sync(dispatcher)
            seconds = time.perf_counter() - began
            rows = dispatcher.index_entries_count
            done = dispatcher.units_count, self._positions.get(Slot.DISPATCHED_DURABLE), rows
        assert done == (self.records, self.size, 2 * self.records * self.shape.keys), done
        return (self.records - first) / seconds

    def _sync(self, dispatcher: Dispatcher) -> None:
        """Sync several files at a time, like the follower."""
        job = dispatcher.begin_sync()
        assert job is not None
        job.run(self._sync_helpers.map)
        dispatcher.finish_sync(job)

    def read(self) -> float:
        """Copy the log's bytes out of the mapping and compute their CRC-32; return records/s."""
        settle()
        crc = 0
        with closing(self._store.reader()) as log:
            began = time.perf_counter()
            at = log.min_offset
            while at < self.size:
                view = log.window(at, log.next_file(at))[: min(CHUNK_SIZE, self.size - at)]
                crc = zlib.crc32(bytes(view), crc)
                at = type(at)(at + len(view))
            seconds = time.perf_counter() - began
        return self.records / seconds

    def close(self) -> None:
        self._sync_helpers.shutdown()
        self._positions.close()
        shutil.rmtree(self.root)


def _batch(shape: Shape, done: int) -> tuple[list[Run], list[int]]:
    """Return the next messages, one run each, and their queue offsets."""
    body = bytes(range(256)) * (shape.body_size // 256 + 1)
    runs, firsts = [], []
    for number in range(done, done + MESSAGES_AT_ONCE):
        queue = number % shape.queues
        names = ("TAGS", "KEYS", "UNIQ_KEY") if shape.keys else ("TAGS",)
        one = message(number, body[: shape.body_size], names)
        runs.append(run_of([one], TOPICS[queue % len(TOPICS)], queue // len(TOPICS)))
        firsts.append(number // shape.queues)
    return runs, firsts


def main(given: Options) -> Result:
    size = given.pick(BYTES, quick=BYTES_QUICK)
    pin_to(SERVER_CORE)
    step_size = ReputConfig().step_size
    jobs: dict[str, Callable[[], float]] = {}
    with ExitStack() as logs:
        for name, keys in (("units", False), ("keys", True)):
            log = logs.enter_context(closing(Log(work_dir("dispatch-"), Shape(keys=keys), size)))
            jobs[name] = functools.partial(log.dispatch, step_size)
            jobs[f"{name}-bytes"] = log.read
        found = interleave(jobs, runs=given.runs)
    figures = [
        Figure(f"dispatch, {what}", "records/s", found[job], goal, BASELINE, found[f"{job}-bytes"])
        for job, goal, what in (
            ("units", UNITS_GOAL, "queue units only, 128 B bodies, 3 topics x 16 queues"),
            (
                "keys",
                KEYS_GOAL,
                "queue units and two index keys per message, same bodies and queues",
            ),
        )
    ]
    return Result(
        figures,
        f"""services.reput.dispatcher.Dispatcher.step ({step_size:,} bytes at a time,
        {IMPLEMENTATION} implementation)
        from the first byte of a log of {size >> 20} MiB in the page cache to its end, then its sync
        of all files; one process on one core, time on the clock, sync included. Neighbouring
        records belong to different queues; record CRC on, both CRCs of every record verified.""",
        series=[] if given.quick else _series(step_size),
    )


def _series(step_size: int) -> list[Series]:
    """Measure how the rates depend on body size and on the number of queues."""
    plain: dict[str, list[tuple[float, float]]] = {"units": [], "units and two keys": []}
    by_queues = {name: list(points) for name, points in plain.items()}
    for name, keys in zip(plain, (False, True), strict=True):
        for body_size in BODY_SIZES:
            shape = Shape(body_size=body_size, keys=keys)
            plain[name].append((body_size, _once(shape, step_size)))
        for queues in QUEUES:
            shape = Shape(queues=queues, keys=keys)
            by_queues[name].append((queues, _once(shape, step_size)))
    return [
        Series("dispatch_sizes", "Dispatch by body size", "body [B]", "records/s", plain),
        Series("dispatch_queues", "Dispatch by queues", "queues", "records/s", by_queues),
    ]


def _once(shape: Shape, step_size: int) -> float:
    """Median of three runs after a warm-up, without the log's first eighth."""
    with closing(Log(work_dir("dispatch-"), shape, BYTES_PLOT)) as log:
        job = functools.partial(log.dispatch, step_size, unmeasured=log.size // 8)
        return statistics.median(interleave({"": job}, runs=3)[""])


if __name__ == "__main__":
    benchmark(main)
