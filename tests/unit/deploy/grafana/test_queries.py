"""Every expression: it parses, it can match, and the panel has its unit and labels."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

from deploy.grafana.boards import BOARDS as WRITTEN
from deploy.grafana.limits import LIMITS
from deploy.grafana.panels import Stat
from deploy.grafana.texts import nothing, title
from deploy.prometheus.rules import ALERTS, RECORDS
from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import Kind
from tests.support.dashboards import RECORDED, Target, legend_labels, targets
from tests.support.for_each import for_each
from tests.support.promql import FOREIGN, metrics, numbers

FITTING: Final[Mapping[str, Sequence[str]]] = {
    "s": ("s",),
    "bytes": ("bytes",),
    "bytes/s": ("binBps",),
    "messages/s": ("mps",),
    "requests/s": ("reqps", "eps"),
    "observations/s": ("reqps", "eps"),
    "records/s": ("recps",),
    "ratio": ("percentunit", "none"),
    "–": ("none",),
    "ms": ("dateTimeAsIso",),
}
"""Grafana's units for what a query yields; other rates are events, everything else is counted."""
JOURNAL: Final = "of the telemetry journal, which is off by default"
NOT_SHOWN: Final[Mapping[str, str]] = {
    "process_start_time_seconds": "the same as tidemark_up_since_timestamp_seconds",
    "python_info": "tidemark_node_info has the version too",
    "process_virtual_memory_bytes": "mapped files make it large and meaningless",
    "tidemark_group_broadcasting": "for lag analytics: such a group has no lag that a board shows",
    "tidemark_group_consume_enabled": "for lag analytics, whose status PAUSED it is",
    "tidemark_group_oldest_undelivered_timestamp_seconds": "boards show what awaits delivery: what "
    "waits behind a slow handler is processing",
    "tidemark_queue_min_offset_messages": "for lag analytics; boards show the sum by topic",
    "tidemark_telemetry_snapshots_total": JOURNAL,
    "tidemark_telemetry_snapshots_dropped_total": JOURNAL,
    "tidemark_telemetry_journal_bytes_total": JOURNAL,
    "tidemark_telemetry_snapshot_rows": JOURNAL,
    "tidemark_telemetry_snapshot_duration_seconds": JOURNAL,
}
"""Families that no board and no rule uses, and why."""
TARGETS: Final = targets()
each_target = for_each("target", TARGETS)


def fitting(unit: str) -> Sequence[str]:
    """Grafana's units that fit an inferred one."""
    return FITTING.get(unit, ("eps",) if unit.endswith("/s") else ("short",))


def unit_shown(target: Target) -> str:
    """The unit that the panel gives to this query's values."""
    panel, letter = target.panel, target.target["refId"]
    if panel["type"] == "heatmap":
        return str(panel["options"]["yAxis"]["unit"])
    if panel["type"] != "table":
        return str(panel["fieldConfig"]["defaults"]["unit"])
    source = "Value" if len(panel["targets"]) == 1 else f"Value #{letter}"
    titles = panel["transformations"][-1]["options"]["renameByName"]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == titles.get(source):
            for each in override["properties"]:
                if each["id"] == "unit":
                    return str(each["value"])
    return ""


@each_target
def test_a_query_makes_sense_and_its_unit_is_the_one_shown(target: Target) -> None:
    found = target.yields
    assert found.kind == ("bucket rate" if target.panel["type"] == "heatmap" else found.kind)
    shown = unit_shown(target)
    if target.panel["type"] == "table" and not shown:
        return  # only its labels are shown
    assert shown in fitting(found.unit), f"yields {found.unit}: {target.expr}"


def test_counts_and_seconds_never_share_an_axis() -> None:
    by_panel: dict[tuple[str, str], list[set[str]]] = {}
    for target in TARGETS:
        if target.panel["type"] != "table":
            found = by_panel.setdefault((target.board, target.panel["title"]), [])
            found.append(set(fitting(target.yields.unit)))
    assert [panel for panel, found in by_panel.items() if not set.intersection(*found)] == []


@each_target
def test_legends_and_columns_name_labels_that_the_result_has(target: Target) -> None:
    assert legend_labels(target.target) - target.yields.labels == set()
    if target.panel["type"] == "table":
        labels = frozenset().union(
            *(other.yields.labels for other in TARGETS if other.panel is target.panel)
        )
        letters = {other["refId"] for other in target.panel["targets"]}
        names = target.panel["transformations"][1]["options"]["include"]["names"]
        for name in names:
            value = name == "Value" or name.removeprefix("Value #") in letters
            assert value or name in labels, name


@each_target
def test_series_of_a_graph_are_distinguishable(target: Target) -> None:
    if target.panel["type"] not in ("timeseries", "state-timeline"):
        return
    labels = target.yields.labels - {"cluster", "broker", "job", "instance"}
    # A node's name is unique within all clusters that one Prometheus scrapes, as is a pair's.
    assert labels - legend_labels(target.target) == set(), target.target["legendFormat"]


@each_target
def test_a_heat_map_keeps_its_buckets_apart(target: Target) -> None:
    if target.panel["type"] == "heatmap":
        assert target.yields.labels == {"le"}
        assert target.target["format"] == "heatmap"
        assert target.target["legendFormat"] == "{{le}}"


@each_target
def test_rates_use_the_window_that_misses_no_step(target: Target) -> None:
    written = target.target["expr"]
    assert "[$__interval]" not in written
    assert "m]" not in written, "a window of its own: use $__rate_interval"
    assert target.panel["interval"] == "15s"


def test_promtool_takes_every_query_as_a_recording_rule(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    rules = [
        {"record": f"panel:{number}", "expr": target.expr} for number, target in enumerate(TARGETS)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(TARGETS)} rules found" in checked.stdout


def _family(name: str) -> str:
    for suffix in ("_bucket", "_count", "_sum"):
        base = BY_NAME.get(name.removesuffix(suffix))
        if base is not None and base.kind is Kind.HISTOGRAM:
            return base.name
    return name


def test_every_metric_is_in_the_catalogue_or_recorded() -> None:
    used = {_family(name) for target in TARGETS for name in metrics(target.expr)}
    assert used - set(BY_NAME) - set(RECORDED) - set(FOREIGN) == set()


def test_every_family_is_on_a_dashboard_or_has_a_reason_why_not() -> None:
    asked = [target.expr for target in TARGETS]
    asked += [record.expr for record in RECORDS] + [alert.expr for alert in ALERTS]
    used = {_family(name) for expr in asked for name in metrics(expr)}
    assert set(BY_NAME) - used == set(NOT_SHOWN), "show it, alert on it, or say why not"


def test_limits_that_are_drawn_are_those_of_the_alerts() -> None:
    exprs = {alert.name: alert.expr for alert in ALERTS}
    for limit in LIMITS:
        assert limit.value in numbers(exprs[limit.alert]), limit


def test_panels_explain_series_that_appear_only_after_an_event() -> None:
    needs_of_queries = [
        query.needs for board in WRITTEN for panel in board.panels() for query in panel.queries
    ]
    assert all(needs == needs.strip() and not needs.endswith(".") for needs in needs_of_queries)
    assert any(needs_of_queries)


def test_a_panel_that_is_normally_empty_says_so() -> None:
    for board in WRITTEN:
        for panel in board.panels():
            if all(query.needs for query in panel.queries) and not isinstance(panel, Stat):
                assert nothing(panel), title(panel)


def test_words_for_nothing_reach_grafana() -> None:
    expected = {
        (f"{board.uid}.json", title(panel)): nothing(panel)
        for board in WRITTEN
        for panel in board.panels()
        if nothing(panel)
    }
    shown = {
        (target.board, target.panel["title"]): target.panel["fieldConfig"]["defaults"].get(
            "noValue"
        )
        for target in TARGETS
    }
    assert {place: shown[place] for place in expected} == expected
