"""The report as a browser draws it: at two widths, in light and in dark.

Debian's Chromium loads the file and reports what it has drawn: nothing was loaded besides, no
script is there, nothing sticks out to the right, and all text can be read on its ground.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from analytics.report.changes import previous
from analytics.report.facts import to_json
from analytics.report.gather import gather
from analytics.report.page import page
from tests.support.browser import browser, require_browser
from tests.support.lag_world import END, START, MemoryTables, tables

pytestmark = pytest.mark.timeout(240)
WIDTHS: Final = (400, 1200)
CONTRAST_LEAST: Final = 4.5
"""Of text and its ground: WCAG 2.1, level AA."""
MEASURE: Final = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [R, G, B] = [r, g, b].map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const found = rgb(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0.99) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const faint = [], out = [], small = [];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), e = walker.currentNode.parentElement;
    if (!text || !e.getClientRects().length) continue;
    texts += 1;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgb(style.color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < %LEAST%) faint.push([text, style.color]);
    if (parseFloat(style.fontSize) < 11) small.push([text, style.fontSize]);
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects())
      if (box.right > innerWidth + 1 || box.left < -1) out.push([text, box.left, box.right]);
  }
  return {
    texts, faint, out, small,
    wide: document.documentElement.scrollWidth, inner: innerWidth,
    scripts: document.scripts.length,
    plots: document.querySelectorAll('.plot svg').length,
    flat: [...document.querySelectorAll('.plot')].filter((e) => e.clientHeight < 20
      || e.clientWidth < 150).length,
    hatched: [...document.querySelectorAll('.plot > .hatched')].length,
    heights: document.documentElement.scrollHeight,
  };
})()""".replace("%LEAST%", str(CONTRAST_LEAST))
OVERLAPS: Final = """(() => {
  const found = [];
  for (const axis of document.querySelectorAll('.x')) {
    const boxes = [...axis.querySelectorAll('.t')].map((e) => [e.textContent,
      e.getBoundingClientRect()]).filter(([, box]) => box.width)
      .sort((a, b) => a[1].left - b[1].left);
    boxes.slice(1).forEach(([text, box], place) => {
      if (box.left < boxes[place][1].right) found.push([boxes[place][0], text]);
    });
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_browser()
    world = MemoryTables(tables())
    half = START + (END - START) * 0.55
    before = gather(world, start=START, end=half, made_at=half)
    facts = gather(
        world,
        start=START,
        end=END,
        made_at=END + timedelta(seconds=20),
        before=previous(to_json(before)),
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(facts))
    return path


async def test_the_report_can_be_read_at_two_widths_in_light_and_in_dark(
    report: Path, tmp_path: Path
) -> None:
    url = report.as_uri()
    sizes: dict[tuple[int, bool], int] = {}
    async with browser(tmp_path / "profile") as opened:
        for width in WIDTHS:
            for dark in (False, True):
                await opened.open(url, width=width, dark=dark)
                assert opened.requested == [url], "nothing else is loaded"
                assert opened.said == []
                found: Mapping[str, Any] = await opened.ask(MEASURE)
                assert found["texts"] > 200
                assert found["scripts"] == 0
                assert found["wide"] <= found["inner"] == width
                assert found["out"] == []
                assert found["faint"] == []
                assert found["small"] == []
                assert found["plots"] > 15
                assert found["flat"] == 0
                assert found["hatched"] > 10, "what is unknown is drawn"
                assert await opened.ask(OVERLAPS) == []
                path = tmp_path / f"{width}-{'dark' if dark else 'light'}.png"
                await opened.picture(path)
                sizes[width, dark] = path.stat().st_size
                assert path.read_bytes().startswith(b"\x89PNG")
    assert min(sizes.values()) > 50_000, "a page with plots is no blank"
    assert sizes[1200, False] != sizes[1200, True], "dark is another picture"


async def test_a_report_of_nothing_and_long_names_fit_as_well(tmp_path: Path) -> None:
    nothing = gather(MemoryTables({}), start=START, end=END, made_at=END)
    long = dict(tables())
    name = "a-name-as-long-as-a-broker-takes-" * 3
    for table in ("pair_lag", "stages", "capacity"):
        rows = long[table]
        place = rows.column_names.index("group")
        long[table] = rows.set_column(
            place,
            rows.schema.field(place),
            [[f"{name}{each}" for each in rows["group"].to_pylist()]],
        )
    wide = gather(MemoryTables(long), start=START, end=END, made_at=END)
    async with browser(tmp_path / "profile") as opened:
        for number, facts in enumerate((nothing, wide)):
            path = tmp_path / f"{number}.html"
            path.write_text(page(facts))
            await opened.open(path.as_uri(), width=400)
            found = await opened.ask(MEASURE)
            assert (found["wide"], found["out"]) == (400, [])
