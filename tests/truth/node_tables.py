"""What nodes report of themselves as Arrow tables: logs, replicas; and gaps. Pure.

The tables of queues and groups are in `tables`, which puts them all together.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from analytics import schema
from tests.truth.columns import names, table
from tests.truth.reading import master, stages, started
from tests.truth.steps import ABSENT, SECOND, Ints, by_clock
from tests.truth.workload import SCRAPE_AFTER_SAMPLE, Broker, Truth


def logs(truth: Truth, broker: Broker, node: int, ticks: Ints, sample_times: Ints) -> pa.Table:
    """Rows of schema LOGS of one node."""
    at = stages(broker, sample_times)
    size = len(sample_times)
    mine = master(broker, sample_times) == node
    return schema.fit(
        table(
            np.ones(size, np.bool_),
            {
                "ts": sample_times + broker.clock_off,
                "tick": ticks,
                "cluster": np.full(size, truth.cluster),
                "broker": np.full(size, broker.name),
                "replica": np.full(size, broker.nodes[node]),
                "epoch": broker.epoch(sample_times),
                "role": np.where(mine, "master", "slave"),
                "up_since": by_clock(started(truth, broker, node, sample_times), broker.clock_off),
                "min_physical_offset": at.min_offset,
                "max_physical_offset": at.max_offset,
                "flushed_physical_offset": at.max_offset,
                "confirm_physical_offset": at.confirm,
                "dispatched_physical_offset": at.dispatched,
                "t_max": by_clock(at.t_max, broker.clock_off),
                "t_confirm": by_clock(at.t_confirm, broker.clock_off),
                "t_dispatched": by_clock(at.t_dispatched, broker.clock_off),
                "t_min": by_clock(at.t_min, broker.clock_off),
                "free_bytes": broker.log.free_bytes(sample_times),
                "capacity_bytes": np.full(size, broker.log.capacity_bytes, np.int64),
                "clock_seconds": np.full(size, (broker.clock_off - SCRAPE_AFTER_SAMPLE) / SECOND),
            },
        ),
        schema.LOGS,
    )


def replicas(truth: Truth, broker: Broker, ticks: Ints, sample_times: Ints) -> pa.Table:
    """Rows of schema REPLICAS: of the master of each time about the others."""
    who = master(broker, sample_times)
    made = []
    for peer in range(len(broker.nodes)):
        size = len(sample_times)
        lag = broker.replica_lag_bytes(sample_times)
        made.append(
            table(
                (who != ABSENT) & (who != peer),
                {
                    "ts": sample_times,
                    "tick": ticks,
                    "cluster": np.full(size, truth.cluster),
                    "broker": np.full(size, broker.name),
                    "replica": names(broker, who),
                    "peer": np.full(size, broker.nodes[peer]),
                    "in_sync": np.ones(size, np.bool_),
                    "lag_bytes": lag,
                    "lag_seconds": np.zeros(size),
                    "skew_seconds": broker.skew_microseconds(sample_times) / SECOND,
                },
            )
        )
    return pa.concat_tables([schema.fit(table, schema.REPLICAS) for table in made])


def target(node: str, service: str) -> str:
    """The label `instance` of a process of a workload."""
    return f"{node}.{service}:9100"


def gaps(truth: Truth) -> pa.Table:
    """Rows of schema GAPS: one for each tick of which nothing was heard."""
    missing = sorted(truth.missing)
    rows = [
        {
            "source": "scrape",
            "subject": truth.cluster,
            "from_ts": tick - truth.period,
            "to_ts": tick,
            "reason": "unreachable",
            "detail": "removed from the workload",
        }
        for tick in missing
    ]
    columns = {
        name: pa.array([row[name] for row in rows])
        for name in ("source", "subject", "from_ts", "to_ts", "reason", "detail")
        if rows
    }
    return schema.fit(pa.table(columns), schema.GAPS) if rows else schema.GAPS.empty_table()
