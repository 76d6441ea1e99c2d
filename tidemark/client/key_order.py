"""Which message may start next when several are worked on at once: never two of one key. Pure.

Messages of one key start in the order in which they came, each after the one before has ended;
messages of different keys, and those of no key, overtake each other freely. Invariants: at most one
message of a key is under way; what can start is never kept back by what cannot; each step costs the
same however many wait. The shell is ``handlers``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """Messages that wait for their turn."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable | None, T]] = deque()
        """May start, in the order in which they came or became free."""
        self._behind: dict[Hashable, deque[T]] = {}
        """Per key that is ready or under way: what waits behind it."""
        self._waiting_count = 0

    def __len__(self) -> int:
        """Messages that wait: ready ones and those behind another of their key."""
        return self._waiting_count

    def put(self, key: Hashable | None, item: T) -> None:
        """Take a message. key: None for one that nothing has to wait for."""
        self._waiting_count += 1
        if key is None:
            self._ready.append((None, item))
        elif (behind := self._behind.get(key)) is not None:
            behind.append(item)
        else:
            self._behind[key] = deque()
            self._ready.append((key, item))

    def start(self) -> tuple[Hashable | None, T] | None:
        """A message whose turn it is, with its key, which ``end`` wants back; None: nobody's."""
        if not self._ready:
            return None
        self._waiting_count -= 1
        return self._ready.popleft()

    def end(self, key: Hashable | None) -> None:
        """The message of this key that was started has ended: the next of its key is ready."""
        if key is None:
            return
        if behind := self._behind[key]:
            self._ready.append((key, behind.popleft()))
        else:
            del self._behind[key]

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out and return the waiting messages for which ``unwanted`` holds.

        Costs as much as there are messages waiting: for when a queue is taken away.
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
