"""Until when a member may deliver from its queues, and when its next heartbeat is due. Pure.

The broker reassigns a member's queues when no heartbeat has arrived for ``session_ms``. It counts
from the *arrival* of a heartbeat. The member does not know that time, so it counts from when it
*sent* the last heartbeat that was answered, which is always earlier. Therefore it stops delivering
before the broker reassigns its queues, even if answers are lost. Times are milliseconds of one
clock that continues while the machine is suspended.
"""

from __future__ import annotations

import math
from typing import Final

HEARTBEATS_PER_SESSION: Final = 3
"""Two consecutive heartbeats may be lost. A failed one is repeated sooner."""


class SessionLimit:
    """Until when the broker certainly considers this member alive."""

    def __init__(self) -> None:
        self.session_ms = math.inf
        self.ends_at_ms = -math.inf
        """Messages are delivered only before this time."""
        self._next_at_ms = -math.inf

    def may_deliver(self, now_ms: float) -> bool:
        """Whether messages may be delivered now."""
        return now_ms < self.ends_at_ms

    def answered(self, sent_at_ms: float, session_ms: float) -> None:
        """Record the answer to the heartbeat sent at ``sent_at_ms``, and the session length."""
        self.session_ms = session_ms
        # Answers may arrive out of order: an older one must not shorten the time of a newer one.
        self.ends_at_ms = max(self.ends_at_ms, sent_at_ms + session_ms)
        self._next_at_ms = self.ends_at_ms - session_ms + session_ms / HEARTBEATS_PER_SESSION

    def ended(self) -> None:
        """End the session: the broker does not know the member any more, or the member has left."""
        self.ends_at_ms = -math.inf

    def heartbeat_in_ms(self, now_ms: float) -> float:
        """Time until the next heartbeat is due; 0: now."""
        return max(0.0, self._next_at_ms - now_ms)
