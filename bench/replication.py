"""Figure 14: what a second copy costs: throughput at `replicated`, the slave's lag, joining.

Two nodes and the load share both cores of the machine: a master, a slave, six services, and
whoever sends. The baseline is the same group's master asked for `disk`, which replicates as well
but does not wait for it; and a node alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from math import ceil
from typing import Final

from bench.group import Group
from bench.harness import Figure, interleave, options, report
from bench.load import Shape, send
from bench.servers import Node, settle, wait_until
from tidemark.formats.checkpoint import Slot

CONNECTIONS: Final = 8
MESSAGES: Final = 256
BODY_SIZE: Final = 256
SECONDS: Final = 3.0
SECONDS_QUICK: Final = 1.0
TOPIC: Final = "replicated"
RATIO_GOAL: Final = 0.5
LAG_GOAL_MS: Final = 20.0
COPY_GOAL: Final = 300.0
P99_GOAL: Final = 2.0
COPY_SIZE: Final = 2 << 30
COPY_SIZE_QUICK: Final = 256 << 20
FILL_BODY: Final = 16 << 10
LIGHT_RATE: Final = 200
"""Single messages per second while the slave copies."""
JOIN_TIMEOUT_S: Final = 300.0
SAMPLE_S: Final = 0.02


def rate(node: Node, ack: str, seconds: float) -> float:
    """Messages per second that one node acknowledges at a level."""
    settle()
    shape = Shape(MESSAGES, BODY_SIZE, ack, "given")
    outcome = send(node.address, [(TOPIC, None)], shape, connections=CONNECTIONS, seconds=seconds)
    return outcome.rate


def lag_at_half_load(group: Group, full: float, seconds: float) -> list[float]:
    """Lag of the slave in ms, sampled while half of what it can take is sent."""
    stop = threading.Event()
    sender = threading.Thread(target=_send_evenly, args=(group.master, full / 2, stop))
    sender.start()
    found: list[float] = []
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            lag_ms = group.slave_lag_ms()
            if lag_ms is not None:
                found.append(lag_ms)
            time.sleep(SAMPLE_S)
    finally:
        stop.set()
        sender.join()
    return found


def _send_evenly(node: Node, per_second: float, stop: threading.Event) -> None:
    """Requests of MESSAGES at a rate, one after another."""
    shape = Shape(MESSAGES, BODY_SIZE, "disk", "given")
    began, sent = time.monotonic(), 0
    while not stop.is_set():
        due = began + sent / per_second
        time.sleep(max(0.0, due - time.monotonic()))
        send(node.address, [(TOPIC, None)], shape, connections=1, requests=4)
        sent += 4 * MESSAGES


def send_times(node: Node, seconds: float, stop: threading.Event) -> list[float]:
    """Seconds that single durable sends take at LIGHT_RATE, until seconds or stop."""
    shape = Shape(1, BODY_SIZE, "disk", "given")
    began = time.perf_counter()
    took: list[float] = []
    while not stop.is_set() and time.perf_counter() < began + seconds:
        due = began + len(took) / LIGHT_RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        started = time.perf_counter()
        send(node.address, [(TOPIC, None)], shape, connections=1, requests=1)
        took.append(time.perf_counter() - started)
    return took


def p99_ms(seconds: Sequence[float]) -> float:
    """The 99th percentile in ms."""
    ordered = sorted(seconds)
    return ordered[ceil(0.99 * len(ordered)) - 1] * 1000


def fill(node: Node, size: int) -> None:
    """Send until the log has grown by size bytes."""
    shape = Shape(64, FILL_BODY, "memory", "none")
    end = node.position(Slot.WRITTEN) + size
    while node.position(Slot.WRITTEN) < end:
        send(node.address, [(TOPIC, None)], shape, connections=4, requests=64)
    node.wait_synced()


def join(group: Group) -> float:
    """Bytes per second, in MB, at which an empty slave copies the log; it is in sync then."""
    group.empty_slave()
    settle()
    size = group.master.position(Slot.WRITTEN) - group.master.position(Slot.MIN)
    group.slave.start()
    began: list[float] = []

    def is_copied() -> bool:
        try:
            copied = group.slave.position(Slot.FLUSHED)
        except FileNotFoundError:
            return False
        if copied and not began:
            began.append(time.perf_counter())
        return copied >= size

    wait_until(is_copied, "the slave to copy the log", JOIN_TIMEOUT_S)
    megabytes = size / (time.perf_counter() - began[0]) / 1e6
    wait_until(lambda: len(group.in_sync()) == 2, "the slave to be in sync", JOIN_TIMEOUT_S)
    return megabytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    given = options(__doc__, arguments)
    seconds = SECONDS_QUICK if given.quick else SECONDS
    size = COPY_SIZE_QUICK if given.quick else COPY_SIZE
    with Node(profile="local", core=None) as alone, Group() as group:
        for node in (alone, group.master):
            node.make_topic(TOPIC, 4)
        found = interleave(
            {
                "alone": lambda: rate(alone, "disk", seconds),
                "disk": lambda: rate(group.master, "disk", seconds),
                "replicated": lambda: rate(group.master, "replicated", seconds),
            },
            given.runs,
        )
        full = sorted(found["replicated"])[len(found["replicated"]) // 2]
        lags = lag_at_half_load(group, full, 3 * seconds)
    joins: list[float] = []
    before: list[float] = []
    during: list[float] = []
    with Group(with_slave=False) as group:
        group.master.make_topic(TOPIC, 4)
        fill(group.master, size)
        for _ in range(given.runs):
            joins.append(join(group))
            group.slave.stop()
            wait_until(lambda: group.in_sync() == {"n0"}, "a set of one", JOIN_TIMEOUT_S)
        for _ in range(given.runs):
            settle()
            before.append(p99_ms(send_times(group.master, 2 * seconds, threading.Event())))
            stop = threading.Event()
            took: list[float] = []
            sender = threading.Thread(
                target=lambda: took.extend(  # noqa: B023 - joined before the next round
                    send_times(group.master, JOIN_TIMEOUT_S, stop)  # noqa: B023
                )
            )
            sender.start()
            join(group)
            stop.set()
            sender.join()
            during.append(p99_ms(took))
            group.slave.stop()
            wait_until(lambda: group.in_sync() == {"n0"}, "a set of one", JOIN_TIMEOUT_S)
    pairs = list(zip(during, before, strict=True))
    figures = [
        Figure(
            "sends at replicated, one slave, against disk on a node alone",
            "×",
            [one / other for one, other in zip(found["replicated"], found["alone"], strict=True)],
            RATIO_GOAL,
        ),
        Figure(
            f"{MESSAGES} messages of {BODY_SIZE} B per request at replicated, one slave",
            "messages/s",
            found["replicated"],
            None,
            "disk on a node alone",
            found["alone"],
        ),
        Figure(
            "the same at disk, the slave copying beside it",
            "messages/s",
            found["disk"],
            None,
            "disk on a node alone",
            found["alone"],
        ),
        Figure(
            "lag of the slave at half load, 99th percentile of samples",
            "ms",
            [p99_ms([lag / 1000 for lag in lags])],
            LAG_GOAL_MS,
            more_is_better=False,
        ),
        Figure(
            f"an empty slave copies {size >> 20} MiB from an idle master",
            "MB/s",
            joins,
            COPY_GOAL,
        ),
        Figure(
            f"99th percentile of {LIGHT_RATE} sends/s while it copies, against before",
            "×",
            [one / other for one, other in pairs],
            P99_GOAL,
            more_is_better=False,
        ),
    ]
    notes = [
        f"99th percentile of single sends while a slave copies: {max(during):.2f} ms at most, "
        f"before: {max(before):.2f} ms at most; {len(lags)} samples of the lag"
    ]
    method = f"""
        Two nodes of one group, lease in a directory, local profile, all six services and the load
        on both cores without pinning; {CONNECTIONS} connections with {MESSAGES} messages of
        {BODY_SIZE} B each. The node alone has the same cores for itself. Joining: from the first
        byte on the empty slave's disk to the last; checked, written and synced."""
    return report("replication", figures, method, quick=given.quick, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
