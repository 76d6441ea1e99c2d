"""From boards to their files: one per board, named by its uid (``make dashboards``).

All boards have the same variables, links and annotations. Panels get places in Grafana's grid of 24
columns, and ids in reading order. All but ``write`` is pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.boards import BOARDS
from deploy.grafana.drawing import DATASOURCE, draw
from deploy.grafana.panels import BLUE, ORANGE, Board, Panel
from deploy.grafana.queries import NODE, WINDOW
from deploy.grafana.texts import title

DIRECTORY: Final = Path(__file__).with_name("dashboards")
COLUMNS: Final = 24
TAG: Final = "tidemark"
ALL: Final = ".*"
"""Value of "All". A list of all values would be a long query with thousands of topics, and would
miss series without the label."""


VARIABLES: Final = (
    ("cluster", "Cluster", "label_values(tidemark_node_info, cluster)", "As the scrape calls it."),
    (
        "broker",
        "Broker set",
        'label_values(tidemark_node_info{cluster=~"$cluster", service!~"analytics|names"}, broker)',
        "A master and its slaves; the legends name its nodes.",
    ),
    (
        "group",
        "Consumer group",
        f"label_values(tidemark_group_lag_objective_seconds{{{NODE}}}, group)",
        "Groups with a configuration on the chosen broker sets.",
    ),
    (
        "topic",
        "Topic",
        f"label_values(tidemark_topic_max_offset_messages{{{NODE}}}, topic)",
        "Topics with queues on the chosen broker sets.",
    ),
)
"""Name, label, query and description; equal in every board, so that links preserve the values."""

TERMS: Final = f"max by (cluster, broker) (changes(tidemark_ha_epoch{{{NODE}}}[{WINDOW}])) > 0"
STARTS: Final = f"changes(tidemark_up_since_timestamp_seconds{{{NODE}}}[{WINDOW}]) > 0"
ANNOTATIONS: Final = (
    ("New term", ORANGE, TERMS, "{{broker}} has a new master"),
    ("Start", BLUE, STARTS, "{{service}} of {{replica}} started anew"),
)
"""Name, colour, expression and text of the annotations that all graphs show."""


def framed(board: Board, boards: Sequence[Board]) -> dict[str, Any]:
    """Return the dashboard as JSON values. boards: all boards, to be linked in this order."""
    builder = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .editable()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timepicker(
            builders.TimePicker().refresh_intervals(["15s", "30s", "1m", "5m", "15m", "1h"])
        )
        .variables([_datasource(), *(_variable(*each) for each in VARIABLES)])
        .links([_link(other) for other in boards if other.uid != board.uid])
        .annotations(
            [
                builders.AnnotationQuery()
                .name(name)
                .datasource(DATASOURCE)
                .enable(True)
                .icon_color(colour)
                .expr(expr)
                for name, colour, expr, _ in ANNOTATIONS
            ]
        )
    )
    model = builder.build()
    model.panels = placed(board)
    values = cast(dict[str, Any], json.loads(JSONEncoder().encode(model)))
    # The SDK's model of an annotation lacks some fields of Prometheus annotations.
    for each, (_, _, _, text) in zip(values["annotations"]["list"], ANNOTATIONS, strict=True):
        each["titleFormat"], each["textFormat"] = each["name"], text
    return values


def encoded(values: dict[str, Any]) -> str:
    """Return the committed text, in stable order, so that a diff shows only real changes."""
    return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _datasource() -> builders.DatasourceVariable:
    return (
        builders.DatasourceVariable("datasource")
        .label("Prometheus")
        .description("Where the metrics are.")
        .type("prometheus")
        .current(dashboard.VariableOption(selected=True, text="Prometheus", value="tidemark"))
    )


def _variable(name: str, label: str, query: str, description: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name, "qryType": 1})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(True)
        .include_all(True)
        .all_value(ALL)
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _link(board: Board) -> builders.DashboardLink:
    return (
        builders.DashboardLink(board.title)
        .type(dashboard.DashboardLinkType.LINK)
        .url(f"/d/{board.uid}")
        .tooltip(board.description)
        .icon("dashboard")
        .include_vars(True)
        .keep_time(True)
    )


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


def texts() -> dict[str, str]:
    return {f"{board.uid}.json": encoded(framed(board, BOARDS)) for board in BOARDS}


def write(directory: Path = DIRECTORY) -> list[Path]:
    """Write every board and remove files of removed boards; return the written paths."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = texts()
    for old in directory.glob("*.json"):
        if old.name not in wanted:
            old.unlink()
    written = []
    for name, text in wanted.items():
        path = directory / name
        path.write_text(text)
        written.append(path)
    return written
