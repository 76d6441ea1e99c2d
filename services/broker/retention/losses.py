"""Messages that go unread with a log file, counted per group: each once, and no read one. Pure.

When a queue's minimum moves up, a group has lost what lies between its place and the new minimum.
Its place is what it committed; but of a queue that a member reads, messages may be in that member's
hands, not committed yet. Those are neither lost nor safe, so they wait here until the member
commits them (safe) or the queue changes hands (lost: its next owner begins at the minimum).
Without members nobody knows what is in whose hands: what is not committed when it goes is lost.

Before: ``deletion`` tells where queues begin. After: the counter of skipped messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Queue = tuple[str, int]
"""(topic, queue)."""

IN_HANDS_MAX: Final = 10_000
"""Ranges that may wait; what comes beyond counts as lost at once."""


class Reading(NamedTuple):
    """How far a member has been handed a queue's messages."""

    member: str
    next_offset: int
    """Behind the last message in its hands."""


class _InHands(NamedTuple):
    first: int
    end: int
    member: str


class Losses:
    """What groups lost, and what members still hold of what is gone."""

    def __init__(self, in_hands_max: int = IN_HANDS_MAX) -> None:
        self._in_hands: dict[tuple[str, Queue], list[_InHands]] = {}
        self._ranges = 0
        self._in_hands_max = in_hands_max

    @property
    def waiting(self) -> list[tuple[str, Queue]]:
        """(group, queue) for which ``settle`` is to be called."""
        return list(self._in_hands)

    def moved_up(
        self,
        group: str,
        queue: Queue,
        *,
        committed: int,
        old_min: int,
        new_min: int,
        reading: Reading | None,
    ) -> int:
        """A queue's minimum goes from old_min to new_min: how many messages the group lost.

        committed: the next queue offset to consume. reading: of the member that has the queue, or
        had it last and may still commit.
        """
        first = max(committed, old_min)
        in_hands_end = first if reading is None else min(max(reading.next_offset, first), new_min)
        if first >= new_min:
            return 0
        if reading is not None and first < in_hands_end:
            if self._ranges >= self._in_hands_max:
                return new_min - first
            ranges = self._in_hands.setdefault((group, queue), [])
            ranges.append(_InHands(first, in_hands_end, reading.member))
            self._ranges += 1
        return new_min - in_hands_end

    def settle(self, group: str, queue: Queue, *, committed: int | None, holder: str | None) -> int:
        """See what became of messages in hands: how many are lost, now that it is known.

        committed: what the group has committed now; None: it is gone, with all of its offsets.
        holder: the member that may commit what it got of the queue now.
        """
        ranges = self._in_hands.pop((group, queue), [])
        self._ranges -= len(ranges)
        kept, lost = [], 0
        for held in ranges:
            first = held.end if committed is None else max(held.first, committed)
            if first >= held.end:
                continue
            if held.member == holder:
                kept.append(held._replace(first=first))
            else:
                lost += held.end - first
        if kept:
            self._in_hands[group, queue] = kept
            self._ranges += len(kept)
        return lost


def unread(committed: int, begin: int, end: int) -> int:
    """Messages of [begin, end) that a group has not committed."""
    return max(0, end - max(committed, begin))
