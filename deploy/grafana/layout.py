"""Assigns places in Grafana's grid of 24 columns, and ids in reading order. Pure."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.drawing import DATASOURCE, draw
from deploy.grafana.panels import Board, Panel, Row
from deploy.grafana.texts import title

COLUMNS: Final = 24


def placed(board: Board) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Return all row headings and panels with id and place; folded rows contain their panels.

    Raises ValueError for a line that is not exactly as wide as the grid.
    """
    out: list[dashboard.Panel | dashboard.RowPanel] = []
    next_id, y = 1, 0
    for row in board.rows:
        heading = dashboard.RowPanel(
            title=row.title,
            collapsed=row.folded,
            datasource=DATASOURCE,
            grid_pos=dashboard.GridPos(x=0, y=y, w=COLUMNS, h=1),
            id_val=next_id,
            panels=[],
        )
        out.append(heading)
        panels, next_id, y = _of_row(row, next_id + 1, y + 1)
        if row.folded:
            heading.panels = panels
        else:
            out.extend(panels)
    return out


def _of_row(row: Row, next_id: int, y: int) -> tuple[list[dashboard.Panel], int, int]:
    panels: list[dashboard.Panel] = []
    for line, height in zip(row.lines, row.heights, strict=True):
        x = 0
        for panel in line:
            panels.append(_at(panel, next_id, dashboard.GridPos(x=x, y=y, w=panel.width, h=height)))
            next_id += 1
            x += panel.width
        if x != COLUMNS:
            titles = ", ".join(title(panel) for panel in line)
            raise ValueError(f"row {row.title}: {titles} are {x} columns wide, not {COLUMNS}")
        y += height
    return panels, next_id, y


def _at(panel: Panel, panel_id: int, where: dashboard.GridPos) -> dashboard.Panel:
    model = draw(panel)
    model.id_val, model.grid_pos = panel_id, where
    return model
