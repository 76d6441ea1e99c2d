"""How long service may be away: a drill's own limit, and how much slower the machine itself is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemark.testing.drills.checker import Verdict
from tidemark.testing.drills.pace import QUIET_S, Pace, allowed_s
from tidemark.testing.drills.running import Result, judge_drill


def stage(restored_s: float) -> Any:
    notes: list[str] = []
    return SimpleNamespace(
        fault_at=100.0,
        restored_s=restored_s,
        notes=notes,
        lease_s=3.0,
        note=notes.append,
        finder=SimpleNamespace(known=SimpleNamespace(contradictions=set())),
    )


@pytest.mark.parametrize(
    ("limit_s", "restored_s", "pace", "failure"),
    [
        (2.0, 1.9, 1.0, ""),
        (2.0, 2.1, 1.0, "no ack for 2.10 s, allowed are 2.0 s (2 s on a quiet machine"),
        # Drills failed on a loaded machine by limits measured on a quiet one.
        (2.0, 3.9, 3.0, ""),
        (2.0, 4.1, 3.0, "no ack for 4.10 s, allowed are 4.0 s"),
        # Of six seconds three are a lease that runs out: as long on a slow machine as on any.
        (6.0, 5.9, 1.0, ""),
        (6.0, 8.9, 3.0, ""),
        (6.0, 9.1, 3.0, "no ack for 9.10 s, allowed are 9.0 s"),
        # A limit of 2 s was 164 s once, on a machine 16 times slower.
        (2.0, 20.0, 16.0, "no ack for 20.00 s, allowed are 17.0 s"),
    ],
)
def test_a_limit_is_relative_to_how_slow_the_machine_is(
    limit_s: float, restored_s: float, pace: float, failure: str
) -> None:
    result = Result(cast(Any, SimpleNamespace(restored_within_s=limit_s)), seed=1)
    judge_drill(result, stage(restored_s), Verdict(), 200.0, pace)
    assert failure in result.failure
    assert bool(failure) is bool(result.failure)


def test_only_work_takes_longer_on_a_slow_machine() -> None:
    assert allowed_s(6.0, 3.0, 1.0) == 6.0
    assert allowed_s(6.0, 3.0, 4.0) == 10.5
    assert allowed_s(2.0, 0.0, 4.0) == 5.0


def test_slowness_is_the_mean_of_what_was_measured_during_the_drill() -> None:
    # It was measured before and after: what came in between failed the drill, and what came just
    # before or after excused it.
    pace = Pace()
    for at, times in ((10.0, 40.0), (20.0, 2.0), (21.0, 6.0), (22.0, 4.0)):
        pace.note(at, times * QUIET_S)
    assert pace.since(20.0) == pytest.approx(4.0)
    assert pace.since(0.0) == pytest.approx(13.0)
    assert pace.since(99.0) == pytest.approx(4.0), "the last one, if there was none since"
    assert pace.now == pytest.approx(13.0)
    for at in range(30, 35):
        pace.note(float(at), 1.5 * QUIET_S)
    assert pace.now == pytest.approx(1.5)


def test_a_faster_machine_has_the_same_limits_and_patience_multiplies() -> None:
    pace = Pace(patience=2.0)
    assert pace.now == 2.0
    pace.note(1.0, QUIET_S / 3)
    assert pace.now == pace.since(0.0) == 2.0


async def test_the_pace_is_measured_by_work_of_its_own_while_it_is_open() -> None:
    async with Pace() as pace:
        assert pace.now >= 1.0
