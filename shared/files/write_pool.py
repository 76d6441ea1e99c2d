"""The write buffer pool: appended bytes that wait in memory to be written together. Pure.

It is RocketMQ's transient store pool (docs/formats.md, section 7.7), limited by bytes instead of
files: one ring, allocated once. The appending thread puts records at its head, the committing
thread takes ranges of adjacent bytes from its tail. Nothing in the pool is published: readers, the
flush and acknowledgements only cover bytes in the file. Invariants:

- Records of one append are adjacent in memory: if the ring's end is too near, they start again at
  its beginning, and the rest stays empty for that round.
- Bytes leave in physical order, and only by ``free``: a failed commit removes nothing.

``commit_due`` decides when to commit. Step before: ``commit_log_appender`` encodes into the ring.
After: the appender writes the ranges to the file.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

PAGE_SIZE: Final = 4096


class CommitPace(NamedTuple):
    """When pooled bytes are written although no request waits for them. Times in seconds."""

    interval_s: float
    """Time since the last commit, if there are ``least_bytes``."""
    least_bytes: int
    """Fewer bytes than this wait for the thorough commit."""
    thorough_s: float
    """Time since the last commit after which any bytes are committed."""


def commit_due(
    pace: CommitPace, *, pooled: int, waiting: bool, since_commit_s: float
) -> float | None:
    """Return the seconds until the next commit: 0 at once, None while nothing is pooled.

    pooled: bytes in the pool. waiting: whether a request waits for an acknowledgement of any of
    them; the levels ``memory`` and ``disk`` both require the bytes to be in the file.
    since_commit_s: time since the last commit ended.
    """
    if pooled <= 0:
        return None
    if waiting:
        return 0.0
    least = pace.thorough_s
    if pooled >= pace.least_bytes:
        least = min(least, pace.interval_s)
    return max(0.0, least - since_commit_s)


@dataclass(slots=True)
class _Stretch:
    """Bytes that are adjacent in memory and in the log."""

    offset: int
    position: int
    size: int


class WritePool:
    """The ring. ``place`` and ``put`` belong to one thread, ``stretches`` and ``free`` to one
    thread at a time; the two threads may differ."""

    def __init__(self, size: int) -> None:
        """size: bytes; rounded up to whole pages."""
        self.size: Final = -(-size // PAGE_SIZE) * PAGE_SIZE
        self._memory = memoryview(bytearray(self.size))
        self._kept: deque[_Stretch] = deque()
        self._head = 0
        self._changing = threading.Lock()

    def place(self, size: int) -> memoryview | None:
        """Return memory for that many bytes, kept only by ``put``; None if it is not free now. An
        empty pool has room for everything up to its size."""
        with self._changing:
            head, kept = self._head, self._kept
            if not kept:
                head, room = 0, self.size
            else:
                tail = kept[0].position
                if head <= tail:  # the oldest bytes are ahead; equal: the ring is full
                    room = tail - head
                elif size <= self.size - head:
                    room = self.size - head
                else:
                    head, room = 0, tail
            if size > room:
                return None
            self._head = head
        return self._memory[head : head + size]

    def put(self, offset: int, size: int) -> None:
        """Keep the size bytes at the last ``place`` for that physical offset, which must not be
        below the end of the bytes put earlier."""
        with self._changing:
            kept, head = self._kept, self._head
            if kept:
                last = kept[-1]
                if last.position + last.size == head and last.offset + last.size == offset:
                    last.size += size
                    self._head = head + size
                    return
            kept.append(_Stretch(offset, head, size))
            self._head = head + size

    def stretches(self, end: int) -> list[tuple[int, memoryview]]:
        """Return physical offset and bytes of the ranges below end, ascending, as few as possible.
        end: a border between appends. The bytes stay unchanged until ``free``."""
        with self._changing:
            return [
                (each.offset, self._memory[each.position : each.position + size])
                for each in self._kept
                if (size := min(each.size, end - each.offset)) > 0
            ]

    def free(self, end: int) -> None:
        """Release the bytes below end, which are in the file."""
        with self._changing:
            kept = self._kept
            while kept:
                first = kept[0]
                done = end - first.offset
                if done < first.size:
                    if done > 0:
                        first.offset += done
                        first.position += done
                        first.size -= done
                    return
                kept.popleft()
