"""The write buffer pool: appended bytes that wait in memory to be put into the file together. Pure.

RocketMQ's transient store pool (docs/formats.md, section 7.7), bounded by bytes instead of files:
one ring, allocated once. Whoever appends puts records at its head, whoever commits takes stretches
of adjacent bytes from its tail; each may be a thread of its own. Nothing in here was published:
readers, the flush and an ack stop at what is in the file. Invariants:

- Records of one append are adjacent in memory: where the ring's end is too near, they begin anew at
  its start, and the rest stays empty for that round.
- Bytes leave in physical order, and only by ``free``: a failed commit takes nothing away.

Beside it the decision when to commit (``commit_due``). Before: ``commit_log_appender`` encodes into
the ring. After: the appender writes its stretches to the file.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

PAGE_SIZE: Final = 4096


class CommitPace(NamedTuple):
    """When pooled bytes that nobody waits for go into the file. Times in seconds."""

    interval_s: float
    """After the last commit, if there are ``least_bytes``."""
    least_bytes: int
    """Fewer than this wait for the thorough commit."""
    thorough_s: float
    """Commit whatever there is so long after the last commit."""


def commit_due(
    pace: CommitPace, *, pooled: int, waiting: bool, since_commit_s: float
) -> float | None:
    """Say in how many seconds to commit: 0 at once, None while nothing is pooled.

    pooled: bytes in the pool. waiting: whether somebody waits for an ack of any of them: ``memory``
    is true only of bytes in the file, and ``disk`` is behind that. since_commit_s: since the last
    commit ended.
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
    """Bytes adjacent in memory and in the log."""

    offset: int
    position: int
    size: int


class WritePool:
    """The ring. ``place`` and ``put`` belong to one thread, ``stretches`` and ``free`` to one at a
    time; the two may be different."""

    def __init__(self, size: int) -> None:
        """size: bytes; rounded up to whole pages."""
        self.size: Final = -(-size // PAGE_SIZE) * PAGE_SIZE
        self._memory = memoryview(bytearray(self.size))
        self._kept: deque[_Stretch] = deque()
        self._head = 0
        self._changing = threading.Lock()

    def place(self, size: int) -> memoryview | None:
        """Memory for that many bytes, still nobody's until ``put``; None if it is not free now.

        An empty pool has room for everything up to its size.
        """
        with self._changing:
            head, kept = self._head, self._kept
            if not kept:
                head, room = 0, self.size
            else:
                tail = kept[0].position
                if head <= tail:  # the oldest bytes stand before us; equal: full
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
        """Keep the size bytes that stand where the last ``place`` said, for that physical offset;
        not below the end of those put before."""
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
        """Physical offset and bytes of what is kept below end, ascending, as few as they are.

        end: a border between appends. The bytes stay as they are until ``free``.
        """
        with self._changing:
            return [
                (each.offset, self._memory[each.position : each.position + size])
                for each in self._kept
                if (size := min(each.size, end - each.offset)) > 0
            ]

    def free(self, end: int) -> None:
        """Forget the bytes below end: they are in the file."""
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
