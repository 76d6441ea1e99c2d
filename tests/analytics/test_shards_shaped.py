"""A sample whose queues are read in shares becomes the same tables as one that is read whole."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from analytics.kernel.shape import shape
from analytics.schema import SAMPLES, TABLES
from analytics.sources.exposition import Parser
from analytics.sources.gaps import split
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.reader import Reader
from tests.support.range_server import Labels, RangeServer
from tests.truth import cases
from tests.truth.exposition import openmetrics
from tests.truth.workload import Truth

SECOND = 1_000_000


def served(truth: Truth) -> dict[Labels, list[tuple[int, float]]]:
    """All samples of a workload, as a server keeps them."""
    parsed = Parser({}).parse("".join(openmetrics(truth)), openmetrics=True)
    assert parsed.unreadable == 0
    assert parsed.ts_us is not None
    found: dict[Labels, list[tuple[int, float]]] = defaultdict(list)
    for place, ts_us, value in zip(parsed.at, parsed.ts_us, parsed.values, strict=True):
        of = parsed.series[place]
        own = {
            "__name__": of.metric, "instance": of.target, "cluster": of.cluster,
            "broker": of.broker, "replica": of.replica, "service": of.service,
            "group": of.group, "topic": of.topic,
            "queue": None if of.queue is None else str(of.queue),
        }  # fmt: skip
        labels = [(name, value) for name, value in own.items() if value is not None]
        if of.labels:
            name, _, quoted = of.labels.partition("=")
            labels.append((name, quoted.strip('"')))
        found[tuple(labels)].append((int(ts_us) // 1000, float(value)))
    return found


def read(url: str, truth: Truth, **of: str) -> dict[str, pa.Table]:
    """Tables out of every part by itself, put together."""
    reader = Reader(parse({"url": url, **of}))
    tables = defaultdict(list)
    for part in reader.plan(truth.start, truth.end + 60 * SECOND):
        samples, gaps = split(pa.Table.from_batches(reader.read(part), schema=SAMPLES))
        assert gaps.num_rows == 0
        for name, table in shape(samples, truth.period / SECOND).items():
            tables[name].append(table)
    found = {name: pa.concat_tables(tables[name]) for name in tables}
    return {name: _sorted(found[name]) for name in found if name != "series"}


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


@pytest.mark.parametrize("name", ["failover", "hot_queue", "poison_of_sixteen", "unknowns"])
def test_shards_make_the_tables_of_the_whole(name: str) -> None:
    truth = cases.EVERY[name]()
    with RangeServer(served(truth), left_open=True) as server:
        whole = read(server.url, truth)
        sharded = read(server.url, truth, shards="4", context="true", slice="5m")
    assert whole["positions"].num_rows > 100
    for table in whole:
        assert whole[table].schema.equals(TABLES[table])
        assert sharded[table].equals(whole[table]), table
