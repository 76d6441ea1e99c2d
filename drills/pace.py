"""How slow the machine is while a drill runs, beside the one on which the limits were measured.

A limit like "served again within three seconds" was measured on a quiet machine. ``Pace`` measures
what makes the same drill take longer on another one, and nothing of the product is in it:

- how much longer a fixed piece of work takes, in processor time (a slower processor, or one whose
  other half is busy) and by the clock (the same, and other processes beside it);
- how long the drill's own processes were ready to run and other processes ran instead, as the
  kernel counts it (/proc/PID/schedstat).

A judgement takes the last off a gap, and of it no more than the factor by the clock explains. The
factor alone could not tell load from a delay of the product: 1. on a machine that is 16 times
slower, a limit of one second became 8; 2. a switch that waited four seconds for nothing passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from drills.group import DrillNode

WORK: Final = "x = 0\nfor i in range(400_000): x += i * i % 7"
QUIET_S: Final = 0.06
"""Time that a process with WORK takes where nothing else runs: its start and 45 to 50 ms of one
processor of the machine on which the limits were measured (AMD EPYC, two of them)."""
PAUSE_S: Final = 1.0
"""Between two measurements: they take about a twentieth of one processor."""
RECENT: Final = 5
"""Measurements that tell how slow the machine is now: one alone may have met a moment."""
SAMPLES_MAX: Final = 3600
DELAY_PAUSE_S: Final = 0.05
DELAYS_MAX: Final = 72_000
STEADY_S: Final = 10.0
"""A process that has run for so long does not start any more: it waits where the drill waits."""
_NS: Final = 1e-9


class Sample(NamedTuple):
    """One measurement: how many times longer the work took."""

    ended_at: float
    by_clock: float
    on_processor: float


class Pace:
    """Measures from its start to its stop."""

    def __init__(self, patience: float = 1.0, nodes: Mapping[str, DrillNode] | None = None) -> None:
        """patience: how many times longer than by the measurements everything may take. nodes:
        those of the drill; None: all that this process has started counts as one.
        """
        self._nodes = nodes or {}
        self._patience = patience
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._delays_ns: dict[int, int] = {}
        """Process → for how long it has waited for a processor since its start."""
        self._delayed: dict[str, deque[tuple[float, float]]] = {}
        """Node → (time, seconds for which it was held back until then)."""
        self._steady: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=DELAYS_MAX)
        """The same of the processes of all nodes that do not start any more."""
        self._since: dict[int, float] = {}
        """Process → when it was seen first."""
        self._working: int | None = None
        """Process that does WORK now."""
        self._measuring: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._look_at_delays()
        await self._measure()
        self._measuring = [
            asyncio.create_task(self._measure_on(), name="pace"),
            asyncio.create_task(self._look_on(), name="delays"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._measuring:
            task.cancel()
        await asyncio.gather(*self._measuring, return_exceptions=True)

    @property
    def now(self) -> float:
        """How many times longer than on the quiet machine to wait before giving up; at least 1."""
        recent = list(self._samples)[-RECENT:]
        return self._patience * _mean([sample.by_clock for sample in recent])

    def since(self, began: float) -> Sample:
        """How many times longer work has taken since a moment of ``time.monotonic``: the mean of
        what was measured since, at least of the last measurement."""
        found = [sample for sample in self._samples if sample.ended_at >= began]
        if not found and self._samples:
            found = [self._samples[-1]]
        return Sample(
            began,
            self._patience * _mean([sample.by_clock for sample in found]),
            self._patience * _mean([sample.on_processor for sample in found]),
        )

    def held_back_s(self, begin: float, end: float, node: str = "") -> float:
        """For how long, within [begin, end], a node's processes were ready and did not run.

        Of processes that waited at the same time the longest wait counts. node: of the others only
        processes that do not start any more: of those that do, one is always ready. A switch goes
        through processes of two nodes, one after another. A node that is not known stands for the
        one that was held back longest.
        """
        series = [self._delayed[node]] if node in self._delayed else list(self._delayed.values())
        longest = max(_grown(delayed, begin, end) for delayed in (*series, self._steady))
        return min(end - begin, longest)

    def note(self, ended_at: float, took_s: float, processor_s: float) -> None:
        """Take a measurement in: a process with WORK took so long by the clock, and so much
        processor time."""
        self._samples.append(
            Sample(ended_at, max(1.0, took_s / QUIET_S), max(1.0, processor_s / QUIET_S))
        )

    def note_delays(self, at: float, of_nodes: Mapping[str, Mapping[int, int]]) -> None:
        """Take in for how long each process of each node has waited for a processor so far."""
        steady = 0
        for node, delays_ns in of_nodes.items():
            delayed = self._delayed.setdefault(node, deque([(0.0, 0.0)], maxlen=DELAYS_MAX))
            new = {pid: delay - self._delays_ns.get(pid, 0) for pid, delay in delays_ns.items()}
            delayed.append((at, delayed[-1][1] + max(new.values(), default=0) * _NS))
            for pid, grown in new.items():
                if at - self._since.setdefault(pid, at) > STEADY_S:
                    steady = max(steady, grown)
        self._steady.append((at, self._steady[-1][1] + steady * _NS))
        self._delays_ns = {
            pid: delay for delays_ns in of_nodes.values() for pid, delay in delays_ns.items()
        }
        self._since = {pid: self._since[pid] for pid in self._delays_ns}

    async def _measure_on(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            await self._measure()

    async def _measure(self) -> None:
        took_s, processor_s = await asyncio.to_thread(self._work)
        self.note(time.monotonic(), took_s, processor_s)

    def _work(self) -> tuple[float, float]:
        began = time.monotonic()
        # Without this environment's packages: their number is not the machine's slowness.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WORK], stdin=subprocess.DEVNULL
        )
        self._working = process.pid
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"the work ended with {process.returncode}"
        return time.monotonic() - began, used.ru_utime + used.ru_stime

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(DELAY_PAUSE_S)
            self._look_at_delays()

    def _look_at_delays(self) -> None:
        own = os.getpid()
        processes: dict[str, Iterable[int | None]] = {
            name: [service.pid for service in node.services.values()]
            for name, node in self._nodes.items()
        }
        if not processes:
            processes = {"": {*_descendants(own)} - {self._working}}
        self.note_delays(
            time.monotonic(),
            {
                # This process belongs to each: it sends what is to be acknowledged.
                name: {
                    pid: delay
                    for pid in (own, *pids)
                    if pid is not None and (delay := _delay_ns(pid)) is not None
                }
                for name, pids in processes.items()
            },
        )


def allowed_s(limit_s: float, waits_s: float, work: float) -> float:
    """How long something may take here that may take limit_s on a quiet machine.

    waits_s: of it so much is waited for by the clock, as the end of a lease is: a slow machine does
    not make that longer. Of the rest one half is work: limits are twice what was measured, and the
    other half is for what is not. work: how many times longer it takes.
    """
    return limit_s + (limit_s - waits_s) / 2 * (work - 1)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def _grown(delayed: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    times = [at for at, _ in delayed]
    first = max(0, bisect_right(times, begin) - 1)
    last = min(len(times) - 1, bisect_left(times, end))
    return max(0.0, delayed[last][1] - delayed[first][1])


def _descendants(pid: int) -> Iterator[int]:
    for task in _listed(Path(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError):  # it has ended
            for child in (task / "children").read_text(encoding="ascii").split():
                yield int(child)
                yield from _descendants(int(child))


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # it has ended
        return []


def _delay_ns(pid: int) -> int | None:
    """For how long the main thread was ready and did not run; None: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return None
