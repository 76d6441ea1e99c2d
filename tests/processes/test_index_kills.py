"""SIGKILL inside index insertion: key look-ups come out as if rebuilt.

Between any two lines of the pure twin, and between any two machine instructions of the compiled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

import tidemark
from tests.support import offline
from tests.support.node import SMALL_STORE, Node, wait_until
from tidemark.client.messages import NewMessage
from tidemark.formats import native

KILLS = max(6, int(os.environ.get("TIDEMARK_CRASH_CYCLES", "8")) // 4)
SEED = int(os.environ.get("TIDEMARK_CRASH_SEED", str(time.time_ns() % 1_000_000)))
STEP_MAX = {"lines": 2000, "instructions": 20_000}
"""The insertions of one round take at most this many."""
MESSAGES = 60
SMALL_INDEX = {"index_slots": 50, "index_entries": 300}


class KilledReputNode(Node):
    """A node whose reput may end itself inside the index code: see ``killed_reput``."""

    kill_at: str | None = None

    def command(self, role: str) -> list[str]:
        command = super().command(role)
        if role == "reput" and self.kill_at is not None:
            at = command.index("services.reput")
            command[at : at + 1] = ["tests.support.killed_reput", self.kill_at]
        return command


@pytest.mark.timeout(600 + 10 * KILLS)
@pytest.mark.parametrize("between", ["lines", "instructions"])
async def test_a_kill_inside_an_insertion_loses_and_doubles_no_key(
    tmp_path: Path, between: str
) -> None:
    if between == "instructions" and not native.COMPILED:
        pytest.skip(native.WHY_PURE)
    print(f"seed {SEED}, {KILLS} kills; again: TIDEMARK_CRASH_SEED={SEED} make crash")
    random, sent, hits = Random(SEED), 0, 0
    pure = {"TIDEMARK_PURE": "1"} if between == "lines" else {}
    node = KilledReputNode(tmp_path, store=SMALL_INDEX, environment=pure)
    with node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/keyed", {"queues": 2})[0] in (200, 201)
        async with tidemark.connect(node.api_url) as mq:
            for _ in range(KILLS):
                node.kill("reput")
                messages = [
                    NewMessage(b"x", keys=(f"k{sent + number}", f"shared{number % 7}"))
                    for number in range(MESSAGES)
                ]
                await mq.send_many("keyed", messages)
                sent += MESSAGES
                step = random.randint(1, STEP_MAX[between])
                node.kill_at = str(step) if between == "lines" else f"{between}:{step}"
                await asyncio.to_thread(node.start, "reput")
                await asyncio.to_thread(wait_until, lambda: is_done(node), "a kill, or all keys")
                hits += not node.is_alive("reput")
            node.kill("reput")
            node.kill_at = None
            await asyncio.to_thread(node.start, "reput")
            await asyncio.to_thread(node.wait_ready)
            await asyncio.to_thread(wait_until, lambda: is_dispatched(node), "dispatch")
        await asyncio.to_thread(node.stop)
        check_keys(node, tmp_path / "rebuilt", sent)
    print(f"seed {SEED}: {hits} of {KILLS} kills came inside the index code; {sent} messages")
    assert hits * 2 >= KILLS


def is_dispatched(node: Node) -> bool:
    return node.metric("reput", "tidemark_dispatch_lag_bytes") == 0.0


def is_done(node: Node) -> bool:
    if not node.is_alive("reput"):
        assert node.processes["reput"].returncode == -signal.SIGKILL, node.log_text("reput")[-2000:]
        return True
    return is_dispatched(node)


def check_keys(node: Node, target: Path, sent: int) -> None:
    """Every key finds its messages, each once, and as in an index made anew from the log."""
    records = [found for found in offline.records(node.store_dir) if found.topic == "keyed"]
    assert len(records) == sent
    keys = sorted({("keyed", key) for found in records for key in found.keys})
    end = max(found.physical_offset + found.size for found in records)
    rebuilt = offline.rebuilt_copy(node.store_dir, target, node.directory / "reput.toml")
    settings = {**SMALL_STORE, **SMALL_INDEX}
    mine = offline.lookups(node.store_dir, keys, end, settings)
    assert mine == offline.lookups(rebuilt, keys, end, settings)
    for key in keys:
        expected = [int(found.physical_offset) for found in records if key[1] in found.keys]
        assert mine[key] == expected[-64:], key
