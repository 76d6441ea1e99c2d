"""Limits the bytes in flight to a slave that is far behind. Pure.

A slave that is far behind, and for which no sender waits, copies with up to 8 MiB in flight and
syncs as much at once. This slows down senders that wait for their own small syncs, above all if
both logs are on one disk: a file system makes their bytes durable together with everything written
before. So the window is small while senders write lightly; the copy then takes several times as
long. The window is full while senders write nothing, or so much that the slave must not lose time.
Step before: an ACK, or the log grew. Step after: ``master_protocol`` streams up to the window.
"""

from __future__ import annotations

from typing import Final

WINDOW_SIZE: Final = 8 << 20
"""Bytes sent and not yet appended by the slave; bounds the memory of a link."""
GENTLE_SIZE: Final = 64 << 10
"""The window while others send lightly."""
PERIOD_MS: Final = 500
"""Period over which the growth of the log is measured."""
LIGHT_MAX: Final = 8 << 20
"""Bytes in a period above which the window is full: with the small window a slave would never catch
up."""
STUCK_MS: Final = 50
"""Without progress for this long, the whole window is used: a record may be larger than
GENTLE_SIZE, and it is acknowledged as a whole."""


class CatchUp:
    """The window of one link."""

    __slots__ = ("_appended", "_end", "_light", "_measured_ms", "_moved_ms")

    def __init__(self, now_ms: int) -> None:
        self._end: int | None = None
        self._measured_ms = now_ms
        self._light = True
        self._appended, self._moved_ms = -1, now_ms

    def window(self, *, end: int, appended: int, now_ms: int) -> int:
        """Return how many bytes may be sent beyond ``appended``, the end in the slave's last ACK.

        end: end of the master's log.
        """
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
