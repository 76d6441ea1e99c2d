"""How far a member has come in one queue: what it may commit. Pure.

A queue is handed out in ascending order and may be finished in any. What may be committed is the
lowest offset that is not finished: everything below it is done, so whoever goes on from there
misses nothing. Invariants: the position never goes back, never passes a message that was handed out
and is not finished, and never passes one that was given up. Each step costs the same however many
messages are under way. The shell is ``subscription``; ``commits`` says when a position leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class QueueProgress:
    """One queue in the hands of one member. Offsets are queue offsets."""

    __slots__ = ("_finished", "_given_up_at", "_reached", "_under_way")

    def __init__(self, start: int | None = None) -> None:
        """start: everything below it is done; None until the first message or ``cover`` says."""
        self._reached = start
        self._under_way: deque[int] = deque()
        """Handed out, ascending; finished ones are still in it behind one that is not."""
        self._finished: set[int] = set()
        """Those in ``_under_way`` that are finished."""
        self._given_up_at: int | None = None

    @property
    def position(self) -> int | None:
        """What may be committed: the offset to go on from. None while nothing is known."""
        at = self._under_way[0] if self._under_way else self._reached
        if self._given_up_at is not None and (at is None or at > self._given_up_at):
            return self._given_up_at
        return at

    @property
    def under_way(self) -> int:
        """Messages handed out and not finished."""
        return len(self._under_way) - len(self._finished)

    @property
    def span(self) -> int:
        """Messages from the lowest that is not finished to the newest handed out.

        So many are delivered again at most if the member dies now.
        """
        return len(self._under_way)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is handed out and not finished."""
        return not self._under_way  # what is finished leaves with the last one before it

    @property
    def reached(self) -> int | None:
        """One behind the last offset handed out or covered."""
        return self._reached

    def hand(self, offset: int) -> None:
        """A message goes to the program. Raises ValueError if it is not above all before it."""
        if self._reached is not None and offset < self._reached:
            raise ValueError(f"queue offset {offset} after {self._reached} was reached")
        self._under_way.append(offset)
        self._reached = offset + 1

    def hand_all(self, offsets: Sequence[int]) -> None:
        """Several messages go to the program, ascending. Raises ValueError as ``hand`` does."""
        if offsets:
            self.hand(offsets[0])
            self._under_way.extend(offsets[1:])
            self._reached = offsets[-1] + 1

    def is_under_way(self, offset: int) -> bool:
        """Whether a message that was handed out is not finished; offset: of a message that was."""
        under_way = self._under_way
        return bool(
            under_way and under_way[0] <= offset <= under_way[-1] and offset not in self._finished
        )

    def finish(self, offset: int) -> None:
        """A message is done: handled, or sent back.

        offset: of a message handed out and not finished. Raises ValueError for one below or above
        all that is under way, or finished already; looking for it among them would cost more with
        every message.
        """
        under_way = self._under_way
        if under_way and under_way[0] == offset:
            under_way.popleft()
            finished = self._finished
            while finished and under_way[0] in finished:
                finished.remove(under_way.popleft())
        elif (
            not under_way or not under_way[0] < offset <= under_way[-1] or offset in self._finished
        ):
            raise ValueError(f"queue offset {offset} is not under way")
        else:
            self._finished.add(offset)

    def give_up(self, offset: int) -> None:
        """A message handed out stays undone here: it is for whoever has the queue next.

        The position does not pass it any more, whatever is finished behind it.
        """
        self.finish(offset)
        if self._given_up_at is None or offset < self._given_up_at:
            self._given_up_at = offset

    @property
    def has_given_up(self) -> bool:
        """Whether a message was given up, so that the position stands still."""
        return self._given_up_at is not None

    def unused_from(self, unused: Collection[int]) -> int | None:
        """The lowest offset from which all messages handed out are in ``unused``; None: the newest
        is not."""
        lowest: int | None = None
        for offset in reversed(self._under_way):
            if offset not in unused:
                break
            lowest = offset
        return lowest

    def take_back(self, offset: int) -> None:
        """What was handed out from ``offset`` on was not used: it is handed out again."""
        while self._under_way and self._under_way[-1] >= offset:
            self._under_way.pop()
        self._reached = offset

    def cover(self, next_offset: int) -> None:
        """Nothing below ``next_offset`` is left to hand out: filtered, expired, or handed out."""
        if self._reached is None or next_offset > self._reached:
            self._reached = next_offset
