"""Cost of lag evaluation: positions through all rules of the kernel, in one process, no Spark."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.schema import GAPS, OFFSET_EVENTS, TIME
from bench.analytics_positions import tables
from bench.harness import Figure, Options, Result, benchmark, interleave
from bench.servers import SERVER_CORE, pin_to

GOAL: Final = 0.25e6
"""Rows/s of one process, so that two cores reach half a million."""
PAIRS_COUNT, QUEUES, TICKS = 320, 16, 240
PAIRS_QUICK: Final = 64
LAGGING: Final = 0.4
"""Share of queues with lag: half of them are late or stuck, half catch up or keep their lag."""
SEED: Final = 1
START: Final = 1_790_000_010_000_000
"""Start time in microseconds; a multiple of the period."""
SECOND: Final = 1_000_000
BASELINE: Final = "pyarrow group_by of series and 5 min, 11 aggregates"
AGGREGATES: Final = [
    *((name, "min") for name in ("max_offset", "commit_offset", "min_offset")),
    *((name, "max") for name in ("max_offset", "commit_offset", "min_offset", "ts")),
    *((name, "count") for name in ("commit_offset", "head_store_ts")),
    ("max_offset", "mean"),
    ("commit_offset", "mean"),
]


class Load(NamedTuple):
    """Rows as collected, and the state before the evaluated ticks."""

    window: Window
    state: pa.Table
    after: datetime
    until: datetime
    rows: int
    """Number of position rows within (after, until]."""


def made(pairs: int, share: float, ticks: int = TICKS) -> Load:
    """Generate pairs of 16 queues over an hour and the quarter of an hour before it."""
    rules, rng = Rules(), np.random.default_rng(SEED)
    history = rules.ticks(rules.history_s)
    series, total = pairs * QUEUES, history + ticks
    at = START + np.arange(total) * rules.period_us
    elapsed = (at - START) / SECOND
    pair_id = np.sort(rng.integers(-(2**62), 2**62, pairs))
    series_id = np.sort(rng.integers(-(2**62), 2**62, (pairs, QUEUES)), axis=1).reshape(-1)
    produced = rng.uniform(1, 100, series)[:, None]
    lagging = rng.random(series) < share
    pace = np.where(lagging, rng.choice([0.0, 0.5, 0.9, 1.0, 1.5], series), 1.0)[:, None]
    behind = np.where(lagging, rng.uniform(0, 600, series), 0.0)[:, None]
    age = np.maximum(behind + (1 - pace) * elapsed, 0)
    high = np.floor(1e6 + produced * elapsed)
    commit = np.minimum(np.floor(1e6 + produced * (elapsed - age)), high)
    head = np.where(commit < high, at + 200_000 - (age * SECOND).astype(np.int64), 0)
    window = Window(
        **tables(pair_id, series_id, at, at + 200_000, (high, commit), head),
        events=OFFSET_EVENTS.empty_table(),
        gaps=GAPS.empty_table(),
    )
    begin, after, until = (
        datetime.fromtimestamp(int(at[number]) / SECOND, UTC)
        for number in (0, history - 1, total - 1)
    )
    before = evaluate(window, rules, None, begin - timedelta(seconds=rules.period_s), after)
    return Load(window, before.state, after, until, series * ticks)


def judge(load: Load) -> float:
    """Return rows/s of CPU time of one evaluation, and check that it returns every row."""
    began = time.process_time()
    done = evaluate(load.window, Rules(), load.state, load.after, load.until)
    spent = time.process_time() - began
    if done.lag.num_rows != load.rows:
        raise RuntimeError(f"{load.rows} rows went in, {done.lag.num_rows} came out")
    return load.rows / spent


def aggregate(load: Load) -> float:
    """Return rows/s of CPU time of plain aggregation of the same rows."""
    rows = load.window.positions
    rows = rows.filter(pc.greater(rows["tick"], pa.scalar(load.after, TIME)))
    began = time.process_time()
    bucket = pc.floor_temporal(rows["tick"], 5, "minute")
    keyed = rows.append_column("bucket", bucket)
    keyed.group_by(["series_id", "bucket"], use_threads=False).aggregate(AGGREGATES)
    return int(rows.num_rows) / (time.process_time() - began)


def main(given: Options) -> Result:
    pin_to(SERVER_CORE)
    pa.set_cpu_count(1)
    pairs = given.pick(PAIRS_COUNT, quick=PAIRS_QUICK)
    usual, all_late = made(pairs, LAGGING), made(pairs, 1.0)
    fresh = made(pairs * 4, LAGGING, ticks=4)
    jobs: dict[str, Callable[[], float]] = {
        "usual": functools.partial(judge, usual),
        "base": functools.partial(aggregate, usual),
        "late": functools.partial(judge, all_late),
        "fresh": functools.partial(judge, fresh),
    }
    found = interleave(jobs, given.runs)
    usual_rate, late, fresh_rate, base = (found[job] for job in ("usual", "late", "fresh", "base"))
    unit, at_once = "rows/s", "evaluate, an hour at once"
    by_minute = "evaluate, a minute at a time, history read again, 40 % with lag"
    figures = [
        Figure(f"{at_once}, 40 % of queues with lag", unit, usual_rate, GOAL, BASELINE, base),
        Figure(f"{at_once}, all queues with lag", unit, late, GOAL),
        Figure(by_minute, unit, fresh_rate),
    ]
    method = f"""analytics.kernel.evaluate.evaluate on Arrow tables in memory, one process on one
        core, rows of positions per second of CPU time; {pairs} pairs of {QUEUES} queues,
        {TICKS} ticks of 15 s and the 15 minutes of history that every call reads besides. All
        tables are computed: rates, lag, pair_lag, stages, status_changes, offset_events, state. A
        minute at a time: {pairs * 4} pairs and four ticks per call. The baseline does nothing but
        sum up the same rows."""
    return Result(figures, method)


if __name__ == "__main__":
    benchmark(main)
