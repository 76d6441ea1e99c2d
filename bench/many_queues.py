"""Figure 10: a node with 10,000 queues: start time, memory and descriptors."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.harness import Options, Result, at_most, benchmark
from bench.load import Place, Shape, send
from bench.servers import ROLES, Node, pin_to_load_core, settle

START_GOAL_S: Final = 5.0
MEMORY_GOAL_MIB: Final = 300.0
DESCRIPTORS_GOAL: Final = 2000.0
QUEUES_PER_TOPIC: Final = 50
FIRST: Final = Shape(messages=8, body_size=256, ack="memory", ids="given")
LOAD: Final = Shape(messages=64, body_size=256, ack="memory", ids="given")
CONNECTIONS: Final = 8
MIB: Final = 1 << 20


def topic_name(number: int) -> str:
    """Return a topic's name; all have the same length, as the load's template requires."""
    return f"queues{number:04d}"


Values = dict[str, list[float]]
"""Measured values by figure; one value per run."""


def measure(node: Node, when: str, seen: Values) -> None:
    """Record the current memory and descriptors of both services."""
    for role in ROLES:
        process = node.processes[role]
        for field in ("RssAnon", "RssFile"):
            seen[f"{field} of {role} {when}"].append(process.memory(field) / MIB)
        descriptors = list(Path(f"/proc/{process.pid}/fd").iterdir())
        seen[f"descriptors of {role} {when}"].append(len(descriptors))


def start(node: Node) -> float:
    """Start both services; return the seconds until both are ready."""
    settle()
    began = time.perf_counter()
    node.start()
    node.wait_ready()
    return time.perf_counter() - began


def timed_call(node: Node, path: str) -> float:
    """Return the milliseconds until the answer is decoded."""
    began = time.perf_counter()
    node.call("GET", path)
    return (time.perf_counter() - began) * 1000


def run(node: Node, places: Sequence[Place], seen: Values) -> None:
    """Send to all queues, kill, start, and measure."""
    send(node.address, places, LOAD, connections=CONNECTIONS, requests=len(places))
    node.wait_dispatched()
    measure(node, "after load", seen)
    node.wait_synced()
    node.kill()
    seen["start"].append(start(node))
    seen["CPU"].append(node.cpu_s())
    measure(node, "after the start", seen)
    seen["list"].append(timed_call(node, "/v1/topics"))
    seen["topic"].append(timed_call(node, f"/v1/topics/{topic_name(0)}"))


def main(given: Options) -> Result:
    pin_to_load_core()
    count = given.pick(10_000, quick=1_000)
    topics = [topic_name(number) for number in range(count // QUEUES_PER_TOPIC)]
    places: list[Place] = [(topic, queue) for queue in range(QUEUES_PER_TOPIC) for topic in topics]
    values: Values = defaultdict(list)
    with Node() as node:
        for topic in topics:
            node.make_topic(topic, QUEUES_PER_TOPIC)
        send(node.address, places, FIRST, connections=CONNECTIONS, requests=len(places))
        node.wait_dispatched()
        run(node, places, defaultdict(list))  # the warm-up
        for _ in range(given.runs):
            run(node, places, values)
    ready = f"broker and reput ready after SIGKILL, {count:,} queues"
    figures = [
        at_most(ready, "s", values["start"], START_GOAL_S),
        at_most("CPU time of both until then", "s", values["CPU"]),
    ]
    for when in ("after the start", "after load"):
        for role in ROLES:
            for field, goal in (("RssAnon", MEMORY_GOAL_MIB), ("RssFile", None)):
                what = f"{field} of {role} {when}"
                figures.append(at_most(what, "MiB", values[what], goal))
            what = f"descriptors of {role} {when}"
            figures.append(at_most(what, "descriptors", values[what], DESCRIPTORS_GOAL))
    figures += [
        at_most("GET /v1/topics", "ms", values["list"]),
        at_most(f"GET of one topic of {QUEUES_PER_TOPIC} queues", "ms", values["topic"]),
    ]
    return Result(
        figures,
        f"""Broker and reput, default profile, on one core; {len(topics)} topics of
        {QUEUES_PER_TOPIC} queues. Each run sends {LOAD.messages} messages of {LOAD.body_size} B
        with unique ids to every queue over HTTP, waits until they are dispatched and synced, kills
        both services and starts them again. Memory as /proc/PID/status says it; RssFile is mapped
        log, queues and index, which the kernel takes back.""",
    )


if __name__ == "__main__":
    benchmark(main)
