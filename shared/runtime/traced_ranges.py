"""Ranges of the log that are traced, passed from one service to another, for log lines only.

The broker sends the range of a traced request's messages with a ring of its doorbell. reput and ha
write a log line when they have processed the range. This is best effort and bounded: a note may be
lost, the oldest range is dropped when there are too many, and a range that is not reached in time
is dropped. It costs nothing while no request is traced. Pure, except for the callback of
``reached``.

Step before: the broker has appended. Step after: docs/logs.md, following a message.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

RANGES_MAX: Final = 256
FORGOTTEN_AFTER_S: Final = 60.0
TRACE_SIZE_MAX: Final = 64


class TracedRange(NamedTuple):
    """The range of the log that holds the messages of one traced request."""

    trace: str
    start_offset: int
    end_offset: int


def encode(traced: TracedRange) -> bytes:
    """Encode a range as a note."""
    return json.dumps(traced).encode()


def decode(note: bytes) -> TracedRange | None:
    """Decode a note; None if it is not a range, for example a note of another release."""
    try:
        trace, start, end = json.loads(note)
        if isinstance(trace, str) and len(trace) <= TRACE_SIZE_MAX:
            return TracedRange(trace, int(start), int(end))
    except (ValueError, TypeError, RecursionError):
        return None
    return None


class TracedRanges:
    """Traced ranges that this service has not processed yet."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: deque[tuple[float, TracedRange]] = deque(maxlen=RANGES_MAX)

    def __bool__(self) -> bool:
        """Whether any range is waiting."""
        return bool(self._waiting)

    def note(self, note: bytes) -> None:
        """Take a note of another service that a range is traced."""
        traced = decode(note)
        if traced is not None:
            self._waiting.append((self._monotonic(), traced))

    def reached(self, offset: int, say: Callable[[TracedRange], None]) -> None:
        """Call ``say`` for every range that ends at or below offset, and remove it."""
        if not self._waiting:
            return
        now = self._monotonic()
        left = [each for each in self._waiting if now - each[0] < FORGOTTEN_AFTER_S]
        self._waiting.clear()
        for noted_at, traced in left:
            if traced.end_offset <= offset:
                say(traced)
            else:
                self._waiting.append((noted_at, traced))
