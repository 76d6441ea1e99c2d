"""A sample whose queues are read in shares becomes the same tables as one that is read whole."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from analytics.kernel.shape import shape
from analytics.schema import CODED_SAMPLES, SAMPLES, TABLES
from analytics.sources.gaps import split
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.reader import Reader
from tests.support.range_server import RangeServer, served
from tests.truth import cases
from tests.truth.rendered import samples_table
from tests.truth.workload import Truth

SECOND = 1_000_000


def read(url: str, truth: Truth, schema: pa.Schema, **of: str) -> dict[str, pa.Table]:
    """Tables out of every part by itself, put together."""
    reader = Reader(parse({"url": url, **of}))
    tables = defaultdict(list)
    for part in reader.plan(truth.start, truth.end + 60 * SECOND):
        samples, gaps = split(pa.Table.from_batches(reader.read(part, schema), schema=schema))
        assert gaps.num_rows == 0
        for name, table in shape(samples, truth.period / SECOND).items():
            tables[name].append(table)
    found = {name: pa.concat_tables(tables[name]) for name in tables}
    return {name: _sorted(found[name]) for name in found if name != "series"}


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


@pytest.mark.parametrize("name", ["failover", "hot_queue", "poison_of_sixteen", "unknowns"])
def test_shards_make_the_tables_of_the_whole_also_with_texts_as_codes(name: str) -> None:
    truth = cases.EVERY[name]()
    with RangeServer(served(samples_table(truth)), left_open=True) as server:
        whole = read(server.url, truth, SAMPLES)
        sharded = read(server.url, truth, CODED_SAMPLES, shards="4", context="true", slice="5m")
    assert whole["positions"].num_rows > 100
    for table in whole:
        assert whole[table].schema.equals(TABLES[table])
        assert sharded[table].equals(whole[table]), table
