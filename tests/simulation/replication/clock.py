"""Boot-time clocks: each node's begins anew with every boot and runs a little wrong."""

from __future__ import annotations

from random import Random

from tests.simulation.replication.timeline import Timeline


class Clock:
    """CLOCK_BOOTTIME of one node."""

    def __init__(self, timeline: Timeline, random: Random, *, drift: float) -> None:
        """drift: largest error of the rate, e.g. 0.01."""
        self._timeline, self._random, self._drift = timeline, random, drift
        self.boot()

    def boot(self) -> None:
        """The machine starts: the clock, too, some seconds ago."""
        self._since_us = self._timeline.now_us
        self._at_boot_ms = self._random.randint(1_000, 60_000)
        self._rate = 1 + self._random.uniform(-self._drift, self._drift)

    def now_ms(self) -> int:
        """What it shows."""
        return self._at_boot_ms + int((self._timeline.now_us - self._since_us) * self._rate) // 1000

    def jump(self, by_ms: int) -> None:
        """It shows another time from now on, as after a host that slept."""
        self._at_boot_ms += by_ms
