"""Figure 8b: messages by key and by unique id, in process, in logs of growing size."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Options, Result, Series, at_most, benchmark, interleave
from bench.servers import SERVER_CORE, pin_to, settle, work_dir
from bench.stores import IMPLEMENTATION, STORED_MS, OpenStore, key_of, message, run_of, unique_id_of
from services.broker.read.query import Queries
from services.reput.config import ReputConfig
from shared.files.commit_log import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import HITS_MAX, IndexReader
from shared.files.store_config import StoreConfig
from shared.runtime.clock import SystemClock
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import decode
from tidemark.offsets import PhysicalOffset

P50_GOAL_US: Final = 20.0
ASKED: Final = 5_000
"""Number of random keys of the whole log per run."""
TOPIC: Final = "orders"
BODY: Final = bytes(range(128))
MESSAGES_AT_ONCE: Final = 1_000
BASELINE: Final = "dict of key to offset and pread of the same record, not decoded"


class Log:
    """A dispatched log of messages with one key and one unique id each, opened like in a broker."""

    def __init__(self, root: Path, messages: int) -> None:
        self.messages = messages
        opened = OpenStore(root, StoreConfig(), ahead=1)
        self._root, self._positions = root, opened.positions
        self._places: dict[str, tuple[int, int]] = {}
        """Index of the baseline: key → physical offset and size."""
        self._append(opened.appender)
        self._log = opened.reader()
        with closing(opened.dispatcher(self._log)) as dispatcher:
            while dispatcher.step(ReputConfig().step_size):
                pass
            dispatcher.sync()
            assert dispatcher.index_entries_count == 2 * self.messages
        self._index = IndexReader(opened.dir, self._log)
        self._queries = Queries(
            self._log,
            ConsumeQueues(opened.dir, self._log),
            self._index,
            lambda: PhysicalOffset(self._positions.get(Slot.DISPATCHED)),
            lambda _: True,
            SystemClock(),
        )
        self._random = Random(messages)
        files = sorted(opened.dir.commit_log_dir.glob("[0-9]*"))
        self._file_size = opened.dir.config.commit_log_file_size
        self._descriptors = {int(file.name): os.open(file, os.O_RDONLY) for file in files}

    def _append(self, appender: CommitLogAppender) -> None:
        try:
            for first in range(0, self.messages, MESSAGES_AT_ONCE):
                numbers = range(first, first + MESSAGES_AT_ONCE)
                run = run_of(message(number, BODY, ("KEYS", "UNIQ_KEY")) for number in numbers)
                appender.prepare_next()
                placed = appender.append([run], [first], STORED_MS + first)
                at = int(placed.start)
                for number, size in zip(numbers, memoryview(placed.sizes).cast("I"), strict=True):
                    self._places[key_of(number)] = (at, size)
                    at += size
            appender.flush()
        finally:
            appender.close(clean=True)

    def by_name(self, *, unique_id_only: bool) -> list[int]:
        """Nanoseconds of each of ASKED queries by unique id, or by key."""
        name_of = unique_id_of if unique_id_only else key_of
        names = [name_of(number) for number in self._numbers()]
        return asyncio.run(self._timed(names, unique_id_only=unique_id_only))

    async def _timed(self, names: list[str], *, unique_id_only: bool) -> list[int]:
        queries, clock, times = self._queries, time.perf_counter_ns, []
        for name in names:
            began = clock()
            found = await queries.find(
                TOPIC, name, hits_max=HITS_MAX, unique_id_only=unique_id_only
            )
            times.append(clock() - began)
            (message,) = found.messages
            assert name == message.unique_id if unique_id_only else [name] == message.keys
        return times

    def by_dict(self) -> list[int]:
        """Nanoseconds of each of ASKED lookups of the baseline."""
        keys = [key_of(number) for number in self._numbers()]
        places, descriptors, file_size = self._places, self._descriptors, self._file_size
        clock, times = time.perf_counter_ns, []
        for key in keys:
            began = clock()
            at, size = places[key]
            inside = at % file_size
            raw = os.pread(descriptors[at - inside], size, inside)
            times.append(clock() - began)
            assert decode(memoryview(raw)).keys == [key]
        return times

    def _numbers(self) -> list[int]:
        settle()
        return [self._random.randrange(self.messages) for _ in range(ASKED)]

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._index.close()
        self._log.close()
        self._positions.close()
        shutil.rmtree(self._root)


def median_us(measured_ns: Callable[[], list[int]]) -> Callable[[], float]:
    """Return a job that measures many times and returns the p50 in microseconds."""
    return lambda: statistics.median(measured_ns()) / 1000


def main(given: Options) -> Result:
    sizes = given.pick((20_000, 200_000, 2_000_000), quick=(20_000, 200_000))
    pin_to(SERVER_CORE)
    jobs: dict[str, Callable[[], float]] = {}
    with ExitStack() as logs:
        for size in sizes:
            log = logs.enter_context(closing(Log(work_dir("query-"), size)))
            jobs[f"key {size}"] = median_us(partial(log.by_name, unique_id_only=False))
            jobs[f"dict {size}"] = median_us(log.by_dict)
            jobs[f"id {size}"] = median_us(partial(log.by_name, unique_id_only=True))
        found = interleave(jobs, runs=given.runs)
    figures = [
        at_most(
            f"query by {what}, {size:,} messages, p50",
            "µs",
            found[f"{name} {size}"],
            P50_GOAL_US if size == sizes[-1] and name == "key" else None,
            BASELINE,
            found[f"dict {size}"],
        )
        for size in reversed(sizes)
        for name, what in (("key", "key"), ("id", "unique id"))
    ]
    lines = {
        what: [(size, statistics.median(found[f"{name} {size}"])) for size in sizes]
        for name, what in (("key", "by key"), ("id", "by unique id"), ("dict", "dict and pread"))
    }
    return Result(
        figures,
        f"""services.broker.read.query.Queries in this process, {IMPLEMENTATION} implementation,
        no HTTP: {ASKED:,} keys of
        one hit each per run, chosen at random from the whole log; 128 B bodies, one key and one
        unique id per message, so two index entries; default index geometry; everything in the page
        cache. A query hashes the key, walks the chain, reads the record, verifies both its CRCs
        and its key, and decodes it; the baseline decodes nothing.""",
        series=[Series("query", "Query by key", "messages in the log", "p50 [µs]", lines)],
    )


if __name__ == "__main__":
    benchmark(main)
