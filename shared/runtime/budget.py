"""A limit on the amount of a resource in use at once. Not thread-safe."""

from __future__ import annotations

from tidemark.errors import Overloaded


class Budget:
    """A limited resource, for example bytes of message bodies in memory or waiting pulls."""

    __slots__ = ("advice", "limit", "name", "used")

    def __init__(self, name: str, limit: int, advice: str) -> None:
        self.name = name
        self.limit = limit
        self.advice = advice
        self.used = 0

    def take(self, amount: int, held: int = 0) -> None:
        """Reserve amount; raise Overloaded, with nothing reserved, if the limit would be exceeded.

        held: the part in use that the caller itself has reserved. If the caller holds everything
        in use, more is always granted: the size of a single request has its own limit.
        """
        if self.used > held and self.used + amount > self.limit:
            raise Overloaded(
                f"{self.name}: {self.used} of {self.limit} in use, {amount} more requested. "
                "Nothing was stored.",
                self.advice,
                limit=self.limit,
                used=self.used,
            )
        self.used += amount

    def give_back(self, amount: int) -> None:
        """Release an amount that was reserved with ``take``."""
        assert amount <= self.used
        self.used -= amount
