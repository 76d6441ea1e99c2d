"""The simulation finds each planted mistake within five thousand seeds."""

from __future__ import annotations

import re

import pytest

from tests.simulation.faults import FAULTS, SYMPTOMS
from tests.simulation.run import SeedFailed, run_seed

SEEDS_MAX = 5000


def first_failure(fault: str) -> tuple[int, str] | None:
    """The first seed that fails with the planted fault, and its message."""
    with FAULTS[fault]():
        for seed in range(SEEDS_MAX):
            try:
                run_seed(seed, fault)
            except SeedFailed as error:
                return seed, str(error)
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    found = first_failure(fault)
    assert found is not None, f"{fault} was not found within {SEEDS_MAX} seeds"
    seed, failure = found
    print(f"{fault} is found by seed {seed}:\n{failure}")
    assert re.search(SYMPTOMS[fault], failure), f"seed {seed} fails for another reason: {failure}"
    run_seed(seed)  # the same run without the mistake is in order
