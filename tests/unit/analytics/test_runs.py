"""What jobs note of their runs."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analytics.runs import BadRuns, read, read_all, run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def clock_at(moment: datetime) -> float:
    return moment.timestamp()


def test_a_run_that_ends_well_is_noted_with_what_it_wrote(tmp_path: Path) -> None:
    times = iter([10.0, 17.0])
    with run(
        tmp_path, "evaluate", clock=lambda: clock_at(NOON), monotonic=lambda: next(times)
    ) as one:
        one.rows("lag", 40)
        one.rows("lag", 2)
        one.watermark("scrape", NOON - timedelta(seconds=20))
        one.watermark("scrape", NOON - timedelta(seconds=50))
    found = read(tmp_path, "evaluate")
    assert found is not None
    assert found.finished_at == NOON.timestamp()
    assert (found.runs, found.seconds, found.rows) == (1, 7.0, {"lag": 42})
    assert found.watermarks == {"scrape": (NOON - timedelta(seconds=20)).timestamp()}
    assert sum(found.buckets) == 1
    assert found.buckets[4] == 1, "7 s are up to 10"


def test_counts_only_grow_and_watermarks_never_go_back(tmp_path: Path) -> None:
    for minute in (5, 3):
        with run(tmp_path, "collect") as one:
            one.rows("positions", 10)
            one.watermark("prometheus", NOON + timedelta(minutes=minute))
    found = read(tmp_path, "collect")
    assert found is not None
    assert (found.runs, found.rows) == (2, {"positions": 20})
    assert found.watermarks == {"prometheus": (NOON + timedelta(minutes=5)).timestamp()}


def test_a_run_that_fails_changes_nothing(tmp_path: Path) -> None:
    with run(tmp_path, "rollup", clock=lambda: 100.0):
        pass

    def fail() -> None:
        with run(tmp_path, "rollup") as one:
            one.rows("rollup", 5)
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    found = read_all(tmp_path)
    assert list(found) == ["rollup"]
    assert (found["rollup"].finished_at, found["rollup"].rows) == (100.0, {})


def test_a_job_that_never_ran_is_not_known(tmp_path: Path) -> None:
    assert read(tmp_path, "forecast") is None
    assert read_all(tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "job": "x"}', '{"version": 1, "job": "x", "odd": 1}']
)
def test_a_file_that_is_none_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "_runs").mkdir()
    (tmp_path / "_runs" / "collect.json").write_text(text)
    with pytest.raises(BadRuns, match="collect"):
        read(tmp_path, "collect")


def test_no_run_has_no_end() -> None:
    from analytics.runs import Runs

    assert math.isnan(Runs("x").finished_at)
