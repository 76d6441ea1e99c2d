"""Figure 25: the telemetry journal: bytes of a queue, CPU time of a snapshot, and of reading it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, cast

import uvloop

from analytics.sources.telemetry.options import BrokerSet
from analytics.sources.telemetry.samples import batches
from bench.harness import Options, Result, at_most, benchmark
from services.broker.config import BrokerConfig
from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.queue_stats import Bounds, Extent
from services.broker.groups.topic_stats import TopicStats
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.log.log_times import LogTimes
from services.broker.metrics import BrokerMetrics
from services.broker.telemetry import KEYFRAME_EVERY, TelemetryJournal
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.clock import SystemClock
from shared.state.values import GroupConfig, TopicConfig
from tidemark.formats import batch
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.formats.telemetry import Part, decode
from tidemark.formats.telemetry_reader import Snapshot, SnapshotReader

QUEUES_PER_TOPIC: Final = 10
TOPICS_PER_GROUP: Final = 10
PERIOD_S: Final = 15
ACTIVE: Final = 0.4
"""Share of the queues that get messages in a period."""
LAGGING: Final = 0.5
"""Share of the active queues with an unread message."""
CPU_GOAL_S: Final = 3.0
"""CPU time of a snapshot of 100,000 queues: a fifth of a core."""
HOLD_GOAL_MS: Final = 5.0
TICKS_PER_HOUR: Final = 3600 // PERIOD_S
Queue = tuple[str, int]


class Clock(SystemClock):
    """The wall clock is moved by a period per tick."""

    passed_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.passed_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_ms / 1000


class World:
    """Topics, groups and offsets that move; in place of the parts of a broker, without files."""

    def __init__(self, queues: int, clock: Clock) -> None:
        self.clock = clock
        self.chance = random.Random(1)
        topics = queues // QUEUES_PER_TOPIC
        self.topics = {
            name: TopicConfig(name, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC)
            for name in (f"topic-{number:06d}" for number in range(topics))
        }
        self.groups = {
            name: GroupConfig(name)
            for name in (f"group-{number:06d}" for number in range(topics // TOPICS_PER_GROUP))
        }
        self.reads: dict[str, list[str]] = {name: [] for name in self.groups}
        for number, topic in enumerate(self.topics):
            self.reads[f"group-{number // TOPICS_PER_GROUP:06d}"].append(topic)
        self.queues: list[Queue] = [
            (topic, queue) for topic in self.topics for queue in range(QUEUES_PER_TOPIC)
        ]
        self.group_of = {topic: group for group, topics in self.reads.items() for topic in topics}
        self.rate = {queue: self.chance.lognormvariate(2.0, 1.5) for queue in self.queues}
        self.next = {queue: self.chance.randrange(1 << 20, 1 << 30) for queue in self.queues}
        self.ends: dict[Queue, int] = {}
        self.committed: dict[str, dict[Queue, int]] = defaultdict(dict)
        for queue, offset in self.next.items():
            self.committed[self.group_of[queue[0]]][queue] = offset

    def move(self) -> None:
        """Let a period pass."""
        self.clock.passed_ms += PERIOD_S * 1000
        for queue in self.queues:
            if self.chance.random() < ACTIVE:
                self.next[queue] += 1 + int(self.rate[queue] * PERIOD_S * self.chance.random())
                self.ends[queue] = 1
                behind = int(self.chance.random() < LAGGING)
                self.committed[self.group_of[queue[0]]][queue] = self.next[queue] - behind

    # -- what a sample reads: topics, offsets, queues, groups, members -----------------------------

    def names(self) -> Collection[str]:
        return self.topics

    def find(self, name: str) -> TopicConfig | None:
        return self.topics.get(name)

    def queue_numbers(self, topic: TopicConfig) -> Collection[int]:
        return range(topic.queues)

    def next_of(self, queue: Queue) -> int:
        return self.next[queue]

    def extent(self, topic: str, queue: int) -> Extent:
        end = self.next[topic, queue]
        return Extent(Bounds(17, end, end), 1)

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int:
        return self.clock.wall_ms() - 1 - queue_offset % 4000

    def all(self) -> Collection[GroupConfig]:
        return self.groups.values()

    def get(self, group: str, topic: str, queue: int) -> int | None:
        return self.committed[group].get((topic, queue))

    def of_group(self, group: str) -> Mapping[Queue, int]:
        return self.committed[group]

    def take_moved(self) -> Collection[str]:
        return self.groups

    def member_count(self, group: str) -> int:
        return 2

    def topics_read(self, group: str) -> Collection[str]:
        return self.reads[group]

    def holder_numbers(self, group: str) -> Callable[[Queue], int | None]:
        return lambda queue: 1 + queue[1] % 2

    def place_of(self, group: str, queue: Queue) -> tuple[int, int]:
        offset = self.committed[group][queue]
        return offset, offset

    def busy_holders(self, group: str, now_s: float) -> Callable[[Queue], bool]:
        return lambda queue: False

    def inputs(self) -> LagInputs:
        stats = TopicStats(
            self, cast(Any, self), cast(Any, self), log_start=lambda: cast(Any, 0),
            dispatched=lambda: cast(Any, 1),
        )  # fmt: skip
        return LagInputs(self, self, self, cast(Any, self), stats, self.clock)


class Log:
    """Takes the place of the log: keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def append(self, runs: list[Run]) -> None:
        for run in runs:
            self.bodies += [bytes(entry.body) for entry in batch.iterate(run.entries)]


class Journal:
    """The journal of a broker without anything else."""

    def __init__(self, queues: int) -> None:
        self.clock = Clock()
        self.world = World(queues, self.clock)
        self.log = Log()
        self.metrics = BrokerMetrics(Registry("broker"), self.clock)
        now_ms = self.clock.wall_ms()
        self.sampler = self.metrics.lag_gauges.sampler
        self.sampler.connect(lambda: LogTimes(now_ms, now_ms, now_ms), self.world.inputs())
        self.journal = TelemetryJournal(self._context(), cast(Append, self.log), self.metrics)

    def _context(self) -> LogContext:
        class Context:
            config = BrokerConfig(telemetry_period_s=PERIOD_S)
            clock = self.clock
            epoch = 0
            host = Host(b"\x7f\0\0\1", 8080)

        return cast(LogContext, Context())

    async def sample(self) -> float:
        """CPU time of a sample as a scrape begins it [s]."""
        began = time.process_time()
        found = self.sampler.found
        while self.sampler.found is found:
            await self.sampler.refresh()
        return time.process_time() - began

    async def snapshot(self) -> tuple[float, list[bytes]]:
        """CPU time of a snapshot with its sample [s], and its records."""
        self.log.bodies = []
        began = time.process_time()
        await self.journal.take(self.clock.wall_ms())
        return time.process_time() - began, self.log.bodies


async def longest_hold(work: Any) -> float:
    """Longest time in which the loop ran nothing else [ms of its thread], during the work."""
    running = asyncio.ensure_future(work)
    longest, last = 0.0, time.thread_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await running
    return longest * 1000


def read(reader: SnapshotReader, bodies: list[bytes]) -> tuple[float, float]:
    """CPU time of decoding a snapshot, and of making its samples [s]."""
    began = time.process_time()
    whole = [reader.feed(part) for part in map(decode, bodies)][-1]
    decoded = time.process_time()
    assert isinstance(whole, Snapshot)
    rows = sum(each.num_rows for each in batches(whole, BrokerSet((), "c", "g0", "n0")))
    assert rows > 0
    return decoded - began, time.process_time() - decoded


async def measure(journal: Journal, ticks: int) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = defaultdict(list)
    reader = SnapshotReader()
    queues = len(journal.world.queues)
    for tick in range(ticks):
        journal.world.move()
        cpu_s, bodies = await journal.snapshot()
        parts: list[Part] = [decode(body) for body in bodies]
        kind = "keyframe" if parts[0].head.is_keyframe else "delta"
        decode_s, samples_s = read(reader, bodies)
        if tick > 0:  # the first sample of a process has to make everything
            seen[f"cpu {kind}"].append(cpu_s)
            seen[f"bytes {kind}"].append(sum(map(len, bodies)) / queues)
            seen["decode"].append(decode_s)
            seen["samples"].append(samples_s)
            seen[f"largest record {kind}"].append(max(map(len, bodies)) / 1024)
        else:
            collector.settle()  # as a broker does when it begins to serve
    for _ in range(ticks // 4):
        journal.world.move()
        seen["sample"].append(await journal.sample())
    for _ in range(ticks // 4):
        journal.world.move()
        seen["hold"].append(await longest_hold(journal.snapshot()))
    return seen


def per_hour(seen: Mapping[str, list[float]]) -> Iterator[float]:
    """Bytes of a queue in an hour."""
    keyframes = TICKS_PER_HOUR / KEYFRAME_EVERY
    for keyframe, delta in zip(seen["bytes keyframe"], seen["bytes delta"], strict=False):
        yield keyframes * keyframe + (TICKS_PER_HOUR - keyframes) * delta


def main(given: Options) -> Result:
    queues = given.pick(100_000, quick=10_000)
    journal = Journal(queues)
    ticks = KEYFRAME_EVERY + 2
    seen = uvloop.run(measure(journal, ticks))
    goal = CPU_GOAL_S * queues / 100_000
    return Result(
        [
            at_most("a queue in a keyframe", "bytes", seen["bytes keyframe"]),
            at_most("a queue in a delta, 40 % moved", "bytes", seen["bytes delta"]),
            at_most("a queue in an hour", "bytes", list(per_hour(seen))),
            at_most("largest record", "KiB", seen["largest record keyframe"]),
            at_most(f"CPU of a keyframe of {queues:,} queues, with its sample", "s",
                    seen["cpu keyframe"], goal),
            at_most(f"CPU of a delta of {queues:,} queues, with its sample", "s",
                    seen["cpu delta"], goal),
            at_most("CPU of the same sample for a scrape", "s", seen["sample"]),
            at_most("longest hold of the loop", "ms", seen["hold"], HOLD_GOAL_MS),
            at_most("CPU of a reader: decoding a snapshot", "s", seen["decode"]),
            at_most("CPU of a reader: its samples", "s", seen["samples"]),
        ],
        f"""{queues:,} queues in topics of {QUEUES_PER_TOPIC}; each group has members, and reads
        {TOPICS_PER_GROUP} topics. In each period of {PERIOD_S} s, {ACTIVE:.0%} of the queues get
        messages at log-normal rates, and {LAGGING:.0%} of these have an unread one. The sampler and
        the journal of the broker run as they are, over offsets in memory instead of files, and
        append to a list. CPU time is that of the process, the thread that compresses included. An
        hour has {TICKS_PER_HOUR // KEYFRAME_EVERY} keyframes.""",
    )  # fmt: skip


if __name__ == "__main__":
    benchmark(main)
