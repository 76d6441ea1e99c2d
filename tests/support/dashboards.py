"""The committed dashboards as a test reads them: plain JSON, not the values that made them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.prometheus.rules import ALERTS, RECORDS
from tests.support.dashboard_listing import fill
from tests.support.promql import PLAIN, Series, Yield, yields

ROOT: Final = Path(__file__).resolve().parents[2]
DIRECTORY: Final = ROOT / "deploy/grafana/dashboards"
FILES: Final = tuple(sorted(DIRECTORY.glob("*.json")))
BOARDS: Final[Mapping[str, dict[str, Any]]] = {
    path.name: json.loads(path.read_text()) for path in FILES
}
VALUES: Final = {
    **dict.fromkeys(("cluster", "broker", "group", "topic"), "one|two"),
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "1h",
}


class Target(NamedTuple):
    """One query of one panel."""

    board: str
    panel: dict[str, Any]
    target: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the query, for a message."""
        return f"{self.board}: {self.panel['title']}, {self.target['refId']}"

    @property
    def expr(self) -> str:
        """The expression with its variables filled in."""
        return fill(self.target["expr"], VALUES)

    @property
    def yields(self) -> Yield:
        """Unit and labels of the query's result."""
        return yields(self.expr, RECORDED)


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows and panels in reading order, including those in folded rows."""
    for panel in board["panels"]:
        yield panel
        if panel["type"] == "row":
            yield from panel.get("panels", ())


def graphs(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Panels that show something."""
    return [panel for panel in panels(board) if panel["type"] != "row"]


def targets() -> list[Target]:
    """Every query of every panel."""
    return [
        Target(name, panel, target)
        for name, board in BOARDS.items()
        for panel in graphs(board)
        for target in panel["targets"]
    ]


def legend_labels(target: dict[str, Any]) -> set[str]:
    """Labels that the legend shows."""
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")))


def _recorded() -> dict[str, Series]:
    of_alerts = frozenset().union(*(alert.labels for alert in ALERTS))
    known = {"ALERTS": Series("gauge", PLAIN, of_alerts | {"alertname", "alertstate", "severity"})}
    for record in RECORDS:
        if record.name not in record.expr:
            found = yields(record.expr, known)
            known[record.name] = Series("gauge", found.unit, found.labels)
        else:  # remembers its own last value
            known[record.name] = Series("gauge", "s", frozenset(record.labels))
    return known


RECORDED: Final = _recorded()
"""What the rules record, with units and labels as their own expressions give them; and ALERTS."""
