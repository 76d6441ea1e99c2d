"""Until when a member may work on its queues, and when it sends its next heartbeat. Pure.

The broker gives a member's queues to others when no heartbeat has come for ``session_ms``. It
counts from when a heartbeat *came*; the member, which cannot know that, counts from when it *sent*
the last one that was answered: always earlier. So it has stopped handing out before the broker
gives its queues away, whatever happens to the answers. Times are milliseconds of one clock that
goes on while the machine sleeps.
"""

from __future__ import annotations

import math
from typing import Final

HEARTBEATS_PER_SESSION: Final = 3
"""So that two in a row may be lost. One that failed is repeated sooner."""


class Lease:
    """The time in which the broker certainly counts this member as alive."""

    def __init__(self) -> None:
        self.session_ms = math.inf
        self.ends_at_ms = -math.inf
        """Messages are handed out before this time only."""
        self._next_at_ms = -math.inf

    def is_held(self, now_ms: float) -> bool:
        """Whether messages may be handed out now."""
        return now_ms < self.ends_at_ms

    def answered(self, sent_at_ms: float, session_ms: float) -> None:
        """The heartbeat sent at ``sent_at_ms`` was answered; the broker named its session_ms."""
        self.session_ms = session_ms
        # Answers may overtake each other: an older one must not shorten what a newer one gave.
        self.ends_at_ms = max(self.ends_at_ms, sent_at_ms + session_ms)
        self._next_at_ms = self.ends_at_ms - session_ms + session_ms / HEARTBEATS_PER_SESSION

    def ended(self) -> None:
        """The broker does not have the member any more, or the member left."""
        self.ends_at_ms = -math.inf

    def heartbeat_in_ms(self, now_ms: float) -> float:
        """How long until the next heartbeat is due; 0: now."""
        return max(0.0, self._next_at_ms - now_ms)
