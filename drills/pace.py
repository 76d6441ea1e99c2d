"""Measure how slow the machine is during a drill, relative to the machine of the time limits.

A limit like "served again within three seconds" was measured on a quiet machine. ``Pace`` measures
what makes the same drill take longer on another machine, independently of the product:

- how much longer a fixed piece of work takes: in CPU time, which grows on a slower or shared core,
  and in wall time, which also grows with other load;
- how long the drill's own processes were runnable but not running, according to the kernel
  (/proc/PID/schedstat);
- how long a file of its own, on the disk of the stores, takes to be synced.

The judgement subtracts from a gap the longer of two times: 1. the time in which the disk stalled,
or synced slowly, as far as the number of syncs of a switch explains it; 2. the run queue wait, but
at most as much as the factor by wall time explains. The sum would count time twice in which both
happened. The factor alone could not tell load from a delay of the product: a limit of one second
became eight on a machine that was 16 times slower, and a switchover that waited four seconds for no
reason passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Self

from drills.group import DrillNode

WORK: Final = "x = 0\nfor i in range(400_000): x += i * i % 7"
QUIET_S: Final = 0.06
"""Wall time of a process with WORK on a quiet machine: its start and 45 to 50 ms of CPU time on the
machine on which the limits were measured (AMD EPYC, two cores).
"""
PAUSE_S: Final = 1.0
"""Time between two measurements, which take about a twentieth of one core."""
RECENT: Final = 5
"""Number of measurements for the current slowness; a single one may be an outlier."""
SAMPLES_MAX: Final = 3600
DELAY_PAUSE_S: Final = 0.05
DELAYS_MAX: Final = 72_000
DISK_PAUSE_S: Final = 0.05
"""Time between two syncs."""
DISK_STALL_S: Final = 1.0
"""A sync that takes longer is a stall of the disk."""
SLOW_SYNC_S: Final = 0.05
"""A sync that takes longer is slow: on a quiet machine it takes 0.3 to 2 ms."""
SYNCS_IN_SERIES: Final = 20
"""Number of syncs of a planned switch, one after another, counted on real nodes."""
STEADY_S: Final = 10.0
"""Age after which a process counts as started: from then on it only waits where the drill waits."""
_NS: Final = 1e-9


class Sample(NamedTuple):
    """One measurement, as factors relative to the quiet machine."""

    ended_at: float
    by_clock: float
    on_processor: float


class Pace:
    """Measures how much slower than a quiet machine this one is, while its context is open."""

    def __init__(
        self,
        patience: float = 1.0,
        nodes: Mapping[str, DrillNode] | None = None,
        directory: Path | None = None,
    ) -> None:
        """patience: additional factor on all measured times. nodes: the nodes of the drill; None:
        all processes that this process started count as one node. directory: a directory on the
        disk of the stores; None: that of temporary files.
        """
        self._nodes = nodes or {}
        self._directory = directory
        self._patience = patience
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._delays_ns: dict[int, int] = {}
        """Process → its run queue wait since its start [ns]."""
        self._delayed: dict[str, deque[tuple[float, float]]] = {}
        """Node → (time, accumulated run queue wait until then [s])."""
        self._steady: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=DELAYS_MAX)
        """The same for the processes of all nodes that have finished starting."""
        self._since: dict[int, float] = {}
        """Process → time at which it was first observed."""
        self._working: int | None = None
        """Process that currently executes WORK."""
        self._measuring: list[asyncio.Task[None]] = []
        self._syncs: deque[tuple[float, float]] = deque(maxlen=DELAYS_MAX)
        """Start and end of each sync."""
        self._sync_began = math.inf
        """Start of the sync that is running; infinite if none is."""
        self._closing = threading.Event()
        self._syncing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._sample_delays()
        await self._measure()
        # A thread of its own: a stalled one would take the place of the drill's calls.
        threads = ThreadPoolExecutor(1, "syncs")
        self._syncing = asyncio.get_running_loop().run_in_executor(threads, self._keep_syncing)
        threads.shutdown(wait=False)
        self._measuring = [
            asyncio.create_task(self._measure_on(), name="pace"),
            asyncio.create_task(self._keep_sampling(), name="delays"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop measuring. Raises OSError if the file could not be synced."""
        # First: a cancelled drill must not leave the thread, which would keep the program.
        self._closing.set()
        for task in self._measuring:
            task.cancel()
        await asyncio.gather(*self._measuring, return_exceptions=True)
        if self._syncing is not None:
            await self._syncing

    @property
    def now(self) -> float:
        """Factor by which to extend timeouts relative to the quiet machine; at least 1."""
        recent = list(self._samples)[-RECENT:]
        return self._patience * _mean([sample.by_clock for sample in recent])

    def since(self, began: float) -> Sample:
        """Return the mean slowness since a time of ``time.monotonic``; at least the last
        measurement is used.
        """
        found = [sample for sample in self._samples if sample.ended_at >= began]
        if not found and self._samples:
            found = [self._samples[-1]]
        return Sample(
            began,
            self._patience * _mean([sample.by_clock for sample in found]),
            self._patience * _mean([sample.on_processor for sample in found]),
        )

    def held_back_s(self, begin: float, end: float, node: str = "") -> float:
        """Return how long, within [begin, end], a node's processes were runnable but not running
        [s].

        If several processes waited at the same time, the longest wait counts. node: name of the
        node; if it is unknown, the node with the longest wait is used. Other nodes count, too,
        because a switchover involves processes of two nodes, one after another. But only their
        processes that have finished starting count: a starting process is always runnable.
        """
        series = [self._delayed[node]] if node in self._delayed else list(self._delayed.values())
        longest = max(_grown(delayed, begin, end) for delayed in (*series, self._steady))
        return min(end - begin, longest)

    def disk_stalled_s(self, begin: float, end: float) -> float:
        """Return how long, within [begin, end], the disk delayed a series of syncs [s].

        A stall counts in full. Slow syncs count together at most SYNCS_IN_SERIES times as long as a
        sync took on average: otherwise a disk that was slow for hours would excuse any delay.
        """
        if end <= begin:
            return 0.0
        syncs, now = {}, time.monotonic()
        if self._sync_began < now:
            syncs[self._sync_began] = now
        # If that sync has ended meanwhile, its end replaces the present.
        syncs |= dict(tuple(self._syncs))
        within = [
            (ended - began, min(end, ended) - max(begin, began))
            for began, ended in syncs.items()
            if began < end and ended > begin
        ]
        stalled_s = sum(part for took, part in within if took > DISK_STALL_S)
        short = [(took, part) for took, part in within if took <= DISK_STALL_S]
        slow_s = sum(part for took, part in short if took > SLOW_SYNC_S)
        mean_s = sum(took for took, _ in short) / max(1, len(short))
        return stalled_s + min(slow_s, SYNCS_IN_SERIES * mean_s)

    def note_sync(self, began: float, ended: float) -> None:
        """Record that a sync of the file began and ended."""
        self._syncs.append((began, ended))

    def note(self, ended_at: float, took_s: float, processor_s: float) -> None:
        """Record a measurement: wall time and CPU time of a process with WORK."""
        self._samples.append(
            Sample(ended_at, max(1.0, took_s / QUIET_S), max(1.0, processor_s / QUIET_S))
        )

    def note_delays(self, at: float, of_nodes: Mapping[str, Mapping[int, int]]) -> None:
        """Record the run queue wait of each process of each node so far."""
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

    def _keep_syncing(self) -> None:
        with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
            while not self._closing.wait(DISK_PAUSE_S):
                began, delay_ns = time.monotonic(), _delay_ns("thread-self") or 0
                self._sync_began = began
                # It grows, so that its inode has to be written as well.
                file.write(b"x")
                os.fdatasync(file.fileno())
                waited_s = ((_delay_ns("thread-self") or 0) - delay_ns) * _NS
                self.note_sync(began, time.monotonic() - waited_s)
                self._sync_began = math.inf

    def _work(self) -> tuple[float, float]:
        began = time.monotonic()
        # Without site packages, because their number does not depend on the machine.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WORK], stdin=subprocess.DEVNULL
        )
        self._working = process.pid
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"the work ended with {process.returncode}"
        return time.monotonic() - began, used.ru_utime + used.ru_stime

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(DELAY_PAUSE_S)
            self._sample_delays()

    def _sample_delays(self) -> None:
        own = os.getpid()
        processes: dict[str, Iterable[int | None]] = {
            name: [process.pid for process in node.processes.values() if process.is_alive]
            for name, node in self._nodes.items()
        }
        if not processes:
            processes = {"": {*_descendants(own)} - {self._working}}
        self.note_delays(
            time.monotonic(),
            {
                # This process counts for each node, because it sends the requests that are acked.
                name: {
                    pid: delay
                    for pid in (own, *pids)
                    if pid is not None and (delay := _delay_ns(pid)) is not None
                }
                for name, pids in processes.items()
            },
        )


def allowed_s(limit_s: float, waits_s: float, work: float) -> float:
    """Return the time allowed here for something that may take limit_s on a quiet machine.

    waits_s: the part of the limit that is a wait of fixed duration, such as the end of a lease; a
    slow machine does not extend it. Half of the rest counts as work, because limits are twice the
    measured time. work: factor by which work takes longer.
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
        with contextlib.suppress(OSError):  # the process has ended
            for child in (task / "children").read_text(encoding="ascii").split():
                yield int(child)
                yield from _descendants(int(child))


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # the process has ended
        return []


def _delay_ns(pid: int | str) -> int | None:
    """Return how long the main thread of a process, or "thread-self", was runnable but not running
    [ns]; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return None
