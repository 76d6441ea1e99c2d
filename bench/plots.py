"""Draws the plots of bench/README.md from bench/results: ``python -m bench.plots``.

There is one small SVG per series, with text as text. Equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.harness import PROJECT
from bench.table import results

PLOTS: Final = PROJECT / "bench" / "plots"
WIDTH_IN: Final = 6.4
HEIGHT_IN: Final = 3.6
MARKERS: Final = "osD^vPX*"


def _tick(value: float) -> str:
    """Format with grouped thousands and without an exponent."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def draw(series: Mapping[str, Any]) -> None:
    with mpl.rc_context(
        {
            "svg.fonttype": "none",  # text is stored as text: searchable, and without paths
            "svg.hashsalt": "tidemark",  # ids do not change between drawings
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
        }
    ):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
        axes = figure.subplots()
        for number, (name, points) in enumerate(series["lines"].items()):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=4)
        axes.set_xscale("log")
        ticks = sorted({x for points in series["lines"].values() for x, _ in points})
        axes.set_xticks(ticks, labels=[_tick(x) for x in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y)))
        axes.set_title(series["title"], fontsize=9)
        axes.set_xlabel(series["x"])
        axes.set_ylabel(series["y"])
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(PLOTS / f"{series['name']}.svg", metadata={"Date": None})


def main() -> None:
    """Draw all series of all results; remove plots without a series."""
    PLOTS.mkdir(exist_ok=True)
    drawn = set()
    for result in results().values():
        for series in result.get("series", ()):
            draw(series)
            drawn.add(f"{series['name']}.svg")
    for path in PLOTS.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()


if __name__ == "__main__":
    main()
