"""Figure 14: cost of a second copy, speed of a joining slave, duration without answered sends.

Two nodes and the load share both cores of the machine: a master and a slave with six services, and
the senders. The baseline of a rate is a single node with the same cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bench import outages
from bench.group import Group
from bench.harness import Figure, Options, Result, at_most, benchmark, interleave, of_ratios
from bench.joining import LIGHT_RATE, Joined, Observed, fill, join, observe
from bench.latency import percentiles
from bench.load import Shape, send
from bench.servers import Node, settle, wait_until
from bench.steady import Steady
from tidemark.formats.checkpoint import Slot

BODY_SIZE: Final = 256
TOPIC: Final = "replicated"
RATIO_GOAL: Final = 0.5
LAG_GOAL_MS: Final = 20.0
LAG_PAUSE_S: Final = 0.02
LAG_POLL_S: Final = 0.0002
LAG_MAX_S: Final = 30.0
COPY_GOAL: Final = 300.0
P99_GOAL: Final = 2.0
IDLE_GOAL: Final = 1.0


class Load(NamedTuple):
    name: str
    messages: int
    """Messages per request."""
    connections: int


BATCHES: Final = Load("256 messages per request, 8 connections", 256, 8)
SINGLE: Final = Load("one message per request, 64 connections", 1, 64)


class Outage(NamedTuple):
    """A kind of disturbance, and the maximum time without answered sends."""

    name: str
    measure: Callable[[Group, str], float]
    goal_s: float


OUTAGES: Final = (
    Outage("planned switch", outages.switched, 1.0),
    Outage("SIGKILL of the master's broker, started again", outages.broker_killed, 3.0),
    Outage("SIGKILL of all services of the master", outages.node_lost, 6.0),
)


class Rates:
    """Rates of one load for a single node and for a group, and the CPU cost of each message."""

    def __init__(self, alone: Node, group: Group, load: Load, seconds: float, runs: int) -> None:
        self.load = load
        self._seconds = seconds
        self._costs: dict[str, str] = {}
        by_name = {"alone": alone}, {"master": group.master, "slave": group.slave}
        found = interleave(
            {
                "alone": lambda: self._rate(by_name[0], "disk"),
                "disk": lambda: self._rate(by_name[1], "disk"),
                "replicated": lambda: self._rate(by_name[1], "replicated"),
            },
            runs,
        )
        self.alone, self.disk, self.replicated = found.values()

    @property
    def notes(self) -> list[str]:
        """CPU time of each service in the last run of each kind."""
        return [f"{self.load.name}, {what}: {cost}" for what, cost in self._costs.items()]

    def figures(self) -> list[Figure]:
        """Build the figures; the goal applies to the ratio."""
        name, alone = self.load.name, "disk on a standalone node"
        return [
            of_ratios(f"replicated, {name}", self.replicated, self.alone, RATIO_GOAL, alone),
            Figure(f"replicated, {name}", "msg/s", self.replicated, None, alone, self.alone),
            Figure(f"disk, with a slave, {name}", "msg/s", self.disk, None, alone, self.alone),
        ]

    def _rate(self, nodes: Mapping[str, Node], ack: str) -> float:
        """Messages per second that the first node acknowledges at a level."""
        settle()
        processes = {
            f"{name}'s {role}": process
            for name, node in nodes.items()
            for role, process in node.processes.items()
        }
        before = {name: process.cpu_s() for name, process in processes.items()}
        load = self.load
        outcome = send(
            next(iter(nodes.values())).address,
            [(TOPIC, None)],
            Shape(load.messages, BODY_SIZE, ack, "given"),
            connections=load.connections,
            seconds=self._seconds,
        )
        used_us = {
            name: (process.cpu_s() - before[name]) / outcome.messages * 1e6
            for name, process in processes.items()
        }
        each = ", ".join(f"{name} {us:.2f}" for name, us in used_us.items())
        where = "a slave beside it" if len(nodes) > 1 else "alone"
        self._costs[f"{ack}, {where}"] = (
            f"{sum(used_us.values()):.2f} µs of CPU time per message ({each}), load "
            f"{outcome.cpu_share:.0%} of a core"
        )
        return outcome.rate


class Lags(NamedTuple):
    """Lag of the slave at half load."""

    ms: list[float]
    """Time from the master's write to the log until the slave has the bytes on disk."""
    share: float
    """Share of the full rate that was actually sent."""


def lags_at_half_load(group: Group, full: float, seconds: float) -> Lags:
    """Measure repeatedly how long the slave takes to have the master's current log on disk.

    full: messages per second at ``replicated``.
    """
    settle()
    load, slave = BATCHES, group.slave
    shape = Shape(load.messages, BODY_SIZE, "replicated", "given")
    found: list[float] = []
    address, rate = group.master.address, full / 2 / load.messages
    with Steady(address, TOPIC, shape, per_second=rate, connections=load.connections) as steady:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            end = group.master.position(Slot.WRITTEN)
            wait_until(
                lambda end=end: slave.position(Slot.FLUSHED) >= end,  # type: ignore[misc]
                "the slave",
                LAG_MAX_S,
                LAG_POLL_S,
            )
            found.append((time.perf_counter() - began) * 1000)
            time.sleep(LAG_PAUSE_S)
    return Lags(found, steady.rate / full)


def idle_shares(group: Group, seconds: float) -> list[float]:
    """Per cent of a core that ha of each node uses while nothing is sent."""
    settle()
    processes = [node.processes["ha"] for node in group.nodes.values()]
    before = [process.cpu_s() for process in processes]
    time.sleep(seconds)
    return [
        (process.cpu_s() - cpu_s) / seconds * 100
        for process, cpu_s in zip(processes, before, strict=True)
    ]


class Throughput(NamedTuple):
    """Results with a slave in sync."""

    batches: Rates
    single: Rates
    lags: list[Lags]
    """One per run."""
    idle: list[float]


def throughput(seconds: float, idle_s: float, runs: int) -> Throughput:
    with Node(profile="local", core=None) as alone, Group() as group:
        for node in (alone, group.master):
            node.make_topic(TOPIC, 4)
        batches = Rates(alone, group, BATCHES, seconds, runs)
        single = Rates(alone, group, SINGLE, seconds, runs)
        full = statistics.median(batches.replicated)
        alone.kill()
        lags = [lags_at_half_load(group, full, 2 * seconds) for _ in range(runs)]
        return Throughput(batches, single, lags, idle_shares(group, idle_s))


def joining(size: int, seconds: float, runs: int) -> tuple[list[Joined], list[Observed]]:
    """Measure slaves that join an idle master, and one that joins under light load."""
    with Group(with_slave=False) as group:
        group.master.make_topic(TOPIC, 4)
        fill(group.master, TOPIC, size)
        joins: list[Joined] = []
        for _ in range(runs):
            joins.append(join(group))
            group.end_slave()
        return joins, [observe(group, TOPIC, 2 * seconds) for _ in range(runs)]


def outages_of(runs: int) -> list[list[float]]:
    """Seconds without a success, by kind of disturbance, measured in turn."""
    with Group(times="local") as group:
        group.master.make_topic(TOPIC, 4)
        found: list[list[float]] = [[] for _ in OUTAGES]
        for _ in range(runs):
            for outage, values in zip(OUTAGES, found, strict=True):
                values.append(outage.measure(group, TOPIC))
        return found


def main(given: Options) -> Result:
    seconds = given.pick(3.0, quick=1.0)
    size = given.pick(2 << 30, quick=768 << 20)
    idle_s = given.pick(10.0, quick=3.0)
    found = throughput(seconds, idle_s, given.runs)
    joins, felts = joining(size, seconds, given.runs)
    lost = outages_of(given.runs)
    lags_ms = [percentiles([ms / 1000 for ms in lags.ms]).p99 for lags in found.lags]
    copied = f"an empty slave copies {size >> 20} MiB from an idle master"
    light = f"99th percentile of {LIGHT_RATE} sends/s while a slave copies"
    idle = "CPU time of ha in an idle group, the busier node"
    figures = [
        *found.batches.figures(),
        *found.single.figures(),
        at_most("lag of the slave at half load, 99th percentile", "ms", lags_ms, LAG_GOAL_MS),
        Figure(copied, "MB/s", [joined.rate for joined in joins], COPY_GOAL),
        at_most(f"{light}, against before", "×", [each.ratio for each in felts], P99_GOAL),
        at_most(idle, "% of a core", [max(found.idle)], IDLE_GOAL),
        *(
            at_most(f"no send answered: {outage.name}", "s", values, outage.goal_s)
            for outage, values in zip(OUTAGES, lost, strict=True)
        ),
    ]
    notes = [
        *found.batches.notes,
        *found.single.notes,
        "lag at half load, median and most [ms]: "
        + ", ".join(
            f"{statistics.median(lags.ms):.1f}, {max(lags.ms):.1f} ({lags.share:.0%})"
            for lags in found.lags
        )
        + "; in brackets: share of the full rate that was sent",
        "copying: "
        f"{statistics.median(each.cpu_ms_per_mb for each in joins):.2f} ms of CPU time of both ha "
        "per MB",
        "99th percentile of light sends before and while a slave copied [ms]: "
        + ", ".join(f"{each.before:.2f}, {each.during:.2f} ({each.sends})" for each in felts)
        + "; in brackets: sends meanwhile",
        "copying under light sends [MB/s]: "
        + ", ".join(f"{each.joined.rate:.0f}" for each in felts),
    ]
    method = f"""
        Two nodes of one group, lease in a directory, all six services and the load on both cores
        without pinning, bodies of {BODY_SIZE} B; the standalone node has the same cores. Lag: from
        a position of the master's log until the slave has it on disk, looked at every
        {LAG_PAUSE_S * 1000:g} ms. Copying: from the first byte on the empty slave's disk until it
        has what the master had; checked, written, synced. Light sends: at even times, at disk, one
        that is late counts from when it was due. Outages: the longest time between two answered
        sends of one client that asks both nodes in turn, times of the local profile, the start of
        processes included."""
    return Result(figures, method, notes=notes)


if __name__ == "__main__":
    benchmark(main)
