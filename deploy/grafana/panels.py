"""Panels as values, before they become JSON: queries, width and limits. Pure.

Rules for all kinds: a panel has one unit, so that counts and seconds never share an axis; unknown
values are a gap or a grey word, never a zero; ``texts`` adds what the catalogue says about the
families that the queries use.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from deploy.grafana.queries import NODE, Query, growth

GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"
PURPLE: Final = "purple"
GREY: Final = "#8e8e8e"


class Step(NamedTuple):
    """A colour that applies from this value on."""

    value: float
    colour: str


ENDLESS: Final = float("inf")


class Word(NamedTuple):
    """Text and colour of a number that represents a state."""

    value: float
    """An integer, or ``ENDLESS``."""
    text: str
    colour: str


class Link(NamedTuple):
    title: str
    url: str


class Column(NamedTuple):
    """A column of a table: a label, or the value of a query with its unit."""

    source: str
    """The label's name, or the letter of the query; ``A`` is the first."""
    title: str
    unit: str = ""
    steps: tuple[Step, ...] = ()
    words: tuple[Word, ...] = ()
    links: tuple[Link, ...] = ()
    width: int = 0
    """In pixels; 0 shares the remaining width."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Properties of all kinds."""

    shown: Query | tuple[Query, ...]
    _: KW_ONLY
    width: int = 0
    """In columns, of which a line has 24; 0: the same as the others of its line without a width."""
    title: str = ""
    """Only for several families, or for a special view of one; else the catalogue's title."""
    text: str = ""
    """What the panel shows beyond the meaning of its families, and how to react."""
    unit: str = ""
    """A unit of Grafana (``units``), if it is not that of the first family."""
    steps: tuple[Step, ...] = ()
    """Ascending; the colour below the first is green. Thresholds of alerts are in ``limits``."""
    links: tuple[Link, ...] = ()
    nothing: str = ""
    """Text if there is no series, where that is usual and ``texts`` has no better one."""

    @property
    def queries(self) -> tuple[Query, ...]:
        """All queries, in the order of their letters."""
        return (self.shown,) if isinstance(self.shown, Query) else self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Panel):
    """One large number; its colour shows whether it is a problem."""

    words: tuple[Word, ...] = ()
    spark: bool = False
    """Whether a small graph of its history is shown."""
    calm: str = GREEN
    """Colour below the first step."""
    unknown: str = "unknown"
    """Text if there is no series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Panel):
    """A graph over time. Steps are drawn as dashed lines."""

    stacked: bool = False
    """Stack the series as areas; a series whose name is in ``over`` stays a line."""
    over: tuple[str, ...] = ()
    bars: bool = False
    """Draw bars, for rare events."""
    log: bool = False
    """Use a logarithmic axis, for values from microseconds to hours."""
    colours: tuple[tuple[str, str], ...] = ()
    """Pairs of series name and colour."""
    top: float | None = None
    """Upper end of the axis, for a share."""
    below_zero: bool = False
    """Whether negative values are valid; otherwise the axis begins at 0."""


def rare(name: str, by: str, given: str, *, where: str = NODE, width: int = 0) -> Lines:
    """Return the growth of a counter of rare events, as bars. given: see ``Query``."""
    return Lines(growth(name, by, where=where, given=given), width=width, bars=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Panel):
    """A histogram's buckets over time: one query, ``sum by (le)``; unit is that of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Panel):
    """States as coloured bands over time; a gap is a time with unknown state."""

    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Panel):
    """Present values in rows: labels and values of instant queries, joined by their labels."""

    columns: tuple[Column, ...]
    sort: str
    """Title of the column to sort by, in descending order."""


class Row(NamedTuple):
    title: str
    lines: tuple[tuple[Panel, ...], ...]
    heights: tuple[int, ...]
    """Height of each line, in grid units of 38 pixels."""


class Board(NamedTuple):
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for line in row.lines for panel in line)
