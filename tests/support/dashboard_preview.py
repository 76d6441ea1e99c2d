"""Draw the dashboards as a page, without Grafana: where panels stand, and what Prometheus answers.

``python -m tests.support.dashboard_preview [--prometheus URL] [--minutes N] OUT`` writes one page
for each into OUT. Places, sizes, titles, units and limits are those of the JSON; the look is ours,
not Grafana's. With a Prometheus the panels hold real values; without one, their queries.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.dashboard_listing import BUILT_IN, fill
from tests.support.dashboard_shapes import (
    Asked,
    Line,
    graph,
    heat,
    ink_on,
    shown,
    timeline,
    unit_of,
    worded,
)
from tests.support.dashboards import BOARDS, panels

CELL_PX: Final = 38
GAP_PX: Final = 8
WIDTH_PX: Final = 1560
STYLE: Final = """
body { background: #111217; color: #ccccdc; font: 12px Inter, Helvetica, Arial, sans-serif }
body { margin: 0 }
header { padding: 10px 16px; font-size: 15px }
header span { color: #8e8e9e; margin-left: 18px; font-size: 12px }
#grid { position: relative; margin: 0 8px }
.row, .panel, .big, .legend { position: absolute; box-sizing: border-box }
.row { font-size: 14px; font-weight: 500; padding: 8px 4px }
.panel { background: #181b1f; border: 1px solid #2c2f36; border-radius: 2px; overflow: hidden }
.title { padding: 5px 8px; font-weight: 500; white-space: nowrap; overflow: hidden }
.title { text-overflow: ellipsis }
.legend { bottom: 3px; left: 8px; right: 8px; height: 16px; overflow: hidden; color: #9a9aa8 }
.legend { font-size: 11px }
.legend b { margin-right: 3px }
.legend i { font-style: normal; margin-right: 10px }
.big { display: flex; align-items: center; justify-content: center; font-weight: 500 }
.big { font-size: 30px; left: 0; right: 0; bottom: 0; top: 26px; color: #fff }
.none { color: #6c6c7a; padding: 6px 8px; font-size: 11px }
table { border-collapse: collapse; width: 100%; font-size: 11px }
td, th { text-align: left; padding: 3px 8px; border-bottom: 1px solid #26292f }
td, th { white-space: nowrap }
th { color: #6e9fff; font-weight: 500 }
text { fill: #8e8e9e; font-size: 10px }
"""


def main() -> None:
    """Write the pages."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--prometheus")
    arguments.add_argument("--minutes", type=float, default=5)
    arguments.add_argument("out", type=Path)
    given = arguments.parse_args()
    asked = None
    if given.prometheus:
        now = time.time()
        asked = Asked(given.prometheus, now - given.minutes * 60, now, given.minutes * 60 / 150)
    for path, height in pages(given.out, asked):
        print(f"{path} {WIDTH_PX}x{height}")


def pages(out: Path, asked: Asked | None) -> list[tuple[Path, int]]:
    """Write a page for each board into out; returns each with its height in pixels."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, board in BOARDS.items():
        page, height = _page(board, asked)
        path = out / name.replace(".json", ".html")
        path.write_text(page)
        written.append((path, height))
    return written


def _page(board: Mapping[str, Any], asked: Asked | None) -> tuple[str, int]:
    parts, bottom = [], 0
    for panel in panels(dict(board)):
        place = panel["gridPos"]
        cell_w = (WIDTH_PX - 16) / 24
        left, top = place["x"] * cell_w, place["y"] * CELL_PX
        width, height = place["w"] * cell_w - GAP_PX, place["h"] * CELL_PX - GAP_PX
        bottom = max(bottom, top + height)
        where = f"left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"
        if panel["type"] == "row":
            parts.append(f'<div class="row" style="{where}">⌄ {html.escape(panel["title"])}</div>')
            continue
        parts.append(
            f'<div class="panel" style="{where}"><div class="title">{html.escape(panel["title"])}'
            f"</div>{_inside(panel, asked, width, height)}</div>"
        )
    choices = "".join(
        f"<span>{html.escape(each['label'])}: All</span>"
        for each in board["templating"]["list"][1:]
    )
    links = "".join(f"<span>↗ {html.escape(link['title'])}</span>" for link in board["links"])
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>'
        f"<header>{html.escape(board['title'])}{choices}{links}</header>"
        f'<div id="grid" style="height:{bottom + 10}px">{"".join(parts)}</div>'
    ), bottom + 70


def _inside(panel: Mapping[str, Any], asked: Asked | None, width: float, height: float) -> str:
    if asked is None:
        queries = "<br>".join(html.escape(each["expr"]) for each in panel["targets"])
        return f'<div class="none">{panel["type"]}, {unit_of(panel)}<br>{queries}</div>'
    lines = [line for target in panel["targets"] for line in ask(asked, target)]
    if panel["type"] == "stat":
        return _stat(panel, lines)
    if not lines:
        said = panel["fieldConfig"]["defaults"].get("noValue") or "No data"
        return f'<div class="none">{html.escape(said)}</div>'
    match panel["type"]:
        case "table":
            return _table(panel, lines)
        case "heatmap":
            return heat(panel, lines, asked, width, height)
        case "state-timeline":
            return timeline(panel, lines, asked, width, height)
        case _:
            return graph(panel, lines, asked, width, height)


def ask(asked: Asked, target: Mapping[str, Any]) -> list[Line]:
    """What Prometheus answers to one query, over the time shown or for now."""
    values = dict.fromkeys(("cluster", "broker", "group", "topic"), ".*") | dict(BUILT_IN)
    query = {"query": fill(target["expr"], values)}
    if target.get("instant"):
        path, query["time"] = "query", f"{asked.end:.3f}"
    else:
        path = "query_range"
        query |= {"start": str(asked.start), "end": str(asked.end), "step": str(asked.step)}
    url = f"{asked.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found = json.load(answer)["data"]["result"]
    lines = []
    for series in found:
        labels = series["metric"]
        name = target.get("legendFormat") or ""
        for label, value in labels.items():
            name = name.replace("{{" + label + "}}", value)
        points = series.get("values") or [series["value"]]
        numbers = [(float(at), float(value)) for at, value in points]
        lines.append(Line(name, labels, numbers, target["refId"]))
    return lines


def _stat(panel: Mapping[str, Any], lines: Sequence[Line]) -> str:
    if not lines:
        unknown = html.escape(panel["fieldConfig"]["defaults"]["noValue"])
        return f'<div class="big" style="background:#3a3d44;font-size:20px">{unknown}</div>'
    text, colour = worded(panel, lines[0].points[-1][1])
    style = f"background:{colour};color:{ink_on(colour)}"
    return f'<div class="big" style="{style}">{html.escape(text)}</div>'


def _table(panel: Mapping[str, Any], lines: Sequence[Line]) -> str:
    organised = panel["transformations"][-1]["options"]
    sources = sorted(organised["indexByName"], key=organised["indexByName"].__getitem__)
    titles = organised["renameByName"]
    formats = {
        override["matcher"]["options"]: {
            each["id"]: each["value"] for each in override["properties"]
        }
        for override in panel["fieldConfig"]["overrides"]
    }
    rows: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for line in lines:
        key = tuple(sorted(line.labels.items()))
        rows.setdefault(key, {})[line.letter] = line.points[-1][1]
    sort = panel["options"]["sortBy"][0]["displayName"]
    by = next(_letter(source) for source in sources if titles[source] == sort)
    cells = []
    for key, values in sorted(
        rows.items(), key=lambda row: row[1].get(by, -math.inf), reverse=True
    ):
        labels = dict(key)
        texts = [_cell(each, labels, values, formats.get(titles[each], {})) for each in sources]
        cells.append("".join(f"<td>{text}</td>" for text in texts))
    head = "".join(f"<th>{html.escape(titles[source])}</th>" for source in sources)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _letter(source: str) -> str:
    return source.removeprefix("Value #") if "#" in source else "A"


def _cell(
    source: str, labels: Mapping[str, str], values: Mapping[str, float], look: Mapping[str, Any]
) -> str:
    if not source.startswith("Value"):
        return html.escape(labels.get(source, ""))
    value = values.get(_letter(source))
    if value is None:
        return ""
    if not ("mappings" in look or "thresholds" in look):
        return html.escape(shown(value, look.get("unit", "")))
    text, colour = worded({"type": "stat", "fieldConfig": {"defaults": look}}, value)
    return f'<span style="color:{colour}">{html.escape(text)}</span>'


if __name__ == "__main__":
    main()
