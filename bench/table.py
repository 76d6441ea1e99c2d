"""Writes the tables of bench/README.md from bench/results: ``python -m bench.table``.

A result may have a page of its own with further tables. The text between the two marks of a page is
generated only here; a unit test compares it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.harness import NAMES, PROJECT, RESULTS, shown

README: Final = PROJECT / "bench" / "README.md"
BEGIN: Final = "<!-- made by python -m bench.table: begin -->"
END: Final = "<!-- end -->"
Result = Mapping[str, Any]
"""The content of one file of bench/results."""


def results() -> dict[str, Result]:
    """All existing results in the order of the figures."""
    return {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in NAMES
        if (RESULTS / f"{name}.json").exists()
    }


def pages(found: Mapping[str, Result]) -> dict[Path, str]:
    """The text between the marks of each page that shows results."""
    of_results = {
        PROJECT / result["page"]: _page(result) for result in found.values() if "page" in result
    }
    return {README: made(found), **of_results}


def _page(result: Result) -> str:
    """Build the Markdown of a result's own page: its plots, then its tables."""
    method = f"{result['machine']}; {result['when'][:10]}. {result['method']}"
    lines = [textwrap.fill(method, 100), ""]
    for series in result["series"]:
        lines += [f"![{series['title']}](../bench/plots/{series['name']}.svg)", ""]
    for table in result["tables"]:
        lines += [
            f"**{table['title']}**",
            "",
            "| " + " | ".join(table["head"]) + " |",
            "|---|" + "--:|" * (len(table["head"]) - 1),
            *("| " + " | ".join(row) + " |" for row in table["rows"]),
            "",
        ]
    return "\n".join(lines)


def made(found: Mapping[str, Result]) -> str:
    """Build the Markdown between the marks: a section, a table and the plots of each result."""
    return "\n".join(_section(name, result) for name, result in found.items())


def _section(name: str, result: Result) -> str:
    lines = [
        f"### {name}",
        "",
        f"{result['machine']}; {result['when'][:10]}. {result['method']}",
        "",
        "| What | Median | Min to max | Unit | Goal | × baseline |",
        "|---|--:|--:|---|--:|---|",
        *(_row(figure, figure["what"] in result.get("missed", ())) for figure in result["figures"]),
        "",
    ]
    if notes := result.get("notes"):
        lines += [*(f"- {note}" for note in notes), ""]
    for series in result.get("series", ()):
        lines += [f"![{series['title']}](plots/{series['name']}.svg)", ""]
    return "\n".join(lines)


def _row(figure: Mapping[str, Any], missed: bool) -> str:
    goal = "" if figure["goal"] is None else shown(figure["goal"])
    if missed:
        goal += " **missed**"
    against = ""
    if figure["ratio"] is not None:
        against = f"{shown(figure['ratio'])} × {figure['baseline']}"
    cells = (
        figure["what"],
        shown(figure["median"]),
        f"{shown(figure['min'])} to {shown(figure['max'])}",
        figure["unit"],
        goal,
        against,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def replaced(text: str, block: str) -> str:
    """Replace the block between the marks of a page. Raises ValueError if they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"a page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def main() -> None:
    for path, block in pages(results()).items():
        text = path.read_text(encoding="utf-8")
        path.write_text(replaced(text, block), encoding="utf-8")


if __name__ == "__main__":
    main()
