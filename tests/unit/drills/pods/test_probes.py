"""The kubelet's probe rules over time, without executing probes."""

from __future__ import annotations

import dataclasses

from drills.pods.plans import Container, Exec, Probe, plan_pod
from drills.pods.probes import Backoff, Kind, Probes
from tests.unit.drills.pods import manifests

ASK = Exec(("true",))


def container(
    *, startup: Probe | None = None, liveness: Probe | None = None, readiness: Probe | None = None
) -> Container:
    (found,) = plan_pod(manifests.stateful_set(), 0, "r1").containers
    return dataclasses.replace(found, startup=startup, liveness=liveness, readiness=readiness)


def kinds(probes: Probes, now: float, *, terminating: bool = False) -> list[Kind]:
    return [kind for kind, _ in probes.due(now, terminating=terminating)]


def test_without_probes_a_container_is_ready_as_soon_as_it_runs() -> None:
    assert Probes(container(), 0).ready


def test_a_probe_is_asked_once_per_period_from_its_initial_delay_on() -> None:
    probe = Probe(ASK, initial_delay_s=3, period_s=10)
    probes = Probes(container(readiness=probe), 100)
    asked = [now for now in range(100, 140) if kinds(probes, now)]
    assert asked == [103, 113, 123, 133]


def test_a_late_tick_is_not_made_up_for() -> None:
    probes = Probes(container(readiness=Probe(ASK, period_s=2)), 0)
    assert kinds(probes, 0)
    assert kinds(probes, 7)
    assert not kinds(probes, 8)
    assert kinds(probes, 9)


def test_liveness_and_readiness_wait_for_the_startup_probe() -> None:
    probes = Probes(
        container(startup=Probe(ASK, period_s=1), liveness=Probe(ASK), readiness=Probe(ASK)), 0
    )
    assert kinds(probes, 0) == [Kind.STARTUP]
    probes.take(Kind.STARTUP, succeeded=False)
    assert kinds(probes, 10) == [Kind.STARTUP]
    assert not probes.ready
    probes.take(Kind.STARTUP, succeeded=True)
    assert kinds(probes, 20) == [Kind.LIVENESS, Kind.READINESS]


def test_only_failures_in_a_row_kill() -> None:
    probes = Probes(container(liveness=Probe(ASK, failure_threshold=3)), 0)
    answers = [False, False, True, False, False, False]
    judged = [probes.take(Kind.LIVENESS, succeeded=answer) for answer in answers]
    assert [judgement.kill for judgement in judged] == [False] * 5 + [True]
    assert [judgement.unhealthy for judgement in judged] == [not answer for answer in answers]


def test_a_probe_that_has_killed_asks_no_more() -> None:
    probes = Probes(container(liveness=Probe(ASK, period_s=1, failure_threshold=1)), 0)
    assert kinds(probes, 0) == [Kind.LIVENESS]
    assert probes.take(Kind.LIVENESS, succeeded=False).kill
    assert kinds(probes, 50) == []


def test_readiness_never_kills_and_needs_its_successes_in_a_row() -> None:
    probe = Probe(ASK, success_threshold=2, failure_threshold=2)
    probes = Probes(container(readiness=probe), 0)
    seen = []
    for answer in (True, True, False, True, False, False, True, True):
        assert not probes.take(Kind.READINESS, succeeded=answer).kill
        seen.append(probes.ready)
    assert seen == [False, True, True, True, True, False, False, True]


def test_while_the_pod_ends_only_readiness_is_looked_at() -> None:
    probes = Probes(container(liveness=Probe(ASK), readiness=Probe(ASK)), 0)
    assert kinds(probes, 0, terminating=True) == [Kind.READINESS]


def test_the_first_restart_is_made_at_once_and_later_ones_wait_twice_as_long_each() -> None:
    backoff, now, waits = Backoff(), 0.0, []
    for _ in range(8):
        again = backoff.ended(started_at=now, now=now + 1)
        waits.append(again - now - 1)
        now = again
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_for_ten_minutes_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.ended(started_at=0, now=1)
    assert backoff.ended(started_at=0, now=600) > 600
    assert backoff.ended(started_at=0, now=601) == 601
