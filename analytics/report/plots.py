"""Plots: inline SVG for shapes, plain text around them for words. Pure.

Shapes stretch with the page, so a plot is as readable on a telephone as on a wall; words would not
be, and are no part of the SVG. What is not known is hatched: a gap in a line alone looks like 0, or
like nothing to see. Colours are names of the style sheet, which has them for light and for dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Final, NamedTuple

from analytics.report.axes import Mark, Unit, marks_of, text_of, times, top_of
from analytics.report.facts import Values
from analytics.report.words import NOT_KNOWN, said
from analytics.statuses import row_of

WIDE: Final = 1000.0
HIGH: Final = 100.0
"""Of every SVG's own coordinates."""


class Line(NamedTuple):
    """One line of a plot."""

    name: str
    colour: str
    values: Values
    dashed: bool = False


class Limit(NamedTuple):
    """A dashed line across the plot."""

    name: str
    value: float


class Frame(NamedTuple):
    """The time that a plot shows."""

    start: datetime
    end: datetime
    bins: int


def lines(
    title: str, told: str, unit: Unit, frame: Frame, shown: Sequence[Line], limit: Limit | None
) -> str:
    """Lines over time. told: what the picture says, for who cannot see it."""
    largest = max((each for line in shown for each in line.values if each is not None), default=0)
    if limit is not None:
        largest = max(largest, limit.value * 1.05)
    top = top_of(largest, unit)
    shapes = [_rule(limit.value / top)] if limit is not None and limit.value <= top else []
    for line in shown:
        kind = "line dashed" if line.dashed else "line"
        shapes.append(_path(f"{kind} {line.colour}", line.values, top))
    unknown = [all(line.values[place] is None for line in shown) for place in range(frame.bins)]
    legend = [(line.name, line.colour, _last(line.values, unit)) for line in shown]
    if limit is not None:
        legend.append((limit.name, "limit", text_of(limit.value, unit)))
    return _figure(title, told, unit, frame, "".join(shapes), unknown, legend, top)


def stacked(title: str, told: str, unit: Unit, frame: Frame, shown: Sequence[Line]) -> str:
    """Areas on top of each other, the first at the bottom."""
    known = [all(line.values[place] is not None for line in shown) for place in range(frame.bins)]
    below = [0.0] * frame.bins
    layers: list[tuple[Line, list[float], list[float]]] = []
    for line in shown:
        above = [low + (value or 0.0) for low, value in zip(below, line.values, strict=True)]
        layers.append((line, below, above))
        below = above
    top = top_of(
        max((each for each, is_ in zip(below, known, strict=True) if is_), default=0), unit
    )
    shapes = [
        _area(f"area {line.colour}", low, high, known, top)
        for line, low, high in layers
        if any(value for value in line.values)
    ]
    legend = [
        (line.name, line.colour, _last(line.values, unit))
        for line in reversed(shown)
        if any(value for value in line.values)
    ]
    unknown = [not each for each in known]
    return _figure(title, told, unit, frame, "".join(shapes), unknown, legend, top)


def band(
    title: str,
    told: str,
    unit: Unit,
    at: Sequence[datetime],
    low: Values,
    mid: Values,
    high: Values,
) -> str:
    """A forecast: the middle, and the band around it."""
    count = len(at)
    top = top_of(max((each for each in (*high, *mid) if each is not None), default=0), unit)
    known = [a is not None and b is not None for a, b in zip(low, high, strict=True)]
    shapes = _area(
        "band forecast",
        [each or 0.0 for each in low],
        [each or 0.0 for each in high],
        known,
        top,
        edges=True,
    ) + _path("line forecast", mid, top, edges=True)
    unknown = [each is None for each in mid]
    legend = [
        ("expected", "forecast", _last(mid, unit, "at the end ")),
        ("8 of 10 times within", "forecast faint", ""),
    ]
    return _figure(title, told, unit, Frame(at[0], at[-1], count), shapes, unknown, legend, top)


def timeline(frame: Frame, statuses: Sequence[str | None]) -> str:
    """One band of statuses, hatched where nothing is known."""
    shapes: list[str] = []
    told: list[str] = []
    width = WIDE / frame.bins
    known = [None if each is None or not row_of(each).is_known else each for each in statuses]
    for status, first, last in runs(known):
        share = (first * width, (last - first) * width)
        name = NOT_KNOWN if status is None else said(status)
        told.append(name)
        if status is None:
            continue  # hatched below
        shapes.append(
            f'<rect class="s-{escape(status.lower())}" x="{share[0]:.1f}" y="0" '
            f'width="{share[1]:.1f}" height="{HIGH:.0f}"><title>{escape(name)}</title></rect>'
        )
    label = escape(", then ".join(told[:8]) + (" …" if len(told) > 8 else ""))
    unknown = [each is None for each in known]
    return (
        f'<div class="plot band-only" role="img" aria-label="{label}">'
        f"{_svg(''.join(shapes))}{_hatched(unknown)}</div>"
    )


def runs(statuses: Sequence[str | None]) -> Iterator[tuple[str | None, int, int]]:
    """Stretches of the same status: from the first place, up to but without the last."""
    first = 0
    for place in range(1, len(statuses) + 1):
        if place == len(statuses) or statuses[place] != statuses[first]:
            yield statuses[first], first, place
            first = place


def time_axis(frame: Frame) -> str:
    """The marks of the time below plots that share it."""
    return _times(times(frame.start, frame.end))


# -- pieces -----------------------------------------------------------------------------------


def _figure(
    title: str,
    told: str,
    unit: Unit,
    frame: Frame,
    shapes: str,
    unknown: Sequence[bool],
    legend: Sequence[tuple[str, str, str]],
    top: float,
) -> str:
    marks = marks_of(top, unit)
    at = times(frame.start, frame.end)
    grid = "".join(_rule(mark.at, "grid") for mark in marks)
    grid += "".join(
        f'<line class="grid" x1="{mark.at * WIDE:.1f}" x2="{mark.at * WIDE:.1f}" y1="0" '
        f'y2="{HIGH:.0f}"/>'
        for mark in at
    )
    keys = "".join(
        f'<li><i class="key {colour}"></i>{escape(name)}'
        + (f" <b>{escape(value)}</b>" if value else "")
        + "</li>"
        for name, colour, value in legend
    )
    if any(unknown) and NOT_KNOWN not in {name for name, _, _ in legend}:
        keys += '<li><i class="key hatched"></i>not known</li>'
    unit_name = f' <span class="unit">{escape(unit.name)}</span>' if unit.name else ""
    y_marks = "".join(
        f'<span style="bottom:{mark.at * 100:.2f}%">{escape(mark.text)}</span>' for mark in marks
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}{unit_name}</figcaption>'
        f'<div class="axes"><div class="y" aria-hidden="true">{y_marks}</div>'
        f'<div class="plot" role="img" aria-label="{escape(told)}">'
        f"{_svg(grid + shapes)}{_hatched(unknown)}</div>{_times(at)}</div>"
        f'<ul class="legend">{keys}</ul></figure>'
    )


def _svg(shapes: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDE:.0f} {HIGH:.0f}" preserveAspectRatio="none" '
        f'aria-hidden="true">{shapes}</svg>'
    )


def _times(at: Sequence[Mark]) -> str:
    marks: list[str] = []
    for mark in at:
        ends = " first" if mark.at < 0.04 else " last" if mark.at > 0.96 else ""
        major = "" if mark.is_major else " minor"
        marks.append(
            f'<span class="t{major}{ends}" style="left:{mark.at * 100:.2f}%">'
            f"{escape(mark.text)}</span>"
        )
    return f'<div class="x" aria-hidden="true">{"".join(marks)}</div>'


def _hatched(unknown: Sequence[bool]) -> str:
    count = len(unknown)
    return "".join(
        f'<i class="hatched" title="not known" style="left:{first / count * 100:.2f}%;'
        f'width:{(last - first) / count * 100:.2f}%"></i>'
        for status, first, last in runs(["?" if each else None for each in unknown])
        if status is not None
    )


def _rule(at: float, kind: str = "limit") -> str:
    y = HIGH * (1 - at)
    return f'<line class="{kind}" x1="0" x2="{WIDE:.0f}" y1="{y:.2f}" y2="{y:.2f}"/>'


def _x(place: int, count: int, edges: bool) -> float:
    """edges: the first and last value stand at the ends of the plot, not in the middle of bins."""
    return WIDE * (place / max(1, count - 1) if edges else (place + 0.5) / count)


def _y(value: float, top: float) -> float:
    return HIGH * (1 - min(value, top) / top) if math.isfinite(value) else 0.0


def _path(kind: str, values: Values, top: float, *, edges: bool = False) -> str:
    """A line that is broken where nothing is known; a lonely value is a short dash."""
    count, pieces, current = len(values), [], ""
    half = WIDE / count / 2
    for place, value in enumerate(values):
        if value is None:
            current = ""
            continue
        x, y = _x(place, count, edges), _y(value, top)
        lonely = (place + 1 == count or values[place + 1] is None) and not current
        if lonely:
            pieces.append(f"M{max(0.0, x - half):.1f} {y:.2f}H{x + half:.1f}")
        else:
            pieces.append(f"{'L' if current else 'M'}{x:.1f} {y:.2f}")
        current = "L"
    return f'<path class="{kind}" d="{"".join(pieces)}"/>' if pieces else ""


def _area(
    kind: str,
    low: Sequence[float],
    high: Sequence[float],
    known: Sequence[bool],
    top: float,
    *,
    edges: bool = False,
) -> str:
    count = len(known)
    half = 0.0 if edges else WIDE / count / 2
    pieces: list[str] = []
    for is_known, first, last in runs(["k" if each else None for each in known]):
        if is_known is None:
            continue
        xs = [_x(place, count, edges) for place in range(first, last)]
        # Out to the edges of the outer bins: neighbours then touch, and a lonely one is seen.
        xs = [xs[0] - half, *xs, xs[-1] + half]
        ups = [high[first], *high[first:last], high[last - 1]]
        downs = [low[first], *low[first:last], low[last - 1]]
        forth = [f"{x:.1f} {_y(up, top):.2f}" for x, up in zip(xs, ups, strict=True)]
        back = [f"{x:.1f} {_y(down, top):.2f}" for x, down in zip(xs, downs, strict=True)]
        pieces.append(f"M{'L'.join(forth)}L{'L'.join(reversed(back))}Z")
    return f'<path class="{kind}" d="{"".join(pieces)}"/>' if pieces else ""


def _last(values: Values, unit: Unit, before: str = "") -> str:
    if not values or values[-1] is None:
        return ""
    return before + text_of(values[-1], unit)
