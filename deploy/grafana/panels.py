"""What a panel is, before it becomes JSON: its question, its series, its unit and its limits. Pure.

Rules that all kinds share: one unit per panel, so that counts and seconds never share an axis;
a description that says what is seen and what to do; and what is unknown stays a gap or a grey word,
never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from deploy.grafana.queries import Query

GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"
PURPLE: Final = "purple"
GREY: Final = "#8e8e8e"


class Step(NamedTuple):
    """From this value on, this colour."""

    value: float
    colour: str


ENDLESS: Final = float("inf")


class Word(NamedTuple):
    """How a number that stands for a state is shown."""

    value: float
    """Whole, or ``ENDLESS``."""
    text: str
    colour: str


class Link(NamedTuple):
    """Where a click on a value leads."""

    title: str
    url: str


class Column(NamedTuple):
    """A column of a table: a label, or the value of the query ``value`` with its unit."""

    source: str
    """The label's name, or the letter of the query: ``A`` is the first."""
    title: str
    unit: str = ""
    steps: tuple[Step, ...] = ()
    words: tuple[Word, ...] = ()
    links: tuple[Link, ...] = ()
    width: int = 0
    """In pixels; 0 shares what is left."""


ALONE: Final = "No group: a node alone"
"""Instead of what ha measures, where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What all kinds have."""

    title: str
    description: str
    unit: str
    """A unit of Grafana (``units``)."""
    queries: tuple[Query, ...]
    width: int
    """Of 24 columns; those of one line add up to 24."""
    steps: tuple[Step, ...] = ()
    """Ascending; green below the first. Numbers of alert rules come from ``limits``."""
    links: tuple[Link, ...] = ()
    nothing: str = ""
    """Said where there is no series, if that is the usual and good state: ``No errors``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Panel):
    """One number, large; its colour says whether to worry."""

    words: tuple[Word, ...] = ()
    spark: bool = False
    """With a small graph of its past."""
    calm: str = GREEN
    """Colour below the first step."""
    unknown: str = "unknown"
    """Said where there is no series."""
    each: bool = False
    """One number per series, with its name, instead of a single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Panel):
    """A graph over time. Steps are drawn as dashed lines."""

    stacked: bool = False
    """Areas on top of each other; a series whose name is in ``over`` stays a line."""
    over: tuple[str, ...] = ()
    bars: bool = False
    """For events that are rare."""
    log: bool = False
    """Logarithmic axis, for what spans from microseconds to hours."""
    colours: tuple[tuple[str, str], ...] = ()
    """Series name and its colour."""
    top: float | None = None
    """Where the axis ends, of a share."""
    below_zero: bool = False
    """Negative values mean something; otherwise the axis begins at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Panel):
    """How a histogram's buckets filled over time: one query, ``sum by (le)``; unit of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Panel):
    """States as coloured bands over time; a gap is a time nobody knows about."""

    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Panel):
    """Rows of now: labels and values of instant queries, joined by their labels."""

    columns: tuple[Column, ...]
    sort: str
    """Title of the column to sort by, largest first."""


class Row(NamedTuple):
    """A heading and lines of panels below it."""

    title: str
    lines: tuple[tuple[Panel, ...], ...]
    heights: tuple[int, ...]
    """Of each line, in grid units of 38 pixels."""
    folded: bool = False
    """Opened by a click; its queries do not run before."""


class Board(NamedTuple):
    """One dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    def panels(self) -> tuple[Panel, ...]:
        """All of them, in reading order."""
        return tuple(panel for row in self.rows for line in row.lines for panel in line)
