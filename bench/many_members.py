"""Members of as many groups, nearly all of them idle, from one client: joining, staying, latency.

``python -m bench.many_members --members 5000`` runs a node with its default settings and one
client process beside it: each group has one member, on a topic of its own. Printed are how long all
took to join, how many the broker forgot, the processor time of both processes while nothing is
sent, and how long a message takes to a member (those that are not held poll for it).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import tidemark
from bench.servers import Node

IDLE_S: Final = 60.0
SAMPLES: Final = 200
TOPICS_AT_ONCE: Final = 32


class Forgotten(logging.Handler):
    """Counts how often a member was forgotten by the broker."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.events: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line by its event."""
        event = str(getattr(record, "event", "other"))
        self.events[event] = self.events.get(event, 0) + 1


def say(text: str) -> None:
    """A line for who waits for the figures."""
    print(text, file=sys.stderr, flush=True)


async def measure(node: Node, url: str, members: int, idle_s: float) -> dict[str, object]:
    """Join, idle, deliver; the figures."""
    forgotten = Forgotten()
    logging.getLogger("tidemark").addHandler(forgotten)
    figures: dict[str, object] = {"members": members}
    arrived: dict[str, asyncio.Future[float]] = {}

    async def consume(messages: tidemark.Subscription) -> None:
        async for message in messages:
            waiting = arrived.get(message.topic)
            if waiting is not None and not waiting.done():
                waiting.set_result(time.perf_counter())

    async with tidemark.connect(url) as mq, AsyncExitStack() as joined:
        makes = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def make(topic: str) -> None:
            async with makes:
                await mq.create_topic(topic, queues=1)

        topics = [f"topic-{number}" for number in range(members)]
        await asyncio.gather(*map(make, topics))
        say("topics are made")
        subscriptions = [mq.subscribe(topic, group=f"group-{topic}") for topic in topics]
        began = time.perf_counter()
        entered = await asyncio.gather(*(each.__aenter__() for each in subscriptions))
        figures["joined_s"] = round(time.perf_counter() - began, 1)
        say(f"joined: {figures}")
        for each in subscriptions:
            joined.push_async_exit(each.__aexit__)
        tasks = [asyncio.create_task(consume(each)) for each in entered]
        client_cpu, broker_cpu = time.process_time(), node.processes["broker"].cpu_s()
        began = time.perf_counter()
        await asyncio.sleep(idle_s)
        took_s = time.perf_counter() - began
        figures["idle_client_cpu"] = round((time.process_time() - client_cpu) / took_s, 3)
        figures["idle_broker_cpu"] = round(
            (node.processes["broker"].cpu_s() - broker_cpu) / took_s, 3
        )
        took: list[float] = []
        for topic in random.Random(1).sample(topics, min(SAMPLES, members)):
            arrived[topic] = asyncio.get_running_loop().create_future()
            sent_at = time.perf_counter()
            await mq.send(topic, b"x", ack="memory")
            took.append(await arrived[topic] - sent_at)
        took.sort()
        figures["delivery_s"] = {
            "p50": round(statistics.median(took), 3),
            "p90": round(took[int(len(took) * 0.9)], 3),
            "max": round(took[-1], 3),
        }
        say(f"delivered: {figures}")
        figures["logged"] = dict(forgotten.events)
        for each in entered:
            each.stop()
        await asyncio.gather(*tasks)
        began = time.perf_counter()
        await joined.aclose()
        figures["left_s"] = round(time.perf_counter() - began, 1)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=5000)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    given = parser.parse_args(arguments)
    with Node(core=None) as node:
        url = f"http://127.0.0.1:{node.ports['api']}"
        print(json.dumps(asyncio.run(measure(node, url, given.members, given.idle_s))))


if __name__ == "__main__":
    main()
