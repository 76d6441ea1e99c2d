"""The simulation of a cluster finds each planted mistake within the seeds that it may use.

The table has a seed that finds the mistake; others are tried only when that one no longer finds it,
as after a change that moves the histories.
"""

from __future__ import annotations

import itertools
import re

import pytest

from tests.simulation.cluster.plan import TINY
from tests.simulation.cluster.planted import FAULTS
from tests.simulation.cluster.run import SeedFailed, run_seed

SEEDS_MAX = 60


def first_failure(fault: str) -> tuple[int, str] | None:
    """A seed that fails with the symptom of the planted mistake, and its message."""
    planted = FAULTS[fault]
    with planted.plant():
        for seed in itertools.chain((planted.seed,), range(SEEDS_MAX)):
            try:
                run_seed(seed, TINY, fault, planted.faults)
            except SeedFailed as error:
                if re.search(planted.symptom, str(error)):
                    return seed, str(error)
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_mistake_is_found(fault: str) -> None:
    found = first_failure(fault)
    assert found is not None, f"{fault} was not found within {SEEDS_MAX} seeds"
    seed, failure = found
    print(f"{fault} is found by seed {seed}:\n{failure}")
    run_seed(seed, TINY, faults=FAULTS[fault].faults)  # without the mistake it is in order
