from __future__ import annotations

from pathlib import Path

import pytest

from bench import plots, table
from bench.harness import NAMES, PROJECT


def test_every_page_shows_the_results_that_are_there() -> None:
    for path, block in table.pages(table.results()).items():
        text = path.read_text(encoding="utf-8")
        assert text == table.replaced(text, block), (
            f"{path} is stale: python -m bench.table && python -m bench.plots"
        )


def test_a_page_of_one_result_has_its_plots_and_its_tables() -> None:
    result = {
        "page": "docs/a.md",
        "machine": "m",
        "when": "2026-01-02T03:04:05",
        "method": "how",
        "series": [{"name": "p", "title": "P"}],
        "tables": [{"title": "T", "head": ["a", "b"], "rows": [["1", "2"], ["3", "4"]]}],
        "figures": [],
    }
    found = table.pages({"name": result, "other": {**result, "page": "docs/b.md"}})
    assert set(found) == {
        table.README,
        *(PROJECT / "docs" / each for each in ("a.md", "b.md")),
    }
    assert found[PROJECT / "docs/a.md"] == (
        "m; 2026-01-02. how\n\n![P](../bench/plots/p.svg)\n\n**T**\n\n"
        "| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 | 4 |\n"
    )


def test_every_series_has_its_plot_and_every_plot_its_series() -> None:
    series = [each for result in table.results().values() for each in result.get("series", ())]
    drawn = {path.stem for path in plots.PLOTS.glob("*.svg")}
    assert drawn == {each["name"] for each in series}
    assert len(drawn) == len(series), "two series of one name"


def test_every_benchmark_is_in_the_readme() -> None:
    text = table.README.read_text(encoding="utf-8")
    for name in NAMES:
        assert f"\n| {name} |" in text


def test_a_readme_without_the_marks_is_not_touched() -> None:
    with pytest.raises(ValueError, match="lacks"):
        table.replaced("no marks", "block")


def test_a_plot_is_small_its_letters_text_and_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "PLOTS", tmp_path)
    series = {
        "name": "p",
        "title": "Title of it",
        "x": "body [bytes]",
        "y": "messages/s",
        "lines": {"one line": [[16, 1.0], [4096, 2.0]], "another": [[16, 3.0], [4096, 1.0]]},
    }
    plots.draw(series)
    first = (tmp_path / "p.svg").read_bytes()
    plots.draw(series)
    assert (tmp_path / "p.svg").read_bytes() == first
    assert len(first) < 40_000
    for text in (b"Title of it", b"body [bytes]", b"one line", b"4,096"):
        assert text in first
