"""collect and evaluate as streams through trouble: afterwards the tables are those of a batch.

Drivers and executors are killed, samples come late and twice, a broker set does not answer for five
minutes, and the clock of another is ten minutes ahead. `make streams` does six hours of 500 pairs
on two executors for each job, and kills by turns. `make streams SIZE=short` does 20 minutes of ten
pairs, and kills both drivers once. The seed is printed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.moments import to_us
from analytics.tables import TableRoot
from analytics.tables.files import read_file
from analytics.tables.log import commits
from tests.support.canned_samples import (
    PERIOD_S,
    CannedServer,
    Record,
    journals,
    workloads,
    write,
)
from tests.support.evaluated_once import at_once
from tests.support.killed_jobs import versions
from tests.support.live_streams import LiveStream, run
from tests.support.spark import spark
from tests.support.table_rows import assert_same
from tests.truth.steps import SECOND
from tests.truth.workload import Truth

__all__ = ["spark"]
pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif("TIDEMARK_STREAMS" not in os.environ, reason="minutes long: `make streams`"),
]
IS_WHOLE = os.environ.get("TIDEMARK_STREAMS") == "whole"
BROKERS, PAIRS, TICKS = (5, 100, 1440) if IS_WHOLE else (2, 5, 80)
MASTER = "local-cluster[2,1,1024]" if IS_WHOLE else "local[2]"
SPEED = 4.0
"""Ticks per second, at most."""
AHEAD = 60 if IS_WHOLE else 18
"""How many ticks samples are ahead of evaluation, at most."""
KILL_EVERY_S = 60.0 if IS_WHOLE else 5.0
KILLS_MOST = 1000 if IS_WHOLE else 2
AWAY = range(TICKS // 2, TICKS // 2 + 20)
LATE_MOST = 100 if IS_WHOLE else 30
KEYS = {
    "rates": ("series_id",),
    "lag": ("series_id",),
    "pair_lag": ("pair_id",),
    "stages": ("pair_id",),
    "status_changes": ("pair_id", "series_id"),
    "offset_events": ("series_id", "kind"),
}


class Watched(NamedTuple):
    """The running streams and what they work on."""

    jobs: Mapping[str, LiveStream]
    server: CannedServer
    tables: Path
    first_tick: int

    def move_time(self, seconds: float) -> None:
        """Let time go by as fast as evaluation follows, so that late samples are late for it."""
        until = self._evaluated() + AHEAD
        if until < TICKS:
            self.server.now = max(self.server.now, min(self.server.now + seconds * SPEED, until))
        else:
            self.server.now += seconds * SPEED

    def _evaluated(self) -> int:
        """Number of ticks that are evaluated."""
        if not versions(self.tables, ("lag",)):
            return 0
        mark = TableRoot(self.tables).watermark("lag")
        if mark is None:
            return 0  # the table is made, and its first commit is not there yet
        return (to_us(mark) - self.first_tick) // (PERIOD_S * SECOND) + 1


def through_kills(watched: Watched) -> dict[str, int]:
    """Run both jobs until all samples are there, and kill by turns; return the counts."""
    jobs = watched.jobs
    for job in jobs.values():
        job.start()
    turns = cycle([(job, is_driver) for is_driver in (True, False) for job in jobs.values()])
    counts: dict[str, int] = {}
    (job, is_driver), due = next(turns), time.monotonic() + KILL_EVERY_S
    while not watched.server.is_over:
        for each in jobs.values():
            each.check()
        if sum(counts.values()) < KILLS_MOST and time.monotonic() >= due and job.has_written:
            if is_driver:
                job.kill_driver()
                job.start()
            else:
                job.kill_executor()
            name = f"{'driver' if is_driver else 'executor'} of {job.job}"
            counts[name] = counts.get(name, 0) + 1
            (job, is_driver), due = next(turns), time.monotonic() + KILL_EVERY_S
        time.sleep(0.2)
        watched.move_time(0.2)
    return counts


def positions_of(truths: list[Truth], plan: list[list[Record]]) -> dict[tuple[str, int], int]:
    """How often each tick of each broker set was sent."""
    found: dict[tuple[str, int], int] = {}
    for truth, journal in zip(truths, plan, strict=True):
        ticks = truth.ticks()
        for record in journal:
            key = (truth.brokers[0].name, int(ticks[record.tick]))
            found[key] = found.get(key, 0) + 1
    return found


def judged_again(root: TableRoot, checkpoint: Path) -> dict[int, list[tuple[int, int]]]:
    """Which ticks of each bucket got samples after they were evaluated, read from the rows that
    each commit added between the offsets of two batches: (first late tick, last evaluated one)."""
    numbers = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    offsets = [_offset(checkpoint / "offsets" / str(number)) for number in numbers]
    offsets = [offset for offset in offsets if offset["tick"]]  # 0: there were no positions yet
    found: dict[int, list[tuple[int, int]]] = {bucket: [] for bucket in range(root.buckets)}
    for start, end in pairwise(offsets):
        first: dict[int, int] = {}
        for table in ("positions", "pairs", "logs", "replicas"):
            until = end["versions"][table]
            for file in _added(root, table, start["versions"][table], until):
                ticks = np.asarray(
                    read_file(root.location, file, columns=["tick"])["tick"].cast(pa.int64())
                )
                late = ticks[ticks <= start["tick"]]
                if late.size:
                    for bucket in found if file.bucket is None else [file.bucket]:
                        first[bucket] = min(int(late.min()), first.get(bucket, int(late.min())))
        for bucket, tick in first.items():
            found[bucket].append((tick, start["tick"]))
    return found


def _added(root: TableRoot, table: str, first: int, before: int) -> Iterator[Any]:
    for commit in commits(root.location, table, first, before):
        assert commit is not None
        yield from commit.added


def _offset(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    return found


def assert_once(rows: pa.Table, keys: tuple[str, ...]) -> None:
    """No key has two rows at a tick."""
    counted = rows.group_by([*keys, "tick"]).aggregate([([], "count_all")])["count_all"]
    assert pc.max(counted).as_py() in (None, 1)


def assert_collected(root: TableRoot, sent: Mapping[tuple[str, int], int]) -> None:
    """Every record is in the tables once; one that was sent twice may be there twice."""
    logs = root.read("logs", columns=["tick", "broker", "replica"])
    masters = logs.filter(pc.ends_with(logs["replica"], "-a"))
    counted = masters.group_by(["broker", "tick"]).aggregate([([], "count_all")]).to_pylist()
    found = {(row["broker"], to_us(row["tick"])): row["count_all"] for row in counted}
    assert found.keys() == sent.keys()
    assert all(1 <= count <= sent[key] for key, count in found.items())
    positions = root.read("positions", columns=["series_id"])
    assert positions.num_rows == PAIRS * sum(found.values())


def assert_judged(root: TableRoot, checkpoint: Path) -> str:
    """The computed tables are those of one evaluation, and say which rows were evaluated again;
    return the counts."""
    until = root.watermark("lag")
    assert until is not None
    again = judged_again(root, checkpoint)
    counts = {}
    for name, wanted in at_once(root, until).items():
        rows = root.read(name)
        assert_same(rows, wanted, name)
        assert_once(rows, KEYS[name])
        ticks = np.asarray(rows["tick"].cast(pa.int64()))
        buckets = np.asarray(rows["pair_id"]) % root.buckets
        is_late = np.zeros(rows.num_rows, bool)
        for bucket, spans in again.items():
            for first, last in spans:
                is_late |= (buckets == bucket) & (ticks >= first) & (ticks <= last)
        assert np.array_equal(np.asarray(rows["revised_at"].is_valid()), is_late), name
        counts[name] = (rows.num_rows, int(is_late.sum()))
    assert counts["lag"][1] > 0, "no tick was evaluated again: nothing is shown"
    return f"{max(map(len, again.values()))} revisions; (rows, revised): {counts}"


def test_streams_through_kills_and_late_samples_leave_the_tables_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = int(os.environ.get("TIDEMARK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    truths = workloads(BROKERS, PAIRS, TICKS, chance)
    plan = journals(BROKERS, TICKS - 1, chance, away=AWAY, late_most=LATE_MOST)
    files = [tmp_path / f"{number}.arrow" for number in range(BROKERS)]
    for truth, path in zip(truths, files, strict=True):
        write(truth, path)
    tables = tmp_path / "tables"
    with CannedServer(files, plan, away=AWAY) as server:
        jobs = {
            name: LiveStream(name, tables, server.url, tmp_path, MASTER)
            for name in ("collect", "evaluate")
        }
        began = time.monotonic()
        kills = through_kills(Watched(jobs, server, tables, int(truths[0].ticks()[0])))
        took_s = time.monotonic() - began
        for name, job in jobs.items():
            job.stop()
            run(spark, name, tables, job.checkpoint, server.url, ends=True)
    root, sent = TableRoot(tables), positions_of(truths, plan)
    assert_collected(root, sent)
    late = sum(record.comes - record.tick > 2 for journal in plan for record in journal)
    twice = sum(sent.values()) - len(sent)
    print(f"{took_s:.0f} s, kills {kills}; {late} records late, {twice} twice")
    print(assert_judged(root, jobs["evaluate"].checkpoint))
    assert kills, "no process was killed"
