"""Title, unit, description and text for no data of a panel. Pure.

They come from the catalogue's entries of the families that the panel's queries use. The queries'
form decides the rest, such as ``p99`` in the title. Only a panel of several families, or a special
view of one, has a title and a text of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from deploy.grafana import units
from deploy.grafana.panels import Heat, Lines, Panel, Stat
from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import Family, Kind

_NAME: Final = re.compile(r"\b(?:tidemark|process)_\w+")
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
_UNITS: Final[Mapping[str, str]] = {
    "s": units.SECONDS,
    "bytes": units.BYTES,
    "physical offset, bytes": units.BYTES,
    "ratio": units.SHARE,
    "–": units.PLAIN,
}
"""Grafana's units by the catalogue's; everything else is counted."""
_RATES: Final[Mapping[str, str]] = {
    "s": units.PLAIN,
    "bytes": units.BYTES_RATE,
    "messages": units.MESSAGES_RATE,
    "requests": units.REQUESTS_RATE,
    "records": units.RECORDS_RATE,
}
"""The same per second; everything else is an event."""
_ABSENT: Final = (
    ("tidemark_ha_", "No group: a standalone node"),
    ("tidemark_analytics_group_", "None, or lag analytics does not run"),
    ("tidemark_analytics_queue_", "None, or lag analytics does not run"),
    ("tidemark_analytics_", "Lag analytics does not run"),
    ("tidemark_names_", "No name service"),
)
"""Prefix of families, and the reason why they have no series."""


def families(panel: Panel) -> tuple[Family, ...]:
    """Return the families that the panel's queries use, in order of their first use."""
    names = (name for query in panel.queries for name in _NAME.findall(query.expr))
    return tuple(dict.fromkeys(map(_family, names)))


def title(panel: Panel) -> str:
    """Return the panel's own title, or that of its only family and the form of its values.

    Raises ValueError if it has neither.
    """
    if panel.title:
        return panel.title
    shown = families(panel)
    if len(shown) != 1 or not shown[0].title:
        names = ", ".join(family.name for family in shown)
        raise ValueError(
            f"a panel of {names or 'no family'} has no title: give one to the panel, or to the "
            "only family in shared/metrics/catalogue"
        )
    match len(_quantiles(panel)):
        case 0:
            return shown[0].title
        case 1:
            return f"{shown[0].title}, p99"
        case _:
            return f"{shown[0].title}, quantiles"


def unit(panel: Panel) -> str:
    """Return the panel's own unit, or that of its first family in the first query's form.

    Raises ValueError if it has neither.
    """
    if panel.unit:
        return panel.unit
    shown = families(panel)
    if not shown:
        raise ValueError(f"panel {panel.title} uses no family and has no unit: give it one")
    rates = "rate(" in panel.queries[0].expr or "deriv(" in panel.queries[0].expr
    if rates and not isinstance(panel, Heat) and not _quantiles(panel):
        return _RATES.get(shown[0].unit, units.EVENTS_RATE)
    return _UNITS.get(shown[0].unit, units.COUNT)


def description(panel: Panel) -> str:
    """Return Markdown: the panel's own text, how to read it, and what the catalogue says about each
    family."""
    first = " ".join(filter(None, (panel.text, *_how_to_read(panel))))
    return "\n\n".join(filter(None, (first, *map(_of_family, families(panel)))))


def nothing(panel: Panel) -> str:
    """Return the text for no series; empty if that is not usual."""
    if panel.nothing or isinstance(panel, Stat):
        return panel.nothing
    if isinstance(panel, Lines) and panel.bars:
        return "None"
    shown = families(panel)
    reasons = (
        reason
        for prefix, reason in _ABSENT
        if shown and all(family.name.startswith(prefix) for family in shown)
    )
    return next(reasons, "")


def _family(name: str) -> Family:
    # Raises KeyError for a name that is not in the catalogue.
    base = BY_NAME.get(re.sub(r"_(bucket|count|sum)$", "", name))
    return base if base is not None and base.kind is Kind.HISTOGRAM else BY_NAME[name]


def _quantiles(panel: Panel) -> set[str]:
    return {
        share
        for query in panel.queries
        for share in re.findall(r"histogram_quantile\(([\d.]+)", query.expr)
    }


def _how_to_read(panel: Panel) -> Iterator[str]:
    expr = panel.queries[0].expr
    if isinstance(panel, Heat):
        yield "Each column is a moment; dark cells are where most observations fell."
    if isinstance(panel, Lines) and panel.bars:
        yield "Around each point."
    if shares := _quantiles(panel):
        yield "99 % were below." if len(shares) == 1 else "Half, 99 % and 99.9 % were below."
    if expr.startswith("time() - ") and not panel.text:
        yield "How long ago."
    if isinstance(panel, Lines) and (most := re.match(r"topk\((\d+),", expr)):
        yield f"The {most[1]} largest."


def _of_family(family: Family) -> str:
    alert = f" Alert on: {family.alert}." if family.alert else ""
    # Links of docs/metrics.md do not work inside Grafana.
    return _LINK.sub(r"\1", f"`{family.name}`: {family.meaning.removesuffix('.')}.{alert}")
