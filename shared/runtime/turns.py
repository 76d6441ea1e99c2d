"""Work that may take long, done on the loop in slices: others have their turn in between.

    turns = Turns(clock, way)
    for each in very_many:
        if turns.over:
            await turns.pass_on()
        ...

Between two looks at ``over`` there must be less work than a slice. Before: a scrape asks for a look
at everything, and is written. After: whoever sends or pulls waits for one slice at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from shared.runtime.give_way import SLICE_S, GiveWay
from tidemark.clock import Clock

STEPS_MAX: Final = 1024
"""And after so many steps, should the clock stand still."""


class Turns:
    """The slices of one piece of work."""

    def __init__(
        self, clock: Clock, way: GiveWay, on_begin: Callable[[], None] = lambda: None
    ) -> None:
        """on_begin: called when a slice begins: what was known may have changed."""
        self._way = way
        self._monotonic = clock.monotonic
        self._on_begin = on_begin
        self._steps = 0
        self._began = 0.0
        self._before_s = 0.0
        self._begin()

    @property
    def over(self) -> bool:
        """Whether the slice is used up; to be asked once per step."""
        self._steps += 1
        return self._steps >= STEPS_MAX or self._monotonic() >= self._began + SLICE_S

    @property
    def busy_s(self) -> float:
        """Time that all slices have taken so far, this one included."""
        return self._before_s + self._monotonic() - self._began

    async def through(self, steps: Iterator[None]) -> None:
        """Take all steps, each shorter than a slice, with others' turns in between."""
        for _ in steps:
            if self.over:
                await self.pass_on()

    async def pass_on(self) -> None:
        """Let others have their turn."""
        self._before_s = self.busy_s
        await self._way.rest()
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._began = self._monotonic()
        self._on_begin()
