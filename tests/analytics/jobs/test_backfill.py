"""backfill fills what is missing, replaces what is named, and prints what changed; then compact."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.errors import BadOption, HourOpen, HourUnread
from analytics.jobs import backfill, compact
from analytics.jobs.backfill import BackfillOptions, check_read, runs_of, wanted
from analytics.jobs.differences import difference
from analytics.moments import HOUR
from analytics.tables import TableRoot, spans_of
from analytics.tables.parts import Written
from tests.support.driver_watch import watched
from tests.support.recorded_samples import NAME, RecordedSamples, record
from tests.support.spark import spark
from tests.support.table_rows import assert_collected, assert_same
from tests.truth import cases
from tests.truth.steps import DAWN, moment
from tests.truth.workload import Truth

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
BEGIN = moment(DAWN)


def truth() -> Truth:
    return cases.slow_consumer(seconds=2 * 3600).every(60.0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    spark.dataSource.register(RecordedSamples)
    directory = tmp_path_factory.mktemp("recorded")
    record([truth(), cases.slow_member(seconds=2 * 3600).every(60.0)], directory)
    return directory


def options(tables: Path, recorded: Path) -> BackfillOptions:
    return BackfillOptions(
        tables=tables,
        since=BEGIN,
        before=BEGIN + 3 * HOUR,
        source=NAME,
        source_options={"directory": str(recorded)},
        period_s=60.0,
        buckets=4,
    )


def test_the_beginning_of_the_workloads_is_a_whole_hour() -> None:
    assert DAWN % 3_600_000_000 == 0


def test_missing_hours_are_filled_named_ones_replaced_and_the_difference_printed(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    given = options(tmp_path / "tables", recorded)
    first = backfill.run(spark, replace(given, before=BEGIN + HOUR))
    assert first.hours == [BEGIN]
    assert first.differences == []
    root = TableRoot(given.tables)
    rows = root.read("positions")
    lost = rows.num_rows // 3
    kept = root.write("positions", rows.slice(lost))
    root.commit("positions", batch="damage", files=kept, clears=spans_of([BEGIN]))

    rest = backfill.run(spark, given)
    assert rest.hours == [BEGIN + HOUR, BEGIN + 2 * HOUR]
    assert rest.left == [BEGIN]
    assert lost > 0

    with watched(spark) as seen:
        again = backfill.run(spark, replace(given, hours=frozenset({BEGIN})))
    seen.assert_no_rows()
    assert again.hours == [BEGIN, BEGIN + 2 * HOUR]  # of the last one there is still nothing
    of_positions = [d for d in again.differences if d.table == "positions"]
    changed = next(d for d in of_positions if d.hour == f"{BEGIN:%Y-%m-%dT%H}")
    assert (changed.came, changed.gone, changed.changed) == (lost, 0, 0)
    assert changed.same == changed.old == changed.new - lost
    assert_collected(root, recorded, 60.0)

    before = {name: root.read(name) for name in root.tables()}
    count = sum(len(root.files(name)) for name in root.tables())
    held = root.files("positions")
    done = compact.run(given.tables, {"runs": 3650}, BEGIN + 26 * HOUR)
    assert done["positions"].before > done["positions"].after > 0
    assert sum(len(root.files(name)) for name in root.tables()) < count
    for name, rows in before.items():
        if name != "runs":
            assert_same(root.read(name), rows, name)
    ids = root.read("series", before=BEGIN + HOUR).column("series_id")
    assert len(ids) == pc.count_distinct(ids).as_py() == 17
    # A reader that holds the version of before still finds its files.
    assert all(Path(root.location.child(f"positions/{file.path}")).exists() for file in held)
    version = root.version("lag")
    compact.run(given.tables, {"runs": 3650}, BEGIN + 26 * HOUR)
    assert root.version("lag") == version

    # Hours of files that compaction merged are replaced as well.
    again = backfill.run(spark, replace(given, hours=frozenset({BEGIN})))
    assert {(d.came, d.gone, d.changed) for d in again.differences if d.table == "positions"} == {
        (0, 0, 0)
    }
    assert_collected(root, recorded, 60.0)


def test_an_hour_that_is_not_over_is_refused(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    since = now.replace(minute=0, second=0, microsecond=0)
    given = replace(options(tmp_path, recorded), since=since, before=since + HOUR)
    with pytest.raises(HourOpen, match=r"is not over: tables are written up to"):
        backfill.run(spark, given)
    with pytest.raises(BadOption, match="not a whole hour"):
        backfill.run(spark, replace(given, since=since - timedelta(minutes=7)))


def test_an_hour_that_a_source_cannot_give_again_stays_as_it_is(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    # A server that is away, or has dropped the hour, answers nothing: the hour was replaced by it.
    given = replace(options(tmp_path / "tables", recorded), before=BEGIN + HOUR)
    backfill.run(spark, given)
    root = TableRoot(given.tables)
    before = {name: root.read(name) for name in root.tables()}
    again = replace(given, hours=frozenset({BEGIN}))
    unreachable = {"url": "http://127.0.0.1:9", "retries": "0", "timeout": "1s", "slice": "1h"}
    away = replace(again, source=backfill.PROMETHEUS, source_options=unreachable)
    with pytest.raises(HourUnread, match=r"left out a part of it \(unreachable: .*Nothing was rep"):
        backfill.run(spark, away)
    had = root.hours("positions")
    with pytest.raises(
        HourUnread, match=r"have positions of hour .*, and the source has none of it"
    ):
        check_read(had, Written({}, []))
    check_read(had, Written({"positions": root.files("positions")}, []))
    for name, rows in before.items():
        assert_same(root.read(name), rows, name)


def test_the_plan_takes_missing_and_named_hours_and_neighbours_together() -> None:
    hours = [BEGIN + i * HOUR for i in range(60)]
    there = {hours[3], hours[4]}
    plan = wanted(hours[0], hours[-1] + HOUR, there, {hours[4]})
    assert plan == [*hours[:3], *hours[4:]]
    assert [len(piece) for piece in runs_of(plan)] == [3, 24, 24, 8]
    assert [hour for piece in runs_of(plan) for hour in piece] == plan


def test_rows_are_the_same_changed_gone_or_new() -> None:
    old = pa.table({"key": [1, 2, 3, 4], "value": [None, 2, 3, 4]})
    new = pa.table({"key": [1, 2, 3, 5, 6], "value": [None, 2, 9, 4, 4]})
    assert difference(old, new, ["key"]) == {
        "old": 4, "new": 5, "same": 2, "changed": 1, "gone": 1, "came": 2,
    }  # fmt: skip
