"""Where in the log the newest whole snapshot begins. Pure.

Retention keeps everything from there: a snapshot counts only once its last part is on disk, so the
one before it stays the newest until then. Before: ``state_log`` appends. After: ``retention``.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.offsets import PhysicalOffset


class Place(NamedTuple):
    """One snapshot: its first byte, and the end of its last part."""

    start: PhysicalOffset
    end: int


class SnapshotPlaces:
    """Of one log."""

    def __init__(self, start: int | None) -> None:
        """start: of the newest whole one that was on disk when the log was opened; None: none."""
        self._newest = None if start is None else PhysicalOffset(start)
        self._begun: PhysicalOffset | None = None
        self._complete: list[Place] = []

    @property
    def begun(self) -> bool:
        """A snapshot's first part is in the log, its last one is not."""
        return self._begun is not None

    def begin(self, start: PhysicalOffset) -> None:
        """A first part is in the log; one that was begun before will not be finished."""
        self._begun = start

    def complete(self, end: int) -> None:
        """The last part of the one begun is in the log, and ends there."""
        if self._begun is not None:
            self._complete.append(Place(self._begun, end))
            self._begun = None

    def abandon(self) -> None:
        """The one begun will not be finished."""
        self._begun = None

    def newest(self, flushed: int) -> PhysicalOffset | None:
        """The start of the newest one that is on disk to its end; None: there is none."""
        while self._complete and self._complete[0].end <= flushed:
            self._newest = self._complete.pop(0).start
        return self._newest
