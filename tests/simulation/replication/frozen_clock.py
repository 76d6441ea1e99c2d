"""A clock for rules that are taken step by step: whoever reads a clock once, reads it once."""

from __future__ import annotations

from collections.abc import Callable


class FrozenClock:
    """The time of the first look: a rule that is taken step by step reads its clock once."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen: int | None = None

    def boot_ms(self) -> int:
        """Of the boot-time clock."""
        if self._seen is None:
            self._seen = self._now_ms()
        return self._seen

    def wall_ms(self) -> int:
        """No rule of a group may look at it: an AssertionError ends the history."""
        raise AssertionError("a rule of the group asked for the wall clock")

    def monotonic(self) -> float:
        """No rule of a group may look at it: it stands still while a machine sleeps."""
        raise AssertionError("a rule of the group asked for the monotonic clock")
