"""The telemetry journal: ticks, keyframes, records, and snapshots that are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from services.broker import telemetry
from services.broker.config import BrokerConfig
from services.broker.log.append import Append
from services.broker.metrics import BrokerMetrics
from services.broker.telemetry import KEYFRAME_EVERY, TelemetryJournal
from shared.metrics.registry import Registry
from tests.support.log_contexts import log_context_of
from tests.support.metrics import samples
from tests.support.small_broker import FIRST_MS, HOST
from tests.unit.broker.groups.test_lag_sampler import Made
from tidemark.errors import DiskFull
from tidemark.formats import batch
from tidemark.formats.runs import Run
from tidemark.formats.telemetry import TELEMETRY_TOPIC, Head, decode
from tidemark.formats.telemetry_reader import SnapshotReader

PERIOD_MS = 15_000


class Clock:
    """The test moves it."""

    def __init__(self) -> None:
        self.now_ms = FIRST_MS // PERIOD_MS * PERIOD_MS + 4000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def boot_ms(self) -> int:
        return self.now_ms


class Log:
    """Keeps the bodies of appended records; fails where a test wants it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fails_at: int | None = None
        """Number of bodies after which the disk is full."""

    async def append(self, runs: Sequence[Run]) -> None:
        if len(self.bodies) == self.fails_at:
            self.fails_at = None
            raise DiskFull("planted", "nothing")
        (run,) = runs
        assert (run.topic, run.queue_id, run.message_count) == (TELEMETRY_TOPIC, 0, 1)
        (entry,) = batch.iterate(run.entries)
        self.bodies.append(bytes(entry.body))

    @property
    def heads(self) -> list[Head]:
        return [decode(body).head for body in self.bodies]


class Node:
    """A journal over a small broker."""

    def __init__(self, made: Made) -> None:
        self.made, self.clock, self.log = made, Clock(), Log()
        made.clock = self.clock  # type: ignore[assignment]
        self.metrics = BrokerMetrics(Registry("broker"), self.clock)
        self.metrics.lag_gauges.connect(made.log.times, made.watched._replace(clock=self.clock))
        self.start()

    def start(self) -> None:
        config = BrokerConfig(telemetry_period_s=PERIOD_MS / 1000)
        context = log_context_of(config=config, clock=self.clock, epoch=7, host=HOST)
        self.journal = TelemetryJournal(context, cast(Append, self.log), self.metrics)

    async def ticks(self, count: int) -> None:
        """Let the clock pass that many ticks, and wait until each is done."""
        stop = asyncio.Event()
        running = asyncio.create_task(self.journal.run(stop))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its task has read the clock
        for _ in range(count):
            done = self.taken
            self.clock.now_ms += PERIOD_MS
            async with asyncio.timeout(20):
                while self.taken == done:
                    assert not running.done()
                    await asyncio.sleep(0.001)
        stop.set()
        await running

    @property
    def taken(self) -> float:
        return self.value("tidemark_telemetry_snapshots_total") + sum(self.dropped.values())

    @property
    def dropped(self) -> dict[str, float]:
        """Dropped snapshots by reason."""
        found = samples(self.metrics.registry)
        name, reasons = "tidemark_telemetry_snapshots_dropped_total", {}
        for key, value in found.items():
            if key.startswith(name) and value:
                reasons[key.removeprefix(f'{name}{{reason="').removesuffix('"}')] = value
        return reasons

    def value(self, name: str) -> float:
        return samples(self.metrics.registry)[name]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(telemetry, "WAIT_MAX_S", 0.002)
    made = Made(tmp_path / "store")
    made.add_group("billing", {0: 1})
    yield Node(made)
    made.broker.close()


async def test_each_tick_has_a_snapshot_and_every_twentieth_is_a_keyframe(node: Node) -> None:
    began_ms = node.clock.now_ms
    await node.ticks(KEYFRAME_EVERY + 2)
    heads = node.log.heads
    assert [head.number for head in heads] == list(range(KEYFRAME_EVERY + 2))
    assert [head.number for head in heads if head.is_keyframe] == [0, KEYFRAME_EVERY]
    assert [head.back for head in heads] == [*range(KEYFRAME_EVERY), 0, 1]
    assert {head.tick_ms % PERIOD_MS for head in heads} == {0}
    assert [head.at_ms for head in heads[:2]] == [began_ms + PERIOD_MS, began_ms + 2 * PERIOD_MS]
    assert {(head.started_ms, head.epoch, head.rows) for head in heads} == {(began_ms, 7, 9)}
    assert node.value("tidemark_telemetry_snapshot_rows") == 9
    size = sum(map(len, node.log.bodies))
    assert node.value("tidemark_telemetry_journal_bytes_total") == size


async def test_the_facts_of_a_snapshot_are_those_of_a_scrape(node: Node) -> None:
    await node.ticks(1)
    facts = node.log.heads[0].facts
    times = node.made.log.times()
    assert times is not None
    assert [facts[f"t_{name}_ms"] for name in ("max", "confirm", "dispatched")] == [*times]
    assert facts["long_polls"] == 0
    assert "free_bytes" not in facts, "unknown: no store is shown"


async def test_a_snapshot_that_cannot_be_appended_is_counted_and_a_keyframe_follows(
    node: Node,
) -> None:
    await node.ticks(2)
    node.log.fails_at = 2
    await node.ticks(3)
    heads = node.log.heads
    assert [(head.number, head.is_keyframe) for head in heads] == [
        (0, True),
        (1, False),
        (3, True),
        (4, False),
    ]
    assert node.dropped == {"disk-full": 1}


async def test_a_failed_sample_or_a_defect_drops_the_snapshot_and_the_journal_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(node.made.watched.configs, "all", lambda: 1 / 0)
        await node.ticks(1)
    with monkeypatch.context() as patch:
        patch.setattr(node.metrics, "telemetry_facts", lambda _: 1 / 0)
        await node.ticks(1)
    await node.ticks(1)
    assert node.dropped == {"sample-failed": 1, "internal": 1}
    assert [head.is_keyframe for head in node.log.heads] == [True]


async def test_a_new_term_begins_a_chain_of_its_own(node: Node) -> None:
    await node.ticks(2)
    node.clock.now_ms += 1
    node.start()
    await node.ticks(1)
    last = node.log.heads[-1]
    assert (last.number, last.is_keyframe, last.back) == (0, True, 0)
    assert last.started_ms != node.log.heads[0].started_ms


async def test_a_large_snapshot_is_split_and_can_be_put_together(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "PART_SIZE", 1)
    await node.ticks(1)
    parts = [(head.part, head.parts, head.back) for head in node.log.heads]
    assert parts == [(part, len(parts), part) for part in range(len(parts))]
    assert len(parts) == 5, "one for each table"
    reader = SnapshotReader()
    found = [reader.feed(decode(body)) for body in node.log.bodies]
    assert [snapshot is not None for snapshot in found] == [False] * 4 + [True]
    node.made.broker.send("orders", queue=1)
    await node.ticks(1)
    assert node.log.heads[-1].back == 5


async def test_a_stop_does_not_wait_for_a_snapshot(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending = asyncio.Event()

    async def hang(_: object) -> None:
        appending.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(node.log, "append", hang)
    stop = asyncio.Event()
    running = asyncio.create_task(node.journal.run(stop))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # its task has read the clock
    node.clock.now_ms += PERIOD_MS
    async with asyncio.timeout(20):
        await appending.wait()
        stop.set()
        await running


async def test_nothing_is_taken_without_a_period(node: Node) -> None:
    context = log_context_of(config=BrokerConfig(), clock=node.clock, epoch=0, host=HOST)
    stop = asyncio.Event()
    journal = TelemetryJournal(context, cast(Append, node.log), node.metrics)
    running = asyncio.create_task(journal.run(stop))
    await asyncio.sleep(0)
    assert not running.done()
    stop.set()
    await running
    assert node.log.bodies == []
