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
        """Not asked."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Not asked."""
        raise NotImplementedError
