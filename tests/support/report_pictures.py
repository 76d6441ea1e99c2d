"""Pictures of a report for the documentation: ``python -m tests.support.report_pictures DIR``.

The upper part of a report of a small made-up cluster, wide and narrow, in light and in dark, with
few colours so that the files stay small.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

from PIL import Image

from analytics.report.changes import previous
from analytics.report.facts import to_json
from analytics.report.gather import gather
from analytics.report.page import page
from tests.support.browser import browser
from tests.support.lag_world import END, START, MemoryTables, tables

SHOTS: Final = (
    ("report-wide-light", 1200, False, 1640),
    ("report-wide-dark", 1200, True, 1640),
    ("report-narrow-light", 400, False, 1640),
    ("report-narrow-dark", 400, True, 1640),
)
"""File, width, dark, height [px]."""
COLOURS: Final = 224


async def main(directory: Path) -> None:
    """Write the pictures."""
    world = MemoryTables(tables())
    half = START + (END - START) * 0.55
    before = previous(to_json(gather(world, start=START, end=half, made_at=half)))
    made_at = END + timedelta(seconds=20)
    facts = gather(world, start=START, end=END, made_at=made_at, before=before)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.html"
        report.write_text(page(facts))
        async with browser(Path(scratch) / "profile") as opened:
            for name, width, dark, height in SHOTS:
                await opened.open(report.as_uri(), width=width, dark=dark)
                path = directory / f"{name}.png"
                await opened.picture(path, height=height)
                with Image.open(path) as picture:
                    small = picture.convert("RGB").quantize(COLOURS, kmeans=3)
                small.save(path, optimize=True)
                print(path, path.stat().st_size)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1])))
