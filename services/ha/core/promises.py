"""The epoch that this replica has promised to respect, durably, and what it saw of the lease. Pure.

Nothing of a higher epoch is processed before its promise is on disk; nothing of a lower one is
processed at all. One write of ``ha/promise`` at a time; what is promised meanwhile goes into the
next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.effects import PersistPromise
from services.ha.core.own import Own

RETRY_MS: Final = 2000
"""After a write that found no room."""


class Promises:
    """Of one start of ha."""

    def __init__(self, own: Own, promised: int, seen: tuple[int, int]) -> None:
        """promised, seen: as found on disk."""
        self._own = own
        self.promised = promised
        """On disk."""
        self._seen = seen
        self._wanted, self._wanted_seen = promised, seen
        self._writing = False
        self._retry_ms: int | None = None
        self._alarm: str | None = None
        """Raised because there was no room."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def highest(self) -> int:
        """Of what is promised and what is being promised."""
        return self._wanted

    @property
    def pending(self) -> bool:
        """Whether a higher epoch is being promised."""
        return self._wanted > self.promised

    def promise(self, epoch: int, then: Callable[[], None] | None = None) -> None:
        """Promise it; then is called once it is on disk, at once if it is."""
        if epoch <= self.promised:
            if then is not None:
                then()
            return
        self._wanted = max(self._wanted, epoch)
        if then is not None:
            self._waiting.append((epoch, then))
        self._write()

    def see(self, seen: tuple[int, int]) -> None:
        """The lease showed this (epoch, in-sync version): written, so that it cannot go back."""
        if seen > self._wanted_seen:
            self._wanted_seen = seen
            self._write()

    def tick(self) -> None:
        """Write again what found no room, when it is time to."""
        if self._retry_ms is not None and self._own.now_ms >= self._retry_ms:
            self._retry_ms = None
            self._write()

    def _write(self) -> None:
        wanted = (self._wanted, self._wanted_seen)
        if self._writing or self._retry_ms is not None or wanted == (self.promised, self._seen):
            return
        self._writing = True
        promised, (epoch, version) = wanted
        self._own.out.ask(
            lambda token: PersistPromise(token, promised, epoch, version),
            lambda _: self._written(promised, (epoch, version)),
            self._unwritten,
        )

    def _unwritten(self, code: str, detail: str) -> None:
        self._writing = False
        self._retry_ms = self._own.now_ms + RETRY_MS
        self._alarm = code
        self._own.no_room(code, detail)

    def _written(self, promised: int, seen: tuple[int, int]) -> None:
        self._writing = False
        if self._alarm is not None:
            self._own.calm(self._alarm)
            self._alarm = None
        self.promised, self._seen = promised, seen
        # The file is also the marker that this volume is a group's.
        self._own.initialised = True
        ready = [then for epoch, then in self._waiting if epoch <= promised]
        self._waiting = [(epoch, then) for epoch, then in self._waiting if epoch > promised]
        for then in ready:
            then()
        self._write()
