"""Seeded histories of a cluster: failovers, drains, restarts, lost calls; all invariants hold.

``make simulation-cluster`` plays ten thousand small histories (TIDEMARK_CLUSTER_SEEDS) and three of
64 broker groups with 10,000 clients (TIDEMARK_CLUSTER_LARGE); ``make test`` plays 16 small ones and
one of 64 broker groups with few clients. The faults of a seed are in ``cluster.plan``, the
invariants in ``cluster.judge``; ``.venv/bin/python -m tests.simulation.cluster SEED`` repeats one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.cluster.judge import Counts
from tests.simulation.cluster.plan import LARGE, MIDDLE, TINY
from tests.simulation.cluster.run import run_seed

SEEDS = int(os.environ.get("TIDEMARK_CLUSTER_SEEDS", "16"))
FIRST_SEED = int(os.environ.get("TIDEMARK_CLUSTER_FIRST_SEED", "0"))
LARGE_SEEDS = int(os.environ.get("TIDEMARK_CLUSTER_LARGE", "0"))
CHUNK = max(8, SEEDS // 40)
PLAY = (
    "from tests.simulation.cluster.plan import TINY\n"
    "from tests.simulation.cluster.run import run_seed\n"
    "for seed in (3, 4): print(run_seed(seed, TINY))"
)


@pytest.mark.timeout(600 + 30 * CHUNK)
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK))
def test_no_fault_of_a_cluster_loses_or_reorders_messages(first: int) -> None:
    began_s = time.monotonic()
    played = [run_seed(seed) for seed in range(first, min(first + CHUNK, FIRST_SEED + SEEDS))]
    total = Counts(*(sum(column) for column in zip(*played, strict=True)))
    seconds = time.monotonic() - began_s
    print(f"seeds {first} to {first + len(played) - 1}, {seconds:.0f} s: {total}")
    # A world that silently stopped doing anything would pass, too.
    assert total.acked > 30 * len(played)
    assert total.handled >= total.acked
    assert total.epochs > 3 * len(played)
    assert total.faults > 3 * len(played)


@pytest.mark.timeout(900)
def test_64_broker_groups_keep_their_promises() -> None:
    counts = run_seed(FIRST_SEED, MIDDLE)
    assert counts.epochs > 64
    assert counts.acked > 64


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(LARGE_SEEDS))
def test_64_broker_groups_and_10000_clients_keep_their_promises(seed: int) -> None:
    began_s = time.monotonic()
    counts = run_seed(seed, LARGE)
    print(f"seed {seed} of the full size, {time.monotonic() - began_s:.0f} s: {counts}")
    assert counts.acked > 5000


@pytest.mark.timeout(900)
def test_a_seed_is_the_same_history_for_any_hash_seed() -> None:
    players = [
        subprocess.Popen(
            [sys.executable, "-c", PLAY],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "1")
    ]
    played = [player.communicate()[0] for player in players]
    assert [player.returncode for player in players] == [0, 0]
    assert len(played[0].splitlines()) == 2
    assert played[0] == played[1]


def test_a_seed_is_the_same_history_every_time() -> None:
    assert run_seed(5, TINY) == run_seed(5, TINY)
