"""Seeded power cuts, kills and stops of a node on a simulated disk; nothing acked is ever lost.

``make simulation`` runs thousands of seeds (TIDEMARK_SIM_SEEDS), ``make test`` some hundreds.
``schedule`` has the events of a seed, ``run`` and ``checks`` the conditions after them.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.run import Outcome, run_seed

SEEDS = int(os.environ.get("TIDEMARK_SIM_SEEDS", "400"))
FIRST_SEED = int(os.environ.get("TIDEMARK_SIM_FIRST_SEED", "0"))
CHUNK = max(25, SEEDS // 40)
MANY = 20


@pytest.mark.timeout(120 + CHUNK)
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK))
def test_no_power_cut_loses_durable_messages(first: int) -> None:
    outcomes = [run_seed(seed) for seed in range(first, min(first + CHUNK, FIRST_SEED + SEEDS))]
    total = Outcome(*(sum(column) for column in zip(*outcomes, strict=True)))
    print(f"seeds {first} to {first + len(outcomes) - 1}: {total}")
    if len(outcomes) < MANY:
        return
    # A harness that silently stopped doing anything would pass, too.
    assert total.power_cuts > len(outcomes) // 2
    assert total.crashes_inside > len(outcomes) // 10
    assert total.acked > 5 * len(outcomes)
    assert total.lost > len(outcomes) // 4


def test_a_failed_sync_is_not_trusted_by_the_next_start() -> None:
    # 1. reput's fdatasync of a queue file failed, and the kernel marked the pages clean; 2. the
    # next start found its units equal to the log and did not write them; 3. its sync succeeded
    # without them, and the dispatched mark moved; 4. the power failed, and a unit below the mark
    # was lost.
    run_seed(701797, "")
