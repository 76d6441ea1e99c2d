"""Boot-time clocks: the clock of a node restarts with each boot and has an error of its rate."""

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
        """Restart the clock, some seconds after the boot of the machine."""
        self._since_us = self._timeline.now_us
        self._at_boot_ms = self._random.randint(1_000, 60_000)
        self._rate = 1 + self._random.uniform(-self._drift, self._drift)

    def now_ms(self) -> int:
        """Current value of the clock."""
        return self._at_boot_ms + int((self._timeline.now_us - self._since_us) * self._rate) // 1000

    def jump(self, by_ms: int) -> None:
        """Move the clock forward, as after a suspended host resumes."""
        self._at_boot_ms += by_ms
