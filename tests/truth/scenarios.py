"""All random groups by name: ten that are well, and eleven faults with their expected statuses.

`tests/support/lag_scenarios.py` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.truth import failing, healthy
from tests.truth.behaviour import Random
from tests.truth.scenario import COMMIT_EVERY, RATE, Fault, Scenario


def well() -> Mapping[str, Callable[[Random], Scenario]]:
    """Return the makers of healthy groups by name."""
    return {
        "steady": healthy.steady,
        "exact rate, constant in flight": healthy.exact,
        "a message per 5 min": healthy.trickle,
        "15-fold bursts": healthy.bursts,
        "slow wave": healthy.wave,
        "rebalance re-commits old offsets": healthy.rebalances,
        "topic not subscribed": healthy.unsubscribed,
        "restarts of 75 s": healthy.restarts,
        "commits every 120 s": healthy.rare_commits,
        "monitor blind for 5 min": healthy.blind,
    }


def faults() -> Mapping[str, Fault]:
    """Return the faults by name."""
    stopped, stalled = frozenset({"STOPPED"}), frozenset({"STALLED"})
    falls = frozenset({"FALLING_BEHIND"})
    return {
        "dies, 100 messages/s": Fault(
            lambda r: failing.dies(r, 50.0, COMMIT_EVERY), 135.0, stopped
        ),
        "dies, a message per 5 min": Fault(failing.trickle_dies, 180.0, stopped),
        "dies, commits every 120 s": Fault(lambda r: failing.dies(r, RATE, 120.0), 135.0, stopped),
        "poison message, same commit again": Fault(
            lambda r: failing.poison(r, True), 75.0, stalled
        ),
        "poison message, no commit": Fault(lambda r: failing.poison(r, False), 75.0, stalled),
        "120 s batch stuck, connected": Fault(
            failing.batch_stuck, 105.0, falls | stalled, "STALLED"
        ),
        "capacity 1 % of input": _slow(0.01, 120.0),
        "capacity 20 % of input": _slow(0.2, 120.0),
        "capacity 80 % of input": _slow(0.8, 375.0),
        # Arrivals are random: of five minutes it reads 98 % and more now and then.
        "capacity 97 % of input": _slow(0.97, 2175.0, falls | {"LAGGING"}),
        "retention overtakes": Fault(
            failing.retention, 120.0, falls | {"RACING"}, "LOST", breaks_after_s=60.0 / 0.9
        ),
    }


def _slow(
    share: float, within: float, expected: frozenset[str] = frozenset({"FALLING_BEHIND"})
) -> Fault:
    breaks = 60.0 / (1.0 - share)
    return Fault(lambda r: failing.slows(r, share), within, expected, breaks_after_s=breaks)
