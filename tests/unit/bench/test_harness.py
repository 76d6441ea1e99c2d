from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import harness
from bench.harness import Figure, Result, Series, Table, interleave, of_ratios, report


def test_a_ratio_is_the_median_of_the_ratios_run_by_run() -> None:
    drifting = Figure("x", "/s", [10, 20, 40], None, "y", [5, 10, 20])
    assert drifting.ratio == 2.0
    assert Figure("x", "/s", [10, 20, 40]).ratio is None


def test_runs_without_their_baseline_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = Figure("x", "/s", [10, 20], None, "y", [5]).ratio


@pytest.mark.parametrize(
    ("goal", "more_is_better", "met"),
    [(20, True, True), (20.1, True, False), (20, False, True), (19.9, False, False)],
)
def test_a_goal_is_met_by_the_median(goal: float, more_is_better: bool, met: bool) -> None:
    assert Figure("x", "/s", [1, 20, 99], goal, more_is_better=more_is_better).met is met
    assert Figure("x", "/s", [1], None, more_is_better=more_is_better).met


def test_a_goal_that_is_a_ratio_is_judged_on_the_ratios() -> None:
    figure = of_ratios("x", [6, 60, 600], [10, 100, 1000], 0.6, "memcpy")
    assert figure.met
    assert figure.unit == "× memcpy"
    assert figure.median == 0.6


def test_jobs_take_turns_and_every_other_round_goes_backwards() -> None:
    order = ""

    def job(name: str) -> float:
        nonlocal order
        order += name
        return len(order)

    found = interleave({"a": lambda: job("a"), "b": lambda: job("b")}, runs=3, warm_up=1)
    assert order == "baabbaab"
    assert found == {"a": [3.0, 6.0, 7.0], "b": [4.0, 5.0, 8.0]}


def test_a_result_has_the_keys_that_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "WORK_DIR", tmp_path)
    made: list[bool] = []
    monkeypatch.setattr(harness, "make_pages", lambda: made.append(True))
    met = Figure("sends", "msg/s", [12_345.6, 12_345.4, 1], 12_000, "bare", [20_000, 20_000, 1])
    missed = Figure("p99", "ms", [9.87654], 8, more_is_better=False)
    series = Series("plot", "title", "x", "y", {"line": [(1, 2.0)]})
    method = """so
        and so"""
    table = Table("title", ["a", "b"], [["1", "2"]])
    result = Result(
        [met, missed],
        method,
        versions={"redis": "7"},
        series=[series],
        tables=[table],
        page="docs/a.md",
    )
    status = report("name", result)
    assert status == 1
    assert made == [True]
    written = json.loads((tmp_path / "name.json").read_text())
    always = {"name", "figures", "machine", "method", "when"}
    assert set(written) == always | {"missed", "series", "tables", "page"}
    assert written["figures"] == [
        {
            "what": "sends",
            "median": 12345,
            "min": 1,
            "max": 12346,
            "unit": "msg/s",
            "goal": 12000,
            "baseline": "bare (20,000 msg/s)",
            "ratio": 0.6173,
        },
        {
            "what": "p99",
            "median": 9.877,
            "min": 9.877,
            "max": 9.877,
            "unit": "ms",
            "goal": 8,
            "baseline": None,
            "ratio": None,
        },
    ]
    assert written["missed"] == ["p99"]
    assert written["method"] == "so and so"
    assert "redis 7" in written["machine"]
    assert written["series"][0]["lines"] == {"line": [[1, 2.0]]}
    assert written["tables"] == [{"title": "title", "head": ["a", "b"], "rows": [["1", "2"]]}]
    assert written["page"] == "docs/a.md"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "p99: 9.88 ms (9.88 to 9.88); goal ≤ 8 MISSED"


def test_a_quick_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "WORK_DIR", tmp_path)
    assert report("name", Result([Figure("x", "s", [1.0])], ""), quick=True) == 0
    assert not (tmp_path / "results").exists()
