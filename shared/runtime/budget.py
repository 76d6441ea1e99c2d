"""A bound on what is in use at once. For one thread."""

from __future__ import annotations

from tidemark.errors import Overloaded


class Budget:
    """A limited amount of something: bytes of bodies in memory, held pulls."""

    __slots__ = ("advice", "limit", "name", "used")

    def __init__(self, name: str, limit: int, advice: str) -> None:
        self.name = name
        self.limit = limit
        self.advice = advice
        self.used = 0

    def take(self, amount: int, held: int = 0) -> None:
        """Take amount or raise Overloaded with nothing taken.

        held: the part in use that the caller itself has taken. If all of it is the caller's, more
        is always given: the size of a single request has a limit of its own.
        """
        if self.used > held and self.used + amount > self.limit:
            raise Overloaded(
                f"{self.name}: {self.used} of {self.limit} in use, {amount} more asked. "
                "Nothing was stored.",
                self.advice,
                limit=self.limit,
                used=self.used,
            )
        self.used += amount

    def give_back(self, amount: int) -> None:
        """Return what was taken."""
        assert amount <= self.used
        self.used -= amount
