"""Whose the append lock is within this node, in one term (docs/replication.md, hand-over). Pure.

A term begins with the lock in ha's hand. It is given to the broker once, and taken back once: the
broker gives it up when its grant has ended, and only then is the log's end fixed. Step before: the
epoch has its entry in the table. Step after: the grant; or, at the end, following again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.ha.core.effects import ReleaseAppendLock, TakeAppendLock
from services.ha.core.events import Done
from services.ha.core.own import Own


class _Hand(Enum):
    OWN = "own"
    GIVING = "giving"
    GIVEN = "given"
    TAKING = "taking"


class AppendLock:
    """Of one term."""

    def __init__(self, own: Own) -> None:
        """It is ha's."""
        self._own = own
        self._hand = _Hand.OWN
        self._then: Callable[[], None] | None = None

    @property
    def given(self) -> bool:
        """The broker may take it."""
        return self._hand is _Hand.GIVEN

    def give(self, then: Callable[[], None]) -> None:
        """Give it to the broker; then is called once it is free."""
        self._hand = _Hand.GIVING
        self._own.out.ask(ReleaseAppendLock, lambda _: self._released(then))

    def take(self, then: Callable[[], None]) -> None:
        """Have it back; then is called with the log's end fixed, maybe at once.

        Called again meanwhile, only the last one is.
        """
        self._then = then
        if self._hand is _Hand.OWN:
            self._taken_back()
        elif self._hand is not _Hand.TAKING:
            self._hand = _Hand.TAKING
            self._own.out.ask(TakeAppendLock, self._taken)

    def _released(self, then: Callable[[], None]) -> None:
        if self._hand is _Hand.GIVING:
            self._hand = _Hand.GIVEN
            then()

    def _taken(self, done: Done) -> None:
        self._hand = _Hand.OWN
        self._own.end, self._own.durable = done.end, done.durable
        self._taken_back()

    def _taken_back(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
