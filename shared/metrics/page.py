"""Writes the tables of docs/metrics.md from the catalogue: ``make metrics-page``. Pure but main.

The text between a section's two marks is generated; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from shared.metrics.catalogue import SECTIONS, Section
from shared.metrics.family import Family, Fold, Kind

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
_HEAD: Final = "| Name | Type | Unit | Labels | Meaning | Alert on |\n|---|---|---|---|---|---|\n"
_END: Final = "<!-- end of table -->"


def mark(section: Section) -> str:
    """Return the line in front of a section's table."""
    return f"<!-- table: {section.title} -->"


def table(section: Section) -> str:
    """Return a section's table."""
    return _HEAD + "".join(map(_row, section.families))


def _row(family: Family) -> str:
    labels = ", ".join(family.labels) or "–"
    cells = (
        f"`{family.name}`",
        family.kind.value,
        family.unit,
        labels,
        family.meaning,
        family.alert or "–",
    )
    return "| " + " | ".join(cells) + " |\n"


def current(page: str) -> str:
    """Return the page with all tables regenerated from the catalogue.

    Raises ValueError if the marks of a section are missing or repeated.
    """
    for section in SECTIONS:
        between = re.compile(re.escape(mark(section)) + r"\n.*?" + re.escape(_END), re.DOTALL)
        page, count = between.subn(
            lambda _, section=section: f"{mark(section)}\n\n{table(section)}\n{_END}",  # type: ignore[misc]
            page,
        )
        if count != 1:
            raise ValueError(f"{count} pairs of marks for the section {section.title!r}, not one")
    return page


def folded(fold: Fold) -> tuple[Family, ...]:
    """Return the gauges by topic, group or pair that are combined into ``_other`` by this rule."""
    return tuple(
        family
        for section in SECTIONS
        for family in section.families
        if family.kind is Kind.GAUGE
        and family.fold is fold
        and {"topic", "group"} & set(family.labels)
    )


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(current(PAGE.read_text()))


if __name__ == "__main__":
    main()
