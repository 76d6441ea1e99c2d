"""Long work on the loop in slices; other tasks run in between.

    slicer = TimeSlicer(clock, pauses)
    for each in very_many:
        if slicer.over:
            await slicer.pass_on()
        ...

Between two reads of ``over`` there must be less work than a slice. Scrapes use it to sample all
groups and to write their text, so that a send or a pull waits for one slice at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from shared.runtime.pauses import SLICE_S, Pauses
from tidemark.clock import Clock

STEPS_MAX: Final = 1024
"""A slice also ends after this number of steps, in case the clock stands still."""


class TimeSlicer:
    """The slices of one piece of work."""

    def __init__(
        self, clock: Clock, pauses: Pauses, on_begin: Callable[[], None] = lambda: None
    ) -> None:
        """on_begin: called when a slice begins, because state may have changed meanwhile."""
        self._pauses = pauses
        self._monotonic = clock.monotonic
        self._on_begin = on_begin
        self._steps = 0
        self._began = 0.0
        self._before_s = 0.0
        self._begin()

    @property
    def over(self) -> bool:
        """Whether the slice is used up; to be read once per step."""
        self._steps += 1
        return self._steps >= STEPS_MAX or self._monotonic() >= self._began + SLICE_S

    @property
    def busy_s(self) -> float:
        """Time that all slices have taken so far, including this one."""
        return self._before_s + self._monotonic() - self._began

    async def through(self, steps: Iterator[None]) -> None:
        """Run all steps, each shorter than a slice; other tasks run in between."""
        for _ in steps:
            if self.over:
                await self.pass_on()

    async def pass_on(self) -> None:
        """Let other tasks run, then begin a slice."""
        self._before_s = self.busy_s
        await self._pauses.rest()
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._began = self._monotonic()
        self._on_begin()
