"""Texts of panels: each is written once, most of them in the catalogue."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import pytest

from deploy.grafana import texts, units
from deploy.grafana.boards import BOARDS
from deploy.grafana.panels import Heat, Lines, Panel, Stat
from deploy.grafana.problems import problems
from deploy.grafana.queries import Query, age, buckets, gauge, growth, largest, quantiles, rate
from shared.metrics.catalogue import BY_NAME
from tests.support.dashboards import ROOT

PANELS: Final = [panel for board in BOARDS for panel in board.panels()]
PAGE: Final = (ROOT / "docs/dashboards.md").read_text()
CATALOGUED: Final = {family.title for family in BY_NAME.values() if family.title}
LAG: Final = "tidemark_dispatch_lag_seconds"


def test_a_panel_of_one_family_has_the_texts_of_the_catalogue() -> None:
    panel = Lines(gauge(LAG, "broker, replica"))
    assert texts.title(panel) == "Behind in dispatch"
    assert texts.unit(panel) == units.SECONDS
    assert texts.description(panel) == (
        f"`{LAG}`: {BY_NAME[LAG].meaning}. Alert on: {BY_NAME[LAG].alert}."
    )
    assert texts.nothing(panel) == ""


@pytest.mark.parametrize(
    ("panel", "title", "unit", "first"),
    [
        (
            Lines(quantiles("tidemark_ha_ack_duration_seconds")),
            "Sent to acknowledged, quantiles",
            units.SECONDS,
            "Half, 99 % and 99.9 % were below.",
        ),
        (
            Lines(quantiles("tidemark_ha_ack_duration_seconds")[1]),
            "Sent to acknowledged, p99",
            units.SECONDS,
            "99 % were below.",
        ),
        (
            Heat(buckets("tidemark_broker_message_size_bytes")),
            "Message sizes",
            units.BYTES,
            "Each column is a moment; dark cells are where most observations fell.",
        ),
        (
            Lines(rate("tidemark_dispatch_bytes_total", "replica")),
            "Bytes dispatched",
            units.BYTES_RATE,
            "`tidemark_dispatch_bytes_total`: Bytes of log dispatched, fillers included.",
        ),
        (
            Lines(growth("tidemark_ha_truncated_bytes_total", "replica"), bars=True),
            "Bytes cut",
            units.BYTES,
            "Around each point.",
        ),
        (
            Stat(age("tidemark_up_since_timestamp_seconds", "replica")),
            "Running since",
            units.SECONDS,
            "How long ago.",
        ),
        (
            Lines(largest(gauge("tidemark_group_inflight_messages", "group"))),
            "In flight",
            units.COUNT,
            "The 20 largest.",
        ),
        (
            Lines(rate("process_cpu_seconds_total", "replica")),
            "Processor",
            units.PLAIN,
            "`process_cpu_seconds_total`: Total user and system CPU time spent in seconds.",
        ),
    ],
)
def test_the_form_of_the_query_decides_the_rest(
    panel: Panel, title: str, unit: str, first: str
) -> None:
    assert texts.title(panel) == title
    assert texts.unit(panel) == unit
    assert texts.description(panel).startswith(first)


def test_a_text_of_its_own_stands_before_the_meaning_of_each_family() -> None:
    panel = Lines((gauge(LAG, "broker"), gauge("tidemark_ready", "broker")), text="Two of them.")
    first, lag, ready = texts.description(panel).split("\n\n")
    assert first == "Two of them."
    assert lag.startswith(f"`{LAG}`: ")
    assert ready.startswith("`tidemark_ready`: ")


def test_a_panel_without_series_has_the_reason_that_its_families_have() -> None:
    def of(name: str) -> str:
        return texts.nothing(Lines(gauge(name, "replica")))

    assert of("tidemark_ha_epoch") == "No group: a standalone node"
    assert of("tidemark_analytics_pairs") == "Lag analytics does not run"
    assert of("tidemark_analytics_group_status") == "None, or lag analytics does not run"
    bars = Lines(growth("tidemark_ha_resyncs_total", "replica"), bars=True)
    assert texts.nothing(bars) == "None"


def test_a_panel_whose_title_or_unit_is_missing_is_refused() -> None:
    two = Lines((gauge(LAG, "broker"), gauge("tidemark_ready", "broker")))
    with pytest.raises(ValueError, match=f"{LAG}, tidemark_ready has no title: give one to the"):
        texts.title(two)
    with pytest.raises(ValueError, match="no family has no title"):
        texts.title(Lines(Query("up")))
    with pytest.raises(ValueError, match="panel Up uses no family and has no unit"):
        texts.unit(Lines(Query("up"), title="Up"))
    with pytest.raises(KeyError, match="tidemark_made_up"):
        texts.families(Lines(gauge("tidemark_made_up", "broker")))


def test_no_text_is_written_twice() -> None:
    on_two_boards = problems(24).title
    own = [panel for panel in PANELS if panel.title and panel.title != on_two_boards]
    written = Counter(text for panel in own for text in (panel.title, panel.text) if text)
    assert [text for text, count in written.items() if count > 1] == []
    assert {panel.title for panel in own} & CATALOGUED == set()


def test_only_a_panel_with_a_title_of_its_own_has_a_text_or_a_unit_of_its_own() -> None:
    # Else the catalogue has them. A number of series has another unit than the series.
    for panel in PANELS:
        if not panel.title:
            assert not panel.text, texts.title(panel)
            counted = panel.queries[0].expr.startswith("count ")
            assert not panel.unit or counted or hasattr(panel, "columns"), texts.title(panel)


def test_a_unit_is_given_only_where_the_family_does_not_have_it() -> None:
    for panel in PANELS:
        if panel.unit and texts.families(panel) and not hasattr(panel, "columns"):
            bare = type(panel)(panel.shown, title=panel.title)
            assert texts.unit(bare) != panel.unit, panel.title


def test_every_title_of_the_catalogue_is_on_a_dashboard() -> None:
    used = {family.name for panel in PANELS if not panel.title for family in texts.families(panel)}
    assert {family.name for family in BY_NAME.values() if family.title} == used


def test_the_page_has_the_boards_with_their_questions_and_names_existing_panels() -> None:
    for board in BOARDS:
        assert f"| **{board.title.removeprefix('Tidemark / ')}** | {board.description} |" in PAGE
    named = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", PAGE))
    assert named - {texts.title(panel) for panel in PANELS} == set()
