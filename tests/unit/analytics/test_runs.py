"""What jobs note of their runs, and what others read from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analytics.moments import to_us
from analytics.runs import (
    RUNNING_FOR,
    Collectors,
    Fact,
    collectors,
    ended,
    is_running,
    note_stopped,
    read_to,
    revised_from,
    run,
)
from analytics.tables import Batch, TableRoot

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path)


def collected(root: TableRoot, writer: str, number: int, tick: datetime, *nodes: str) -> None:
    with run(root, "collect", Batch(writer, number), clock=tick.timestamp) as one:
        one.saw(dict.fromkeys(nodes, to_us(tick)))
        one.read_to(tick + MINUTE)


def test_a_run_that_ends_well_is_noted_with_what_it_wrote(root: TableRoot) -> None:
    times = iter([10.0, 17.0])
    with run(root, "evaluate", clock=NOON.timestamp, monotonic=lambda: next(times)) as one:
        one.wrote({"lag": 42, "rates": 0})
        one.watermark("scrape", NOON - MINUTE)
    (found,) = ended(root, NOON)
    assert (found.job, found.writer) == ("evaluate", "evaluate")
    assert (found.finished_at, found.seconds) == (NOON, 7.0)
    assert found.rows == {"lag": 42, "rates": 0}
    assert found.sources == {"scrape": NOON - MINUTE}
    assert ended(root, NOON + MINUTE) == []


def test_a_run_that_fails_is_not_noted(root: TableRoot) -> None:
    def fail() -> None:
        with run(root, "rollup") as one:
            one.wrote({"rollup": 5})
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert not root.has("runs")


def test_a_repeated_batch_is_noted_once(root: TableRoot) -> None:
    for _ in range(2):
        collected(root, "collect-a", 3, NOON, "n0")
    assert len(ended(root, NOON)) == 1


def test_collectors_have_the_newest_tick_of_each_node_and_who_brought_it(root: TableRoot) -> None:
    assert collectors(root) == Collectors({}, {}, {}, {}, None)
    collected(root, "old", 0, NOON, "n0", "n1")
    collected(root, "new", 0, NOON - MINUTE, "n0")
    collected(root, "new", 1, NOON + MINUTE, "n1")
    found = collectors(root)
    assert found.seen == {"n0": to_us(NOON), "n1": to_us(NOON + MINUTE)}
    assert found.sent_by == {"n0": "old", "n1": "new"}
    assert found.read_to == {"old": to_us(NOON + MINUTE), "new": to_us(NOON + 2 * MINUTE)}
    assert found.written_us == to_us(NOON + MINUTE)
    collected(root, "new", 2, NOON + 2 * MINUTE, "n0", "n1")
    assert collectors(root).read_to == {"new": to_us(NOON + 3 * MINUTE)}


def test_collectors_without_positions_count_if_evaluation_reads_what_they_bring(
    root: TableRoot,
) -> None:
    for writer, table in (("ha", "replicas"), ("load", "counters"), ("old", "positions")):
        with run(root, "collect", Batch(writer, 0)) as noted:
            noted.wrote({table: 1, "samples": 1})
            noted.read_to(NOON)
    collected(root, "new", 0, NOON, "n0")
    assert collectors(root).others == {"ha": to_us(NOON)}


def test_collectors_are_known_for_as_long_as_runs_are_kept(root: TableRoot) -> None:
    # After a weekend without `collect`, its last ticks were unknown and stayed open.
    collected(root, "old", 0, NOON, "n0")
    later = NOON + timedelta(days=3)
    with run(root, "compact", clock=later.timestamp):
        pass
    assert collectors(root).seen == {"n0": to_us(NOON)}
    collected(root, "new", 0, later, "n1")
    assert collectors(root).seen == {"n1": to_us(later)}, "of the last day alone"


def test_a_stream_runs_until_ten_minutes_after_its_last_batch(root: TableRoot) -> None:
    collected(root, "collect-a", 0, NOON, "n0")
    assert is_running(root, "collect", NOON + RUNNING_FOR)
    assert not is_running(root, "collect", NOON + RUNNING_FOR + MINUTE)
    assert not is_running(root, "evaluate", NOON)
    with run(root, "evaluate", clock=NOON.timestamp):  # over a range: no stream
        pass
    assert not is_running(root, "evaluate", NOON)


def test_a_stream_that_has_ended_in_order_does_not_run(root: TableRoot) -> None:
    now = datetime.now(UTC)
    collected(root, "collect-a", 0, now - MINUTE, "n0")
    collected(root, "collect-b", 0, now - MINUTE, "n1")
    note_stopped(root, "collect", "collect-a")
    assert is_running(root, "collect", now)
    note_stopped(root, "collect", "collect-b")
    assert len(ended(root, now - MINUTE)) == 2, "the end of a stream is no run"
    assert not is_running(root, "collect", now)
    collected(root, "collect-a", 1, datetime.now(UTC), "n0")
    assert is_running(root, "collect", now)


def test_the_first_tick_that_was_evaluated_again_is_known_by_the_end_of_the_run(
    root: TableRoot,
) -> None:
    assert revised_from(root, None) is None
    firsts = [NOON - number * MINUTE for number in (7, 9, 8)]
    for number, first in enumerate(firsts):
        batch, ended_at = Batch("evaluate-ab", number), NOON + number * MINUTE
        with run(root, "evaluate", batch, clock=ended_at.timestamp) as one:
            one.revised(first, {"lag": 7, "rates": 6})
            one.left(NOON - timedelta(days=4))
    assert revised_from(root, None) == firsts[1]
    assert revised_from(root, NOON + 2 * MINUTE) == firsts[2]
    assert revised_from(root, NOON + 3 * MINUTE) is None
    rows = root.read("runs").to_pylist()
    found = {(row["subject"], row["rows"]) for row in rows if row["fact"] == Fact.REVISED}
    assert found == {("lag", 7), ("rates", 6)}
    assert {row["until"] for row in rows if row["fact"] == Fact.LEFT} == {NOON - timedelta(days=4)}


def test_how_far_a_job_has_read_is_the_newest_time_that_it_noted(root: TableRoot) -> None:
    assert read_to(root, "rollup") is None
    for job, until in (("rollup", NOON), ("rollup", NOON - MINUTE), ("evaluate", NOON + MINUTE)):
        with run(root, job) as one:
            one.read_to(until)
    assert read_to(root, "rollup") == NOON
