"""Signals of counters, by the minute. No Spark: what one executor does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analytics.jobs.counted import PUT_BUCKETS, repeated, slow_puts
from analytics.moments import HOUR
from analytics.schema import COUNTERS, PAIRS
from analytics.tables import TableRoot

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def put(root: TableRoot, table: str, rows: list[dict[str, Any]]) -> None:
    schema = {"counters": COUNTERS, "pairs": PAIRS}[table]
    files = root.write(table, pa.Table.from_pylist(rows, schema=schema))
    root.commit(table, batch="made", files=files)


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path, buckets=2)


def test_sends_are_judged_by_what_their_buckets_grew_by_in_each_minute(root: TableRoot) -> None:
    """100 sends a minute, of which from minute 2 on a tenth take between 0.1 and 0.5 s."""
    rows = []
    for minute in range(4):
        slow = 10 * max(0, minute - 1)
        for bound, count in (("0.1", 100 * minute - slow), ("0.5", 100 * minute)):
            for ack in ("disk", "memory"):
                fields = {"ts": BEGIN + timedelta(minutes=minute, seconds=5), "target": "n0:1"}
                names = {"cluster": "c", "broker": "g0", "replica": "n0", "started_at": BEGIN}
                labels = {"labels": f'ack="{ack}",le="{bound}"', "metric": PUT_BUCKETS}
                rows.append(fields | names | labels | {"value": float(count)})
        rows.append(rows[-1] | {"labels": 'ack="disk",le="+Inf"', "value": 100.0 * minute})
        rows.append(rows[-1] | {"labels": 'ack="memory",le="+Inf"'})
        rows.append(rows[-1] | {"metric": "tidemark_other_bucket", "value": 9e9})
    put(root, "counters", rows)
    found, values = slow_puts(root, BEGIN, BEGIN + HOUR)
    assert found.column("replica").to_pylist() == ["n0"] * 4
    assert values[1:] == pytest.approx([0.099, 0.1 + 0.4 * 0.9, 0.1 + 0.4 * 0.9])
    assert values[0] != values[0]  # a first sample gives no rate


def test_repeated_deliveries_are_a_share_of_all(root: TableRoot) -> None:
    rows = []
    for quarter in range(12):
        second = 15 * quarter
        rows.append(
            {
                "ts": BEGIN + timedelta(seconds=second),
                "tick": BEGIN + timedelta(seconds=second),
                "pair_id": 1,
                "cluster": "c",
                "broker": "g0",
                "replica": "n0",
                "group": "g",
                "topic": "t",
                "consumed_total": 30 * quarter,
                "redelivered_total": 10 * max(0, quarter - 7),
            }
        )
    put(root, "pairs", rows)
    found, values = repeated(root, BEGIN, BEGIN + HOUR)
    assert found.column("group").to_pylist() == ["g"] * 3
    assert values[1:] == pytest.approx([0, 40 / (40 + 120)])
    assert values[0] != values[0]


def test_no_counters_give_no_signals(root: TableRoot) -> None:
    for found, values in (
        slow_puts(root, BEGIN, BEGIN + HOUR),
        repeated(root, BEGIN, BEGIN + HOUR),
    ):
        assert found.num_rows == 0
        assert values.size == 0
