"""Cost of lag evaluation: positions through all rules of the kernel, in one process, no Spark."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.schema import GAPS, LOGS, OFFSET_EVENTS, PAIRS, POSITIONS, SERIES, TIME, fit
from bench.harness import Figure, interleave, options, report
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
    caught_up = (commit >= high).reshape(-1)
    ts = np.broadcast_to(at + 200_000, (series, total))
    head = ts - (age * SECOND).astype(np.int64)
    size = series * total

    def column(values: object) -> pa.Array:
        return pa.array(np.asarray(values).reshape(-1).astype(np.int64))

    def word(text: str, count: int) -> pa.Array:
        return pa.array([text]).take(pa.array(np.zeros(count, np.int64)))

    positions = {
        "ts": column(ts).cast(TIME),
        "tick": column(np.broadcast_to(at, (series, total))).cast(TIME),
        "series_id": column(np.repeat(series_id, total)),
        "pair_id": column(np.repeat(np.repeat(pair_id, QUEUES), total)),
        "replica": word("n1", size),
        "epoch": column(np.ones(size)),
        "min_offset": column(np.zeros(size)),
        "max_offset": column(high),
        "commit_offset": column(commit),
        "head_store_ts": pa.array(head.reshape(-1), mask=caught_up).cast(TIME),
        "head_method": pc.if_else(pa.array(caught_up), "none", "exact"),
    }
    names = [f"group{number}" for number in range(pairs)]
    dimension = {
        "series_id": column(series_id),
        "pair_id": column(np.repeat(pair_id, QUEUES)),
        "cluster": word("c1", series),
        "broker": word("g0", series),
        "group": pa.array(np.repeat(names, QUEUES)),
        "topic": word("orders", series),
        "queue": column(np.tile(np.arange(QUEUES), pairs)).cast(pa.int32()),
        "kind": word("main", series),
        "first_seen": column(np.full(series, START)).cast(TIME),
        "last_seen": column(np.full(series, START)).cast(TIME),
    }
    sample_count = pairs * total
    facts = {
        "ts": column(np.tile(at + 200_000, pairs)).cast(TIME),
        "tick": column(np.tile(at, pairs)).cast(TIME),
        "pair_id": column(np.repeat(pair_id, total)),
        "cluster": word("c1", sample_count),
        "broker": word("g0", sample_count),
        "replica": word("n1", sample_count),
        "group": pa.array(np.repeat(names, total)),
        "topic": word("orders", sample_count),
        "subscribed": pa.array(np.ones(sample_count, np.bool_)),
        "members": column(np.full(sample_count, 3)),
        "objective_seconds": pa.array(np.full(sample_count, 60.0)),
    }
    logs = {
        **{name: facts[name].slice(0, total) for name in ("ts", "tick")},
        **{name: facts[name].slice(0, total) for name in ("cluster", "broker", "replica")},
        **{name: column(at).cast(TIME) for name in ("t_max", "t_confirm", "t_dispatched")},
        "t_min": column(np.full(total, START - 86_400 * SECOND)).cast(TIME),
    }
    window = Window(
        fit(pa.table(positions), POSITIONS),
        fit(pa.table(dimension), SERIES),
        fit(pa.table(facts), PAIRS),
        fit(pa.table(logs), LOGS),
        OFFSET_EVENTS.empty_table(),
        GAPS.empty_table(),
    )
    begin, after, until = (_instant(int(at[number])) for number in (0, history - 1, total - 1))
    before = evaluate(window, rules, None, begin - timedelta(seconds=rules.period_s), after)
    return Load(window, before.state, after, until, series * ticks)


def _instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / SECOND, UTC)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    given = options(__doc__, arguments)
    pin_to(SERVER_CORE)
    pa.set_cpu_count(1)
    pairs = PAIRS_QUICK if given.quick else PAIRS_COUNT
    usual, all_late = made(pairs, LAGGING), made(pairs, 1.0)
    fresh = made(pairs * 4, LAGGING, ticks=4)
    jobs: dict[str, Callable[[], float]] = {
        "usual": functools.partial(judge, usual),
        "base": functools.partial(aggregate, usual),
        "late": functools.partial(judge, all_late),
        "fresh": functools.partial(judge, fresh),
    }
    found = interleave(jobs, given.runs)
    unit = "rows/s"
    figures = [
        Figure(
            "evaluate, an hour at once, 40 % of queues with lag",
            unit,
            found["usual"],
            GOAL,
            BASELINE,
            found["base"],
        ),
        Figure("evaluate, an hour at once, all queues with lag", unit, found["late"], GOAL),
        Figure(
            "evaluate, a minute at a time, history read again, 40 % with lag", unit, found["fresh"]
        ),
    ]
    method = f"""analytics.kernel.evaluate.evaluate on Arrow tables in memory, one process on one
        core, rows of positions per second of CPU time; {pairs} pairs of {QUEUES} queues,
        {TICKS} ticks of 15 s and the 15 minutes of history that every call reads besides. All
        tables are computed: rates, lag, pair_lag, stages, status_changes, offset_events, state. A
        minute at a time: {pairs * 4} pairs and four ticks per call. The baseline does nothing but
        sum up the same rows."""
    return report("analytics_evaluate", figures, method, quick=given.quick)


if __name__ == "__main__":
    sys.exit(main())
