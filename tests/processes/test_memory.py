"""Memory of its own does not grow under load; descriptors and mapped files do not with queues.

RssAnon counts what the process allocated, not the page cache that it maps (RssFile). ``make soak``
runs five minutes (TIDEMARK_SOAK_SECONDS), ``make test`` twenty seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

import tidemark
from tests.support.node import ROLES, Node
from tidemark.client.messages import NewMessage

SECONDS = float(os.environ.get("TIDEMARK_SOAK_SECONDS", "20"))
WARM_UP_SHARE = 0.3
GROWTH_MAX = 12 << 20
"""Bytes, however long the load lasts: the variation of a heap that does not grow."""
QUEUES = 2000
TOPICS = 10
DESCRIPTORS_MAX = 400
MAPPED_MAX = 700


def rss_anon(pid: int) -> int:
    """Bytes of anonymous memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no RssAnon")


def descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def mapped_files(pid: int, store: Path) -> int:
    """Mappings of files below the store."""
    return sum(str(store) in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


async def produce(url: str, topic: str, until: float, sender: int) -> int:
    """Send batches as fast as they are answered; return the number of messages."""
    sent = 0
    async with tidemark.connect(url) as mq:
        while time.monotonic() < until:
            messages = [
                NewMessage(b"x" * 500, keys=(f"{sender}-{sent + number}",), tags="soak")
                for number in range(50)
            ]
            await mq.send_many(topic, messages, timeout_ms=30_000)  # a busy machine is no leak
            sent += len(messages)
    return sent


async def consume(url: str, topic: str, queue: int, until: float) -> int:
    """Pull one queue to its end again and again; return the number of messages."""
    read = offset = 0
    async with tidemark.connect(url) as mq:
        while time.monotonic() < until:
            pulled = await mq.pull(topic, queue, offset, max=200, wait_ms=200)
            read += len(pulled.messages)
            offset = pulled.next_offset
    return read


@pytest.mark.timeout(SECONDS + 600)
async def test_anonymous_memory_is_flat_under_load(tmp_path: Path) -> None:
    store = {"commit_log_file_size": 16 << 20, "index_slots": 5000, "index_entries": 20_000}
    with Node(tmp_path, store=store) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/soak", {"queues": 4})[0] in (200, 201)
        started = time.monotonic()
        until = started + SECONDS
        tasks = [
            asyncio.create_task(produce(node.api_url, "soak", until, sender)) for sender in range(3)
        ] + [asyncio.create_task(consume(node.api_url, "soak", queue, until)) for queue in range(4)]
        await asyncio.sleep(SECONDS * WARM_UP_SHARE)
        before = {role: rss_anon(node.pid(role)) for role in ROLES}
        counts = await asyncio.gather(*tasks)
        after = {role: rss_anon(node.pid(role)) for role in ROLES}
    print(f"{sum(counts[:3])} messages sent, {sum(counts[3:])} read in {SECONDS} s")
    assert sum(counts[:3]) > 100 * SECONDS
    for role in ROLES:
        grown = after[role] - before[role]
        print(f"{role}: RssAnon {before[role]} → {after[role]} bytes")
        assert grown < GROWTH_MAX, role


async def test_descriptors_and_mappings_are_bounded_with_2000_queues(tmp_path: Path) -> None:
    store = {"commit_log_file_size": 16 << 20, "queue_files_mapped_max": 256}
    per_topic = QUEUES // TOPICS
    with Node(tmp_path, store=store) as node:
        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            for topic in range(TOPICS):
                await mq.create_topic(f"wide-{topic}", queues=per_topic)
            for round_number in range(2):
                for topic in range(TOPICS):
                    messages = [
                        NewMessage(f"{round_number}".encode(), queue=queue)
                        for queue in range(per_topic)
                    ]
                    await mq.send_many(f"wide-{topic}", messages)
            for topic in range(TOPICS):
                for queue in range(per_topic):
                    offset = 0
                    bodies: list[bytes] = []
                    while len(bodies) < 2:
                        pulled = await mq.pull(f"wide-{topic}", queue, offset, wait_ms=5000)
                        bodies += [message.body for message in pulled.messages]
                        offset = pulled.next_offset
                    assert bodies == [b"0", b"1"]
        for role in ROLES:
            pid = node.pid(role)
            counts = descriptors(pid), mapped_files(pid, node.store_dir)
            print(f"{role}: {counts[0]} descriptors, {counts[1]} mapped files of {QUEUES} queues")
            assert counts[0] <= DESCRIPTORS_MAX, role
            assert counts[1] <= MAPPED_MAX, role
