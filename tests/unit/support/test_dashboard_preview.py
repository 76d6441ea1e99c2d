"""The drawing of dashboards shows every panel, keeps gaps, and reads values as people do."""

from __future__ import annotations

import html
import math
from pathlib import Path

from tests.support.dashboard_preview import pages
from tests.support.dashboard_shapes import NAMED, Asked, Line, contrast, graph, ink_on, runs
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


def test_the_digits_of_a_tile_are_readable_on_each_of_its_colours() -> None:
    # White digits on the orange of a warning had a contrast of 2.6.
    for colour in NAMED.values():
        assert contrast(ink_on(colour), colour) >= 4.5, colour
    assert round(contrast("#ffffff", "#000000"), 6) == 21
    assert contrast("#767676", "#ffffff") > 4.5 > contrast("#777777", "#ffffff")
