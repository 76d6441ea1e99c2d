"""Figure 9: from the start of the processes until the node is ready, after they were killed.

The store is filled over HTTP, and the processes are killed during writes in every run: the end of
the log is not dispatched, queues and index are not synced, and the page cache has all of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.exchange import LoadFailed
from bench.harness import Options, Result, at_most, benchmark, interleave
from bench.load import Place, Shape, send
from bench.servers import ROLES, START_TIMEOUT_S, Node, pin_to_load_core, settle, wait_until
from tidemark.formats.checkpoint import BrokerPhase, Slot

GOAL_S: Final = 2.0
LOST_GOAL_S: Final = 5.0
TOPICS: Final = 20
QUEUES: Final = 50
"""Queues per topic."""
SHAPE: Final = Shape(messages=64, body_size=1024, ack="memory", ids="given")
CONNECTIONS: Final = 8
WRITTEN_BEFORE_KILL: Final = 32 << 20
"""Bytes that the current load sends before the processes are killed."""
CHUNK_SIZE: Final = 1 << 22


class Restarts:
    """One node that is killed and started repeatedly."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._places: list[Place] = [
            (f"restart{topic:02d}", queue) for queue in range(QUEUES) for topic in range(TOPICS)
        ]
        self.reput_s: dict[str, list[float]] = defaultdict(list)
        """Time until reput was ready, too, by job, including the warm-up."""
        self.cpu_s: dict[str, list[float]] = defaultdict(list)
        """CPU time of both services until then."""
        self.walked: list[int] = []
        """Bytes between DISPATCHED_DURABLE and the log's end at each kill."""

    def fill(self, size: int) -> None:
        node = self._node
        for topic in range(TOPICS):
            node.make_topic(f"restart{topic:02d}", QUEUES)
        while node.position(Slot.WRITTEN) < size:
            self._send(len(self._places))
            node.wait_dispatched()

    def _send(self, requests: int) -> None:
        send(self._node.address, self._places, SHAPE, connections=CONNECTIONS, requests=requests)

    def killed(self) -> float:
        """Kill both with SIGKILL under load; return the seconds from the start until ready."""
        self._kill_under_load()
        return self._start("killed")

    def without_checkpoint(self) -> float:
        """Do the same with a lost checkpoint page, so that the start scans the whole log."""
        self._kill_under_load()
        (self._node.store_dir / "checkpoint").unlink()
        return self._start("without checkpoint")

    def stopped(self) -> float:
        """Start after a clean stop, for comparison."""
        self._node.stop("broker")
        self._node.stop("reput")
        return self._start("stopped")

    def _kill_under_load(self) -> None:
        node = self._node
        node.wait_synced()
        goes_on = threading.Thread(target=self._send_until_cut_off)
        until = node.position(Slot.WRITTEN) + WRITTEN_BEFORE_KILL
        goes_on.start()
        wait_until(lambda: node.position(Slot.WRITTEN) >= until, "the load", START_TIMEOUT_S)
        node.kill()
        goes_on.join()
        self.walked.append(node.position(Slot.WRITTEN) - node.position(Slot.DISPATCHED_DURABLE))

    def _send_until_cut_off(self) -> None:
        with contextlib.suppress(LoadFailed, OSError, EOFError):
            self._send(1 << 30)

    def _may_be_ready(self, role: str) -> bool:
        """Whether the page does not rule it out: reading it costs the node nothing, while a probe
        every 10 ms would take a twentieth of its core."""
        page = self._node.position
        if role == "broker":
            return page(Slot.BROKER_STATE) == BrokerPhase.SERVING
        follows = page(Slot.REPUT_GENERATION) == page(Slot.GENERATION)
        return follows and page(Slot.DISPATCHED) >= page(Slot.WRITTEN)

    def _start(self, job: str) -> float:
        node = self._node
        warm(node.store_dir)
        settle()
        began = time.perf_counter()
        node.start()
        ready: dict[str, float] = {}

        def both() -> bool:
            for role in ROLES:
                node.processes[role].check_alive()
                if role not in ready and self._may_be_ready(role) and node.is_ready(role):
                    ready[role] = time.perf_counter() - began
            return len(ready) == len(ROLES)

        wait_until(both, f"the node to be ready ({job})", START_TIMEOUT_S)
        self.reput_s[job].append(ready["reput"])
        self.cpu_s[job].append(node.cpu_s())
        return ready["broker"]


def warm(directory: Path) -> None:
    """Read what was written to every file, because the figure assumes a warm page cache.

    Space that is only reserved is not read. No killed process leaves such pages in the cache, and
    once they are there, the kernel reports them as data: a start then compares gigabytes of zeros.
    """
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_socket():
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                _read_data(file.fileno())


def _read_data(descriptor: int) -> None:
    """Read the data of a file without its holes; OSError (ENXIO) ends it after the last data."""
    at = 0
    while True:
        at = os.lseek(descriptor, at, os.SEEK_DATA)
        end = os.lseek(descriptor, at, os.SEEK_HOLE)
        while at < end:
            at += len(os.pread(descriptor, min(CHUNK_SIZE, end - at), at))


def main(given: Options) -> Result:
    pin_to_load_core()
    size = given.pick(2 << 30, quick=256 << 20)
    with Node() as node:
        restarts = Restarts(node)
        restarts.fill(size)
        jobs: dict[str, Callable[[], float]] = {
            "stopped": restarts.stopped,
            "killed": restarts.killed,
            "without checkpoint": restarts.without_checkpoint,
        }
        found = interleave(jobs, runs=given.runs)
        end = node.position(Slot.WRITTEN)
    shape = f"{size >> 30} GiB log" if size >= 1 << 30 else f"{size >> 20} MiB log"
    shape += f" of {TOPICS * QUEUES:,} queues"
    ready, stopped = f"broker ready after SIGKILL under load, {shape}", "after an orderly stop"
    lost = (
        "broker ready after SIGKILL and the loss of the checkpoint page: the whole log is walked, "
        "then compared with queues and index"
    )
    cpu = "CPU time of both services until then"
    reput_s, cpu_s = (
        {job: values[-given.runs :] for job, values in of.items()}
        for of in (restarts.reput_s, restarts.cpu_s)
    )
    figures = [
        at_most(ready, "s", found["killed"], GOAL_S, stopped, found["stopped"]),
        at_most("reput ready after the same", "s", reput_s["killed"], GOAL_S),
        at_most(cpu, "s", cpu_s["killed"]),
        at_most(lost, "s", found["without checkpoint"], LOST_GOAL_S),
        at_most(cpu, "s", cpu_s["without checkpoint"]),
    ]
    walked = sorted(restarts.walked)
    return Result(
        figures,
        f"""Broker and reput, default profile, on one core; a log filled over HTTP with requests of
        {SHAPE.messages} messages of {SHAPE.body_size:,} B with unique ids, each for the next queue,
        record CRC on. Both are killed with SIGKILL under load; all data are read once and the disk
        is settled; time on the clock from the start of the two processes until /ready says 200.""",
        notes=[
            f"{walked[0] >> 20} to {walked[-1] >> 20} MiB lay behind the durable mark at the "
            f"kills; the log ended at {end >> 20:,} MiB"
        ],
    )


if __name__ == "__main__":
    benchmark(main)
