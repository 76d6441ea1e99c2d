"""Stretches of the log that somebody traces, as one service tells another: for log lines only.

The broker says, with a ring of its doorbell, where a traced request's messages lie; reput and ha
write a line when they have carried out their step for them. Best effort and bounded: a note may be
lost, the oldest stretch goes when there are too many, and one that nothing comes of is forgotten.
Costs nothing while there is none. Pure but for what ``reached`` is given to call.

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
    """Where the messages of one traced request lie."""

    trace: str
    start_offset: int
    end_offset: int


def encode(traced: TracedRange) -> bytes:
    """As a note."""
    return json.dumps(traced).encode()


def decode(note: bytes) -> TracedRange | None:
    """None if it is none: a note of another release, say."""
    try:
        trace, start, end = json.loads(note)
        if isinstance(trace, str) and len(trace) <= TRACE_SIZE_MAX:
            return TracedRange(trace, int(start), int(end))
    except (ValueError, TypeError, RecursionError):
        return None
    return None


class TracedRanges:
    """Those whose step is still to come."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: deque[tuple[float, TracedRange]] = deque(maxlen=RANGES_MAX)

    def __bool__(self) -> bool:
        """Whether anything is waited for."""
        return bool(self._waiting)

    def note(self, note: bytes) -> None:
        """Another service says that a stretch is traced."""
        traced = decode(note)
        if traced is not None:
            self._waiting.append((self._monotonic(), traced))

    def reached(self, offset: int, say: Callable[[TracedRange], None]) -> None:
        """The step is done up to offset: have said so for every stretch that lies below."""
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
