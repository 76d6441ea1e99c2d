"""Which committed offsets a member tells its broker, and when. Pure: times come in.

Many positions move many times a second; one request at a time carries all that moved, no sooner
than an interval after the one before. Invariants: an offset leaves only if it is above what the
broker has acknowledged; what a failed request carried is offered again; a position that moved while
a request was under way leaves with the next. The shell is ``committing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

Queue = tuple[str, int]
"""Topic and number of a queue."""
CommitAck = Literal["accepted", "disk"]
"""Level at which a commit is answered."""

COMMIT_INTERVAL_MS: Final = 100
"""As often as the broker writes a record of moved offsets (docs/formats.md): more gains nothing."""


class CommitLedger:
    """Positions reached and positions acknowledged, per queue."""

    def __init__(self, interval_ms: float) -> None:
        """interval_ms: the least time between the starts of two requests."""
        if interval_ms < 0:
            raise ValueError(f"commit_interval_ms must be 0 or more, not {interval_ms}")
        self._interval_ms = interval_ms
        self._reached: dict[Queue, int] = {}
        """Positions above what is acknowledged."""
        self._acknowledged: dict[Queue, int] = {}
        self._taken: dict[Queue, int] | None = None
        self._taken_at_ms: float | None = None

    def know(self, queue: Queue, committed: int) -> None:
        """The broker says that this is committed."""
        self._acknowledged[queue] = committed
        if self._reached.get(queue, committed + 1) <= committed:
            del self._reached[queue]

    def acknowledged(self, queue: Queue) -> int | None:
        """What the broker is known to have; None if nothing is known."""
        return self._acknowledged.get(queue)

    def offer(self, queue: Queue, position: int) -> None:
        """Everything below ``position`` is done."""
        if position > self._acknowledged.get(queue, -1):
            self._reached[queue] = max(position, self._reached.get(queue, position))

    def forget(self, queues: Iterable[Queue]) -> None:
        """These queues are no longer ours: nothing is committed for them."""
        for queue in queues:
            self._reached.pop(queue, None)
            self._acknowledged.pop(queue, None)
            if self._taken is not None:
                self._taken.pop(queue, None)

    def settled(self, queue: Queue) -> bool:
        """Whether everything offered of one queue is acknowledged."""
        return queue not in self._reached

    def wait_ms(self, now_ms: float) -> float | None:
        """How long until ``take`` has something; None while it would not by time alone."""
        if self._taken is not None or not self._reached:
            return None
        if self._taken_at_ms is None:
            return 0.0
        return max(0.0, self._taken_at_ms + self._interval_ms - now_ms)

    def take(self, now_ms: float) -> Mapping[Queue, int]:
        """What one request carries; empty while one is under way or nothing moved.

        Asked for at any time: ``wait_ms`` says when it is due, a caller in a hurry need not wait.
        """
        if self._taken is not None or not self._reached:
            return {}
        self._taken = dict(self._reached)
        self._taken_at_ms = now_ms
        return dict(self._taken)

    def accepted(self) -> None:
        """The broker has what was taken."""
        taken, self._taken = self._taken, None
        for queue, position in (taken or {}).items():
            self.know(queue, position)

    def failed(self) -> None:
        """The request failed, or its outcome is unknown: the same leaves again."""
        self._taken = None
