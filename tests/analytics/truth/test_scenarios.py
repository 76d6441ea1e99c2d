"""Random groups: no alarm of one that is well, and every fault found in time under its name.

`make lag-scenarios SEEDS=20` judges twenty seeds.
"""

from __future__ import annotations

from tests.support.lag_scenarios import report, run

SEEDS = (1, 2, 3)


def test_healthy_groups_raise_no_alarm_and_every_fault_is_found_in_time() -> None:
    found = run(SEEDS)
    print(report(found))
    problems = [(case.name, case.seed, each) for case in found for each in case.problems]
    assert problems == []
