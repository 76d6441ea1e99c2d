"""Start of the newest complete snapshot in the log. Pure.

Retention keeps the log from there on. A snapshot is used only once its last part is on disk; until
then the previous one stays the newest. ``state_log`` appends snapshots before this step; after it
``retention`` uses the result.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.offsets import PhysicalOffset


class Place(NamedTuple):
    """One snapshot: start of its first part and end of its last part."""

    start: PhysicalOffset
    end: int


class SnapshotPlaces:
    """The snapshots of one log."""

    def __init__(self, start: int | None) -> None:
        """start: start of the newest complete snapshot that was on disk when the log was opened;
        None: none."""
        self._newest = None if start is None else PhysicalOffset(start)
        self._begun: PhysicalOffset | None = None
        self._complete: list[Place] = []

    @property
    def begun(self) -> bool:
        """Whether a snapshot's first part is in the log and its last part is not."""
        return self._begun is not None

    def begin(self, start: PhysicalOffset) -> None:
        """Record that a snapshot's first part is in the log; drop an unfinished snapshot."""
        self._begun = start

    def complete(self, end: int) -> None:
        """Record that the last part of the current snapshot is in the log and ends at end."""
        if self._begun is not None:
            self._complete.append(Place(self._begun, end))
            self._begun = None

    def abandon(self) -> None:
        """Drop the unfinished snapshot."""
        self._begun = None

    def newest(self, flushed: int) -> PhysicalOffset | None:
        """Return the start of the newest snapshot that is completely on disk; None: none."""
        while self._complete and self._complete[0].end <= flushed:
            self._newest = self._complete.pop(0).start
        return self._newest
