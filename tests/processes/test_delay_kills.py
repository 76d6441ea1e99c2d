"""Delayed messages under SIGKILL: each once, in bounded memory (``delay_drill``).

The instants come from a seed (TIDEMARK_DELAY_SEED), printed with the counts; the number of messages
from TIDEMARK_DELAY_MESSAGES. The pace is fixed: more messages take longer. Lateness is printed
here, but decides only the drill run by hand, because on a busy machine it proves little.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.processes import delay_drill
from tests.processes.delay_drill import Plan

MESSAGES = int(os.environ.get("TIDEMARK_DELAY_MESSAGES", "20000"))
SEED = int(os.environ.get("TIDEMARK_DELAY_SEED", str(time.time_ns() % 1_000_000)))
SECONDS = max(24.0, MESSAGES / 4000)
MEMORY_MAX = 256 << 20


@pytest.mark.timeout(600 + 2 * SECONDS)
def test_each_delayed_message_is_delivered_once_over_five_kills(tmp_path: Path) -> None:
    plan = Plan(MESSAGES, SECONDS, kills=5, seed=SEED)
    result = delay_drill.run(plan, tmp_path)
    print(delay_drill.report(plan, result))
    assert result.verdict.is_exact
    assert result.verdict.delivered >= MESSAGES
    assert all(size < MEMORY_MAX for size in result.memory_bytes.values())
