"""Decides which message starts next when several are processed at once, one per key. Pure.

Messages of one key start in the order of their arrival, each after the previous one has ended.
Messages of different keys, and those without a key, overtake each other freely. Invariants: at most
one message of a key is in progress; a message that can start never waits for one that cannot; each
step has constant cost, however many messages wait. The shell is ``handlers``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """Messages that wait to be processed."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable | None, T]] = deque()
        """Messages that may start, in the order in which they arrived or became ready."""
        self._behind: dict[Hashable, deque[T]] = {}
        """Per key that is ready or in progress: the messages that wait for it."""
        self._waiting_count = 0

    def __len__(self) -> int:
        """Number of waiting messages, ready or behind another of their key."""
        return self._waiting_count

    def put(self, key: Hashable | None, item: T) -> None:
        """Add a message. key: None for a message without ordering."""
        self._waiting_count += 1
        if key is None:
            self._ready.append((None, item))
        elif (behind := self._behind.get(key)) is not None:
            behind.append(item)
        else:
            self._behind[key] = deque()
            self._ready.append((key, item))

    def start(self) -> tuple[Hashable | None, T] | None:
        """Return the next message with its key, which ``end`` needs; None if none is ready."""
        if not self._ready:
            return None
        self._waiting_count -= 1
        return self._ready.popleft()

    def end(self, key: Hashable | None) -> None:
        """Record that the started message of this key has ended: the next one becomes ready."""
        if key is None:
            return
        if behind := self._behind[key]:
            self._ready.append((key, behind.popleft()))
        else:
            del self._behind[key]

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the waiting messages for which ``unwanted`` is true.

        The cost grows with the number of waiting messages; used when a queue is revoked.
        """
        dropped: list[T] = []
        ready: deque[tuple[Hashable | None, T]] = deque()
        freed: list[Hashable] = []
        for key, item in self._ready:
            if not unwanted(item):
                ready.append((key, item))
                continue
            dropped.append(item)
            if key is not None:
                freed.append(key)
        for behind in self._behind.values():
            kept = [item for item in behind if not unwanted(item)]
            if len(kept) < len(behind):
                dropped += [item for item in behind if unwanted(item)]
                behind.clear()
                behind.extend(kept)
        self._ready = ready
        self._waiting_count -= len(dropped)
        for key in freed:
            self.end(key)
        return dropped
