"""Figure 12: cost of a message as the log grows to 20 GB, and as queues grow to 10,000.

The cost is the CPU time of broker and reput per message, from the first request of a measurement
until its messages are dispatched and synced. Unlike a rate it does not depend on other disk load.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from bench.exchange import LoadFailed
from bench.harness import WORK_DIR, Figure, Options, Result, Series, at_most, benchmark, interleave
from bench.load import Place, Shape, send
from bench.servers import Node, pin_to_load_core, settle
from tidemark.formats.checkpoint import Slot

MB: Final = 1_000_000
LOG_SIZES: Final = (10 * MB, 100 * MB, 1_000 * MB, 5_000 * MB, 20_000 * MB)
QUEUE_COUNTS: Final = (10, 100, 1_000, 10_000)
FRESH_UP_TO: Final = 100 * MB
"""Smaller logs are rebuilt for each measurement, larger ones keep growing."""
CONNECTIONS: Final = 8
MESSAGES: Final = 256
LOG_BODY_SIZE: Final = 1024
QUEUE_BODY_SIZE: Final = 256
LOG_REQUESTS: Final = 160
"""Requests of one measurement: about 50 MB of log, so that sizes stay close to their target."""
QUEUE_REQUESTS: Final = 2560
TOPICS: Final = 10
ROUNDS: Final = 9
WARM_UP: Final = 1
"""Number of discarded rounds (``interleave``)."""
FREE_SPACE_MIN: Final = 40_000 * MB
GOAL: Final = 1.3


class Cost(NamedTuple):
    """Result of one run: microseconds of CPU time per message, and messages per second."""

    broker_us: float
    reput_us: float
    rate: float
    """Messages per second until all were dispatched."""

    @property
    def total_us(self) -> float:
        return self.broker_us + self.reput_us


def cost(node: Node, places: Sequence[Place], shape: Shape, requests: int) -> Cost:
    """Send the requests, wait until they are dispatched and synced; return the cost."""
    # Reput syncs once a second. Without this wait, one measurement might have no sync, another two.
    node.wait_synced()
    broker, reput = node.processes["broker"], node.processes["reput"]
    broker_s, reput_s = broker.cpu_s(), reput.cpu_s()
    outcome = send(node.address, places, shape, connections=CONNECTIONS, requests=requests)
    seconds = outcome.seconds + node.wait_dispatched()
    node.wait_synced()
    return Cost(
        (broker.cpu_s() - broker_s) / outcome.messages * 1e6,
        (reput.cpu_s() - reput_s) / outcome.messages * 1e6,
        outcome.messages / seconds,
    )


def grow(node: Node, places: Sequence[Place], shape: Shape, size: int) -> None:
    while (left := size - node.position(Slot.WRITTEN)) > 0:
        requests = max(1, left // (shape.messages * (shape.body_size + 200)))
        send(node.address, places, shape, connections=CONNECTIONS, requests=requests)
        node.wait_dispatched()


def in_turn(jobs: Mapping[int, Callable[[], Cost]], rounds: int) -> dict[int, list[Cost]]:
    """Measure the costs at each x value, all of them in each round."""
    found: dict[int, list[Cost]] = {x: [] for x in jobs}

    def taken(x: int) -> float:
        found[x].append(jobs[x]())
        return found[x][-1].total_us

    settle()
    interleave({str(x): partial(taken, x) for x in jobs}, rounds)
    return {x: costs[WARM_UP:] for x, costs in found.items()}


def by_log_size(sizes: Sequence[int], rounds: int) -> dict[int, list[Cost]]:
    """Measure the costs at each size of the log."""
    shape = Shape(MESSAGES, LOG_BODY_SIZE, "memory", "given")
    places: list[Place] = [("log", None)]

    def grown(node: Node, size: int) -> None:
        node.make_topic("log", 4)
        grow(node, places, shape, size)

    def fresh(size: int) -> Cost:
        with Node() as node:
            grown(node, size)
            return cost(node, places, shape, LOG_REQUESTS)

    with ExitStack() as nodes:
        jobs: dict[int, Callable[[], Cost]] = {}
        for size in sizes:
            if size <= FRESH_UP_TO:
                jobs[size] = partial(fresh, size)
                continue
            node = nodes.enter_context(Node())
            grown(node, size)
            print(f"  a log of {size // MB:,} MB is there", flush=True)
            jobs[size] = partial(cost, node, places, shape, LOG_REQUESTS)
        return in_turn(jobs, rounds)


class QueueNode:
    """A node with ``count`` queues, each with at least one message."""

    def __init__(self, node: Node, count: int) -> None:
        self._node = node
        self._places: list[Place] = [
            (f"queues{index % TOPICS}", index // TOPICS) for index in range(count)
        ]
        self._sent = count
        self._requests = 0
        for topic in range(TOPICS):
            node.make_topic(f"queues{topic}", count // TOPICS)
        first = Shape(1, QUEUE_BODY_SIZE, "memory", "given")
        send(node.address, self._places, first, connections=CONNECTIONS, requests=count)
        node.wait_dispatched()

    def stretch(self) -> Cost:
        """Return the cost of one measurement, which starts with the queue after the last one."""
        shape = Shape(MESSAGES, QUEUE_BODY_SIZE, "memory", "given")
        start = self._requests % len(self._places)
        turned = self._places[start:] + self._places[:start]
        self._requests += QUEUE_REQUESTS
        self._sent += QUEUE_REQUESTS * MESSAGES
        return cost(self._node, turned, shape, QUEUE_REQUESTS)

    def check_stored(self) -> None:
        """Raise LoadFailed unless the queues contain the acknowledged messages."""
        stored = sum(self._node.message_count(f"queues{topic}") for topic in range(TOPICS))
        if stored != self._sent:
            raise LoadFailed(f"{self._sent} messages acknowledged, {stored} in the queues")


def by_queue_count(counts: Sequence[int], rounds: int) -> dict[int, list[Cost]]:
    """Measure the costs for each number of queues; each request uses the next queue."""
    with ExitStack() as nodes:
        of_count = {count: QueueNode(nodes.enter_context(Node()), count) for count in counts}
        found = in_turn({count: queues.stretch for count, queues in of_count.items()}, rounds)
        for queues in of_count.values():
            queues.check_stored()
    return found


def figures(costs: Mapping[int, Sequence[Cost]], what: str, span: str) -> list[Figure]:
    """Build the figures: every point compared with the first, and the spread over all points.

    what: text with {} for the x value.
    """
    medians = {x: statistics.median(each.total_us for each in runs) for x, runs in costs.items()}
    points = list(costs)
    first = what.format(f"{points[0]:,}")
    found = []
    for kind, unit, field in (
        ("CPU of broker and reput per message", "µs", "total_us"),
        ("rate until dispatched", "msg/s", "rate"),
    ):
        values = {x: [getattr(each, field) for each in runs] for x, runs in costs.items()}
        for x, of_x in values.items():
            named = f"{kind}, {what.format(f'{x:,}')}"
            figure = Figure(named, unit, of_x, None, first, values[points[0]])
            found.append(figure._replace(more_is_better=field == "rate"))
    spread = max(medians.values()) / min(medians.values())
    return [*found, at_most(f"largest / smallest CPU per message, {span}", "×", [spread], GOAL)]


def series(costs: Mapping[int, Sequence[Cost]], name: str, title: str, x: str) -> Series:
    """CPU time per message by process."""

    def line(field: str) -> list[tuple[float, float]]:
        return [
            (at, statistics.median(getattr(each, field) for each in runs))
            for at, runs in costs.items()
        ]

    lines = {"broker": line("broker_us"), "reput": line("reput_us"), "both": line("total_us")}
    return Series(name, title, x, "CPU per message [µs]", lines)


def main(given: Options) -> Result:
    sizes = given.pick(LOG_SIZES, quick=LOG_SIZES[:3])
    counts = given.pick(QUEUE_COUNTS, quick=QUEUE_COUNTS[:3])
    pin_to_load_core()
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(WORK_DIR).free
    if free < FREE_SPACE_MIN and not given.quick:
        sys.exit(f"{WORK_DIR} has {free:,} bytes free; this needs {FREE_SPACE_MIN:,}")
    rounds = given.pick(ROUNDS, quick=given.runs)
    by_size = {size // MB: runs for size, runs in by_log_size(sizes, rounds).items()}
    by_count = by_queue_count(counts, rounds)
    shape = f"{MESSAGES} messages per request, memory, unique ids"
    found = [
        *figures(by_size, "log of {} MB", f"log from {min(by_size):,} to {max(by_size):,} MB"),
        *figures(by_count, "{} queues", f"{min(by_count):,} to {max(by_count):,} queues"),
    ]
    method = f"""Broker and reput with the default profile on core 0, load on core 1;
        {CONNECTIONS} connections, {shape}. Nodes of all sizes (then of all counts) run at the same
        time and are measured in turn, {rounds} rounds after one that is thrown away: what the
        machine does meanwhile befalls all of them alike. Log: bodies of {LOG_BODY_SIZE} B,
        stretches of {LOG_REQUESTS} requests; up to {FRESH_UP_TO // MB} MB a new store for each.
        Queues: bodies of {QUEUE_BODY_SIZE} B, {TOPICS} topics, stretches of {QUEUE_REQUESTS}
        requests, each of which names the next queue in turn; every queue has had a message before.
        Cost: CPU time of both processes, user and kernel, until all of the stretch is dispatched
        and synced, per message."""
    plots = [
        series(by_size, "growth_log", f"Log growth, {LOG_BODY_SIZE} B, {shape}", "log [MB]"),
        series(by_count, "growth_queues", f"Queues, {QUEUE_BODY_SIZE} B, {shape}", "queues"),
    ]
    return Result(found, method, series=plots)


if __name__ == "__main__":
    benchmark(main)
