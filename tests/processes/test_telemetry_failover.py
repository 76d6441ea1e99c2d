"""The telemetry journal of a group goes on with the next master, and is read as one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import tidemark
from analytics.kernel.shape import shape
from analytics.schema import SAMPLES
from analytics.sources.gaps import split
from analytics.sources.telemetry import reader
from analytics.sources.telemetry.options import Options, parse
from analytics.sources.telemetry.reader import Range
from tests.support.cluster import Cluster
from tests.support.node import wait_until
from tidemark.formats.telemetry import Head

PERIOD_S = 1.0


def heads(given: Options) -> list[Head]:
    """Heads of all records of the journal; none while there is no master."""
    found = reader.bounds(given)
    if not found:
        return []
    ((of, (low, high)),) = found.items()
    return [record.part.head for record in reader._records(given, of, low, high) if record.part]


def test_a_failover_loses_no_confirmed_snapshot_and_the_next_master_begins_with_a_keyframe(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, broker={"telemetry_period_s": PERIOD_S}) as cluster:
        cluster.start()
        first = cluster.wait_master()
        cluster.wait_in_sync(*cluster.names)
        urls = [cluster.nodes[name].api_url for name in cluster.names]
        labels = {"cluster": "c", "broker": "g0"}
        targets = json.dumps([{"targets": urls, "labels": labels}])
        given = parse({"targets": targets, "from": "first"})
        with tidemark.connect_sync(urls) as mq:
            mq.create_topic("orders", queues=2)
            mq.send("orders", b"x", queue=1)
            wait_until(lambda: len(heads(given)) >= 3, "three snapshots")
            before = heads(given)
            cluster.kill(first)
            mq.send("orders", b"y", queue=1)
        wait_until(lambda: {head.node for head in heads(given)} == {*cluster.names}, "both nodes")
        after = heads(given)
        assert after[: len(before)] == before
        switch = next(head for head in after if head.node != first)
        assert (switch.number, switch.is_keyframe, switch.back) == (0, True, 0)
        assert switch.epoch > before[-1].epoch
        ((of, (low, high)),) = reader.bounds(given).items()
        samples, gaps = split(
            pa.Table.from_batches(reader.read(given, Range(of, low, high)), schema=SAMPLES)
        )
        assert gaps.num_rows == 0
        logs = shape(samples, PERIOD_S)["logs"]
        assert set(logs.column("role").to_pylist()) == {"master"}
        assert set(pc.unique(logs.column("replica")).to_pylist()) == {*cluster.names}
