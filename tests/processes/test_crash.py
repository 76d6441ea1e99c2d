"""SIGKILL on broker and reput at random instants, under load from four producers.

``make crash`` runs 200 cycles, ``make test`` a few, without and with the write buffer pool. What a
cycle leaves behind is the next one's start. The instants and the load come from a seed
(TIDEMARK_CRASH_SEED), printed with the counts; processes are not deterministic, so a seed repeats
the plan and not every interleaving.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random

import pytest

from tests.support import offline
from tests.support.load import Ledger, Load, read_topic, wait_dispatched
from tests.support.node import ROLES, Node

CYCLES = int(os.environ.get("TIDEMARK_CRASH_CYCLES", "8"))
SEED = int(os.environ.get("TIDEMARK_CRASH_SEED", str(time.time_ns() % 1_000_000)))
TOPICS = ("crash-a", "crash-b")
FULL_CHECK_EVERY = 25
LOOKUPS = 500
"""Keys that are looked up as a client would; of all others the index's chains are compared."""


PLAIN: dict[str, object] = {}
POOLED: dict[str, object] = {
    "write_buffer_pool_size": 64 << 10,
    "warm_up_files": True,
    "lock_files_memory": True,
}


@pytest.mark.timeout(600 + 20 * CYCLES)
@pytest.mark.parametrize("broker", [PLAIN, POOLED], ids=["plain", "pooled"])
async def test_no_kill_loses_or_repeats_messages_or_reuses_offsets(
    tmp_path: Path, broker: dict[str, object]
) -> None:
    replay = f"TIDEMARK_CRASH_SEED={SEED} TIDEMARK_CRASH_CYCLES={CYCLES} make crash"
    print(f"seed {SEED}, {CYCLES} cycles; again: {replay}")
    random, ledger = Random(SEED), Ledger()
    kills = dict.fromkeys(ROLES, 0)
    with Node(tmp_path, broker=broker) as node:
        node.start()
        node.wait_ready()
        for topic in TOPICS:
            status, _ = node.request_json("PUT", f"/v1/topics/{topic}", {"queues": 4})
            assert status in (200, 201)
        async with Load(node.api_url, TOPICS, random, ledger) as load:
            for cycle in range(CYCLES):
                await load.acked(random.randrange(1, 60))
                await asyncio.sleep(random.random() * random.choice((0.02, 0.2, 0.6)))
                victims = random.choice((("broker",), ("reput",), ROLES, ROLES[::-1]))
                for victim in victims:
                    node.kill(victim)
                    kills[victim] += 1
                for victim in random.sample(victims, len(victims)):
                    await asyncio.to_thread(node.start, victim)
                await asyncio.to_thread(node.wait_ready)
                if (cycle + 1) % FULL_CHECK_EVERY == 0:
                    await check(node, ledger)
        await check(node, ledger)
        found = await check_files(node, ledger, tmp_path)
    print(
        f"seed {SEED}: {kills['broker']} kills of broker, {kills['reput']} of reput; "
        f"{len(ledger.acked)} messages acked, {len(ledger.unknown)} without an answer, "
        f"{ledger.refused} refused; {found} in the log; nothing lost, reused or repeated"
    )
    assert len(ledger.acked) > 10 * CYCLES


async def check(node: Node, ledger: Ledger) -> None:
    """Read everything over the API: each acked message at its acked place, offsets dense."""
    ledger = ledger.as_of_now()
    await wait_dispatched(node, node.api_url, ledger)
    for topic in TOPICS:
        wrong = ledger.violations(topic, await read_topic(node.api_url, topic))
        assert not wrong, f"seed {SEED}: {len(wrong)} violations: {wrong[:5]}"


async def check_files(node: Node, ledger: Ledger, tmp_path: Path) -> int:
    """Stop, then read the files: bytes at their acked places, keys as in a rebuilt index."""
    assert await asyncio.to_thread(node.stop) == {"broker": 0, "reput": 0}
    records = offline.records(node.store_dir)
    by_place = {int(found.physical_offset): found for found in records}
    ours = [bytes(found.body) for found in records if found.topic in TOPICS]
    assert len(ours) == len(set(ours)), f"seed {SEED}: a message is in the log twice"
    for body, ack in ledger.acked.items():
        found = by_place[ack.physical_offset]
        assert bytes(found.body) == body
        assert (found.topic, found.queue_id, found.queue_offset) == ack[:3]
        assert found.message_id == ack.message_id
    rebuilt = await asyncio.to_thread(
        offline.rebuilt_copy, node.store_dir, tmp_path / "rebuilt", node.directory / "reput.toml"
    )
    entries = offline.reachable(node.store_dir)
    assert entries == offline.reachable(rebuilt), f"seed {SEED}: the index differs from a rebuilt"
    assert entries == offline.expected_entries(records), f"seed {SEED}: the index lacks keys"
    keys = sorted({(found.topic, key) for found in records for key in offline.keys_of(found)})
    keys = Random(SEED).sample(keys, min(len(keys), LOOKUPS))
    end = max(found.physical_offset + found.size for found in records)
    mine = offline.lookups(node.store_dir, keys, end)
    assert mine == offline.lookups(rebuilt, keys, end), f"seed {SEED}: look-ups differ"
    assert all(mine.values()), f"seed {SEED}: keys that find nothing"
    return len(ours)
