"""Creates the client's unique id for messages that have none (docs/formats.md, 2.9).

This module holds the clock, because ``tidemark.formats.ids`` is pure: the time in an id is the
number of milliseconds since local midnight of the first day of the month.
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
    """Creates one id per call. Ids are unique in a process; a salt separates processes."""

    def __init__(self, clock: Clock, host: Host) -> None:
        self._clock, self._host = clock, host
        self.maker: Final = UniqueIdMaker(host.address, os.getpid() & 0xFFFF, secrets.randbits(32))
        self._month_start_ms = 0
        self._month_end_ms = 0

    def for_thread(self) -> UniqueIds:
        """Return a separate id maker of the same host, for another thread."""
        return UniqueIds(self._clock, self._host)

    def make(self) -> str:
        """Return an id of 32 (IPv6: 56) hexadecimal digits."""
        return self.maker.make(self.now_ms())

    def now_ms(self) -> int:
        """Return the milliseconds since the month began, as an id holds them."""
        now_ms = self._clock.wall_ms()
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._anchor(now_ms)
        return now_ms - self._month_start_ms

    def _anchor(self, now_ms: int) -> None:
        now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        following = (start + datetime.timedelta(days=32)).replace(day=1)
        # Computed as naive times and localised afterwards: the first day of the month may have
        # another UTC offset than today because of daylight saving time.
        self._month_start_ms = int(start.astimezone().timestamp() * 1000)
        self._month_end_ms = int(following.astimezone().timestamp() * 1000)
