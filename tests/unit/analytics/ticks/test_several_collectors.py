"""Ticks of tables that several collectors write, one of which is late, replaced or removed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from analytics import runs
from analytics.errors import HourOpen
from analytics.jobs.backfill import _check_closed
from analytics.moments import HOUR_US, from_us, hour_of
from analytics.tables import Batch, TableRoot
from analytics.ticks.closed import tick_of
from analytics.ticks.spark import TicksReader

P = 15_000_000
NOW = time.time_ns() // 1000
TICK = tick_of(NOW, P) - P


def note(root: TableRoot, batch: Batch, to_us: int, *nodes: str, table: str = "positions") -> None:
    with runs.run(root, "collect", batch) as noted:
        noted.wrote({table: 1})
        noted.saw(dict.fromkeys(nodes, tick_of(to_us, P)))
        noted.read_to(from_us(to_us))


class Tables:
    """Tables, and the batches that collectors commit to them."""

    def __init__(self, path: Path) -> None:
        self.root = TableRoot.create(path)
        self._batches = 0

    def read(self, collector: str, to_us: int, *nodes: str, table: str = "positions") -> None:
        """Note a batch that reads up to a time, with a position of each node in its tick."""
        self._batches += 1
        note(self.root, Batch(collector, self._batches), to_us, *nodes, table=table)

    def closed(self, closing: str = "clock") -> int:
        """The last tick that the stream hands out [microseconds]."""
        options = {"tables": self.root.uri, "period_us": str(P), "closing": closing}
        return int(TicksReader(options).latestOffset({"tick": P}, ReadAllAvailable())["tick"])


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "tables")


@pytest.mark.parametrize("closing", ["clock", "data"])
@pytest.mark.parametrize("late_ticks", [3, 9, 22, 200])
def test_ticks_wait_for_the_collector_that_is_late(
    tables: Tables, late_ticks: int, closing: str
) -> None:
    # Nodes behind the newest positions counted as silent: the ticks that the second collector had
    # not read yet closed without its nodes, whose positions came into the tables later.
    late = TICK - late_ticks * P
    for at in (late - P, late):
        tables.read("a", at, "a0", "a1")
        tables.read("b", at, "b0", "b1")
    tables.read("a", TICK, "a0", "a1")
    assert tables.closed(closing) == late - P
    # It catches up in two batches, and one of its nodes was silent meanwhile.
    tables.read("b", late + P, "b0")
    assert tables.closed(closing) == late
    tables.read("b", TICK, "b0")
    assert tables.closed(closing) == TICK - P


def test_a_batch_that_is_committed_again_changes_nothing(tables: Tables) -> None:
    tables.read("a", TICK, "a0")
    tables.read("b", TICK - 9 * P, "b0")
    before = tables.closed()
    version = tables.root.version("runs")
    note(tables.root, Batch("b", 2), TICK, "b0")
    assert (tables.closed(), tables.root.version("runs")) == (before, version)


def test_a_collector_with_a_new_checkpoint_takes_over_the_nodes(tables: Tables) -> None:
    tables.read("old", TICK - 20 * P, "n0", "n1")
    tables.read("new", TICK - 30 * P, "n0", "n1")  # it reads again what the old one has read
    assert tables.closed() == TICK - 21 * P
    tables.read("new", TICK, "n0", "n1")
    assert tables.closed() == TICK - P
    assert runs.collectors(tables.root).read_to == {"new": TICK}


def test_of_two_collectors_with_the_same_nodes_the_later_one_delays_nothing(tables: Tables) -> None:
    tables.read("b", TICK - 20 * P, "n0", "n1")
    tables.read("a", TICK, "n0", "n1")
    tables.read("b", TICK - 10 * P, "n0", "n1")
    assert tables.closed() == TICK - P


def test_a_removed_collector_is_waited_for_an_hour(tables: Tables) -> None:
    tables.read("removed", TICK - 241 * P, "b0")
    tables.read("a", TICK - 2 * P, "a0")
    assert tables.closed() == TICK - 242 * P
    tables.read("a", TICK, "a0")
    assert tables.closed() == TICK - P


def test_a_node_that_was_removed_earlier_does_not_hold_a_collector_in_place(tables: Tables) -> None:
    tables.read("old", TICK - 90 * P, "n0", "removed")
    tables.read("old", TICK - 80 * P, "n0")
    tables.read("new", TICK, "n0")
    assert tables.closed() == TICK - P


def test_a_collector_whose_brokers_are_silent_reads_on(tables: Tables) -> None:
    tables.read("a", TICK - 30 * P, "a0")
    tables.read("b", TICK - 30 * P, "b0")
    tables.read("a", TICK, "a0")
    tables.read("b", TICK)
    assert tables.closed() == TICK - P


def test_the_hour_that_the_later_collector_writes_cannot_be_filled(tables: Tables) -> None:
    # The newest positions counted: rows of the late collector would have come in twice.
    begun = tick_of(NOW, HOUR_US) - 4 * HOUR_US
    tables.read("b", begun + 40 * P, "b0")
    tables.read("a", begun + HOUR_US + 10 * P, "a0")
    hour = hour_of(from_us(begun))
    with pytest.raises(HourOpen):
        _check_closed(tables.root, [hour], 15.0)
    tables.read("b", begun + HOUR_US, "b0")
    _check_closed(tables.root, [hour], 15.0)


def test_the_newest_positions_count_if_no_collector_is_waited_for(tables: Tables) -> None:
    # All brokers were silent at the end. The check failed: "'int' object is not iterable".
    begun = tick_of(NOW, HOUR_US) - 4 * HOUR_US
    tables.read("a", begun + 10 * P, "a0")
    tables.read("a", begun + 19 * P)
    with pytest.raises(HourOpen):
        _check_closed(tables.root, [hour_of(from_us(begun))], 15.0)
    _check_closed(tables.root, [hour_of(from_us(begun - HOUR_US))], 15.0)


@pytest.mark.parametrize("closing", ["clock", "data"])
def test_ticks_wait_for_a_collector_that_brings_only_rows_of_replicas(
    tables: Tables, closing: str
) -> None:
    # Its rows came after the ticks were evaluated, so that each tick was evaluated twice.
    tables.read("a", TICK, "a0")
    tables.read("ha", TICK - 3 * P, table="replicas")
    assert tables.closed(closing) == TICK - 4 * P
    tables.read("ha", TICK, table="replicas")
    assert tables.closed(closing) == TICK - P


def test_a_collector_of_replicas_that_was_removed_is_waited_for_an_hour(tables: Tables) -> None:
    tables.read("ha", TICK - 241 * P, table="replicas")
    tables.read("a", TICK - P, "a0")
    assert tables.closed() == TICK - 242 * P
    tables.read("a", TICK, "a0")
    assert tables.closed() == TICK - P


def test_the_clock_closes_no_tick_that_only_a_collector_of_replicas_has_read(
    tables: Tables,
) -> None:
    tables.read("a", TICK - 60 * P, "a0")
    tables.read("a", TICK - 40 * P)  # the node is silent; then the collector is down
    tables.read("ha", TICK, table="replicas")
    assert tables.closed() == TICK - 41 * P
