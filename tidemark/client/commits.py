"""Decides which offsets a member commits, and when. Pure: times are arguments.

Many positions change many times a second. One request at a time carries all changes, at the
earliest one interval after the previous request. Invariants: an offset is sent only if it is above
the acknowledged one. Offsets of a failed request are sent again. A position that changes during a
request is sent with the next one. The shell is ``committing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from tidemark.client.queue_names import Queue

CommitAck = Literal["accepted", "disk"]
"""Level at which a commit is acknowledged."""

COMMIT_INTERVAL_MS: Final = 100
"""The interval at which the broker writes changed offsets (docs/formats.md); less gains nothing."""


class CommitLedger:
    """Reached positions and acknowledged positions per queue."""

    def __init__(self, interval_ms: float) -> None:
        """interval_ms: minimum time between the starts of two requests."""
        if interval_ms < 0:
            raise ValueError(f"commit_interval_ms must be 0 or more, not {interval_ms}")
        self._interval_ms = interval_ms
        self._reached: dict[Queue, int] = {}
        """Positions above the acknowledged ones."""
        self._acknowledged: dict[Queue, int] = {}
        self._taken: dict[Queue, int] | None = None
        self._taken_at_ms: float | None = None

    def know(self, queue: Queue, committed: int) -> None:
        """Record the offset that the broker reports as committed."""
        self._acknowledged[queue] = committed
        if self._reached.get(queue, committed + 1) <= committed:
            del self._reached[queue]

    def acknowledged(self, queue: Queue) -> int | None:
        """The offset known to be committed; None if unknown."""
        return self._acknowledged.get(queue)

    def offer(self, queue: Queue, position: int) -> None:
        """Record that all messages below ``position`` are done."""
        if position > self._acknowledged.get(queue, -1):
            self._reached[queue] = max(position, self._reached.get(queue, position))

    def forget(self, queues: Iterable[Queue]) -> None:
        """Drop the state of queues that this member no longer owns."""
        for queue in queues:
            self._reached.pop(queue, None)
            self._acknowledged.pop(queue, None)
            if self._taken is not None:
                self._taken.pop(queue, None)

    def settled(self, queue: Queue) -> bool:
        """Whether everything offered for a queue is acknowledged."""
        return queue not in self._reached

    def wait_ms(self, now_ms: float) -> float | None:
        """Time until ``take`` is due; None while a request is in flight or nothing changed."""
        if self._taken is not None or not self._reached:
            return None
        if self._taken_at_ms is None:
            return 0.0
        return max(0.0, self._taken_at_ms + self._interval_ms - now_ms)

    def take(self, now_ms: float) -> Mapping[Queue, int]:
        """Return the offsets for one request; empty while one is in flight or nothing changed.

        May be called before ``wait_ms`` has passed, to commit at once.
        """
        if self._taken is not None or not self._reached:
            return {}
        self._taken = dict(self._reached)
        self._taken_at_ms = now_ms
        return dict(self._taken)

    def accepted(self) -> None:
        """The broker has acknowledged the taken offsets."""
        taken, self._taken = self._taken, None
        for queue, position in (taken or {}).items():
            self.know(queue, position)

    def failed(self) -> None:
        """Record that the request failed or its outcome is unknown: its offsets are sent again."""
        self._taken = None
