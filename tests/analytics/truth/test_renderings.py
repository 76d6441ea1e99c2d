"""One workload as tables, as scrapes of its processes, and as blocks of a real Prometheus."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analytics import schema
from analytics.kernel.rules import Rules
from analytics.kernel.shape import shape
from analytics.kernel.window import Evaluated, Window
from analytics.sources.exposition import Parser
from analytics.sources.labelled import batches
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.reader import Reader
from tests.analytics.truth.judged import judge_window, window_of
from tests.support.prometheus import Prometheus, make_blocks, over_blocks
from tests.truth import cases
from tests.truth.exposition import write_openmetrics
from tests.truth.rendered import samples_table
from tests.truth.samples import targets
from tests.truth.server import ExpositionServer
from tests.truth.steps import SECOND
from tests.truth.tables import collected
from tests.truth.workload import SCRAPE_AFTER_SAMPLE, Truth

COMPUTED = ("rates", "lag", "pair_lag", "stages", "status_changes", "offset_events")
UNEVEN = {
    "poison_of_sixteen": "poison_message",
    "slow_member": "slow_member",
    "unassigned_queue": "unassigned_queue",
    "hot_queue": "hot_queue",
}
"""Workloads whose lag is uneven, and the kind of skew that every rendering must name."""


def exposed() -> dict[str, Truth]:
    """Every workload under a cluster of its own name."""
    return {name: replace(make(), cluster=name) for name, make in cases.EVERY.items()}


def computed(window: Window, truth: Truth) -> Evaluated:
    return judge_window(window, Rules(period_s=truth.period / SECOND), truth.start, [truth.end])


def from_samples(samples: pa.Table, truth: Truth) -> Evaluated:
    shaped = shape(samples, truth.period / SECOND)
    window = Window(
        shaped["positions"],
        shaped["series"],
        shaped["pairs"],
        shaped["logs"],
        schema.OFFSET_EVENTS.empty_table(),
        schema.GAPS.empty_table(),
    )
    return computed(window, truth)


def assert_the_same(one: Evaluated, other: Evaluated, name: str) -> None:
    for table in COMPUTED:
        mine, theirs = (_ordered(getattr(each, table)) for each in (one, other))
        assert mine.num_rows == theirs.num_rows, (name, table)
        for column in mine.column_names:
            assert mine[column].equals(theirs[column]), (name, table, column)


def assert_named(found: Evaluated, name: str) -> None:
    """The kind of skew is known at the end, from the values of this rendering."""
    last = pc.max(found.pair_lag["tick"])
    kinds = found.pair_lag.filter(pc.equal(found.pair_lag["tick"], last))["skew_kind"]
    assert kinds.to_pylist() == [UNEVEN[name]], name


def _ordered(table: pa.Table) -> pa.Table:
    keys = [
        key for key in ("tick", "pair_id", "series_id", "status_to") if key in table.schema.names
    ]
    return table.sort_by([(key, "ascending") for key in keys])


@pytest.mark.parametrize("name", cases.EVERY)
def test_samples_give_the_tables_that_were_collected(name: str) -> None:
    truth = exposed()[name]
    tables = collected(truth)
    shaped = shape(samples_table(truth), truth.period / SECOND)
    for table, keys in (
        ("series", ["series_id"]),
        ("positions", ["series_id", "ts"]),
        ("pairs", ["pair_id", "ts"]),
        ("logs", ["replica", "ts"]),
    ):
        order = [(key, "ascending") for key in keys]
        mine = getattr(tables, table).sort_by(order)
        theirs = shaped[table].sort_by(order)
        for column in mine.column_names:
            assert mine[column].equals(theirs[column]), (table, column)


def scraped(truth: Truth) -> Iterator[pa.RecordBatch]:
    """Samples of the processes scraped over HTTP, tick by tick."""
    parsers = {of: Parser(of.labels(truth.cluster)) for of in targets(truth)}
    with ExpositionServer(truth) as server:
        for tick in truth.ticks().tolist():
            server.show(tick)
            stamp = tick + truth.sample_delay + SCRAPE_AFTER_SAMPLE
            for of, parser in parsers.items():
                with urllib.request.urlopen(server.url(of), timeout=10) as answer:
                    parsed = parser.parse(answer.read().decode(), openmetrics=False)
                stamps = np.full(len(parsed.at), stamp, np.int64)
                yield from batches(parsed.series, parsed.at, stamps, parsed.values, "scrape")


@pytest.mark.parametrize("name", UNEVEN)
def test_tables_and_samples_name_the_kind_of_skew(name: str) -> None:
    truth = exposed()[name]
    assert_named(computed(window_of(collected(truth)), truth), name)
    assert_named(from_samples(samples_table(truth), truth), name)


@pytest.mark.parametrize("name", ["slow_consumer", "failover", "expiry", *UNEVEN])
def test_scrapes_of_the_processes_give_the_same_computed_tables(name: str) -> None:
    truth = exposed()[name]
    samples = pa.Table.from_batches(list(scraped(truth)), schema.SAMPLES)
    expected = computed(window_of(collected(truth)), truth)
    found = from_samples(samples, truth)
    assert_the_same(found, expected, name)
    if name in UNEVEN:
        assert_named(found, name)


def asked(prometheus: Prometheus, truths: Sequence[Truth]) -> pa.Table:
    """All samples of these workloads, as the source of Spark jobs reads them."""
    start = min(truth.start for truth in truths)
    end = max(truth.end for truth in truths) + SECOND
    options = {"url": prometheus.url, "start": str(start // SECOND), "end": str(end // SECOND)}
    reader = Reader(parse(options))
    made = [batch for part in reader.plan(start, end) for batch in reader.read(part)]
    return pa.Table.from_batches(made, schema.SAMPLES)


def test_blocks_in_a_real_prometheus_give_the_same_computed_tables(tmp_path: Path) -> None:
    truths = exposed()
    first, *others = truths.values()
    write_openmetrics(first, tmp_path / "samples.om", *others)
    blocks = make_blocks(tmp_path / "samples.om", tmp_path / "blocks")
    with over_blocks(tmp_path / "server", blocks) as prometheus:
        samples = asked(prometheus, list(truths.values()))
    assert samples.filter(pc.equal(samples["metric"], "_gap")).num_rows == 0
    for name, truth in truths.items():
        mine = samples.filter(pc.equal(samples["cluster"], name))
        expected = computed(window_of(collected(truth)), truth)
        found = from_samples(mine, truth)
        assert_the_same(found, expected, name)
        if name in UNEVEN:
            assert_named(found, name)
