"""A consumer group whose members join, leave and are SIGKILLed at random, under load.

Twenty seconds here; ``python -m tests.support.group_chaos --seconds 180 --rate 20000`` is the long
run, with --ordered that of an ordered group. The plan comes from a seed (TIDEMARK_CHAOS_SEED).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.group_chaos import chaos
from tests.support.group_chaos_plan import Outcome, Plan

SEED = int(os.environ.get("TIDEMARK_CHAOS_SEED", str(time.time_ns() % 1_000_000)))


async def ran(plan: Plan, directory: Path) -> Outcome:
    """The result of a plan; printed, so that a failure names its seed."""
    outcome = await chaos(plan, directory)
    print(outcome.sentence())
    assert not outcome.wrong, outcome.wrong[:3]
    assert not outcome.verdict.violations, outcome.verdict.wrong
    assert outcome.verdict.distinct == outcome.sent
    assert outcome.events["killed"], "no member was killed"
    return outcome


async def test_every_message_is_handled_and_no_queue_has_two_owners(tmp_path: Path) -> None:
    await ran(Plan(SEED, work_ms=5.0), tmp_path)


async def test_an_ordered_group_handles_each_queue_in_its_order(tmp_path: Path) -> None:
    await ran(Plan(SEED, rate=1500, work_ms=1.0, ordered=True), tmp_path)


async def test_kills_of_broker_and_reput_on_top_lose_nothing_and_keep_the_order(
    tmp_path: Path,
) -> None:
    plan = Plan(SEED, seconds=15.0, rate=1500, work_ms=1.0, node_pause_s=4.0, ordered=True)
    outcome = await chaos(plan, tmp_path)
    print(outcome.sentence())
    assert not outcome.wrong, outcome.wrong[:3]
    assert not outcome.verdict.violations, outcome.verdict.wrong
    assert outcome.verdict.distinct >= outcome.sent, "what was not answered may be there or not"
    assert outcome.events["broker"] + outcome.events["reput"], "neither was killed"
