"""How far a member has processed one queue, and which offset it may commit. Pure.

Messages of a queue are delivered in ascending order and may be finished in any order. The offset
that may be committed is the lowest one that is not finished: everything below is done, so the next
owner misses nothing. Invariants: the position never decreases, never passes a delivered message
that is not finished, and never passes one that was given up. Each step has constant cost, however
many messages are in progress. The shell is ``subscription``; ``commits`` decides when a position is
sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class QueueProgress:
    """Progress of one member in one queue. Offsets are queue offsets."""

    __slots__ = ("_finished", "_given_up_at", "_in_progress", "_reached")

    def __init__(self, start: int | None = None) -> None:
        """start: everything below it is done; None until the first message or ``cover`` sets it."""
        self._reached = start
        self._in_progress: deque[int] = deque()
        """Delivered offsets, ascending; finished ones stay while a lower one is unfinished."""
        self._finished: set[int] = set()
        """Offsets in ``_in_progress`` that are finished."""
        self._given_up_at: int | None = None

    @property
    def position(self) -> int | None:
        """The offset that may be committed; None while unknown."""
        at = self._in_progress[0] if self._in_progress else self._reached
        if self._given_up_at is not None and (at is None or at > self._given_up_at):
            return self._given_up_at
        return at

    @property
    def in_progress(self) -> int:
        """Number of messages delivered and not finished."""
        return len(self._in_progress) - len(self._finished)

    @property
    def span(self) -> int:
        """Number of messages from the lowest unfinished one to the newest delivered one.

        At most this many are delivered again if the member dies now.
        """
        return len(self._in_progress)

    @property
    def is_idle(self) -> bool:
        """Whether all delivered messages are finished."""
        return not self._in_progress  # finished offsets are removed with the last unfinished one

    @property
    def reached(self) -> int | None:
        """The offset after the last one delivered or covered."""
        return self._reached

    def hand(self, offset: int) -> None:
        """Record a delivered message. Raises ValueError if it is not above all before it."""
        if self._reached is not None and offset < self._reached:
            raise ValueError(f"queue offset {offset} after {self._reached} was reached")
        self._in_progress.append(offset)
        self._reached = offset + 1

    def hand_all(self, offsets: Sequence[int]) -> None:
        """Record several delivered messages, ascending. Raises ValueError like ``hand``."""
        if offsets:
            self.hand(offsets[0])
            self._in_progress.extend(offsets[1:])
            self._reached = offsets[-1] + 1

    def is_in_progress(self, offset: int) -> bool:
        """Whether a message is not finished. offset: offset of a message that was delivered."""
        in_progress = self._in_progress
        return bool(
            in_progress
            and in_progress[0] <= offset <= in_progress[-1]
            and offset not in self._finished
        )

    def finish(self, offset: int) -> None:
        """Record that a message is done: handled or nacked.

        offset: offset of a message that was delivered and is not finished. Raises ValueError if it
        is outside the range in progress or finished already. Whether it is in the range's list is
        not checked, because that search would cost more with every message.
        """
        in_progress = self._in_progress
        if in_progress and in_progress[0] == offset:
            in_progress.popleft()
            finished = self._finished
            while finished and in_progress[0] in finished:
                finished.remove(in_progress.popleft())
        elif (
            not in_progress
            or not in_progress[0] < offset <= in_progress[-1]
            or offset in self._finished
        ):
            raise ValueError(f"queue offset {offset} is not in progress")
        else:
            self._finished.add(offset)

    def finish_all(self, offsets: Sequence[int]) -> None:
        """Record that several messages are done, ascending. Raises ValueError like ``finish``."""
        in_progress, count = self._in_progress, len(offsets)
        if (
            count
            and not self._finished
            and count <= len(in_progress)
            and in_progress[0] == offsets[0]
            and in_progress[count - 1] == offsets[-1]
        ):
            # All were delivered, so they are exactly the first ones in progress.
            for _ in range(count):
                in_progress.popleft()
            return
        for offset in offsets:
            self.finish(offset)

    def give_up(self, offset: int) -> None:
        """Record that a delivered message stays undone and is left to the next owner.

        The position no longer passes it, even if later messages are finished.
        """
        self.finish(offset)
        if self._given_up_at is None or offset < self._given_up_at:
            self._given_up_at = offset

    @property
    def has_given_up(self) -> bool:
        """Whether a message was given up, so that the position no longer advances."""
        return self._given_up_at is not None

    def unused_from(self, unused: Collection[int]) -> int | None:
        """Return the lowest offset from which on all delivered messages are in ``unused``.

        Returns None if the newest is not in it.
        """
        lowest: int | None = None
        for offset in reversed(self._in_progress):
            if offset not in unused:
                break
            lowest = offset
        return lowest

    def take_back(self, offset: int) -> None:
        """Undo the delivery of all messages from ``offset`` on: they are delivered again."""
        while self._in_progress and self._in_progress[-1] >= offset:
            self._in_progress.pop()
        self._reached = offset

    def cover(self, next_offset: int) -> None:
        """Record that everything below ``next_offset`` is filtered, expired or delivered."""
        if self._reached is None or next_offset > self._reached:
            self._reached = next_offset
