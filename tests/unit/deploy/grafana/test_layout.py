"""Places in the grid and ids."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from deploy.grafana import units
from deploy.grafana.frame import COLUMNS, placed
from deploy.grafana.panels import Board, Row, Stat
from deploy.grafana.queries import Query
from tests.support.dashboards import BOARDS, panels

each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


@each_board
def test_ids_are_unique_and_in_reading_order(board: dict[str, Any]) -> None:
    assert [panel["id"] for panel in panels(board)] == list(range(1, len(list(panels(board))) + 1))


@each_board
def test_panels_stay_inside_the_grid(board: dict[str, Any]) -> None:
    for panel in panels(board):
        place = panel["gridPos"]
        assert place["x"] >= 0, panel["title"]
        assert place["y"] >= 0, panel["title"]
        assert place["w"] >= 3, panel["title"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        assert place["h"] >= (1 if panel["type"] == "row" else 3), panel["title"]


@each_board
def test_no_two_panels_overlap_and_no_line_has_a_hole(board: dict[str, Any]) -> None:
    cells: dict[tuple[int, int], str] = {}
    for panel in panels(board):
        place = panel["gridPos"]
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in cells, f"{panel['title']} lies on {cells.get(cell)}"
            cells[cell] = panel["title"]
    height = 1 + max(y for _, y in cells)
    assert len(cells) == COLUMNS * height


@each_board
def test_a_row_of_headings_stands_before_what_it_names(board: dict[str, Any]) -> None:
    assert board["panels"][0]["type"] == "row"
    for panel in board["panels"]:
        if panel["type"] == "row":
            assert bool(panel["panels"]) == panel["collapsed"], panel["title"]


def _stat(width: int) -> Stat:
    return Stat(Query("up"), width=width, title="One", unit=units.COUNT)


def test_a_line_that_does_not_fill_the_grid_is_refused() -> None:
    for widths in ((12, 11), (12, 13)):
        board = Board("u", "t", "d", (Row("Row", (tuple(map(_stat, widths)),), (4,)),))
        with pytest.raises(ValueError, match="columns wide together, not 24"):
            placed(board)


def test_ids_and_heights_go_on_from_row_to_row() -> None:
    rows = (Row("One", ((_stat(12), _stat(12)),), (4,)), Row("Two", ((_stat(24),),), (5,)))
    found = placed(Board("u", "t", "d", rows))
    assert [panel.id_val for panel in found] == [1, 2, 3, 4, 5]
    places = [panel.grid_pos for panel in found if panel.grid_pos is not None]
    assert [(place.x, place.y) for place in places] == [(0, 0), (0, 1), (12, 1), (0, 5), (0, 6)]
