"""All expressions of all boards with variables filled in, for queries to a real Prometheus. Pure.

A test that scrapes a loaded cluster expects data for each expression whose ``needs`` is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from deploy.grafana import texts
from deploy.grafana.boards import BOARDS
from deploy.grafana.drawing import LETTERS
from deploy.grafana.frame import ANNOTATIONS, VARIABLES
from deploy.grafana.panels import Stat, Table

BUILT_IN: Final[Mapping[str, str]] = {
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "5m",
}
"""Values that Grafana sets, for a graph of an hour with a scrape interval of 15 s."""
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)[^}]*\}")


class Expression(NamedTuple):
    """One query as it is sent to Prometheus."""

    board: str
    panel: str
    letter: str
    """``A`` for a panel's first query."""
    expr: str
    instant: bool
    """Evaluated for the present only; otherwise over the displayed time range."""
    needs: str
    """Precondition for data, in words; empty if a loaded cluster is enough."""


def expressions(values: Mapping[str, str] | None = None) -> tuple[Expression, ...]:
    """Return all expressions, including the boards' annotations.

    values: variable → its value; a missing one stands for All. Grafana's own intervals can be
    given as well, as ``__rate_interval``. Raises KeyError for a variable that no board defines.
    """
    filled = {name: ".*" for name, *_ in VARIABLES} | dict(BUILT_IN) | dict(values or {})
    found = [
        Expression(
            board.uid,
            texts.title(panel),
            letter,
            fill(query.expr, filled),
            isinstance(panel, Table) or (isinstance(panel, Stat) and not panel.spark),
            query.needs,
        )
        for board in BOARDS
        for panel in board.panels()
        for letter, query in zip(LETTERS, panel.queries, strict=False)
    ]
    found += [
        Expression("annotations", name, "A", fill(expr, filled), False, "a start or a new master")
        for name, _, expr, _ in ANNOTATIONS
    ]
    return tuple(found)


def fill(expr: str, values: Mapping[str, str]) -> str:
    """Replace ``$name`` and ``${name}`` in the expression. Raises KeyError for unknown names."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], expr)
