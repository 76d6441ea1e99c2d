"""Seeded power cuts, kills and stops of a node on a simulated disk; nothing acked is ever lost.

``make simulation`` runs thousands of seeds (TIDEMARK_SIM_SEEDS), ``make test`` some hundreds. What
each seed goes through is in ``schedule``, what must hold after it in ``run`` and ``checks``.
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
def test_no_power_cut_takes_what_was_promised(first: int) -> None:
    outcomes = [run_seed(seed) for seed in range(first, min(first + CHUNK, FIRST_SEED + SEEDS))]
    total = Outcome(*(sum(column) for column in zip(*outcomes, strict=True)))
    print(f"seeds {first} to {first + len(outcomes) - 1}: {total}")
    if len(outcomes) < MANY:
        return
    # A harness that quietly stopped doing anything would pass, too.
    assert total.power_cuts > len(outcomes) // 2
    assert total.crashes_inside > len(outcomes) // 10
    assert total.acked > 5 * len(outcomes)
    assert total.lost > len(outcomes) // 4


def test_a_failed_sync_is_not_believed_by_the_next_start() -> None:
    # 1. reput's fdatasync of a queue file failed, and the kernel called the pages clean; 2. the
    # next start found its units equal to the log and left them alone; 3. its sync succeeded without
    # writing them, and the durable mark moved; 4. the power went, and a unit below the mark.
    run_seed(701797, "")
