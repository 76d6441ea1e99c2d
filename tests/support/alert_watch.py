"""One run of the alert drill: watch, plant faults, wait for notifications, clear, query dashboards.

The observations are judged by the tests (``tests/prometheus/test_live.py``). Times are seconds
since the first observation.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from deploy.prometheus.rules import ALERTS
from tests.support.alert_clusters import TOPIC, Clusters
from tests.support.alert_faults import Fault, Key, SecondMaster, faults_of
from tests.support.alert_stage import Stage, key_of
from tests.support.dashboard_listing import Expression, expressions

WATCH_S: Final = 180.0
MARGIN_S: Final = 60.0
"""Margin for a busy machine, on top of what an alert promises."""
LOOK_EVERY_S: Final = 0.5
LATE_S: Final = 3 * LOOK_EVERY_S + 1
"""A delay of an observation after which the machine counts as stalled."""
STALL_ALERTS_S: Final = 30.0
STALL_ALERTS: Final = frozenset(
    {
        "TidemarkTargetDown",
        "TidemarkLookOld",
        "TidemarkInSyncFlapping",
        "TidemarkFailoversInARow",
        "TidemarkGroupFallingBehind",
    }
)
"""Alerts that are true of a stalled machine, and may fire for so long after a stall."""
WAITS: Final = {alert.name: alert.waits for alert in ALERTS}
GIVEN_UP_MAX: Final = 3
"""Repetitions of a group's dead letter until it is notified."""
LATELY: Final = "1h"
"""Longer than any run: events are searched in all of it."""


@dataclass
class Observed:
    """The observations of a run."""

    firing_s: dict[Key, float] = field(default_factory=dict)
    """Time since the first fault at which an alert was first seen firing."""
    notified_s: dict[Key, float] = field(default_factory=dict)
    summaries: dict[Key, str] = field(default_factory=dict)
    planted: list[Fault] = field(default_factory=list)
    cleared: set[Key] = field(default_factory=set)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """(node, service) of the healthy group → its /metrics."""
    unhealthy: list[str] = field(default_factory=list)
    """Rules that could not be evaluated, in any observation."""
    empty: list[Expression] = field(default_factory=list)
    """Expressions of dashboards that returned nothing though running processes should suffice."""
    waiting: dict[tuple[str, str, str], Expression] = field(default_factory=dict)
    """Expressions that need an event, by place: those that returned nothing in any cluster so
    far."""
    before: set[Key] = field(default_factory=set)
    """Alerts that fired before any fault."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """End and length of each stall of the machine [s]."""

    @property
    def excused(self) -> set[Key]:
        """Alerts that fired or were notified because the machine stalled."""
        return {
            key
            for key, at_s in {**self.notified_s, **self.firing_s}.items()
            if key[0] in STALL_ALERTS
            and any(0 <= at_s - ended_s <= STALL_ALERTS_S for ended_s, _ in self.stalls)
        }


class Watcher:
    """Observes firing alerts and notifications, and keeps the first time of each."""

    def __init__(self, stage: Stage, found: Clusters, observed: Observed) -> None:
        self._stage, self._clusters, self.observed = stage, found, observed
        self._began = time.monotonic()
        self._seen_count = len(stage.receiver.notifications)

    def look(self) -> None:
        """Observe once."""
        now_s = time.monotonic() - self._began
        observed = self.observed
        for alerts in self._stage.prometheus.firing().values():
            for labels in alerts:
                if observed.firing_s.setdefault(key_of(labels), now_s) == now_s:
                    print(f"{now_s:6.1f} s  fires  {' '.join(key_of(labels))}")
        notifications = self._stage.receiver.notifications
        for each in notifications[self._seen_count :]:
            self._seen_count += 1
            print(f"{now_s:6.1f} s  sent   {each.status} {' '.join(each.key)}: {each.summary}")
            if each.status == "firing":
                observed.notified_s.setdefault(each.key, now_s)
                observed.summaries.setdefault(each.key, each.summary)
        for rule in self._stage.prometheus.rules():
            if rule["health"] == "err" or rule.get("lastError"):
                observed.unhealthy.append(f"{rule['name']}: {rule.get('lastError')}")
        self._clusters.load.check()

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Observe until a condition holds. Raises AssertionError after the deadline."""
        deadline = time.monotonic() + timeout_s
        due_s = self.now_s
        while True:
            self._note_stall(due_s)
            due_s = self.now_s + LOOK_EVERY_S
            self.look()
            if condition():
                return
            assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
            time.sleep(LOOK_EVERY_S)

    def _note_stall(self, due_s: float) -> None:
        """Note a stall of the machine if this observation is late."""
        now_s = self.now_s
        if now_s - due_s > LATE_S:
            print(f"{now_s:6.1f} s  the machine stood still: a look is {now_s - due_s:.1f} s late")
            self.observed.stalls.append((now_s, now_s - due_s))

    def are_notified(self, faults: list[Fault], within_s: float) -> bool:
        """Return whether all faults are notified within that time."""
        until_s = self.now_s + within_s

        def are_notified() -> bool:
            return all(fault.notified in self.observed.notified_s for fault in faults)

        names = " and ".join(fault.name for fault in faults)
        self.until(
            lambda: are_notified() or self.now_s >= until_s,
            f"{names} to be notified",
            within_s + MARGIN_S,
        )
        return are_notified()

    def until_alerted(self, fault: Fault, timeout_s: float) -> None:
        """Wait until a fault has been notified."""
        self.until(
            lambda: fault.notified in self.observed.notified_s,
            f"{fault.name} to be notified",
            timeout_s,
        )

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began


def promised_s(stage: Stage, fault: Fault) -> float:
    """Return the time after which a fault must have been notified."""
    steps = 3 * (stage.seconds("15s") + stage.seconds("15s"))
    return (
        fault.true_after_s
        + stage.seconds(WAITS[fault.notified[0]])
        + stage.seconds(fault.watched)
        + stage.seconds("30s")  # group_wait
        + steps
        + MARGIN_S
    )


def drill(stage: Stage, found: Clusters) -> Observed:
    """Run the drill. Raises AssertionError if an expected state is not reached."""
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
    observed.before = set(observed.firing_s)

    faults = faults_of(found, stage)
    planted_s: dict[Key, float] = {}
    for fault in faults:
        fault.plant()
        planted_s[fault.notified] = watcher.now_s
        print(f"{watcher.now_s:6.1f} s  planted {fault.name}")
    observed.planted += faults
    for fault in sorted(faults, key=lambda fault: promised_s(stage, fault)):
        left_s = planted_s[fault.notified] + promised_s(stage, fault) - watcher.now_s
        watcher.until_alerted(fault, left_s)
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
    """Query expressions without events on the healthy group, those with events on all clusters."""
    times = {
        "__rate_interval": f"{max(1, round(stage.seconds('1m')))}s",
        "__interval": f"{max(1, round(stage.seconds('15s')))}s",
        "__range": f"{max(1, round(stage.seconds('5m')))}s",
    }
    healthy = {"cluster": "healthy", "broker": "g0", "group": "orders", "topic": TOPIC}
    for expression in expressions({**healthy, **times}):
        found = stage.prometheus.query(expression.expr)  # an invalid one raises
        if not found and not expression.needs:
            observed.empty.append(expression)
    lately = {**times, "__rate_interval": LATELY}
    for expression in expressions(lately):
        if expression.needs and not stage.prometheus.query(expression.expr):
            observed.waiting[expression.board, expression.panel, expression.letter] = expression


def _ask_again(stage: Stage, observed: Observed) -> None:
    """Return whether expressions that had been empty have values by now."""
    for place, expression in [*observed.waiting.items()]:
        if stage.prometheus.query(expression.expr):
            del observed.waiting[place]


def _clear(stage: Stage, watcher: Watcher, faults: list[Fault]) -> None:
    for fault in faults:
        assert fault.clear is not None
        fault.clear()
        print(f"{watcher.now_s:6.1f} s  cleared {fault.name}")
    wanted = {fault.notified for fault in faults}

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
        watcher.until_alerted(fault, promised_s(stage, fault))
        _clear(stage, watcher, [fault])
    finally:
        second.close()


def _give_up(stage: Stage, watcher: Watcher, found: Clusters) -> None:
    """Alerts of events, not of states: they are notified when they come and end by themselves."""
    node = found.healthy.nodes[found.healthy.wait_master()]
    faults = [
        Fault(name, (alert, "healthy", "giving-up"), lambda: None, None, 0.0)
        for name, alert in (
            ("a dead letter", "TidemarkDeadLetters"),
            ("a reset", "TidemarkGroupOffsetReset"),
        )
    ]
    watcher.observed.planted += faults
    within_s = max(promised_s(stage, fault) for fault in faults)
    for left in reversed(range(GIVEN_UP_MAX)):
        print(f"{watcher.now_s:6.1f} s  planted a dead letter and a reset")
        found.give_up(node, "giving-up")
        planted_s = watcher.now_s
        if watcher.are_notified(faults, within_s):
            return
        # A counter that begins while its process cannot be scraped is no event to Prometheus (see
        # ``deploy.grafana.queries.events``). Its next step is one.
        assert left, "a dead letter and a reset were not notified"
        assert stage.prometheus.query(
            f'min_over_time(up{{cluster="healthy"}}[{round(watcher.now_s - planted_s) + 60}s]) == 0'
        ), "a dead letter and a reset were not notified, and every process was asked all the time"
