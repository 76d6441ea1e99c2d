"""The questions of docs/analytics-questions.md, in Spark and in DuckDB, against known answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.tables import TableRoot
from tests.support.asked_tables import ARCHIVE_ID, Row, asked_tables, write
from tests.support.lag_world import number_of
from tests.support.spark import spark
from tests.support.sql_page import Ask, as_markdown, in_duckdb, in_spark, questions, shown

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")

Engine = Callable[[TableRoot], Ask]
QUESTIONS = questions()


@pytest.fixture(params=["spark", "duckdb"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """How to ask about tables: in each engine that is installed."""
    if request.param == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        return lambda root: in_duckdb(duckdb, root)
    session: SparkSession = request.getfixturevalue("spark")
    return lambda root: in_spark(session, root)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TableRoot:
    """The tables that the answers on the page are of."""
    return write(tmp_path_factory.mktemp("tables"), asked_tables())


def by_pair(rows: list[Row]) -> dict[str, Row]:
    return {row["group"]: row for row in rows}


def test_the_page_has_ten_questions_with_an_answer_each() -> None:
    assert len(QUESTIONS) == 10
    assert all(shown().values())


def test_every_question_has_the_answer_that_the_page_shows(
    world: TableRoot, engine: Engine
) -> None:
    ask = engine(world)
    for name, sql in QUESTIONS.items():
        assert as_markdown(ask(sql)) == shown()[name], name


def test_the_time_in_a_status_and_the_availability_are_those_of_the_rows(
    world: TableRoot, engine: Engine
) -> None:
    found = engine(world)(QUESTIONS["status_this_week"])
    rows = [row for row in asked_tables()["pair_lag"] if row["group"] == "sensors"]
    known = [row["age_max_seconds"] for row in rows if row["age_max_seconds"] is not None]
    assert len(known) < len(rows), "a part of the time is unknown"
    of_sensors = {row["status"]: row for row in found if row["group"] == "sensors"}
    for status, row in of_sensors.items():
        ticks = sum(each["status"] == status for each in rows)
        assert row["hours"] == pytest.approx(ticks * 15 / 3600)
        assert row["availability"] == pytest.approx(sum(age <= 60 for age in known) / len(known))
    assert sum(row["hours"] for row in of_sensors.values()) == pytest.approx(len(rows) * 15 / 3600)


def test_a_pair_of_unknown_age_is_listed_and_not_taken_for_one_in_time(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    for row in rows["pair_lag"]:
        if row["group"] in ("ledger", "billing"):
            row.update(status="UNKNOWN", age_max_seconds=None)
        if row["group"] == "archive":  # an age that cannot be judged yet
            row["status"] = "UNKNOWN"
    for row in rows["stages"]:
        if row["group"] == "ledger":
            row.update(dispatch_seconds=None, blamed=None)
    ask = engine(write(tmp_path, rows))
    misses = by_pair(ask(QUESTIONS["misses_today"]))
    assert misses["ledger"]["misses"] == "not known", "its forecast says that it is in time"
    late = ask(QUESTIONS["late_now"])
    assert [row["group"] for row in late][-3:] == ["archive", "billing", "ledger"]
    assert by_pair(late)["ledger"]["age_max_seconds"] is None
    assert by_pair(ask(QUESTIONS["retention_race"]))["ledger"]["age_hours"] is None
    of_week = [row for row in ask(QUESTIONS["status_this_week"]) if row["group"] == "ledger"]
    assert [(row["status"], row["availability"]) for row in of_week] == [("UNKNOWN", None)]


def test_a_group_that_lost_messages_is_in_the_race_also_when_it_is_in_time_again(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    for row in rows["pair_lag"]:
        if row["group"] == "billing":
            row["lost"] = 7
    found = engine(write(tmp_path, rows))(QUESTIONS["retention_race"])
    assert by_pair(found)["billing"]["lost"] == 7


def test_a_forecast_of_days_ago_says_nothing_of_today(tmp_path: Path, engine: Engine) -> None:
    rows = asked_tables()
    for row in rows["forecasts"]:
        row["issued_at"] -= timedelta(days=2)
        row["at"] -= timedelta(days=2)
    ask = engine(write(tmp_path, rows))
    misses = by_pair(ask(QUESTIONS["misses_today"]))
    assert {group: row["misses"] for group, row in misses.items()} == {
        **dict.fromkeys(("audit", "mailer", "search-index"), "late already"),
        **dict.fromkeys(("archive", "billing", "ledger", "sensors"), "not known"),
    }
    races = ask(QUESTIONS["retention_race"])
    assert {row["hours_p10"] for row in races} == {None}


def test_a_hole_in_a_forecast_makes_the_rest_of_the_day_unknown(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    of_ledger = [row for row in rows["forecasts"] if "group=ledger" in row["subject"]]
    of_ledger[5].update(p50=None, p90=None)
    ask = engine(write(tmp_path, rows))
    assert by_pair(ask(QUESTIONS["misses_today"]))["ledger"]["misses"] == "not known"


def test_a_consumer_without_samples_before_the_deploy_is_not_taken_for_as_fast(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    for row in rows["stages"]:
        if row["group"] == "billing" and row["tick"].hour == 10 and row["tick"].minute < 40:
            row["processing_seconds"] = None
    found = engine(write(tmp_path, rows))(QUESTIONS["slower_since_deploy"])
    billing = by_pair(found)["billing"]
    assert (billing["seconds_before"], billing["slower_times"]) == (None, None)
    assert billing["seconds_after"] == pytest.approx(0.2)


def test_a_topic_with_an_unknown_broker_set_has_no_sum(tmp_path: Path, engine: Engine) -> None:
    rows = asked_tables()
    for row in rows["rollup"]:
        if row["pair_id"] == ARCHIVE_ID:
            row.update(produced=None, rate_seconds=None)
    found = engine(write(tmp_path, rows))(QUESTIONS["topics_grow"])
    (orders,) = (row for row in found if row["topic"] == "orders")
    assert orders == {
        "topic": "orders",
        "per_second_before": None,
        "per_second_now": None,
        "growth": None,
    }


def test_a_store_that_was_read_to_the_end_leaves_nothing_unread(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    rows["messages"] = [row for row in rows["messages"] if "gap" not in row]
    found = engine(write(tmp_path, rows))(QUESTIONS["dead_letters_cost"])
    assert {row["unread_bytes"] for row in found} == {0}


def test_an_alarm_that_ends_by_another_status_than_ok_still_stands(
    tmp_path: Path, engine: Engine
) -> None:
    rows = asked_tables()
    sensors = number_of("sensors")
    ends = [
        row
        for row in rows["status_changes"]
        if row["pair_id"] == sensors and row["status_from"] == "CATCHING_UP"
    ]
    ends[0]["status_to"] = "UNKNOWN"
    of_sensors = [row for row in rows["status_changes"] if row["pair_id"] == sensors]
    rows["status_changes"] = of_sensors[: of_sensors.index(ends[0]) + 1]
    found = engine(write(tmp_path, rows))(QUESTIONS["alarms_end"])
    assert [(row["kind"], row["without_end"], row["mean_minutes"]) for row in found] == [
        ("FALLING_BEHIND", 1, None)
    ]
