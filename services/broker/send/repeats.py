"""Records what repeated sends appended lately, so that a delayed first attempt finds its repeat.

Before this step ``deduplicator`` appends the messages of a repeat. After it ``stored_ids`` searches
the parts of the log that are recorded here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from tidemark.errors import Overloaded
from tidemark.offsets import PhysicalOffset

NOTED_MAX: Final = 16_384
"""Unique ids of repeats that are kept for requests in progress: about 2 MiB."""


class Part(NamedTuple):
    """A range of the log that consists of whole records."""

    start: PhysicalOffset
    end: PhysicalOffset


class _Note(NamedTuple):
    """The messages that one repeated request appended."""

    topic: str
    unique_ids: frozenset[str]
    part: Part


class Repeats:
    """The messages that repeated requests appended lately; checked by first attempts that waited.

    Without it messages would be stored twice: 1. a first attempt waits for the rest of its body,
    for the creation of its topic, or for the next log file; 2. the client gives up and repeats the
    send; 3. the repeat is processed first, finds nothing and appends; 4. the first attempt
    continues and appends as well.
    """

    __slots__ = ("_id_count", "_notes", "count")

    def __init__(self) -> None:
        self.count = 0
        """Number of repeated requests that appended something since the start. A request saves it
        before a wait and compares it after the wait."""
        self._notes: deque[_Note] = deque()
        self._id_count = 0

    def note(self, topic: str, unique_ids: Iterable[str], part: Part) -> None:
        """Record what a repeated request appended; must be called before the next await."""
        made = _Note(topic, frozenset(unique_ids), part)
        self._notes.append(made)
        self.count += 1
        self._id_count += len(made.unique_ids)
        while self._id_count > NOTED_MAX:
            self._id_count -= len(self._notes.popleft().unique_ids)

    def since(self, count: int, topic: str, unique_ids: Collection[str]) -> list[Part]:
        """Return the parts of the log where repeats appended any of these ids after this count.

        Raises Overloaded if some of the records since then were dropped.
        """
        new = self.count - count
        if new > len(self._notes):
            raise Overloaded(
                f"while the request waited, more than {NOTED_MAX} messages were sent again, and "
                "it is unknown whether these include its own. Nothing was stored.",
                "Try again.",
                limit=NOTED_MAX,
            )
        return [
            note.part
            for note in itertools.islice(self._notes, len(self._notes) - new, None)
            if note.topic == topic and not note.unique_ids.isdisjoint(unique_ids)
        ]
