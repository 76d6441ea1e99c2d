"""The client's unique id, made here for messages that bring none (store layout 2.9).

Holds the clock that the pure ``tidemark.formats.ids`` does not: milliseconds since local midnight
of the month's first day, the anchor moved on when the month ends.
"""

from __future__ import annotations

import datetime
import os
import secrets
from typing import Final

from tidemark.clock import Clock
from tidemark.formats.hosts import Host
from tidemark.formats.ids import UniqueIdMaker


class UniqueIds:
    """Makes one id per call; ids of one process differ, and those of two differ by their salt."""

    def __init__(self, clock: Clock, host: Host) -> None:
        self._clock, self._host = clock, host
        self.maker: Final = UniqueIdMaker(host.address, os.getpid() & 0xFFFF, secrets.randbits(32))
        self._month_start_ms = 0
        self._month_end_ms = 0

    def apart(self) -> UniqueIds:
        """Another maker of ids of this host, for another thread."""
        return UniqueIds(self._clock, self._host)

    def make(self) -> str:
        """An id of 32 (IPv6: 56) hexadecimal digits."""
        return self.maker.make(self.now_ms())

    def now_ms(self) -> int:
        """Milliseconds since the month began, as an id holds them."""
        now_ms = self._clock.wall_ms()
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._anchor(now_ms)
        return now_ms - self._month_start_ms

    def _anchor(self, now_ms: int) -> None:
        now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        following = (start + datetime.timedelta(days=32)).replace(day=1)
        # Naive again and then localised: the first may lie on the other side of a clock change.
        self._month_start_ms = int(start.astimezone().timestamp() * 1000)
        self._month_end_ms = int(following.astimezone().timestamp() * 1000)
