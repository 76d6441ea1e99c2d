"""The telemetry journal of a real broker: the rows of a scrape, each once, and nothing invented."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemark
from analytics.jobs.collect import CollectOptions, run
from analytics.jobs.streaming import Pace
from analytics.kernel.shape import shape
from analytics.schema import SAMPLES
from analytics.sources.exposition import Parser
from analytics.sources.labelled import batches
from analytics.sources.telemetry import reader
from analytics.sources.telemetry.options import Options, parse
from analytics.sources.telemetry.reader import Range
from analytics.tables import TableRoot
from tests.support.node import wait_until
from tests.support.spark import spark
from tidemark.client.client import Client
from tidemark.client.subscription import Subscription
from tidemark.testing import LocalStore

pytestmark = pytest.mark.xdist_group("spark")
__all__ = ["spark"]
PERIOD_S: Final = 1.0
SAMPLED_AT: Final = "tidemark_broker_look_timestamp_seconds"
LABELS: Final = {"cluster": "c", "broker": "g0", "replica": "n0"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    directory = tmp_path_factory.mktemp("telemetry")
    with LocalStore(directory, settings={"telemetry_period_s": PERIOD_S}) as made:
        with tidemark.connect_sync(made.url) as mq:
            mq.create_topic("orders", queues=3)
            mq.create_topic("events", queues=2)
            for number in range(30):
                mq.send("orders", b"x", queue=number % 3)
                mq.send("events", b"y", queue=0)
        yield made
    shutil.rmtree(directory)


def targets(store: LocalStore) -> str:
    return json.dumps([{"targets": [store.url], "labels": LABELS}])


def options(store: LocalStore, **more: str) -> Options:
    return parse({"targets": targets(store), "from": "first", **more})


def scraped(store: LocalStore) -> pa.Table:
    """Samples of a scrape. Their time is set later."""
    url = f"http://127.0.0.1:{store._admin_ports[0]}/metrics"
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    labels = {**LABELS, "service": "broker", "instance": "127.0.0.1:1"}
    found = Parser(labels).parse(text, openmetrics=False)
    times = np.zeros(len(found.at), np.int64)
    made = batches(found.series, found.at, times, found.values, "scrape")
    return pa.Table.from_batches(made, schema=SAMPLES)


def value(samples: pa.Table, metric: str) -> float | None:
    found = samples.filter(pc.equal(samples.column("metric"), metric)).column("value").to_pylist()
    return found[0] if found else None


def journal(given: Options) -> pa.Table:
    """All samples of the journal so far."""
    ((of, (low, high)),) = reader.bounds(given).items()
    return pa.Table.from_batches(reader.read(given, Range(of, low, high)), schema=SAMPLES)


def both(store: LocalStore) -> tuple[pa.Table, pa.Table]:
    """Samples of a scrape and of the snapshot that is the same sample; both with its tick.

    The sample is taken after the call, because a kept one may be older than the topics.
    """
    called_s = time.time()
    for _ in range(40):
        from_scrape = scraped(store)
        sampled_s = value(from_scrape, SAMPLED_AT)
        if sampled_s is None or sampled_s <= called_s:
            threading.Event().wait(0.3)
            continue
        all_samples = journal(options(store))
        is_time = pc.and_(
            pc.equal(all_samples.column("metric"), SAMPLED_AT),
            pc.equal(all_samples.column("value"), sampled_s),
        )
        ticks = all_samples.filter(is_time).column("ts")
        if len(ticks):
            mine = all_samples.filter(pc.equal(all_samples.column("ts"), ticks[0]))
            times = pa.array([ticks[0].as_py()] * len(from_scrape), SAMPLES.field("ts").type)
            at = SAMPLES.get_field_index("ts")
            return from_scrape.set_column(at, SAMPLES.field("ts"), times), mine
        threading.Event().wait(0.3)  # the scrape began a sample of its own
    raise AssertionError("no scrape shared the sample of a snapshot")


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


async def test_a_snapshot_and_a_scrape_of_the_same_sample_give_the_same_rows(
    store: LocalStore,
) -> None:
    async with tidemark.connect(store.url) as mq:
        await read(mq, "audit", "events", 7)
        async with mq.subscribe("orders", group="billing") as messages:
            await take(messages, 12)
            from_scrape, mine = await asyncio.to_thread(both, store)
    expected, found = (shape(samples, PERIOD_S) for samples in (from_scrape, mine))
    kinds = expected["series"].column("kind").to_pylist()
    assert kinds.count("main") == 5, "three queues of orders and two of events"
    assert rows(found["positions"]) == rows(expected["positions"])
    assert rows(found["series"]) == rows(expected["series"])
    assert rows(found["pairs"]) == rows(expected["pairs"])
    stages = ["t_max", "t_confirm", "t_dispatched", "t_min", "up_since", "clock_seconds", "tick"]
    assert found["logs"].select(stages).to_pylist() == expected["logs"].select(stages).to_pylist()
    assert found["logs"].column("max_physical_offset")[0].as_py() > 0


async def read(mq: Client, group: str, topic: str, count: int) -> None:
    async with mq.subscribe(topic, group=group) as messages:
        await take(messages, count)


async def take(messages: Subscription, count: int) -> None:
    taken = 0
    async for _ in messages:
        taken += 1
        if taken == count:
            return


def test_ranges_in_any_cut_yield_each_snapshot_once(store: LocalStore) -> None:
    given = options(store)
    wait_until(lambda: _ends(given)[1] >= 25, "25 records")  # more than one keyframe
    ((of, (low, high)),) = reader.bounds(given).items()
    whole = pa.Table.from_batches(reader.read(given, Range(of, low, high)), schema=SAMPLES)
    reader._readers.clear()
    for step in (1, 7):
        cuts = [*range(low, high, step), high]
        pieces = [
            batch
            for first, last in itertools.pairwise(cuts)
            for batch in reader.read(given, Range(of, first, last))
        ]
        assert pa.Table.from_batches(pieces, schema=SAMPLES).equals(whole)
    # The same without what the reader remembers: each range begins at its keyframe.
    lone: list[pa.RecordBatch] = []
    for first in range(low, high):
        reader._readers.clear()
        lone += reader.read(given, Range(of, first, first + 1))
    assert pa.Table.from_batches(lone, schema=SAMPLES).equals(whole)
    assert len(pc.unique(whole.column("ts"))) == high - low


def _ends(given: Options) -> tuple[int, int]:
    ((_, found),) = reader.bounds(given).items()
    return found


def test_a_restarted_broker_goes_on_with_a_keyframe(store: LocalStore) -> None:
    given = options(store)
    before = _ends(given)[1]
    store.restart()
    wait_until(lambda: _ends(given)[1] >= before + 3, "some records of the new term")
    ((of, (low, high)),) = reader.bounds(given).items()
    reader._readers.clear()
    samples = pa.Table.from_batches(reader.read(given, Range(of, low, high)), schema=SAMPLES)
    assert value(samples, "_gap") is None
    parts = [record.part for record in reader._records(given, of, before - 1, high)]
    heads = [part.head for part in parts if part is not None]
    assert len({head.started_ms for head in heads}) == 2
    assert next(head.is_keyframe for head in heads if head.number == 0)


def test_a_stream_reads_each_snapshot_once_over_a_restart(
    spark: SparkSession, store: LocalStore, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[Any]]] = []

    def note(frame: DataFrame, batch: int) -> None:
        times = frame.where(f"metric = '{SAMPLED_AT}'").select("value").collect()
        seen.append((batch, [row[0] for row in times]))

    def stream() -> None:
        query = (
            spark.readStream.format("tidemark_telemetry")
            .options(targets=targets(store), max_records="5", **{"from": "first"})
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    stream()
    first = _ends(options(store))[1]
    wait_until(lambda: _ends(options(store))[1] > first, "another snapshot")
    stream()
    times = [time for _, batch in seen for time in batch]
    whole = journal(options(store))
    expected = (
        whole.filter(pc.equal(whole.column("metric"), SAMPLED_AT)).column("value").to_pylist()
    )
    assert times == expected[: len(times)]
    assert len(times) > first


def test_collect_fills_the_tables_without_prometheus(
    spark: SparkSession, store: LocalStore, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    run(
        spark,
        CollectOptions(
            tables=tables,
            pace=Pace(tmp_path / "checkpoint", 1.0, available_now=True),
            source="tidemark_telemetry",
            source_options={"targets": targets(store), "from": "first"},
            period_s=PERIOD_S,
        ),
    )
    root = TableRoot(tables)
    positions = root.read("positions")
    assert positions.num_rows
    assert set(root.read("pairs").column("topic").to_pylist()) >= {"orders", "events"}
    assert set(positions.column("replica").to_pylist()) == {"n0"}
    assert root.read("gaps").num_rows == 0
