"""Counts messages deleted unread, per group: each lost message once, and no message that was read.

Pure. When a queue's minimum moves up, a group has lost the messages between its committed offset
and the new minimum. But the member that reads the queue may be processing some of them, without a
commit yet. These are kept here until the member commits them (read) or the queue changes its owner
(lost: the next owner begins at the minimum). Without members, it is unknown which messages are in
progress, so all uncommitted ones count as lost.

Step before: ``deletion`` reports the new minimums. Step after: the counter of skipped messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.offsets import Queue

IN_HANDS_MAX: Final = 10_000
"""Maximum number of ranges kept here; further ones count as lost at once."""


class Reading(NamedTuple):
    """How far a queue's messages were delivered to a member."""

    member: str
    next_offset: int
    """Queue offset after the last delivered message."""


class _InHands(NamedTuple):
    first: int
    end: int
    member: str


class Losses:
    """Messages that groups lost, and deleted messages that members still process."""

    def __init__(self, in_hands_max: int = IN_HANDS_MAX) -> None:
        self._in_hands: dict[tuple[str, Queue], list[_InHands]] = {}
        self._ranges = 0
        self._in_hands_max = in_hands_max

    @property
    def waiting(self) -> list[tuple[str, Queue]]:
        """Return the (group, queue) pairs for which ``settle`` must be called."""
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
        """Note that a queue's minimum moves from old_min to new_min; return how many messages the
        group lost. committed: next queue offset to consume. reading: progress of the queue's owner,
        or of its last owner if that one may still commit."""
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
        """Settle delivered messages; return how many are known to be lost now.
        committed: the group's present offset; None: the group was deleted with its offsets. holder:
        the member that may commit messages of the queue now."""
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
    """Return the number of messages of [begin, end) that a group has not committed."""
    return max(0, end - max(committed, begin))
