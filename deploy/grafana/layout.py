"""Assigns places in Grafana's grid of 24 columns, and ids in reading order. Pure."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.drawing import DATASOURCE, draw
from deploy.grafana.panels import Board, Panel
from deploy.grafana.texts import title

COLUMNS: Final = 24


def placed(board: Board) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Return all row headings and panels with id and place.

    Raises ValueError for a line that is not exactly as wide as the grid.
    """
    out: list[dashboard.Panel | dashboard.RowPanel] = []
    y = 0
    for row in board.rows:
        heading = dashboard.RowPanel(title=row.title, datasource=DATASOURCE, panels=[])
        heading.grid_pos = dashboard.GridPos(x=0, y=y, w=COLUMNS, h=1)
        out.append(heading)
        y += 1
        for line, height in zip(row.lines, row.heights, strict=True):
            out.extend(_line(line, y, height))
            y += height
    for number, panel in enumerate(out, 1):
        panel.id_val = number
    return out


def _line(line: tuple[Panel, ...], y: int, height: int) -> list[dashboard.Panel]:
    models: list[dashboard.Panel] = []
    left = COLUMNS - sum(panel.width for panel in line)
    share = left // max(1, sum(not panel.width for panel in line))
    x = 0
    for panel in line:
        model = draw(panel)
        model.grid_pos = dashboard.GridPos(x=x, y=y, w=panel.width or share, h=height)
        models.append(model)
        x += panel.width or share
    if x != COLUMNS:
        titles = ", ".join(title(panel) for panel in line)
        raise ValueError(f"{titles} are {x} columns wide together, not {COLUMNS}")
    return models
