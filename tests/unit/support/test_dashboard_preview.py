"""The drawing of dashboards shows every panel, keeps gaps, and reads values as people do."""

from __future__ import annotations

import html
import math
from pathlib import Path

import pytest

from tests.support.dashboard_preview import pages
from tests.support.dashboard_shapes import Asked, Line, graph, runs, shown
from tests.support.dashboards import BOARDS, graphs


def test_every_panel_is_on_its_page(tmp_path: Path) -> None:
    assert len(pages(tmp_path, None)) == len(BOARDS)
    for name, board in BOARDS.items():
        page = (tmp_path / name).with_suffix(".html").read_text()
        for panel in graphs(board):
            assert f'<div class="title">{html.escape(panel["title"])}</div>' in page


def test_a_hole_between_points_stays_a_hole() -> None:
    points = [(0.0, 0.0, 1.0), (15.0, 0.0, 1.0), (60.0, 0.0, 2.0)]
    assert runs(points, 15.0) == [points[:2], points[2:]]


def test_what_is_unknown_is_not_drawn() -> None:
    panel = next(
        each for each in graphs(BOARDS["tidemark-broker.json"]) if each["type"] == "timeseries"
    )
    drawn = graph(
        panel,
        [Line("unknown", {}, [(0.0, math.nan), (15.0, math.nan)], "A")],
        Asked("", 0, 30, 15),
        400,
        200,
    )
    assert drawn == '<div class="none">All values unknown</div>'


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0004, "s", "400 µs"),
        (0.25, "s", "250 ms"),
        (90.0, "s", "90 s"),
        (7200.0, "s", "2 h"),
        (1536.0, "bytes", "1.5 KiB"),
        (1536.0, "binBps", "1.5 KiB/s"),
        (0.5, "percentunit", "50 %"),
        (1500.0, "short", "1.5 K"),
        (12.0, "mps", "12/s"),
        (math.nan, "s", "unknown"),
        (math.inf, "s", "∞"),
    ],
)
def test_values_read_as_people_write_them(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
