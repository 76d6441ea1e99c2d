"""The stream of ticks over real tables, while `collect` is late and after it has come back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from analytics import runs
from analytics.moments import from_us
from analytics.schema import COMPUTED
from analytics.tables import Batch, TableRoot
from analytics.ticks.spark import TicksReader

P = 15_000_000


def closed(root: TableRoot) -> int:
    """The last tick that the stream hands out [microseconds]."""
    reader = TicksReader({"tables": root.uri, "period_us": str(P)})
    found = reader.latestOffset({"tick": P}, ReadAllAvailable())
    return int(found["tick"])


def test_the_first_batch_begins_at_the_same_tick_when_it_is_repeated(tmp_path: Path) -> None:
    # A driver that was killed between two tables lost the rows of the others: the repeated batch
    # began where the tables that had it ended.
    root = TableRoot.create(tmp_path / "tables")
    reader = TicksReader({"tables": root.uri, "period_us": str(P)})
    assert reader.initialOffset() == {"tick": 0}
    for table in COMPUTED:
        assert reader.initialOffset() == {"tick": 0}
        root.commit(table, batch=Batch("evaluate", 0), watermark=from_us(9 * P))
    assert reader.initialOffset() == {"tick": 9 * P}


@pytest.mark.parametrize("is_silent", [False, True], ids=["collector is late", "broker is silent"])
def test_ticks_wait_for_a_late_collector_and_not_for_a_silent_broker(
    tmp_path: Path, is_silent: bool
) -> None:
    root = TableRoot.create(tmp_path / "tables")
    now = time.time_ns() // 1000
    last = (now - 330_000_000) // P * P  # five and a half minutes ago

    def note(number: int, newest: int, read_to: int, at_s: float) -> None:
        with runs.run(root, "collect", Batch("collect", number), clock=lambda: at_s) as noted:
            noted.saw({"n0": newest})
            noted.read_to(from_us(read_to))

    note(0, last, now - P if is_silent else last + 5_000_000, time.time() - 325)
    if not is_silent:
        assert closed(root) == last - P
        # It comes back and has read all: the brokers sent every tick.
        newest = (now - P) // P * P
        note(1, newest, now, time.time())
        assert closed(root) == newest - P
    else:
        assert last < closed(root) <= now - 8 * P


def test_the_clock_closes_ticks_while_collect_writes_that_all_brokers_are_silent(
    tmp_path: Path,
) -> None:
    # A batch without positions is written now, too: it says how far `collect` has read.
    root = TableRoot.create(tmp_path / "tables")
    now = time.time_ns() // 1000
    last = (now - 330_000_000) // P * P
    with runs.run(root, "collect", Batch("collect", 0)) as noted:
        noted.saw({"n0": last})
        noted.read_to(from_us(now - P))
    assert last < closed(root) <= now - 8 * P
