"""Marks of the axes: positions and texts. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final, NamedTuple

from analytics.report.words import byte_count, duration, number

_SECONDS: Final = (
    *(1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800),
    *(3600, 7200, 10800, 21600, 43200),
)
DAY_S: Final = 86400.0
MARKS: Final = 4
"""Approximate number of marks on the axis of a value."""
TIME_MARKS: Final = 8


class Unit(NamedTuple):
    """Unit of an axis."""

    name: str
    """Its name in the caption of the plot; may be empty."""
    kind: str
    """``seconds``, ``bytes``, ``rate``, ``count``."""


SECONDS: Final = Unit("", "seconds")
RATE: Final = Unit("messages per second", "rate")
COUNT: Final = Unit("", "count")
BYTES: Final = Unit("", "bytes")


class Mark(NamedTuple):
    """One mark of an axis."""

    at: float
    """Position along the axis, from 0 to 1."""
    text: str
    is_major: bool = True
    """Minor marks are omitted if there is little space."""


def step(top: float, unit: Unit, marks: int = MARKS) -> float:
    """Distance between two marks: a round number of the unit."""
    least = top / marks
    if unit.kind == "seconds":
        if least > _SECONDS[-1]:
            return nice(least / DAY_S) * DAY_S
        if least > _SECONDS[0]:
            return float(next(each for each in _SECONDS if each >= least))
    if unit.kind == "bytes":
        least = max(1.0, least)
        power = 1024.0 ** math.floor(math.log(least, 1024))
        return nice(least / power) * power
    found = nice(least)
    return max(1.0, found) if unit.kind == "count" else found


def nice(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))


def top_of(largest: float, unit: Unit) -> float:
    """End of an axis that shows the largest value: a whole number of steps."""
    if largest <= 0 or not math.isfinite(largest):
        return 1.0
    distance = step(largest, unit)
    return distance * math.ceil(round(largest / distance, 6))


def marks_of(top: float, unit: Unit) -> list[Mark]:
    """Marks from 0 to the top."""
    distance = step(top, unit)
    count = max(1, round(top / distance))
    return [Mark(place / count, text_of(place * distance, unit)) for place in range(count + 1)]


def text_of(value: float, unit: Unit) -> str:
    """Text of a value on its axis and in the legend."""
    match unit.kind:
        case "seconds":
            return duration(value) if value else "0"
        case "bytes":
            return byte_count(value) if value else "0"
    return number(value)


def times(start: datetime, end: datetime) -> list[Mark]:
    """Marks of a time axis in UTC: times of day, or dates for more than two days."""
    span_s = (end - start).total_seconds()
    days = (DAY_S, 2 * DAY_S, 7 * DAY_S, 14 * DAY_S, 28 * DAY_S)
    steps = days if span_s > 2 * DAY_S else (*_SECONDS, *days)
    distance = next((float(each) for each in steps if each >= span_s / TIME_MARKS), 56 * DAY_S)
    first = math.ceil(start.timestamp() / distance) * distance
    count = int((end.timestamp() - first) // distance) + 1
    found: list[Mark] = []
    for place in range(count):
        at = first + place * distance
        when = datetime.fromtimestamp(at, UTC)
        text = f"{when:%H:%M:%S}" if distance < 60 else f"{when:%H:%M}"
        if distance >= DAY_S or (text == "00:00" and span_s > DAY_S / 2):
            text = f"{when:%d %b}".lstrip("0")
        found.append(Mark((at - start.timestamp()) / span_s, text, place % 2 == 0))
    return found
