"""Figure 12: what a message costs as the log grows to 20 GB, and as queues grow to 10,000.

Cost is CPU time of broker and reput per message, from the first request of a stretch until all of
it is dispatched and synced: unlike a rate it does not depend on what else the disk is doing.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.exchange import LoadFailed
from bench.harness import RUNS, WORK_DIR, Figure, Series, options, report
from bench.load import Place, Shape, send
from bench.servers import Node, pin_to_load_core, settle
from tidemark.formats.checkpoint import Slot

MB: Final = 1_000_000
LOG_SIZES: Final = (10 * MB, 100 * MB, 1_000 * MB, 5_000 * MB, 20_000 * MB)
QUEUE_COUNTS: Final = (10, 100, 1_000, 10_000)
FRESH_UP_TO: Final = 100 * MB
"""Smaller logs are grown anew for each run: all runs behind one another would not fit."""
QUICK: Final = (3, 3)
"""How many of the sizes and counts --quick takes."""
CONNECTIONS: Final = 8
MESSAGES: Final = 256
LOG_BODY_SIZE: Final = 1024
QUEUE_BODY_SIZE: Final = 256
LOG_REQUESTS: Final = 160
"""Of one run: about 50 MB of log, so that five begin near enough to the size they are for."""
QUEUE_REQUESTS: Final = 2560
TOPICS: Final = 10
FREE_SPACE_MIN: Final = 30_000 * MB
TOUCHED_SIZE: Final = 512 << 20
"""Of page cache, taken and given back before each stretch: several times what it writes."""
STEP: Final = 1 << 20
GOAL: Final = 1.3


class Cost(NamedTuple):
    """Of one run; microseconds of CPU time per message, and messages per second."""

    broker_us: float
    reput_us: float
    rate: float
    """Until all was dispatched."""

    @property
    def total_us(self) -> float:
        """Of both processes."""
        return self.broker_us + self.reput_us


def cost(node: Node, places: Sequence[Place], shape: Shape, requests: int) -> Cost:
    """Send so many requests, wait until they are dispatched and synced, divide."""
    # Reput syncs once a second: a stretch that ends before would go without, another pay for two.
    node.wait_synced()
    touch_free_memory()
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
    """Send until the log has so many bytes."""
    while (left := size - node.position(Slot.WRITTEN)) > 0:
        requests = max(1, left // (shape.messages * (shape.body_size + 200)))
        send(node.address, places, shape, connections=CONNECTIONS, requests=requests)
        node.wait_dispatched()


def touch_free_memory() -> None:
    """See to it that the memory which the next stretch gets is memory that was used just before.

    Where a log grows into memory that nobody has touched for a while, the host of a virtual machine
    has to find each page first, which costs ten times as much as writing to it. That depends on how
    much memory is free, not on how large the log is, and happens at any size.
    """
    path = WORK_DIR / "growth.memory"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for _ in range(TOUCHED_SIZE // STEP):
            os.write(descriptor, bytes(STEP))
    finally:
        os.close(descriptor)
        path.unlink()


def by_log_size(sizes: Sequence[int], runs: int) -> dict[int, list[Cost]]:
    """Costs of ``runs`` stretches at each size of the log."""
    shape = Shape(MESSAGES, LOG_BODY_SIZE, "memory", "given")
    places: list[Place] = [("log", None)]
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    for number in range(runs):
        last = number == runs - 1
        settle()
        with Node() as node:
            node.make_topic("log", 4)
            for size in sizes:
                if size > FRESH_UP_TO and not last:
                    break
                grow(node, places, shape, size)
                for _ in range(1 if size <= FRESH_UP_TO else runs):
                    found[size].append(cost(node, places, shape, LOG_REQUESTS))
                print(f"  log of {size // MB:,} MB: {found[size][-1]}", flush=True)
    return found


def by_queue_count(counts: Sequence[int], runs: int) -> dict[int, list[Cost]]:
    """Costs of ``runs`` stretches with so many queues, each request for the next one."""
    shape = Shape(MESSAGES, QUEUE_BODY_SIZE, "memory", "given")
    found: dict[int, list[Cost]] = {}
    for count in counts:
        settle()
        with Node() as node:
            for topic in range(TOPICS):
                node.make_topic(f"queues{topic}", count // TOPICS)
            places: list[Place] = [
                (f"queues{index % TOPICS}", index // TOPICS) for index in range(count)
            ]
            # Every queue gets its first message, and its files, before anything is measured.
            first = Shape(1, QUEUE_BODY_SIZE, "memory", "given")
            send(node.address, places, first, connections=CONNECTIONS, requests=count)
            node.wait_dispatched()
            found[count] = []
            sent = count
            for number in range(-1, runs):
                start = (number + 1) * QUEUE_REQUESTS % count
                turned = places[start:] + places[:start]
                taken = cost(node, turned, shape, QUEUE_REQUESTS)
                sent += QUEUE_REQUESTS * MESSAGES
                if number >= 0:
                    found[count].append(taken)
            stored = sum(node.message_count(f"queues{topic}") for topic in range(TOPICS))
            if stored != sent:
                raise LoadFailed(f"{sent} messages acknowledged, {stored} in the queues")
            print(f"  {count:,} queues: {found[count][-1]}", flush=True)
    return found


def figures(costs: Mapping[int, Sequence[Cost]], what: str, span: str) -> list[Figure]:
    """The spread over all points, and every point against the first. what: with {} for the x."""
    medians = {x: statistics.median(each.total_us for each in runs) for x, runs in costs.items()}
    points = list(costs)
    first = what.format(f"{points[0]:,}")
    return [
        *(
            Figure(
                f"CPU of broker and reput per message, {what.format(f'{x:,}')}",
                "µs",
                [each.total_us for each in costs[x]],
                baseline=first,
                baseline_values=[each.total_us for each in costs[points[0]]],
                more_is_better=False,
            )
            for x in points
        ),
        *(
            Figure(
                f"rate until dispatched, {what.format(f'{x:,}')}",
                "msg/s",
                [each.rate for each in costs[x]],
                baseline=first,
                baseline_values=[each.rate for each in costs[points[0]]],
            )
            for x in points
        ),
        Figure(
            f"largest / smallest CPU per message, {span}",
            "×",
            [max(medians.values()) / min(medians.values())],
            GOAL,
            more_is_better=False,
        ),
    ]


def series(costs: Mapping[int, Sequence[Cost]], name: str, title: str, x: str) -> Series:
    """CPU per message by process."""

    def line(field: str) -> list[tuple[float, float]]:
        return [
            (at, statistics.median(getattr(each, field) for each in runs))
            for at, runs in costs.items()
        ]

    lines = {"broker": line("broker_us"), "reput": line("reput_us"), "both": line("total_us")}
    return Series(name, title, x, "CPU per message [µs]", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    given = options(__doc__, arguments)
    sizes = LOG_SIZES[: QUICK[0]] if given.quick else LOG_SIZES
    counts = QUEUE_COUNTS[: QUICK[1]] if given.quick else QUEUE_COUNTS
    pin_to_load_core()
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(WORK_DIR).free
    if free < FREE_SPACE_MIN and not given.quick:
        print(f"{WORK_DIR} has {free:,} bytes free; this needs {FREE_SPACE_MIN:,}")
        return 1
    by_size = {size // MB: runs for size, runs in by_log_size(sizes, given.runs).items()}
    by_count = by_queue_count(counts, given.runs)
    shape = f"{MESSAGES} messages per request, memory, unique ids"
    found = [
        *figures(by_size, "log of {} MB", f"log from {min(by_size):,} to {max(by_size):,} MB"),
        *figures(by_count, "{} queues", f"{min(by_count):,} to {max(by_count):,} queues"),
    ]
    method = f"""Broker and reput with the default profile on core 0, load on core 1;
        {CONNECTIONS} connections, {shape}. Log: bodies of {LOG_BODY_SIZE} B; a stretch of
        {LOG_REQUESTS} requests is measured when the log has reached a size, in {RUNS} new stores
        up to {FRESH_UP_TO // MB} MB and {RUNS} times in a row above. Queues: bodies of
        {QUEUE_BODY_SIZE} B, {TOPICS} topics, each request names the next queue in turn; every
        queue has had a message before; {RUNS} stretches of {QUEUE_REQUESTS} requests after a
        warm-up. Before each stretch {TOUCHED_SIZE >> 20} MiB of page cache are taken and given
        back: memory that the host of a virtual machine has taken away costs ten times as much to
        write to, at any size of the log. Cost: CPU time of both processes, user and kernel, until
        all of the stretch is dispatched and synced, per message."""
    plots = [
        series(by_size, "growth_log", f"Log growth, {LOG_BODY_SIZE} B, {shape}", "log [MB]"),
        series(by_count, "growth_queues", f"Queues, {QUEUE_BODY_SIZE} B, {shape}", "queues"),
    ]
    return report("growth", found, method, quick=given.quick, series=plots)


if __name__ == "__main__":
    raise SystemExit(main())
