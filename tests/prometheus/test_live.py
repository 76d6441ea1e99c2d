"""A real Prometheus and Alertmanager beside real clusters, healthy and with planted faults.

One Prometheus watches five clusters for three minutes, with the project's own rules and
configuration, ten times as fast (TIDEMARK_ALERT_FACTOR; ``make alert-drill``: at true speed). Every
fault must be told by its alert, within the time that the alert promises, and by nothing else.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from deploy.grafana.listing import Expression, expressions
from deploy.prometheus.areas import ALERTS
from deploy.prometheus.promql import used
from shared.metrics.catalogue import families_of
from tests.support.alert_faults import TOPIC, Clusters, Fault, Key, SecondMaster, clusters
from tests.support.alert_stage import Stage, key_of
from tests.support.prometheus import check, tool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("prometheus"),
    pytest.mark.timeout(7200 if os.environ.get("TIDEMARK_ALERT_FACTOR") else 900),
]

FACTOR: Final = float(os.environ.get("TIDEMARK_ALERT_FACTOR", "10"))
WATCH_S: Final = 180.0
MARGIN_S: Final = 60.0
"""For a machine that does much else: on top of what an alert promises."""
LOOK_EVERY_S: Final = 0.5
WAITS: Final = {alert.name: alert.waits for alert in ALERTS}
KEEPS: Final = {alert.name: alert.keeps for alert in ALERTS}
MACHINE: Final = {
    "TidemarkPutSlow": "the disk and processor of the machine that runs the tests may be so slow",
    "TidemarkSlowDisk": "as above",
}
"""Alerts that may fire anywhere, being true."""
NO_SAMPLE: Final = {
    "tidemark_telemetry_series_dropped_total": "no bound on series is reached",
    "tidemark_dispatch_errors_total": "dispatch meets no error",
}
"""Families without a sample in a loaded group, and why."""

PERHAPS: Final = {
    "tidemark_store_full_seconds": "absent while no end of the disk is in sight",
}
"""Families with a sample or without, as it comes."""
LATELY: Final = "2m"
"""Events are looked for in so long a time: they happen here once."""
NOT_PLANTED: Final = {
    "more topics, pairs or groups than a bound allows": "there are few",
    "a clock that was set back": "the clock is the machine's",
    "a connection that was refused": "connections are few",
    "an error of dispatch": "it would be told, and dispatch has tests of its own",
    "a log that had diverged": "drills of groups do that",
    "a log that was copied anew": "as above",
    "a term that ended before its time": "as above",
    "an election that two nodes wanted to win": "a matter of chance",
    "a process that stood still": "a matter of the machine",
    "a start with something to recover": "nodes start empty",
    "a file that retention removed": "the load is too small for that",
    "a message delivered twice": "only in groups that give up, and before anybody looked",
}
"""Events that dashboards wait for and that need not happen here, and why."""


@dataclass
class Observed:
    """What was seen."""

    firing_s: dict[Key, float] = field(default_factory=dict)
    """When an alert was first seen to fire, since the first fault."""
    told_s: dict[Key, float] = field(default_factory=dict)
    summaries: dict[Key, str] = field(default_factory=dict)
    planted: list[Fault] = field(default_factory=list)
    cleared: set[Key] = field(default_factory=set)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """By node and service of the healthy group: what /metrics said."""
    unhealthy: list[str] = field(default_factory=list)
    """Rules that could not be evaluated, at any look."""
    empty: list[Expression] = field(default_factory=list)
    """Expressions of dashboards that returned nothing though running was enough."""
    waiting: dict[tuple[str, str, str], Expression] = field(default_factory=dict)
    """Of those that need an event, by place: what has returned nothing in any cluster so far."""
    before_s: float = 0.0
    """How long was watched before any fault."""
    before: set[Key] = field(default_factory=set)
    """What fired in that time."""


class Watcher:
    """Looks at what fires and who was told, and keeps when it was first so."""

    def __init__(self, stage: Stage, found: Clusters, observed: Observed) -> None:
        self._stage, self._clusters, self.observed = stage, found, observed
        self._began = time.monotonic()
        self._told = len(stage.receiver.told)

    def look(self) -> None:
        """Once."""
        now_s = time.monotonic() - self._began
        observed = self.observed
        for alerts in self._stage.prometheus.firing().values():
            for labels in alerts:
                if observed.firing_s.setdefault(key_of(labels), now_s) == now_s:
                    print(f"{now_s:6.1f} s  fires  {' '.join(key_of(labels))}")
        told = self._stage.receiver.told
        for each in told[self._told :]:
            self._told += 1
            print(f"{now_s:6.1f} s  told   {each.status} {' '.join(each.key)}: {each.summary}")
            if each.status == "firing":
                observed.told_s.setdefault(each.key, now_s)
                observed.summaries.setdefault(each.key, each.summary)
        for rule in self._stage.prometheus.rules():
            if rule["health"] == "err" or rule.get("lastError"):
                observed.unhealthy.append(f"{rule['name']}: {rule.get('lastError')}")
        self._clusters.load.check()

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Go on looking until it holds. Raises AssertionError after the deadline."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.look()
            if condition():
                return
            assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
            time.sleep(LOOK_EVERY_S)

    def until_told(self, fault: Fault, timeout_s: float) -> None:
        """Until somebody has been told of a fault."""
        self.until(
            lambda: fault.told in self.observed.told_s, f"{fault.name} to be told", timeout_s
        )

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began


def promised_s(stage: Stage, fault: Fault) -> float:
    """After this, at the latest, somebody is told."""
    steps = 3 * (stage.seconds("15s") + stage.seconds("15s"))
    return (
        fault.true_after_s
        + stage.seconds(WAITS[fault.told[0]])
        + stage.seconds(fault.watched)
        + stage.seconds("30s")  # group_wait
        + steps
        + MARGIN_S
    )


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
            return _drill(stage, found)


def _drill(stage: Stage, found: Clusters) -> Observed:
    observed = Observed()
    watcher = Watcher(stage, found, observed)
    targets = found.targets()
    stage.watch(targets)
    prometheus = stage.prometheus
    watcher.until(
        lambda: [each["value"][1] for each in prometheus.query("sum(up)")] == [str(len(targets))],
        "every process to be asked",
        60 + stage.seconds("1m"),
    )
    watcher.until(
        lambda: bool(
            prometheus.query(
                'tidemark:group_last_read:timestamp_seconds{cluster="consumers",group="dead"}'
            )
        ),
        "the group that will die to be seen reading",
        60 + stage.seconds("2m"),
    )
    observed.before_s = watcher.now_s
    observed.before = set(observed.firing_s)

    faults = found.faults(stage)
    planted_s: dict[Key, float] = {}
    for fault in faults:
        fault.plant()
        planted_s[fault.told] = watcher.now_s
        print(f"{watcher.now_s:6.1f} s  planted {fault.name}")
    observed.planted += faults
    for fault in sorted(faults, key=lambda fault: promised_s(stage, fault)):
        left_s = planted_s[fault.told] + promised_s(stage, fault) - watcher.now_s
        watcher.until_told(fault, left_s)
    watcher.until(lambda: watcher.now_s >= stage.seconds("5m"), "rates to have a whole range", 3600)
    _take_metrics(found, observed)
    _ask_dashboards(stage, observed)
    _clear(stage, watcher, [fault for fault in faults if fault.clear is not None])
    _ask_again(stage, observed)
    found.switch_over()
    print(f"{watcher.now_s:6.1f} s  switched over in the healthy group")
    after_s = watcher.now_s + stage.seconds("2m")
    watcher.until(lambda: watcher.now_s >= after_s, "two minutes without a word", after_s)
    _ask_again(stage, observed)
    _plant_second_master(stage, watcher)
    _give_up(stage, watcher, found)
    _ask_again(stage, observed)
    watcher.until(lambda: watcher.now_s >= WATCH_S, "three minutes to be over", WATCH_S)
    return observed


def _take_metrics(found: Clusters, observed: Observed) -> None:
    for name, node in found.healthy.nodes.items():
        for role in node.roles:
            with urllib.request.urlopen(node.admin_url(role) + "/metrics", timeout=30) as answer:
                observed.texts[name, role] = answer.read().decode()


def _ask_dashboards(stage: Stage, observed: Observed) -> None:
    """Of the healthy group what needs no event, of all clusters what does."""
    times = {
        "__rate_interval": f"{max(1, round(stage.seconds('1m')))}s",
        "__interval": f"{max(1, round(stage.seconds('15s')))}s",
        "__range": f"{max(1, round(stage.seconds('5m')))}s",
    }
    healthy = {"cluster": "healthy", "broker": "g0", "group": "orders", "topic": TOPIC}
    for expression in expressions({**healthy, **times}):
        found = stage.prometheus.query(expression.expr)  # one that cannot be asked raises
        looked_at = set(used(expression.expr).metrics)
        if not found and not expression.needs and not looked_at & set(PERHAPS):
            observed.empty.append(expression)
    lately = {**times, "__rate_interval": LATELY}
    for expression in expressions(lately):
        if expression.needs and not stage.prometheus.query(expression.expr):
            observed.waiting[expression.board, expression.panel, expression.letter] = expression


def _ask_again(stage: Stage, observed: Observed) -> None:
    """Whether what had nothing to show has by now."""
    for place, expression in [*observed.waiting.items()]:
        if stage.prometheus.query(expression.expr):
            del observed.waiting[place]


def _clear(stage: Stage, watcher: Watcher, faults: list[Fault]) -> None:
    for fault in faults:
        assert fault.clear is not None
        fault.clear()
        print(f"{watcher.now_s:6.1f} s  cleared {fault.name}")
    wanted = {fault.told for fault in faults}

    def are_over() -> bool:
        fires = {
            key_of(labels) for alerts in stage.prometheus.firing().values() for labels in alerts
        }
        return not wanted & fires

    watcher.until(are_over, "cleared faults to be over", MARGIN_S + stage.seconds("5m"))
    watcher.observed.cleared |= wanted


def _plant_second_master(stage: Stage, watcher: Watcher) -> None:
    second, targets = SecondMaster(), stage.targets
    fault = Fault(
        "two masters planted",
        ("TidemarkMasterCount", "healthy", ""),
        lambda: stage.watch([*targets, second.target]),
        lambda: stage.watch(targets),
        0.0,
    )
    try:
        fault.plant()
        print(f"{watcher.now_s:6.1f} s  planted {fault.name}")
        watcher.observed.planted.append(fault)
        watcher.until_told(fault, promised_s(stage, fault))
        _clear(stage, watcher, [fault])
    finally:
        second.close()


def _give_up(stage: Stage, watcher: Watcher, found: Clusters) -> None:
    """Events, not states: they are told when they come and end by themselves."""
    node = found.healthy.nodes[found.healthy.wait_master()]
    faults = [
        Fault(name, (alert, "healthy", "giving-up"), lambda: None, None, 0.0)
        for name, alert in (
            ("a dead letter", "TidemarkDeadLetters"),
            ("a reset", "TidemarkGroupOffsetReset"),
        )
    ]
    watcher.observed.planted += faults
    print(f"{watcher.now_s:6.1f} s  planted a dead letter and a reset")
    found.give_up(node, "giving-up")
    for fault in faults:
        watcher.until_told(fault, promised_s(stage, fault))


# -- what was seen --------------------------------------------------------------------------------


def test_each_fault_is_told_by_its_alert_and_by_no_other(observed: Observed) -> None:
    wanted = {fault.told for fault in observed.planted}
    told = {key for key in observed.told_s if key[0] not in MACHINE}
    assert told == wanted
    for fault in observed.planted:
        print(f"{fault.name}: {observed.summaries[fault.told]}")


def test_nothing_fires_that_does_not_follow_from_a_fault(observed: Observed) -> None:
    follows = {
        (alert, *fault.told[1:])
        for fault in observed.planted
        for alert in (fault.told[0], *fault.fires_too)
    }
    fired = {key for key in observed.firing_s if key[0] not in MACHINE}
    assert fired - follows == set()
    for key in (("TidemarkDispatchStuck", "reput", ""),):
        assert key in fired, f"{key} is silenced, but it must fire"


def test_nothing_fires_before_a_fault(observed: Observed) -> None:
    assert {key for key in observed.before if key[0] not in MACHINE} == set()


def test_alerts_end_when_their_faults_are_cleared(observed: Observed) -> None:
    wanted = {fault.told for fault in observed.planted if fault.clear is not None}
    assert observed.cleared == wanted
    assert len(wanted) >= 4


def test_every_rule_was_evaluated(observed: Observed) -> None:
    assert observed.unhealthy == []


def test_every_expression_of_the_dashboards_returned_data(observed: Observed) -> None:
    assert [f"{each.board}, {each.panel}: {each.expr}" for each in observed.empty] == []


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
