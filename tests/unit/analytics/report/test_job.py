"""The job: its range, its files, and the report that it replaces."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs.report import command, run
from analytics.tables import TableRoot
from tests.support.lag_world import END, START, tables, tick


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    made = TableRoot.create(path)
    for name, rows in tables().items():
        made.commit(name, batch="w", files=made.write(name, rows), watermark=END)
    return path


def test_a_report_is_about_all_that_there_is_up_to_a_day(root: Path, tmp_path: Path) -> None:
    written = run(root, tmp_path)
    assert written.facts.bins.start == START
    assert written.facts.newest == tick(479)
    assert written.html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(written.json.read_text())["counts"]["STOPPED"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_the_same_range_makes_the_same_files(root: Path, tmp_path: Path) -> None:
    first = run(root, tmp_path / "a", START, END, made_at=END)
    other = run(root, tmp_path / "b", START, END, made_at=END)
    assert first.html.read_bytes() == other.html.read_bytes()
    assert first.json.read_bytes() == other.json.read_bytes()


def test_what_changed_is_since_the_report_that_is_replaced(root: Path, tmp_path: Path) -> None:
    half = START + timedelta(minutes=66)
    run(root, tmp_path, before=half, made_at=half)
    written = run(root, tmp_path)
    assert written.facts.previous_at == half
    assert {change.group for change in written.facts.changes} == {"mailer", "ledger", "sensors"}


def test_a_range_names_itself(root: Path, tmp_path: Path) -> None:
    written = run(root, tmp_path, START, START + timedelta(minutes=15))
    assert written.facts.counts == {"OK": 6}


def test_an_empty_range_is_refused_and_nothing_is_written(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="not before"):
        run(root, tmp_path / "out", END, START)
    assert not (tmp_path / "out").exists()


def test_a_run_is_noted(root: Path, tmp_path: Path) -> None:
    written = TableRoot(root)
    before = len(runs.ended(written, START))
    run(root, tmp_path)
    assert [each.job for each in runs.ended(written, START)[before:]] == ["report"]


def test_the_command_prints_the_state_and_the_path(root: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--tables", str(root), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("4 of 6 pairs of group and topic need attention")
    assert str(tmp_path / "out" / "report.html") in done.output
