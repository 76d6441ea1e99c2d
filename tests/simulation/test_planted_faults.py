"""The simulation finds what it is for: each planted mistake, within a thousand seeds."""

from __future__ import annotations

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.run import SeedFailed, run_seed

SEEDS_MAX = 1000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    for seed in range(SEEDS_MAX):
        try:
            with FAULTS[fault]():
                run_seed(seed, fault)
        except SeedFailed as error:
            print(f"{fault} is found by seed {seed}:\n{error}")
            run_seed(seed)  # the same run without the mistake is in order
            return
    raise AssertionError(f"{fault} was not found within {SEEDS_MAX} seeds")
