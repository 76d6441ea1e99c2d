"""Members of many groups, nearly all idle, from one client: joining, heartbeats, latency.

``python -m bench.many_members --members 5000`` runs a node with its default settings and one
client process. Each group has one member, on its own topic. It prints

- how long all members took to join, and the client's warnings (``member-forgotten``: the broker had
  removed a member whose heartbeats were late);
- while nothing is sent: CPU time of both processes, requests per second by kind, held calls;
- private memory of the broker per topic, and per group with its member;
- the delivery time of a message; members whose fetches are not held poll for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import statistics
import sys
import time
import urllib.request
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import tidemark
from bench.servers import Node

IDLE_S: Final = 120.0
SAMPLES: Final = 200
SENT_AT_ONCE: Final = 50
TOPICS_AT_ONCE: Final = 32
DELIVERED_WITHIN_S: Final = 60.0
REQUESTS: Final = re.compile(
    r'^tidemark_broker_request_duration_seconds_count\{request="(\w+)"\} (\S+)$', re.MULTILINE
)
HELD: Final = "tidemark_broker_long_polls"


class Warnings(logging.Handler):
    """Counts the client's warnings by event."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.events: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.events[str(getattr(record, "event", "other"))] += 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def requests(node: Node) -> Counter[str]:
    """Number of requests that the broker has answered so far, by kind."""
    with urllib.request.urlopen(f"{node.admin_url('broker')}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return Counter({kind: int(float(count)) for kind, count in REQUESTS.findall(text)})


async def measure(node: Node, members: int, idle_s: float) -> dict[str, object]:
    """Join, idle, deliver; return the figures."""
    warnings = Warnings()
    logging.getLogger("tidemark").addHandler(warnings)
    figures: dict[str, object] = {"members": members}
    arrived: dict[str, asyncio.Future[float]] = {}
    broker = node.processes["broker"]

    async def consume(messages: tidemark.Subscription) -> None:
        async for message in messages:
            waiting = arrived.get(message.topic)
            if waiting is not None and not waiting.done():
                waiting.set_result(time.perf_counter())

    async with tidemark.connect(node.url) as mq, AsyncExitStack() as joined:
        makes, sends = asyncio.Semaphore(TOPICS_AT_ONCE), asyncio.Semaphore(SENT_AT_ONCE)

        async def make(topic: str) -> None:
            async with makes:
                await mq.create_topic(topic, queues=1)

        async def deliver(topic: str) -> float:
            async with sends:
                arrived[topic] = asyncio.get_running_loop().create_future()
                sent_at = time.perf_counter()
                await mq.send(topic, b"x", ack="memory")
                async with asyncio.timeout(DELIVERED_WITHIN_S):
                    return await arrived[topic] - sent_at

        empty = broker.memory("RssAnon")
        topics = [f"topic-{number}" for number in range(members)]
        await asyncio.gather(*map(make, topics))
        with_topics = broker.memory("RssAnon")
        say("topics are made")
        subscriptions = [mq.subscribe(topic, group=f"group-{topic}") for topic in topics]
        began, cpu = time.perf_counter(), broker.cpu_s()
        entered = await asyncio.gather(*(each.__aenter__() for each in subscriptions))
        figures["joined_s"] = round(time.perf_counter() - began, 1)
        figures["join_broker_cpu_s"] = round(broker.cpu_s() - cpu, 1)
        say(f"joined: {figures}, warnings: {dict(warnings.events)}")
        for each in subscriptions:
            joined.push_async_exit(each.__aexit__)
        tasks = [asyncio.create_task(consume(each)) for each in entered]
        answered = await asyncio.to_thread(requests, node)
        client_cpu, cpu = time.process_time(), broker.cpu_s()
        began = time.perf_counter()
        await asyncio.sleep(idle_s)
        took_s = time.perf_counter() - began
        figures["idle_s"] = round(took_s, 1)
        figures["idle_client_cpu"] = round((time.process_time() - client_cpu) / took_s, 3)
        figures["idle_broker_cpu"] = round((broker.cpu_s() - cpu) / took_s, 3)
        figures["idle_requests_per_s"] = {
            kind: round(count / took_s, 1)
            for kind, count in (await asyncio.to_thread(requests, node) - answered).items()
        }
        figures["held"] = int(await asyncio.to_thread(node.metric, "broker", HELD))
        figures["memory_kib_each"] = {
            "topic": round((with_topics - empty) / members / 1024, 1),
            "group and member": round((broker.memory("RssAnon") - with_topics) / members / 1024, 1),
        }
        say(f"idle: {figures}, warnings: {dict(warnings.events)}")
        sampled = random.Random(1).sample(topics, min(SAMPLES, members))
        took = sorted(await asyncio.gather(*map(deliver, sampled)))
        figures["delivered"] = len(took)
        figures["delivery_s"] = {
            "p50": round(statistics.median(took), 3),
            "p90": round(took[int(len(took) * 0.9)], 3),
            "max": round(took[-1], 3),
        }
        say(f"delivered: {figures}")
        figures["warnings"] = dict(warnings.events)
        for each in entered:
            each.stop()
        await asyncio.gather(*tasks)
        began = time.perf_counter()
        await joined.aclose()
        figures["left_s"] = round(time.perf_counter() - began, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=5000)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    given = parser.parse_args()
    with Node(core=None) as node:
        print(json.dumps(asyncio.run(measure(node, given.members, given.idle_s))))


if __name__ == "__main__":
    main()
