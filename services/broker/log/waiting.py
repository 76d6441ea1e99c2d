"""Futures of senders that wait for a position: completed in bulk, timed out by one timer.

``wait_queue`` implements the queue of waiting sends. Each sender has its own future, so that a
client that disconnects does not affect the others. All futures share one timer, which is set to the
first deadline in the queue: one timer per sender would cost more than the append. The step before
this module is ``flusher`` or ``committer`` reaching an offset; after it, ``sender`` answers (write
path, step 6).
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.broker.log.wait_queue import NO_DEADLINE, WaitQueue
from tidemark.clock import Clock
from tidemark.errors import NotServing
from tidemark.offsets import PhysicalOffset

TIMER_STEP_S: Final = 0.001
"""Resolution of uvloop's timers; a timer that fires too early would have to be set again."""


class Waiting:
    """The senders that wait until one position reaches the end of their bytes.

    Belongs to one event loop."""

    def __init__(self, reached: PhysicalOffset, clock: Clock) -> None:
        self._line: WaitQueue[asyncio.Future[bool]] = WaitQueue(reached)
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NO_DEADLINE
        self._open = True

        self.places: Final = self._line.places
        """One entry per waiting sender."""

    def wait(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """Return a future: True once the position has reached end, False if the deadline passed.

        deadline: on the monotonic clock [s]. The future raises NotServing after ``close``.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._open:
            future.set_exception(_stopping())
        elif not self._line.join(end, future, deadline):
            future.set_result(True)
        elif self._line.next_deadline < self._timer_at:
            self._set_timer()
        return future

    def reach(self, end: PhysicalOffset) -> int:
        """Complete the futures of senders whose bytes are below end; return their number."""
        released = self._line.advance(end)
        for future in released:
            if not future.done():  # the client may have disconnected
                future.set_result(True)
        return len(released)

    def close(self) -> None:
        """Fail all current and future waits with NotServing."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        for future in self._line.dissolve():
            if not future.done():
                future.set_exception(_stopping())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._line.next_deadline
        left_s = self._timer_at - self._clock.monotonic()
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, left_s) + TIMER_STEP_S, self._time_is_up
        )

    def _time_is_up(self) -> None:
        self._timer, self._timer_at = None, NO_DEADLINE
        for future in self._line.expire(self._clock.monotonic()):
            if not future.done():
                future.set_result(False)
        # Needed even if no wait expired: the sender whose deadline set the timer may be released.
        if self._line.next_deadline < NO_DEADLINE:
            self._set_timer()


def _stopping() -> NotServing:
    return NotServing(
        "the node is stopping: the messages are appended and may not be on disk yet.",
        "Look for them by key before sending them again.",
    )
