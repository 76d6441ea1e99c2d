"""Which ticks of which buckets got samples after they were evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from analytics import runs
from analytics.moments import HOUR_US, from_us
from analytics.schema import TABLES
from analytics.tables import Batch, DataFile, TableRoot
from analytics.tables.location import Location
from analytics.tables.log import Commit, commits
from analytics.ticks import late
from analytics.ticks.late import first_late
from analytics.ticks.spark import Offset, Task, TicksReader
from analytics.ticks.window import KEEP_STATES

P = 15_000_000
T0 = 1_700_000_010_000_000 // P * P
BUCKETS = 4
LAST_WITHOUT_INPUT = T0 // (24 * HOUR_US) * 24 * HOUR_US + HOUR_US * 5 // 4 - P
"""The last tick whose look-back begins on the day before the first positions."""
KEEP_US = KEEP_STATES // timedelta(microseconds=1)


def rows(table: str, ticks: list[int], pair: int = 1) -> pa.Table:
    """Rows of a table at some ticks, counted from T0."""
    kinds: dict[str, dict[str, Any]] = {
        "positions": {
            "series_id": pair * 10,
            "pair_id": pair,
            "replica": "n0",
            "head_method": "none",
        },
        "logs": {"cluster": "c", "broker": "g0", "replica": "n0"},
        "gaps": {"source": "s", "subject": "n0", "reason": "down", "detail": ""},
    }
    values = kinds[table]
    times = ("from_ts",) if table == "gaps" else ("ts", "tick")
    return pa.Table.from_pylist(
        [
            values | dict.fromkeys(times, from_us(T0 + tick * P + (table == "gaps")))
            for tick in ticks
        ],
        schema=TABLES[table],
    )


class Collected:
    """Tables that `collect` writes, and the stream of their ticks."""

    def __init__(self, path: Path) -> None:
        self.root = TableRoot.create(path, buckets=BUCKETS)
        self._number = 0

    def commit(self, table: str, ticks: list[int], pair: int = 1) -> None:
        """Commit a batch, and note it if it has ticks that were not there."""
        self._number += 1
        batch = Batch("collect-ab", self._number)
        files = self.root.write(table, rows(table, ticks, pair))
        self.root.commit(table, batch=batch, files=files)
        with runs.run(self.root, "collect", batch) as noted:
            noted.saw({"n0": T0 + max(ticks) * P})
            noted.read_to(from_us(T0 + (max(ticks) + 1) * P))

    def forget(self, table: str, number: int) -> None:
        """Remove a commit from the log of a table, as happens after a week."""
        found = self.root.delta(table)
        assert found is not None
        found.create_checkpoint()
        (Path(self.root.uri) / table / f"_delta_log/{number:020d}.json").unlink()

    def reader(self) -> TicksReader:
        return TicksReader({"tables": self.root.uri, "period_us": str(P), "closing": "data"})

    def next(self, start: Offset) -> Offset:
        return self.reader().latestOffset(start, ReadAllAvailable())

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        return [part.value for part in self.reader().partitions(start, end)]


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    found = Collected(tmp_path / "tables")
    found.commit("positions", [*range(10)])
    return found


def file(first_us: int, bucket: int | None = 0, nulls: int = 0) -> DataFile:
    return DataFile("positions", "x", 0, bucket, 1, 1, first_us, first_us, nulls)


def test_the_first_late_tick_of_each_bucket_counts() -> None:
    files = [file(T0), file(T0 - 3 * P), file(T0 + P), file(T0 - P, 2), file(T0 + 2 * P, 3)]
    assert first_late(files, T0, P, BUCKETS) == {0: T0 - 3 * P, 2: T0 - P}


def test_rows_without_a_pair_concern_all_buckets() -> None:
    found = first_late([file(T0 - P, None), file(T0 - 2 * P, 1)], T0, P, BUCKETS)
    assert found == {0: T0 - P, 1: T0 - 2 * P, 2: T0 - P, 3: T0 - P}


def test_a_gap_is_late_for_the_tick_in_which_it_begins_and_not_without_a_begin() -> None:
    assert first_late([file(T0 + P - 1000)], T0, P, 1) == {0: T0}
    assert first_late([file(0, nulls=1)], T0, P, 1) == {}


def test_ticks_that_are_no_whole_milliseconds_are_found() -> None:
    period = 1_666_667
    tick = period * 1_000_000_001
    logged = tick // 1000 * 1000
    assert logged < tick
    assert first_late([file(logged)], tick, period, 1) == {0: tick}
    assert first_late([file(logged)], tick - period, period, 1) == {}


def test_samples_of_new_ticks_are_not_late(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    assert start["tick"] == T0 + 8 * P
    assert collected.next(start) is start
    collected.commit("positions", [10, 11])
    end = collected.next(start)
    assert end["tick"] == T0 + 10 * P
    assert [task.is_revision for task in collected.tasks(start, end)] == [False] * BUCKETS


def test_late_samples_are_a_batch_of_their_own_if_no_tick_is_closed(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    collected.commit("positions", [3, 9], pair=6)
    end = collected.next(start)
    assert end["tick"] == start["tick"]
    (task,) = collected.tasks(start, end)
    assert task == Task(2, T0 + 2 * P, T0 + 8 * P, T0 + 8 * P, end["at_us"])
    assert task.is_revision
    assert collected.next(end) is end


def test_late_samples_and_new_ticks_are_one_batch(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    collected.commit("positions", [8, 10, 11])
    end = collected.next(start)
    of_bucket = {task.bucket: task.after_us for task in collected.tasks(start, end)}
    assert of_bucket == {0: T0 + 8 * P, 1: T0 + 7 * P, 2: T0 + 8 * P, 3: T0 + 8 * P}


@pytest.mark.parametrize("table", ["logs", "gaps"])
def test_late_rows_of_brokers_and_gaps_are_found(collected: Collected, table: str) -> None:
    start = collected.next({"tick": 0})
    collected.commit(table, [5])
    tasks = collected.tasks(start, collected.next(start))
    assert [task.after_us for task in tasks] == [T0 + 4 * P] * BUCKETS


def test_a_repeated_batch_has_the_same_tasks_also_after_a_compaction(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    for tick in (7, 4, 6):
        collected.commit("positions", [tick])
    end = collected.next(start)
    tasks = collected.tasks(start, end)
    assert tasks[0].after_us == T0 + 3 * P
    found = collected.root.delta("positions")
    assert found is not None
    found.optimize.compact()
    collected.commit("positions", [1])
    assert collected.tasks(start, end) == tasks
    later = collected.next(end)
    assert [task.after_us for task in collected.tasks(end, later)] == [T0]


def test_rows_of_other_writers_and_of_compaction_are_not_late(collected: Collected) -> None:
    collected.commit("positions", [1])
    start = collected.next({"tick": 0})
    root = collected.root
    for batch in ("backfill", Batch("migrate", 0)):
        root.commit("positions", batch=batch, files=root.write("positions", rows("positions", [2])))
    found = root.delta("positions")
    assert found is not None
    found.optimize.compact()
    assert collected.next(start) is start


def test_samples_that_are_older_than_the_kept_states_are_noted_and_left(
    collected: Collected,
) -> None:
    start = collected.next({"tick": 0})
    old = -KEEP_US // P
    collected.commit("positions", [old])
    collected.commit("positions", [10, 11])
    tasks = collected.tasks(start, collected.next(start))
    assert {task.left_us for task in tasks} == {T0 + old * P}
    assert not any(task.is_revision for task in tasks)


def test_ticks_whose_look_back_is_not_kept_are_noted_and_left(collected: Collected) -> None:
    # They were evaluated again as if no broker had sent anything, and their results were lost.
    first = (LAST_WITHOUT_INPUT - T0) // P
    for at, is_left in ((first, True), (first + 1, False)):
        start = collected.next({"tick": 0}) | {"tick": T0 + 8 * P}
        collected.commit("logs", [at])
        collected.commit("positions", [10, 11])
        tasks = collected.tasks(start, collected.next(start))
        assert {task.left_us for task in tasks} == {T0 + at * P if is_left else None}
        assert {task.is_revision for task in tasks} == {not is_left}


def test_the_lowest_tick_is_left_of_those_too_old_and_those_forgotten(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    collected.commit("positions", [3])
    collected.commit("gaps", [-KEEP_US // P - 5])
    collected.commit("positions", [10, 11])
    end = collected.next(start)
    collected.forget("positions", start["versions"]["positions"])
    assert {task.left_us for task in collected.tasks(start, end)} == {T0 - KEEP_US - 5 * P}


def test_while_ticks_wait_each_commit_is_read_once(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, reader = collected.next({"tick": 0}), collected.reader()
    numbers: list[int] = []

    def counted(location: Location, table: str, first: int, before: int) -> Iterator[Commit | None]:
        numbers.extend(range(first, before))
        return commits(location, table, first, before)

    monkeypatch.setattr(late, "commits", counted)
    for expected in (1, 0, 0):
        if expected:
            collected.commit("positions", [9], pair=3)
        assert reader.latestOffset(start, ReadAllAvailable()) is start
        assert len(numbers) == expected
        numbers.clear()
    collected.commit("positions", [3, 9])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end is not start
    assert len(numbers) == 1
    assert any(task.is_revision for task in collected.tasks(start, end))


def test_commits_that_the_log_has_forgotten_leave_what_they_added(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    collected.commit("positions", [3])
    collected.commit("positions", [10, 11])
    end = collected.next(start)
    collected.forget("positions", start["versions"]["positions"])
    tasks = collected.tasks(start, end)
    assert {task.left_us for task in tasks} == {LAST_WITHOUT_INPUT}, "the lower end"
    assert not any(task.is_revision for task in tasks)


def test_offsets_of_an_earlier_release_find_nothing_late(collected: Collected) -> None:
    now = collected.next({"tick": 0})
    collected.commit("positions", [3, 10, 11])
    start = {"tick": now["tick"]}
    end = collected.next(start)
    assert [task.is_revision for task in collected.tasks(start, end)] == [False] * BUCKETS
    without = {"tick": end["tick"]}
    assert [task.is_revision for task in collected.tasks(start, without)] == [False] * BUCKETS


def test_a_run_over_what_is_there_leaves_later_samples(collected: Collected) -> None:
    start = collected.next({"tick": 0})
    collected.commit("positions", [10, 11])
    reader = collected.reader()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    collected.commit("positions", [2])
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    assert collected.next(end) != end


def test_the_log_names_writers_and_files_of_each_commit(collected: Collected) -> None:
    root = collected.root
    root.commit(
        "positions", batch="backfill", files=root.write("positions", rows("positions", [2]))
    )
    created, collect, backfill = commits(root.location, "positions", 0, root.version("positions"))
    assert created is not None
    assert not created.added
    assert collect is not None
    assert collect.writers == {"collect-ab"}
    assert backfill is not None
    assert not backfill.writers
    named = {file.path: file for file in root.files("positions")}
    for commit in (collect, backfill):
        assert commit.added == [named[file.path] for file in commit.added]
