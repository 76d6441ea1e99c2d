"""A real Prometheus and Alertmanager beside real clusters, healthy and with planted faults.

One Prometheus watches five clusters for three minutes, with the project's own rules and
configuration, ten times as fast (TIDEMARK_ALERT_FACTOR; ``make alert-drill``: at true speed). Every
fault must be notified by its alert, within the time that the alert promises, and by nothing else.
"""

from __future__ import annotations

import os
import re
from typing import Final

import pytest

from shared.metrics.catalogue import families_of
from tests.support.alert_clusters import clusters
from tests.support.alert_faults import Key
from tests.support.alert_stage import Stage
from tests.support.alert_watch import Observed, drill
from tests.support.prometheus import check, tool
from tests.support.promql_tokens import used

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("prometheus"),
    pytest.mark.timeout(7200 if os.environ.get("TIDEMARK_ALERT_FACTOR") else 1800),
]

FACTOR: Final = float(os.environ.get("TIDEMARK_ALERT_FACTOR", "10"))
MACHINE: Final = {
    "TidemarkPutSlow": "the disk and processor of the machine that runs the tests may be so slow",
    "TidemarkSlowDisk": "as above",
}
"""Alerts that may fire at any time, because they are true."""
NO_SAMPLE: Final = {
    "tidemark_telemetry_series_dropped_total": "no bound on series is reached",
    "tidemark_dispatch_errors_total": "dispatch meets no error",
    "tidemark_broker_names_refused_total": "there is no name service",
}
"""Families without a sample in a loaded group, and why."""

PERHAPS: Final = {
    "tidemark_store_full_seconds": "absent while no end of the disk is in sight",
}
"""Families with a sample or without, as it comes."""
NOT_PLANTED: Final = {
    "more topics, pairs or groups than a bound allows": "there are few",
    "a clock that was set back": "the clock is the machine's",
    "a connection that was refused": "connections are few",
    "an error of dispatch": "it would be notified, and dispatch has tests of its own",
    "a log that had diverged": "drills of groups do that",
    "a log that was copied anew": "as above",
    "a term that ended before its time": "as above",
    "an election that two nodes wanted to win": "a matter of chance",
    "name services": "the groups are no cluster; `tests/processes/test_names.py` has one",
    "a registration that was refused": "as above",
    "a node that has gone": "as above",
    "a process that stood still": "a matter of the machine",
    "a start with something to recover": "nodes start empty",
    "a file that retention removed": "the load is too small for that",
    "lag analytics that runs beside the cluster": "it has tests of its own, with Spark",
    "a source that did not answer analytics": "as above",
    "hours of lag analytics, and a disk that fills": "as above",
    "something unusual, and hours of lag analytics": "as above",
    "a message delivered twice": "only in groups that give up, and before anybody looked",
}
"""Events that dashboards wait for and that need not happen here, and why."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """The whole run; the tests judge it."""
    for name in ("prometheus", "prometheus-alertmanager", "promtool"):
        tool(name)
    directory = tmp_path_factory.mktemp("live")
    with clusters(directory) as found:
        found.happen_before()
        found.begin_load()
        with Stage(directory / "stage", FACTOR) as stage:
            return drill(stage, found)


def test_only_what_fires_soon_after_the_machine_stood_still_is_excused() -> None:
    down, flapping = ("TidemarkTargetDown", "cut", ""), ("TidemarkInSyncFlapping", "cut", "")
    late, other = ("TidemarkLookOld", "cut", ""), ("TidemarkSendsFail", "cut", "")
    observed = Observed(
        firing_s={down: 99.0, flapping: 129.0, late: 131.0, other: 101.0},
        stalls=[(100.0, 4.0)],
    )
    assert observed.excused == {flapping}
    observed.stalls = []
    assert observed.excused == set()


# -- what was seen --------------------------------------------------------------------------------


def excused(observed: Observed) -> set[Key]:
    """Alerts that fired because this machine stalled; printed, with the moments."""
    for ended_s, late_s in observed.stalls:
        print(f"{ended_s:6.1f} s  the machine had stood still: a look was {late_s:.1f} s late")
    for key in observed.excused:
        print(f"{observed.firing_s.get(key, 0.0):6.1f} s  excused {' '.join(key)}")
    return observed.excused


def test_each_fault_fires_its_alert_and_no_other(observed: Observed) -> None:
    wanted = {fault.notified for fault in observed.planted}
    notified = {key for key in observed.notified_s if key[0] not in MACHINE}
    assert notified - (excused(observed) - wanted) == wanted
    for fault in observed.planted:
        print(f"{fault.name}: {observed.summaries[fault.notified]}")


def test_nothing_fires_that_does_not_follow_from_a_fault(observed: Observed) -> None:
    follows = {
        (alert, *fault.notified[1:])
        for fault in observed.planted
        for alert in (fault.notified[0], *fault.fires_too)
    }
    fired = {key for key in observed.firing_s if key[0] not in MACHINE}
    assert fired - follows - excused(observed) == set()
    for key in (("TidemarkDispatchStuck", "reput", ""),):
        assert key in fired, f"{key} is silenced, but it must fire"


def test_nothing_fires_before_a_fault(observed: Observed) -> None:
    before = {key for key in observed.before if key[0] not in MACHINE}
    assert before - excused(observed) == set()


def test_alerts_end_when_their_faults_are_cleared(observed: Observed) -> None:
    wanted = {fault.notified for fault in observed.planted if fault.clear is not None}
    assert observed.cleared == wanted
    assert len(wanted) >= 4


def test_every_rule_was_evaluated(observed: Observed) -> None:
    assert observed.unhealthy == []


def test_every_expression_of_the_dashboards_returned_data(observed: Observed) -> None:
    empty = [each for each in observed.empty if not set(used(each.expr).metrics) & set(PERHAPS)]
    assert [f"{each.board}, {each.panel}: {each.expr}" for each in empty] == []


def test_expressions_that_need_an_event_return_data_after_it(observed: Observed) -> None:
    assert {each.needs for each in observed.waiting.values()} - set(NOT_PLANTED) == set()


@pytest.mark.parametrize("role", ["broker", "reput", "ha"])
def test_promtool_finds_no_fault_with_the_metrics(observed: Observed, role: str) -> None:
    for (node, service), text in observed.texts.items():
        if service == role:
            said = check("promtool", "check", "metrics", text=text)
            assert said == "", f"{node}: {said}"


@pytest.mark.parametrize("role", ["broker", "reput", "ha"])
def test_a_process_exports_what_the_catalogue_says_and_nothing_else(
    observed: Observed, role: str
) -> None:
    claimed = {family.name for family in families_of(role)}
    sampled: set[str] = set()
    for (node, service), text in observed.texts.items():
        if service != role:
            continue
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        assert set(typed) == claimed, f"{role} of {node}"
        sampled |= {
            re.sub(r"_(bucket|sum|count)$", "", name) if name not in typed else name
            for name in re.findall(r"^([a-z]\w*)", text, re.MULTILINE)
        }
    without = claimed - sampled - set(PERHAPS)
    assert without == {name for name in NO_SAMPLE if name in claimed}
