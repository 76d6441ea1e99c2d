"""Owner of the append lock within this node, in one term (docs/replication.md, hand-over). Pure.

A term begins while ha holds the lock. ha gives it to the broker once and takes it back once. The
broker releases it when its grant has ended; only then is the end of the log fixed. Step before: the
epoch has its entry in the table. Step after: the grant, or following at the end of the term.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.ha.core.effects import ReleaseAppendLock, TakeAppendLock
from services.ha.core.events import Done
from services.ha.core.replica_context import ReplicaContext


class _Hand(Enum):
    OWN = "own"
    GIVING = "giving"
    GIVEN = "given"
    TAKING = "taking"


class AppendLock:
    """The append lock in one term."""

    def __init__(self, context: ReplicaContext) -> None:
        """Create it while ha holds the lock."""
        self._context = context
        self._hand = _Hand.OWN
        self._then: Callable[[], None] | None = None

    @property
    def given(self) -> bool:
        """Whether the broker may take the lock."""
        return self._hand is _Hand.GIVEN

    def give(self, then: Callable[[], None]) -> None:
        """Release the lock for the broker; ``then`` is called once it is free."""
        self._hand = _Hand.GIVING
        self._context.out.ask(ReleaseAppendLock, lambda _: self._released(then))

    def take(self, then: Callable[[], None]) -> None:
        """Take the lock back; ``then`` is called once the end of the log is fixed, at once if ha
        holds the lock.

        If it is called again before that, only the last callback is called.
        """
        self._then = then
        if self._hand is _Hand.OWN:
            self._taken_back()
        elif self._hand is not _Hand.TAKING:
            self._hand = _Hand.TAKING
            self._context.out.ask(TakeAppendLock, self._taken)

    def _released(self, then: Callable[[], None]) -> None:
        if self._hand is _Hand.GIVING:
            self._hand = _Hand.GIVEN
            then()

    def _taken(self, done: Done) -> None:
        self._hand = _Hand.OWN
        self._context.set_log_end(done.end, done.durable)
        self._taken_back()

    def _taken_back(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
