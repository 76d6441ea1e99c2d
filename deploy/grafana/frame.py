"""The common part of all boards: variables, links, annotations; and the JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.drawing import DATASOURCE
from deploy.grafana.layout import placed
from deploy.grafana.panels import BLUE, ORANGE, Board
from deploy.grafana.queries import NODE, WINDOW

TAG: Final = "tidemark"
ALL: Final = ".*"
"""Value of "All". A list of all values would be a long query with thousands of topics, and would
miss series without the label."""


VARIABLES: Final = (
    ("cluster", "Cluster", "label_values(tidemark_node_info, cluster)", "As the scrape calls it."),
    (
        "broker",
        "Broker set",
        'label_values(tidemark_node_info{cluster=~"$cluster", service!="analytics"}, broker)',
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
