"""Figure 11: cost of an idle node: CPU and anonymous memory of each process."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from bench.harness import Figure, Options, Result, at_most, benchmark
from bench.load import Shape, send
from bench.servers import ROLES, Node, pin_to_load_core

CPU_GOAL_PERCENT: Final = 1.0
MEMORY_GOAL_MIB: Final = 90.0
SETTLE_S: Final = 3.0
"""Wait after the last message: longer than any sync, pause or doorbell that follows it."""
SHAPE: Final = Shape(messages=64, body_size=256, ack="memory", ids="given")
REQUESTS: Final = 200
MIB: Final = 1 << 20


def wake_ups(pid: int) -> int:
    """Number of voluntary context switches of all threads of a process so far."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                count += int(line.split()[1])
    return count


def main(given: Options) -> Result:
    pin_to_load_core()
    window_s = given.pick(10.0, quick=2.0)
    cpu, memory, woken = (defaultdict[str, list[float]](list) for _ in range(3))
    with Node() as node:
        node.make_topic("idle", 4)
        send(node.address, [("idle", None)], SHAPE, connections=4, requests=REQUESTS)
        node.wait_dispatched()
        time.sleep(SETTLE_S)  # there is no event for a process that has become idle
        for _ in range(given.runs):
            processes = {role: node.processes[role] for role in ROLES}
            before = {role: (each.cpu_s(), wake_ups(each.pid)) for role, each in processes.items()}
            began = time.perf_counter()
            time.sleep(window_s)
            for role, process in processes.items():
                cpu_s, count = before[role]
                seconds = time.perf_counter() - began
                cpu[role].append((process.cpu_s() - cpu_s) / seconds * 100)
                woken[role].append((wake_ups(process.pid) - count) / seconds)
                memory[role].append(process.memory("RssAnon") / MIB)
    figures: list[Figure] = []
    for role in ROLES:
        figures += [
            at_most(f"CPU of {role}", "% of a core", cpu[role], CPU_GOAL_PERCENT),
            at_most(f"anonymous memory of {role}", "MiB", memory[role], MEMORY_GOAL_MIB),
            at_most(f"wake-ups of {role}", "1/s", woken[role]),
        ]
    return Result(
        figures,
        f"""A node, default profile, that took {REQUESTS * SHAPE.messages:,} messages over HTTP and
        then nothing; windows of {window_s:.0f} s. CPU by each process's own clock, RssAnon of
        /proc/PID/status, voluntary context switches of all threads.""",
    )


if __name__ == "__main__":
    benchmark(main)
