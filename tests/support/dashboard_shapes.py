"""Series as shapes of SVG, for ``dashboard_preview``: graphs, heat maps, timelines. Pure."""

from __future__ import annotations

import html
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

COLOURS: Final = (
    "#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0",
    "#508642", "#CCA300", "#447EBC", "#C15C17",
)  # fmt: skip
NAMED: Final = {
    "green": "#56A64B", "yellow": "#F2CC0C", "orange": "#FF780A", "red": "#E02F44",
    "blue": "#3274D9", "purple": "#A352CC", "dark-red": "#C4162A",
}  # fmt: skip


INKS: Final = ("#ffffff", "#111217")


class Asked(NamedTuple):
    """Where to ask, and about when."""

    url: str
    start: float
    end: float
    step: float


class Line(NamedTuple):
    """One series: its name, labels and (time, value)."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    letter: str


def unit_of(panel: Mapping[str, Any]) -> str:
    """The unit that a panel shows."""
    if panel["type"] == "heatmap":
        return str(panel["options"]["yAxis"]["unit"])
    return str(panel["fieldConfig"]["defaults"].get("unit", ""))


def shown(value: float, unit: str) -> str:
    """A value as Grafana shows it, roughly."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞"
    match unit:
        case "bytes" | "binBps":
            size, names = abs(value), ("B", "KiB", "MiB", "GiB", "TiB")
            power = min(len(names) - 1, int(math.log(size, 1024))) if size >= 1 else 0
            return f"{value / 1024**power:.3g} {names[power]}" + ("/s" if unit == "binBps" else "")
        case "s":
            for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s")):
                if abs(value) < limit:
                    return f"{value * factor:.3g} {name}" if value else "0 s"
            return f"{value / 60:.3g} min" if abs(value) < 7200 else f"{value / 3600:.3g} h"
        case "percentunit":
            return f"{value * 100:.3g} %"
        case "dateTimeAsIso":
            return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
        case "mps" | "reqps" | "recps" | "eps":
            return f"{value:.3g}/s"
    if abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value / 1000:.3g} K" if abs(value) < 1e6 else f"{value / 1e6:.3g} Mil"


def _colour(name: str) -> str:
    return NAMED.get(name, name)


def ink_on(colour: str) -> str:
    """Return the colour of text on this background, given as #RRGGBB: light or dark, whichever has
    more contrast."""
    return max(INKS, key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.1, section 1.4.3)."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def worded(panel: Mapping[str, Any], value: float) -> tuple[str, str]:
    """Text and colour of a value by mappings, else by thresholds."""
    defaults = panel["fieldConfig"]["defaults"]
    name = "Infinity" if math.isinf(value) else f"{value:g}"
    for mapping in defaults.get("mappings", ()):
        if mapping["type"] == "value" and name in mapping["options"]:
            found = mapping["options"][name]
            return found["text"], _colour(found["color"])
        if mapping["type"] == "special" and math.isnan(value):
            return mapping["options"]["result"]["text"], "#8e8e8e"
    colour = "green"
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return shown(value, unit_of(panel)), _colour(colour)


def _frame(width: float, height: float) -> tuple[float, float, float, float]:
    return 52, 30, width - 10, height - 40


def graph(
    panel: Mapping[str, Any], lines: Sequence[Line], asked: Asked, width: float, height: float
) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    x0, y0, x1, y1 = _frame(width, height)
    log = defaults["custom"].get("scaleDistribution", {}).get("type") == "log"
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    over = {
        each["matcher"]["options"]
        for each in panel["fieldConfig"]["overrides"]
        if any(one["id"] == "custom.stacking" for one in each["properties"])
    }
    fixed = {
        each["matcher"]["options"]: _colour(one["value"]["fixedColor"])
        for each in panel["fieldConfig"]["overrides"]
        for one in each["properties"]
        if one["id"] == "color"
    }
    base: dict[float, float] = {}
    drawn: list[tuple[Line, list[tuple[float, float, float]]]] = []
    for line in lines:
        points = []
        for at, value in line.points:
            if math.isnan(value) or math.isinf(value) or (log and value <= 0):
                continue
            below = base.get(at, 0.0) if stacked and line.name not in over else 0.0
            points.append((at, below, below + value))
            if stacked and line.name not in over:
                base[at] = below + value
        drawn.append((line, points))
    values = [top for _, points in drawn for _, _, top in points]
    if not values:
        return '<div class="none">All values unknown</div>'
    low = min(values) if log else min(0.0, *values) if len(values) > 1 else min(0.0, values[0])
    high = defaults.get("max", max(values))
    high = high if high > low else low + 1

    def across(at: float) -> float:
        return x0 + (at - asked.start) / (asked.end - asked.start) * (x1 - x0)

    def up(value: float) -> float:
        if log:
            low_l, high_l = math.log10(low), math.log10(high)
            share = (math.log10(max(value, low)) - low_l) / ((high_l - low_l) or 1)
        else:
            share = (value - low) / (high - low)
        return y1 - min(1.05, share) * (y1 - y0)

    parts = []
    for share in (0, 0.5, 1):
        level = low * (high / low) ** share if log else low + (high - low) * share
        y, text = up(level), html.escape(shown(level, unit_of(panel)))
        parts.append(
            f'<line x1="{x0}" x2="{x1}" y1="{y:.1f}" y2="{y:.1f}" stroke="#2c2f36"/>'
            f'<text x="4" y="{y + 3:.1f}">{text}</text>'
        )
    legend = []
    # No colour twice, as far as there are enough.
    taken = {fixed[line.name] for line, _ in drawn if line.name in fixed}
    free = itertools.cycle([each for each in COLOURS if each not in taken])
    for line, points in drawn:
        colour = fixed.get(line.name) or next(free)
        legend.append(f'<b style="color:{colour}">▬</b><i>{html.escape(line.name)}</i>')
        for run in runs(points, asked.step):
            path = " ".join(f"{across(at):.1f},{up(top):.1f}" for at, _, top in run)
            if stacked and line.name not in over:
                back = " ".join(f"{across(at):.1f},{up(low_):.1f}" for at, low_, _ in reversed(run))
                parts.append(f'<polygon points="{path} {back}" fill="{colour}" opacity=".6"/>')
            dash = ' stroke-dasharray="8 5"' if line.name in over else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"{dash}/>')
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if defaults["custom"].get("thresholdsStyle", {}).get("mode") == "dashed" and (
            step["value"] is not None and low <= step["value"] <= high
        ):
            level = up(step["value"])
            parts.append(
                f'<line x1="{x0}" x2="{x1}" y1="{level:.1f}" y2="{level:.1f}" '
                f'stroke="{_colour(step["color"])}" stroke-dasharray="6 4"/>'
            )
    return _svg(parts, width, height) + f'<div class="legend">{"".join(legend)}</div>'


def runs(
    points: Sequence[tuple[float, float, float]], step: float
) -> list[list[tuple[float, float, float]]]:
    """Cut the points into runs without a hole, so that a gap stays a gap."""
    found: list[list[tuple[float, float, float]]] = []
    for point in points:
        if found and point[0] - found[-1][-1][0] < step * 1.5:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def heat(
    panel: Mapping[str, Any], lines: Sequence[Line], asked: Asked, width: float, height: float
) -> str:
    x0, y0, x1, y1 = _frame(width, height)
    ordered = sorted(lines, key=lambda line: float(line.labels["le"]))
    columns: dict[float, list[float]] = {}
    for index, line in enumerate(ordered):
        for at, value in line.points:
            columns.setdefault(at, [0.0] * len(ordered))[index] = value
    most = max((value for column in columns.values() for value in _apart(column)), default=0)
    if not most:
        return '<div class="none">Nothing was observed</div>'
    cell_w, cell_h = (x1 - x0) * asked.step / (asked.end - asked.start), (y1 - y0) / len(ordered)
    parts = []
    for at, column in columns.items():
        x = x0 + (at - asked.start) / (asked.end - asked.start) * (x1 - x0) - cell_w
        for index, value in enumerate(_apart(column)):
            if value > 1e-9:
                pale = max(0.08, (value / most) ** 0.5)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y1 - (index + 1) * cell_h:.1f}" width="{cell_w:.1f}" '
                    f'height="{cell_h:.1f}" fill="#ff9830" opacity="{pale:.2f}"/>'
                )
    for index in range(0, len(ordered), max(1, len(ordered) // 5)):
        bound = ordered[index].labels["le"]
        text = "∞" if bound == "+Inf" else shown(float(bound), unit_of(panel))
        parts.append(f'<text x="4" y="{y1 - (index + 1) * cell_h + 4:.1f}">{text}</text>')
    return _svg(parts, width, height)


def _apart(column: Sequence[float]) -> list[float]:
    """Turn the values of cumulative buckets into what fell into each bucket."""
    return [
        max(0.0, value - below) for value, below in zip(column, [0.0, *column[:-1]], strict=True)
    ]


def timeline(
    panel: Mapping[str, Any], lines: Sequence[Line], asked: Asked, width: float, height: float
) -> str:
    x0, y0, x1, y1 = 130, 30, width - 10, height - 26
    cell = (y1 - y0) / len(lines)
    parts = []
    for index, line in enumerate(lines):
        y = y0 + index * cell
        parts.append(f'<text x="6" y="{y + cell / 2 + 3:.1f}">{html.escape(line.name[:22])}</text>')
        for at, value in line.points:
            _, colour = worded(panel, value)
            x = x0 + (at - asked.start) / (asked.end - asked.start) * (x1 - x0)
            w = (x1 - x0) * asked.step / (asked.end - asked.start) + 0.5
            parts.append(
                f'<rect x="{x - w:.1f}" y="{y + 2:.1f}" width="{w:.1f}" height="{cell - 4:.1f}" '
                f'fill="{colour}" opacity=".8"/>'
            )
        # At the right end, where the last value is: at the left it named the colour of another.
        text, colour = worded(panel, line.points[-1][1])
        parts.append(
            f'<text x="{x1 - 6}" y="{y + cell / 2 + 3:.1f}" text-anchor="end" '
            f'style="fill:{ink_on(colour)}">{html.escape(text)}</text>'
        )
    return _svg(parts, width, height)


def _svg(parts: Sequence[str], width: float, height: float) -> str:
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" '
        f'style="position:absolute;left:0;top:0">{"".join(parts)}</svg>'
    )
