"""Compares a report of ten thousand pairs with reading the same tables."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.report.facts import to_json
from analytics.report.gather import gather
from analytics.report.page import page
from analytics.schema import TABLES, TIME, fit
from analytics.tables import TableRoot
from bench.harness import Options, Result, benchmark, interleave, of_ratios, rate

GOAL: Final = 0.2
"""Share of the reading speed: the report may take five times as long."""
PAIRS: Final = 10_000
HOURS: Final = 3
TICKS: Final = 240
"""Number of ticks in an hour, at 15 s."""
START: Final = datetime(2026, 3, 4, 9, tzinfo=UTC)
END: Final = START + timedelta(hours=HOURS)
READ: Final = ("pair_lag", "stages")


def fill(root: TableRoot, pairs: int) -> None:
    """Write the tables hour by hour; one pair of two hundred lags."""
    rng = np.random.default_rng(1)
    ids = rng.integers(-(2**62), 2**62, pairs)
    count = pairs * TICKS
    names = pa.array(np.repeat([f"group-{each}" for each in range(pairs)], TICKS))
    late = np.repeat(np.arange(pairs) % 200 == 0, TICKS)
    for hour in range(HOURS):
        first = round((START + timedelta(hours=hour)).timestamp() * 1e6)
        part = rng.random(count)
        common = {
            "tick": pa.array(np.tile(first + np.arange(TICKS) * 15_000_000, pairs), TIME),
            "pair_id": np.repeat(ids, TICKS),
            "cluster": pa.repeat("c", count),
            "broker": pa.repeat("g0", count),
            "group": names,
            "topic": pa.repeat("t", count),
        }
        lag = {
            "lag_sum": np.rint(part * 100).astype(np.int64),
            "age_max_seconds": part * np.where(late, 700.0, 50.0),
            "objective_seconds": np.full(count, 60.0),
            "produce_per_second": part * 9,
            "consume_per_second": part * 8,
            "status": np.where(late, "FALLING_BEHIND", "OK"),
            "status_since": common["tick"],
        }
        stages = {
            f"{stage}_seconds": part
            for stage in ("replication", "dispatch", "delivery", "processing")
        }
        for name, columns in zip(READ, (lag, stages), strict=True):
            rows = fit(pa.table({**common, **columns}), TABLES[name])
            batch = f"hour-{hour}"
            root.commit(name, batch=batch, files=root.write(name, rows))


def read(root: TableRoot) -> int:
    """Read all rows and columns of the tables of which a report reads most."""
    return sum(
        batch.num_rows for name in READ for batch in root.scan(name, since=START, before=END)
    )


def make(root: TableRoot) -> int:
    """Build the whole report; return its size."""
    facts = gather(root, start=START, end=END, made_at=END)
    return len(page(facts)) + len(to_json(facts))


def main(given: Options) -> Result:
    pairs = given.pick(PAIRS, quick=PAIRS // 20)
    with tempfile.TemporaryDirectory() as directory:
        root = TableRoot.create(Path(directory) / "tables")
        fill(root, pairs)
        count = read(root)
        assert count == pairs * TICKS * HOURS * len(READ)
        found = interleave(
            {
                "report": lambda: rate(count, lambda: make(root)),
                "read": lambda: rate(count, lambda: read(root)),
            },
            given.runs,
        )
    figure = of_ratios(
        "Report, HTML and JSON", found["report"], found["read"], GOAL, "reading the same tables"
    )
    return Result(
        [figure],
        f"""{pairs:,} pairs, {HOURS} hours at 15 s: {count:,} rows of pair_lag and stages, one pair
        of two hundred behind; the baseline reads all columns of both with pyarrow.""",
    )


if __name__ == "__main__":
    benchmark(main)
