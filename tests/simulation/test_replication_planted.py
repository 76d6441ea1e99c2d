"""The simulation finds each planted mistake within the seeds that it may use.

The table has a seed that finds the mistake; others are tried only when that one no longer finds it,
as after a change that moves the histories. ``make test`` tries four hundred, ``make
simulation-group`` a thousand (TIDEMARK_GROUP_SEEDS, if that is fewer).
"""

from __future__ import annotations

import itertools
import os
import re

import pytest

from tests.simulation.replication.planted import FAULTS
from tests.simulation.replication.run import SeedFailed, run_seed

SEEDS_MAX = min(1000, int(os.environ.get("TIDEMARK_GROUP_SEEDS", "400")))


def first_failure(fault: str) -> tuple[int, str] | None:
    """A seed that fails with the planted fault, and its message; the known one is tried first.

    A seed may fail otherwise, when an early judge sees a consequence of the fault: that does not
    prove that the fault itself is detected.
    """
    planted = FAULTS[fault]
    with planted.plant():
        for seed in itertools.chain((planted.seed,), range(SEEDS_MAX)):
            try:
                run_seed(seed, fault, planted.faults)
            except SeedFailed as error:
                if re.search(planted.symptom, str(error)):
                    return seed, str(error)
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    found = first_failure(fault)
    assert found is not None, f"{fault} was not found within {SEEDS_MAX} seeds"
    seed, failure = found
    print(f"{fault} is found by seed {seed}:\n{failure}")
    run_seed(seed, faults=FAULTS[fault].faults)  # the same history without the mistake is in order
