"""What repeated sends have appended lately, for first tries that were overtaken by their repeats.

Before: ``deduplicator`` appends what a repeat brings. After: ``stored_ids`` searches those parts.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from tidemark.errors import Overloaded
from tidemark.offsets import PhysicalOffset

NOTED_MAX: Final = 16_384
"""Unique ids of repeats that are kept for requests under way: some 2 MiB."""


class Part(NamedTuple):
    """A part of the log: whole records."""

    start: PhysicalOffset
    end: PhysicalOffset


class _Note(NamedTuple):
    """What one repeated request has appended."""

    topic: str
    unique_ids: frozenset[str]
    part: Part


class Repeats:
    """What repeated requests have appended lately, for first tries that were under way meanwhile.

    Otherwise: 1. a first try waits: for the rest of its body, for its topic to be made, for the
    next log file; 2. its client gives up and sends it again; 3. the repeat goes on first, finds
    nothing and appends; 4. the first try goes on and appends as well.
    """

    __slots__ = ("_id_count", "_notes", "count")

    def __init__(self) -> None:
        self.count = 0
        """Repeated requests that ever appended something. To be kept before a wait, and compared
        behind it."""
        self._notes: deque[_Note] = deque()
        self._id_count = 0

    def note(self, topic: str, unique_ids: Iterable[str], part: Part) -> None:
        """Note what a repeated request has appended; called before anything is awaited."""
        made = _Note(topic, frozenset(unique_ids), part)
        self._notes.append(made)
        self.count += 1
        self._id_count += len(made.unique_ids)
        while self._id_count > NOTED_MAX:
            self._id_count -= len(self._notes.popleft().unique_ids)

    def since(self, count: int, topic: str, unique_ids: Collection[str]) -> list[Part]:
        """Where any of these ids may have been appended since the count was this one.

        Raises Overloaded if more was appended since then than is kept.
        """
        new = self.count - count
        if new > len(self._notes):
            raise Overloaded(
                f"while the request waited, more than {NOTED_MAX} messages were sent again, and "
                "it is not known whether its own are among them. Nothing was stored.",
                "Try again.",
                limit=NOTED_MAX,
            )
        return [
            note.part
            for note in itertools.islice(self._notes, len(self._notes) - new, None)
            if note.topic == topic and not note.unique_ids.isdisjoint(unique_ids)
        ]
