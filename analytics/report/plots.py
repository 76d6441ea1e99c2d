"""Plots as data: SVG paths, marks and legends that ``templates/plots.html`` draws. Pure.

Shapes stretch with the page, to be readable on a telephone and on a wall. Text must not stretch, so
the template places it around the SVG. Unknown time is hatched, because a gap in a line is taken for
0 or overlooked. Colours are class names of ``style.css``, which defines each for light and dark.
Decision 48 has the reasons against a charting library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from analytics.report.axes import BYTES, COUNT, RATE, SECONDS, Mark, Unit, marks_of, text_of, top_of
from analytics.report.bins import is_known
from analytics.report.course import STAGES
from analytics.report.facts import Attention, Course, Facts, Forecast, Values
from analytics.report.words import NOT_KNOWN, status_words
from analytics.statuses import BY_SEVERITY, Level, Status, row_of

T = TypeVar("T")
WIDE: Final = 1000.0
HIGH: Final = 100.0
"""Size of every SVG in its own coordinates."""
FORECAST_UNITS: Final = {"produce": RATE, "disk": BYTES, "age": SECONDS}


class Line(NamedTuple):
    """One line, or one layer of a stack."""

    name: str
    colour: str
    values: Values


class Shape(NamedTuple):
    """One SVG path: its classes and its ``d``."""

    kind: str
    path: str


class Key(NamedTuple):
    """One entry of a legend."""

    name: str
    colour: str
    value: str
    """Newest value; may be empty."""


class Span(NamedTuple):
    """A part of the width, in percent."""

    left: float
    width: float


class Plot(NamedTuple):
    """Data of one plot, without its title and its time axis."""

    unit: str
    shapes: Sequence[Shape]
    marks: Sequence[Mark]
    unknown: Sequence[Span]
    legend: Sequence[Key]
    limit: float | None = None
    """Height of a dashed line, from 0 to 1."""


class Stretch(NamedTuple):
    """Time with one status in a timeline, in SVG coordinates."""

    status: str
    x: float
    width: float


class Timeline(NamedTuple):
    """A bar of statuses."""

    label: str
    """Description for people who cannot see it."""
    stretches: Sequence[Stretch]
    unknown: Sequence[Span]


# -- plots of the report ----------------------------------------------------------------------


def age_plot(one: Attention) -> Plot:
    """Age of the oldest unread message over time."""
    return lines(SECONDS, [Line("age", "age", one.course.age_s)], one.pair.objective_s or None)


def rates_plot(course: Course) -> Plot:
    """Rates of produce and consume over time."""
    produced = Line("comes in", "produce", course.produce_per_s)
    return lines(RATE, [produced, Line("is read", "consume", course.consume_per_s)])


def stages_plot(course: Course) -> Plot | None:
    """Time in each stage; None if it is known of no stage."""
    if not any(is_known(values) for values in course.stages_s.values()):
        return None
    shown = [Line(each, each, course.stages_s[each]) for each in STAGES if each in course.stages_s]
    return stacked(SECONDS, shown)


def status_plot(facts: Facts) -> Plot | None:
    """Number of pairs by status over time; None if it is never known."""
    # Pairs that are held back count as OK, because tables have the difference for the newest tick
    # only.
    held_back = any(pair.status == Status.OK and pair.level != Level.NONE for pair in facts.pairs)
    names = {Status.OK: "in time with what can be read"} if held_back else {}
    shown = [
        Line(names.get(each) or status_words(each), f"s-{each.lower()}", facts.by_status[each])
        for each in BY_SEVERITY
        if each in facts.by_status
    ]
    return stacked(COUNT, shown) if any(is_known(line.values) for line in shown) else None


def forecast_plot(one: Forecast) -> Plot:
    """A forecast with the band in which the value stays 8 of 10 times."""
    unit = FORECAST_UNITS.get(one.kind, COUNT)
    top = top_of(max((each for each in (*one.p90, *one.p50) if each is not None), default=0), unit)
    known = [
        low is not None and high is not None for low, high in zip(one.p10, one.p90, strict=True)
    ]
    low, high = ([each or 0.0 for each in values] for values in (one.p10, one.p90))
    shapes = [
        *_area("band forecast", low, high, known, top, edges=True),
        *_path("line forecast", one.p50, top, edges=True),
    ]
    last = _last(one.p50, unit)
    legend = [
        Key("expected", "forecast", f"at the end {last}" if last else ""),
        Key("8 of 10 times within", "forecast faint", ""),
    ]
    unknown = spans([each is None for each in one.p50])
    return Plot(unit.name, shapes, marks_of(top, unit), unknown, legend)


# -- kinds of plots ---------------------------------------------------------------------------


def lines(unit: Unit, shown: Sequence[Line], objective: float | None = None) -> Plot:
    """Draw lines over time, with hatching where no value is known."""
    largest = max((each for line in shown for each in line.values if each is not None), default=0)
    top = top_of(max(largest, (objective or 0) * 1.05), unit)
    shapes = [each for line in shown for each in _path(f"line {line.colour}", line.values, top)]
    legend = [Key(line.name, line.colour, _last(line.values, unit)) for line in shown]
    if objective is not None:
        legend.append(Key("objective", "limit", text_of(objective, unit)))
    columns = zip(*(line.values for line in shown), strict=True)
    unknown = spans([all(each is None for each in column) for column in columns])
    limit = None if objective is None or objective > top else objective / top
    return Plot(unit.name, shapes, marks_of(top, unit), unknown, legend, limit)


def stacked(unit: Unit, shown: Sequence[Line]) -> Plot:
    """Draw stacked areas, the first at the bottom, with hatching where one is unknown."""
    columns = list(zip(*(line.values for line in shown), strict=True))
    known = [all(each is not None for each in column) for column in columns]
    sums = (sum(column) for column, is_ in zip(columns, known, strict=True) if is_)
    top = top_of(max(sums, default=0), unit)
    shapes: list[Shape] = []
    legend: list[Key] = []
    low = [0.0] * len(known)
    for line in shown:
        high = [below + (value or 0.0) for below, value in zip(low, line.values, strict=True)]
        if any(line.values):
            shapes += _area(f"area {line.colour}", low, high, known, top)
            legend.insert(0, Key(line.name, line.colour, _last(line.values, unit)))
        low = high
    unknown = spans([not each for each in known])
    return Plot(unit.name, shapes, marks_of(top, unit), unknown, legend)


def timeline(statuses: Sequence[str | None]) -> Timeline:
    """Draw a bar of statuses, with hatching where none is known."""
    known = [None if each is None or not row_of(each).is_known else each for each in statuses]
    found = list(runs(known))
    names = [NOT_KNOWN if status is None else status_words(status) for status, _, _ in found]
    width = WIDE / len(known)
    return Timeline(
        ", then ".join(names[:8]) + (" …" if len(names) > 8 else ""),
        [Stretch(s, first * width, (last - first) * width) for s, first, last in found if s],
        spans([each is None for each in known]),
    )


def spans(unknown: Sequence[bool]) -> list[Span]:
    """Stretches of unknown time; one flag per place."""
    part = 100 / max(1, len(unknown))
    return [Span(first * part, (last - first) * part) for is_, first, last in runs(unknown) if is_]


def runs(values: Sequence[T]) -> Iterator[tuple[T, int, int]]:
    """Stretches of equal values: the value, its first place, the place after its last."""
    first = 0
    for place in range(1, len(values) + 1):
        if place == len(values) or values[place] != values[first]:
            yield values[first], first, place
            first = place


# -- paths ------------------------------------------------------------------------------------


def _x(place: int, count: int, edges: bool) -> float:
    """Return the x coordinate of a value.

    edges: the first and last value are at the ends of the plot, not in the middle of bins.
    """
    return WIDE * (place / max(1, count - 1) if edges else (place + 0.5) / count)


def _y(value: float, top: float) -> float:
    return HIGH * (1 - min(value, top) / top) if math.isfinite(value) else 0.0


def _path(kind: str, values: Values, top: float, *, edges: bool = False) -> list[Shape]:
    """A line, interrupted where the value is unknown; a value between two gaps is a short dash."""
    count, pieces = len(values), []
    half = WIDE / count / 2
    is_drawn = False
    for place, value in enumerate(values):
        if value is None:
            is_drawn = False
            continue
        x, y = _x(place, count, edges), _y(value, top)
        if not is_drawn and (place + 1 == count or values[place + 1] is None):
            pieces.append(f"M{max(0.0, x - half):.1f} {y:.2f}H{x + half:.1f}")
        else:
            pieces.append(f"{'L' if is_drawn else 'M'}{x:.1f} {y:.2f}")
        is_drawn = True
    return [Shape(kind, "".join(pieces))] if pieces else []


def _area(
    kind: str,
    low: Sequence[float],
    high: Sequence[float],
    known: Sequence[bool],
    top: float,
    *,
    edges: bool = False,
) -> list[Shape]:
    """The area between two lines, in one piece for each known stretch."""
    count = len(known)
    half = 0.0 if edges else WIDE / count / 2
    pieces: list[str] = []
    for _, first, last in (run for run in runs(known) if run[0]):
        xs = [_x(place, count, edges) for place in range(first, last)]
        # Extended to the edges of the outer bins, so that neighbours touch and a single bin is
        # visible.
        xs = [xs[0] - half, *xs, xs[-1] + half]
        ups = [high[first], *high[first:last], high[last - 1]]
        downs = [low[first], *low[first:last], low[last - 1]]
        forth = [f"{x:.1f} {_y(up, top):.2f}" for x, up in zip(xs, ups, strict=True)]
        back = [f"{x:.1f} {_y(down, top):.2f}" for x, down in zip(xs, downs, strict=True)]
        pieces.append(f"M{'L'.join(forth)}L{'L'.join(reversed(back))}Z")
    return [Shape(kind, "".join(pieces))] if pieces else []


def _last(values: Values, unit: Unit) -> str:
    return "" if not values or values[-1] is None else text_of(values[-1], unit)
