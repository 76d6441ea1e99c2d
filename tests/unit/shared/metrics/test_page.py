"""docs/metrics.md has the catalogue's tables, and describes how the code folds series."""

from __future__ import annotations

import re

import pytest

from shared.metrics.catalogue import BY_NAME, SECTIONS
from shared.metrics.family import Fold
from shared.metrics.page import PAGE, current, folded


def test_the_page_has_the_tables_of_the_catalogue() -> None:
    page = PAGE.read_text()
    assert current(page) == page, "run `make metrics-page`"


def test_every_section_has_its_heading() -> None:
    page = PAGE.read_text()
    for section in SECTIONS:
        assert f"\n## {section.title}\n" in page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="Every process"):
        current("# Metrics\n")


def test_the_page_names_the_gauges_that_are_folded_by_their_maximum() -> None:
    text = " ".join(PAGE.read_text().split())
    (said,) = re.findall(r"the largest counts for (.*), the smallest", text)
    endings = re.findall(r"`(_\w+)`", said)
    for family in folded(Fold.MAX):
        assert [ending for ending in endings if family.name.endswith(ending)], family.name
    assert len(endings) == len(folded(Fold.MAX))


def test_names_on_the_page_are_of_the_catalogue() -> None:
    for name in re.findall(r"`((?:tidemark|process)_\w+)`", PAGE.read_text()):
        assert name in BY_NAME, name
