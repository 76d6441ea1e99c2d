"""How many bytes may be under way to a slave that copies what the others have long had. Pure.

A slave that is far behind, and that nobody waits for, takes what it can get: 8 MiB under way, each
sync of its disk as large as they. Senders who wait for their own small syncs meanwhile feel that,
above all where both logs are on one disk: a file system makes their bytes durable together with all
that was written before. So while little is sent, little is under way at a time; the copy then takes
several times as long. When nothing is sent, or so much that the slave must hurry, all may be.

Step before: an ACK, or the log grew. Step after: ``master_protocol`` streams that far.
"""

from __future__ import annotations

from typing import Final

WINDOW_SIZE: Final = 8 << 20
"""Bytes sent and not yet appended there; bounds the memory of a link."""
GENTLE_SIZE: Final = 64 << 10
"""The same while others send lightly."""
PERIOD_MS: Final = 500
"""What is sent is judged by how much the log grew in so long."""
LIGHT_MAX: Final = 8 << 20
"""Bytes in a period; more, and gentleness would keep the slave from ever getting there."""
STUCK_MS: Final = 50
"""A record may be larger than GENTLE_SIZE, and is acknowledged as a whole: where nothing moves for
so long, the whole window is given."""


class CatchUp:
    """Of one link."""

    __slots__ = ("_appended", "_end", "_light", "_measured_ms", "_moved_ms")

    def __init__(self, now_ms: int) -> None:
        self._end: int | None = None
        self._measured_ms = now_ms
        self._light = True
        self._appended, self._moved_ms = -1, now_ms

    def window(self, *, end: int, appended: int, now_ms: int) -> int:
        """Bytes that may be sent beyond ``appended``, the slave's last word; end: the log's."""
        if self._end is None:
            self._end, self._measured_ms = end, now_ms
        if now_ms - self._measured_ms >= PERIOD_MS:
            self._light = 0 < end - self._end <= LIGHT_MAX
            self._end, self._measured_ms = end, now_ms
        if appended != self._appended:
            self._appended, self._moved_ms = appended, now_ms
        is_far = end - appended > WINDOW_SIZE
        moves = now_ms - self._moved_ms < STUCK_MS
        return GENTLE_SIZE if is_far and self._light and moves else WINDOW_SIZE
