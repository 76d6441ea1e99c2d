"""Whether broker and reput of this node move, and whether ha itself did. Pure.

A service that is there may stand still: stopped, swapped out, waiting for a disk that hangs. Its
heartbeat on the page tells. A single stall that is shorter than a lease costs nothing here; stalls
that come again and again add up (``Stalls``), so that a node whose services stand still for most of
the time hands the lease over. Time in which ha itself stood still is nobody else's: after it, the
others get as long to give a sign of life as they would have had.

Step before: ``watch`` reads the page. Step after: ``own`` says whether this node can lead.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.events import Sensed
from shared.cluster.time_rules import TimeRules

FORGIVEN_PER_MS: Final = 4
"""A ms of a stall is forgotten after so many ms in which the service moved."""
STALLED_LEASES_MAX: Final = 2
"""No more lease times of stalls are remembered: a long one does not keep a node out for hours."""


class Stalls:
    """How long one service stood still, now and of late."""

    __slots__ = ("_counted_ms", "_lease_ms", "_owes", "_quarters", "_stall_ms", "still_ms")

    def __init__(self, times: TimeRules) -> None:
        self._lease_ms = times.lease_ms
        self._stall_ms = stall_ms(times)
        self._counted_ms = 0
        """Of the present stall, in the sum already."""
        self._quarters = 0
        """Sum of stalls less what is forgotten, in units of 1 / FORGIVEN_PER_MS ms."""
        self._owes = False
        self.still_ms = 0
        """Since its last sign of life."""

    @property
    def too_many(self) -> bool:
        """It is still for a lease time now; or it was in all, and has not moved for long enough."""
        return self._owes or self.hangs

    @property
    def hangs(self) -> bool:
        """It is still for a lease time now."""
        return self._counted_ms >= self._lease_ms

    @property
    def remembered_ms(self) -> int:
        """Stalls of late, less what is forgotten."""
        return self._quarters // FORGIVEN_PER_MS

    def forget(self) -> None:
        """Count from now on."""
        self._counted_ms = self._quarters = 0
        self._owes = False

    def note(self, still_ms: int, passed_ms: int, *, alive: bool = True) -> None:
        """It has given no sign of life for still_ms; passed_ms: since the last call.

        alive: the process is there. One that starts again has no stall behind it.
        """
        self.still_ms = still_ms
        if not alive:
            # Otherwise: 1. a broker hangs, and is killed; 2. its successor serves at once; 3. the
            # node gives away each lease that it takes, for the stalls of a process that is gone.
            self._counted_ms, self._quarters = still_ms, 0
        elif still_ms < self._stall_ms:
            self._counted_ms = 0
            self._quarters = max(0, self._quarters - passed_ms)
        else:
            added_ms = max(0, still_ms - self._counted_ms)
            self._counted_ms = still_ms
            limit = STALLED_LEASES_MAX * self._lease_ms * FORGIVEN_PER_MS
            self._quarters = min(limit, self._quarters + added_ms * FORGIVEN_PER_MS)
        if self._quarters >= self._lease_ms * FORGIVEN_PER_MS:
            self._owes = True
        elif self._quarters == 0:
            self._owes = False


class Liveness:
    """Of all three services of this node."""

    def __init__(self, times: TimeRules) -> None:
        self._stall_ms = stall_ms(times)
        self._began_ms: int | None = None
        self._turned_ms = self._sensed_ms = 0
        self.woke_ms: int | None = None
        """When this process went on after it had stood still; None: it never did."""
        self.stood_ms = 0
        """How long it had, then."""
        self.broker, self.reput, self.ha = Stalls(times), Stalls(times), Stalls(times)
        self._heard: set[Stalls] = set()
        """Those that gave a sign of life since this start of ha."""

    @property
    def stalling(self) -> str:
        """Name of a service that stands still too long or too often; empty: none does."""
        named = (("broker", self.broker), ("reput", self.reput), ("ha", self.ha))
        return next((name for name, stalls in named if stalls.too_many), "")

    @property
    def hangs(self) -> bool:
        """Whether a service is still for a lease time now."""
        return any(stalls.hangs for stalls in (self.broker, self.reput, self.ha))

    @property
    def remembered_ms(self) -> int:
        """Stalls of late of the service that stood still for longest."""
        return max(stalls.remembered_ms for stalls in (self.broker, self.reput, self.ha))

    def forget(self) -> None:
        """Forget the stalls that are over: an order made this node the master in spite of them."""
        for stalls in (self.broker, self.reput, self.ha):
            stalls.forget()

    def turned(self, now_ms: int) -> bool:
        """Note that this process runs; True if it stood still before."""
        if self._began_ms is None:
            self._began_ms = self._turned_ms = self._sensed_ms = now_ms
            return False
        passed_ms, self._turned_ms = now_ms - self._turned_ms, now_ms
        stood = passed_ms >= self._stall_ms
        if stood:
            self.woke_ms = self._sensed_ms = now_ms
            self.stood_ms = passed_ms
        self.ha.note(passed_ms, passed_ms)
        return stood

    def sensed(self, sensed: Sensed, now_ms: int) -> None:
        """Note the signs of life of broker and reput; ``turned`` was called with now_ms."""
        passed_ms, self._sensed_ms = now_ms - self._sensed_ms, now_ms
        for stalls, silent_ms, alive in (
            (self.broker, sensed.broker_silent_ms, sensed.broker_nonce != 0),
            (self.reput, sensed.reput_silent_ms, sensed.reput_alive),
        ):
            if silent_ms <= now_ms - (self._began_ms or 0):
                self._heard.add(stalls)
            if stalls not in self._heard:
                # It has not begun since ha has, or it beat in another boot: that is no stall.
                stalls.still_ms = silent_ms
            else:
                ran_ms = now_ms - (self.woke_ms or 0)
                stalls.note(min(silent_ms, ran_ms), passed_ms, alive=alive)


def stall_ms(times: TimeRules) -> int:
    """How long a service stands still before it counts: two of its heartbeats."""
    return times.broker_silent_ms // 2
