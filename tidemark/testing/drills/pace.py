"""How slow the machine is while a drill runs, beside the one on which the limits were measured.

A limit like "served again within three seconds" was measured on a quiet machine. On one that does
other things too, or whose processor is slower, the same work takes longer. ``Pace`` measures by how
much, all the time: it starts a process that does a fixed piece of work, again and again, and takes
the time by the clock. Nothing of the product is in that work, so a product that became slower is
still judged by the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import deque
from typing import Final, NamedTuple, Self

WORK: Final = "x = 0\nfor i in range(400_000): x += i * i % 7"
QUIET_S: Final = 0.06
"""Time by the clock that a process with WORK takes where nothing else runs: its start and 45 to 50
ms of one processor of the machine on which the limits were measured (AMD EPYC, two of them)."""
PAUSE_S: Final = 1.0
"""Between two measurements: they take about a twentieth of one processor."""
RECENT: Final = 5
"""Measurements that tell how slow the machine is now: one alone may have met a moment."""
SAMPLES_MAX: Final = 3600


class Sample(NamedTuple):
    """One measurement."""

    ended_at: float
    slowness: float


class Pace:
    """Measures from its start to its stop."""

    def __init__(self, patience: float = 1.0) -> None:
        """patience: how many times longer than by the measurements everything may take."""
        self._patience = patience
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._measuring: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._measure()
        self._measuring = asyncio.create_task(self._measure_on(), name="pace")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._measuring

    @property
    def now(self) -> float:
        """How many times longer than on the quiet machine things may take now; at least 1."""
        newest = list(self._samples)[-RECENT:]
        return self.since(newest[0].ended_at if newest else 0.0)

    def since(self, began: float) -> float:
        """The same over the time since a moment of ``time.monotonic``: the mean of what was
        measured since, at least of the last measurement."""
        found = [sample.slowness for sample in self._samples if sample.ended_at >= began]
        if not found and self._samples:
            found = [self._samples[-1].slowness]
        return self._patience * (sum(found) / len(found) if found else 1.0)

    def note(self, ended_at: float, took_s: float) -> None:
        """Take a measurement in: a process with WORK took so long."""
        self._samples.append(Sample(ended_at, max(1.0, took_s / QUIET_S)))

    async def _measure_on(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            await self._measure()

    async def _measure(self) -> None:
        took_s = await asyncio.to_thread(_work)
        self.note(time.monotonic(), took_s)


def allowed_s(limit_s: float, waits_s: float, pace: float) -> float:
    """How long something may take here that may take limit_s on a quiet machine.

    waits_s: of it so much is waited for by the clock, as the end of a lease is: a slow machine does
    not make that longer. Of the rest one half is work: limits are twice what was measured, and the
    other half is for what is not.
    """
    return limit_s + (limit_s - waits_s) / 2 * (pace - 1)


def _work() -> float:
    began = time.monotonic()
    # Without this environment's packages: their number is not the machine's slowness.
    subprocess.run([sys.executable, "-I", "-S", "-c", WORK], check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - began
