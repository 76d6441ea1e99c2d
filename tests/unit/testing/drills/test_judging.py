"""How long service may be away: a drill's own limit, times what the machine itself is slower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemark.testing.drills.checker import Verdict
from tidemark.testing.drills.processes import slowness
from tidemark.testing.drills.running import Result, judge_drill


def stage(restored_s: float) -> Any:
    notes: list[str] = []
    return SimpleNamespace(
        fault_at=100.0,
        restored_s=restored_s,
        notes=notes,
        note=notes.append,
        finder=SimpleNamespace(known=SimpleNamespace(contradictions=set())),
    )


@pytest.mark.parametrize(
    ("restored_s", "patience", "failure"),
    [
        (4.9, 1.0, ""),
        (5.1, 1.0, "no ack for 5.10 s, at most 5 s x 1.0 are allowed"),
        # Drills failed on a loaded machine by limits measured on a quiet one.
        (14.0, 3.0, ""),
        (15.5, 3.0, "no ack for 15.50 s, at most 5 s x 3.0 are allowed"),
    ],
)
def test_a_limit_is_relative_to_how_slow_the_machine_is(
    restored_s: float, patience: float, failure: str
) -> None:
    result = Result(cast(Any, SimpleNamespace(restored_within_s=5.0)), seed=1)
    judge_drill(result, stage(restored_s), Verdict(), 200.0, patience)
    assert failure in result.failure
    assert bool(failure) is bool(result.failure)


def test_a_machine_is_never_faster_than_its_own_work() -> None:
    assert slowness() >= 1.0
