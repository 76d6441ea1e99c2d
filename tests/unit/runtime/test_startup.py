"""A start may take as long as it makes progress; only one that stalls is given up."""

from __future__ import annotations

import pytest

from shared.runtime.health import Health
from shared.runtime.startup import STILL_MAX_S, StartupProbe
from tests.support.still_clock import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def health(clock: StillClock) -> Health:
    return Health(clock)


def test_a_start_that_has_done_nothing_yet_is_not_over(health: Health) -> None:
    startup = StartupProbe(health).look()
    assert (startup.ok, startup.body["startup"]) == (False, "not-begun")


def test_recovery_may_take_for_ever_while_it_advances(health: Health, clock: StillClock) -> None:
    probe = StartupProbe(health)
    health.state = "recovering"
    for done in range(1000):
        health.recovery.progress(done, 1_000_000)
        clock.now_s += STILL_MAX_S - 1
        startup = probe.look()
        assert (startup.ok, startup.body["startup"]) == (True, "advancing")
    recovery = startup.body["recovery"]
    assert isinstance(recovery, dict)
    assert (recovery["done_bytes"], recovery["total_bytes"]) == (999, 1_000_000)
    assert recovery["eta_seconds"] > 3600


def test_recovery_that_stands_still_for_a_minute_is_stuck_until_it_moves(
    health: Health, clock: StillClock
) -> None:
    probe = StartupProbe(health)
    health.state = "recovering"
    health.recovery.progress(5, 10)
    assert probe.look().ok
    clock.now_s += STILL_MAX_S - 0.1
    assert probe.look().ok
    clock.now_s += 0.1
    startup = probe.look()
    assert (startup.ok, startup.body["startup"]) == (False, "stuck")
    assert startup.body["still_seconds"] == STILL_MAX_S
    health.recovery.progress(6, 10)
    assert probe.look().ok


def test_waiting_for_another_process_of_the_node_has_no_time_out(
    health: Health, clock: StillClock
) -> None:
    # ha empties a store and copies it anew from the master: hours, in which the broker has nothing
    # to do. A restarted one would wait in the same way.
    probe = StartupProbe(health)
    health.add_reason("waiting-for-store", "there is no store yet: check that ha runs")
    assert probe.look().ok
    clock.now_s += 100 * STILL_MAX_S
    startup = probe.look()
    assert (startup.ok, startup.body["startup"]) == (True, "waiting")
    assert startup.body["waits_for"] == [
        {"code": "waiting-for-store", "detail": "there is no store yet: check that ha runs"}
    ]


@pytest.mark.parametrize("state", ["serving", "unready", "stopping"])
def test_steps_after_recovery_do_not_count_as_the_start(
    health: Health, clock: StillClock, state: str
) -> None:
    # Damage or a full disk: the process must stay, to report it and to serve what can be read.
    probe = StartupProbe(health)
    health.state = state
    health.add_reason("corrupt-record", "byte 5")
    probe.look()
    clock.now_s += 10 * STILL_MAX_S
    startup = probe.look()
    assert (startup.ok, startup.body["startup"]) == (True, "over")
