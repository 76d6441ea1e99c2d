"""Rows of pairs and logs for tests of stages and hidden lag: columns that are not given have usual
values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from analytics.schema import LOGS, PAIRS

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLACE = {"cluster": "c", "broker": "g0", "replica": "n0"}


def at(seconds: float) -> datetime:
    """The time that is this many seconds after the start."""
    return START + timedelta(seconds=seconds)


def pairs(*rows: dict[str, Any]) -> pa.Table:
    """Rows of PAIRS; each gives its tick, and pair_id if it is not 1."""
    usual = PLACE | {"pair_id": 1, "group": "g", "topic": "t", "objective_seconds": 4.0}
    return pa.Table.from_pylist([usual | {"ts": row["tick"]} | row for row in rows], schema=PAIRS)


def logs(*rows: dict[str, Any]) -> pa.Table:
    """Rows of LOGS; each gives its tick."""
    usual = PLACE | {"role": "master", "up_since": at(-3600)}
    return pa.Table.from_pylist([usual | {"ts": row["tick"]} | row for row in rows], schema=LOGS)
