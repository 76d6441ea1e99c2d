"""forecast: what it writes of rolled-up days with known answers; what a repeated run changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.jobs import forecast
from analytics.jobs.forecast import plan
from analytics.moments import HOUR
from analytics.schema import LOGS, PAIR_LAG, ROLLUP, TIME, fit
from analytics.tables import TableRoot
from tests.support.evaluated import Named
from tests.support.spark import spark

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
HOURS = 30
NOW = BEGIN + HOURS * HOUR
SLOW, QUICK, LOUD = Named(1), Named(2), Named(3)
FREE, PACE = 300e9, -1e6  # bytes at BEGIN, bytes a second
BACKLOG, AGE = 36_000, 600.0


def rolled(pair: Named, produced: float, consumed: float, lag: int) -> pa.Table:
    """A pair's minutes and quarters, at rates in messages per second; LOUD triples at the end."""
    tables = []
    for grain in (60, 900):
        steps = HOURS * 3600 // grain
        rate = np.full(steps, produced)
        if pair is LOUD:
            rate[-1800 // grain :] *= 3
        start = pa.array([BEGIN + timedelta(seconds=grain * step) for step in range(steps)], TIME)
        ones = np.ones(steps)
        made: dict[str, Any] = {
            "bucket_start": start,
            "grain_seconds": ones * grain,
            "pair_id": pa.array(np.full(steps, pair.pair_id)),
            "ticks": ones * grain / 15,
            "lag_min": ones * lag,
            "age_max_seconds": ones,
            "produced": rate * grain,
            "consumed": ones * consumed * grain,
            "rate_seconds": ones * grain,
            "members": ones * 2,
            "queues": ones * 2,
            "worst_status": ["OK"] * steps,
        }
        tables.append(fit(pa.table(made), ROLLUP))
    return pa.concat_tables(tables)


def newest(pair: Named, lag: int, age: float) -> dict[str, Any]:
    fields = {"tick": NOW - timedelta(seconds=15), "pair_id": pair.pair_id, "status": "LAGGING"}
    numbers = {"lag_sum": lag, "age_max_seconds": age, "queues": 8, "status_since": BEGIN}
    return pair.names | fields | numbers


def put(root: TableRoot, table: str, rows: pa.Table) -> None:
    files = root.write(table, rows)
    root.commit(table, batch=f"made-{table}", files=files, watermark=NOW)


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    root = TableRoot.create(tmp_path, buckets=3)
    put(
        root,
        "rollup",
        pa.concat_tables(
            [rolled(SLOW, 100, 80, 50), rolled(QUICK, 10, 10, 0), rolled(LOUD, 200, 200, 0)]
        ),
    )
    now = [newest(SLOW, BACKLOG, AGE), newest(QUICK, 0, 0.0), newest(LOUD, 0, 0.0)]
    put(root, "pair_lag", pa.Table.from_pylist(now, schema=PAIR_LAG))
    every = timedelta(minutes=10)
    logs = [
        {
            "ts": BEGIN + every * step,
            "tick": BEGIN + every * step,
            "cluster": "c",
            "broker": "g0",
            "replica": "n0",
            "t_min": BEGIN - HOUR,
            "free_bytes": round(FREE + PACE * (every * step).total_seconds()),
        }
        for step in range(HOURS * 6)
    ]
    put(root, "logs", pa.Table.from_pylist(logs, schema=LOGS))
    return root


def foreseen(root: TableRoot, kind: str, named: str) -> list[dict[str, Any]]:
    rows = root.read("forecasts").filter(pc.field("kind") == kind).to_pylist()
    return sorted((row for row in rows if named in row["subject"]), key=lambda row: row["at"])


def test_a_plan_covers_the_time_of_no_run() -> None:
    first = plan(NOW, None, 2)
    assert first.since == NOW - timedelta(days=1)
    assert first.tasks == [("pairs", 0), ("pairs", 1), ("disks", 0), ("unusual", 0)]
    later = plan(NOW + timedelta(minutes=70), NOW + timedelta(minutes=20), 1)
    assert later.since == NOW
    assert later.hours["anomalies"] == [NOW, NOW + HOUR]
    assert later.hours["forecasts"] == [NOW + HOUR]


def test_pairs_volumes_and_what_is_unlike_itself(root: TableRoot, spark: SparkSession) -> None:
    done = forecast.run(spark, root.uri)
    assert done is not None
    assert done.issued_at == NOW

    produced = foreseen(root, "produce", "group=g1")
    assert len(produced) == 24
    assert [row["p50"] for row in produced] == pytest.approx([100] * 24)
    assert {row["model"] for row in produced} == {"last_day"}
    assert produced[0]["at"] == NOW
    assert produced[0]["time_to_limit_p50_seconds"] == 0  # 100 a second come, 80 are read

    # In an hour 20 a second more are unread; what is unread is what came last.
    ages = foreseen(root, "age", "group=g1")
    unread = BACKLOG + 3600 * 20
    assert ages[0]["at"] == NOW + HOUR
    assert ages[0]["p50"] == pytest.approx(unread / 100)
    retention = (HOURS + 1) * 3600 - 600
    assert ages[-1]["p50"] < retention
    assert ages[-1]["time_to_limit_p50_seconds"] == float("inf")

    held = {row["group"]: row for row in root.read("capacity").to_pylist()}
    assert held["g1"]["c_max_per_second"] == pytest.approx(80)
    assert held["g1"]["utilisation_p95"] == pytest.approx(100 / 80)
    assert (held["g1"]["members_at_max"], held["g1"]["limited_by"]) == (2, "members")
    assert (held["g2"]["c_max_per_second"], held["g2"]["minutes"]) == (None, 0)
    assert held["g1"]["day"] == BEGIN + 24 * HOUR

    disk = foreseen(root, "disk", "replica=n0")
    last = (HOURS * 3600) - 600
    left = FREE / -PACE - last
    for name in ("p10", "p50", "p90"):
        assert disk[0][f"time_to_limit_{name}_seconds"] == pytest.approx(left, rel=1e-6)
    assert disk[0]["subject"] == "cluster=c broker=g0 replica=n0 volume=log"

    odd = {(row["subject"], row["signal"]): row for row in root.read("anomalies").to_pylist()}
    topic = odd["cluster=c broker=g0 topic=t3", "produce_per_second"]
    assert topic["ts"] == NOW - timedelta(minutes=28)
    assert topic["value"] == pytest.approx(600)
    assert topic["expected"] == pytest.approx(200, rel=0.05)
    above = [parent for parent, _ in odd if parent in ("cluster=c", "cluster=c broker=g0")]
    assert all(subject.startswith("cluster=c") for subject, _ in odd)
    assert len(odd) == 1 + len(above)


def test_a_repeated_run_changes_nothing_and_collects_nothing(
    root: TableRoot, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "first"):
        monkeypatch.setattr(DataFrame, name, None)
    forecast.run(spark, root.uri)
    tables = ("forecasts", "capacity", "anomalies")
    before = {name: sorted(root.read(name).to_pylist(), key=str) for name in tables}
    forecast.run(spark, root.uri)
    assert {name: sorted(root.read(name).to_pylist(), key=str) for name in tables} == before
    assert before["anomalies"]


def test_without_roll_ups_there_is_nothing_to_forecast(tmp_path: Path, spark: SparkSession) -> None:
    root = TableRoot.create(tmp_path)
    assert forecast.run(spark, root.uri) is None


def test_minutes_of_history_forecast_nothing(tmp_path: Path, spark: SparkSession) -> None:
    root = TableRoot.create(tmp_path, buckets=1)
    few = rolled(QUICK, 10, 10, 0).slice(0, 4)
    files = root.write("rollup", few)
    now = BEGIN + timedelta(minutes=4)
    root.commit("rollup", batch="made", files=files, watermark=now)
    row = newest(QUICK, 0, 0.0) | {"tick": BEGIN}
    put(root, "pair_lag", pa.Table.from_pylist([row], schema=PAIR_LAG))
    assert forecast.run(spark, root.uri) is not None
    assert root.read("forecasts").num_rows == 0
    assert root.read("anomalies").num_rows == 0
    assert root.read("capacity").column("c_max_per_second").to_pylist() == [None]
