"""A cluster whose nodes, name services and members are SIGKILLed at random, under load.

Half a minute here; ``make cluster-chaos`` is the long run at 20,000 messages/s. Meanwhile one
broker group is drained and one is added. The plan comes from a seed (TIDEMARK_CHAOS_SEED).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.cluster_chaos import Plan, chaos

SEED = int(os.environ.get("TIDEMARK_CHAOS_SEED", str(time.time_ns() % 1_000_000)))


async def test_every_acked_message_is_handled_and_keys_stay_in_order(tmp_path: Path) -> None:
    # A session that ends on a busy machine repeats what its member fetched: much of a short run.
    outcome = await chaos(Plan(SEED, duplicates_max=0.5), tmp_path)
    print(outcome.sentence())
    assert not outcome.faults, outcome.faults
    assert outcome.load.acked, "nothing was acked"
    assert outcome.events["node"], "no node was killed"
    assert outcome.events["name service"], "no name service was killed"
