"""The promised epoch and the seen version of the lease, both durable. Pure.

Nothing of a higher epoch is processed before its promise is on disk; nothing of a lower one is
processed at all. There is one write of ``ha/promise`` at a time; promises made meanwhile go into
the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.effects import PersistPromise
from services.ha.core.replica_context import PROMISE, ReplicaContext

RETRY_MS: Final = 2000
"""Pause after a write that found no room."""


class Promises:
    """Promises of one start of ha."""

    def __init__(self, context: ReplicaContext, promised: int, seen: tuple[int, int]) -> None:
        """promised, seen: as found on disk."""
        self._context = context
        self.promised = promised
        """The promised epoch on disk."""
        self._seen = seen
        self._wanted, self._wanted_seen = promised, seen
        self._writing = False
        self._retry_ms: int | None = None
        self._alarm: str | None = None
        """The alarm that was raised because there was no room."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def highest(self) -> int:
        """The highest epoch that is promised or being promised."""
        return self._wanted

    @property
    def pending(self) -> bool:
        """Whether a higher epoch is being promised."""
        return self._wanted > self.promised

    def promise(self, epoch: int, then: Callable[[], None] | None = None) -> None:
        """Promise an epoch; ``then`` is called once the promise is on disk, at once if it already
        is."""
        if epoch <= self.promised:
            if then is not None:
                then()
            return
        self._wanted = max(self._wanted, epoch)
        if then is not None:
            self._waiting.append((epoch, then))
        self.write()

    def see(self, seen: tuple[int, int]) -> None:
        """Persist the (epoch, in-sync version) that the lease showed, so that it cannot go back.

        It is written by the next ``promise`` or ``write`` of this event: a won lease takes one
        write, and not two, one after the other.
        """
        self._wanted_seen = max(self._wanted_seen, seen)

    def tick(self) -> None:
        """Repeat a write that found no room, when it is due."""
        if self._retry_ms is not None and self._context.now_ms >= self._retry_ms:
            self._retry_ms = None
            self.write()

    def write(self) -> None:
        """Write what is not on disk yet, unless a write is under way."""
        wanted = (self._wanted, self._wanted_seen)
        if self._writing or self._retry_ms is not None or wanted == (self.promised, self._seen):
            return
        self._writing = True
        self._context.must_write(PROMISE)
        promised, (epoch, version) = wanted
        self._context.out.ask(
            lambda token: PersistPromise(token, promised, epoch, version),
            lambda _: self._written(promised, (epoch, version)),
            self._unwritten,
        )

    def _unwritten(self, code: str, detail: str) -> None:
        self._writing = False
        self._retry_ms = self._context.now_ms + RETRY_MS
        self._alarm = code
        self._context.no_room(code, detail)

    def _written(self, promised: int, seen: tuple[int, int]) -> None:
        self._writing = False
        self._context.wrote(PROMISE)
        if self._alarm is not None:
            self._context.calm(self._alarm)
            self._alarm = None
        self.promised, self._seen = promised, seen
        # The file also marks that this volume belongs to a group.
        self._context.initialised = True
        ready = [then for epoch, then in self._waiting if epoch <= promised]
        self._waiting = [(epoch, then) for epoch, then in self._waiting if epoch > promised]
        for then in ready:
            then()
        self.write()
