"""One log line per peer and minute, however often a peer does what is worth one.

Anybody who reaches the replication port can make this process close connections as fast as the
network allows; without a bound he would fill the disk with our log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
PEERS_MAX: Final = 256
"""Peers remembered; lines about others are held to one per interval together."""
OTHERS: Final = "others"


class PacedLog:
    """Counts what happens between two lines about a peer."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._peers: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.count = 0
        """Of all that was told here, whether a line was written or not."""

    def say(self, peer: str, event: str, sentence: str, **facts: object) -> bool:
        """Write a line about peer, unless one was written less than a minute ago; whether it was.

        The line says how often it happened since the last one.
        """
        self.count += 1
        now = self._monotonic()
        key = peer if peer in self._peers or self._has_room(now) else OTHERS
        said_at, held_back = self._peers.get(key, (now - INTERVAL_S, 0))
        if now - said_at < INTERVAL_S:
            self._peers[key] = (said_at, held_back + 1)
            return False
        self._peers[key] = (now, 0)
        self._peers.move_to_end(key)
        log.warning(sentence, extra={"event": event, "peer": peer, "held_back": held_back, **facts})
        return True

    def _has_room(self, now: float) -> bool:
        """Forget peers of whom nothing was said for a minute; whether another one fits."""
        while self._peers:
            oldest, (said_at, _) = next(iter(self._peers.items()))
            if now - said_at < INTERVAL_S:
                break
            del self._peers[oldest]
        return len(self._peers) < PEERS_MAX
