"""Whether broker and reput of this node are responsive, and whether ha itself was. Pure.

A running service may stall: it is stopped, swapped out, or waits for a disk that hangs. Its
heartbeat on the page shows it. A single stall that is shorter than a lease has no effect here;
repeated stalls add up (``Stalls``), so that a node whose services stall for most of the time hands
the lease over. Time in which ha itself stalled does not count against other services: afterwards
they get as long to show a sign of life as they would have had.

Step before: ``watch`` reads the page. Step after: ``replica_context`` decides whether this node can
lead.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.events import NodeSnapshot
from shared.cluster.time_rules import TimeRules

FORGIVEN_PER_MS: Final = 4
"""Responsive time that cancels 1 ms of a stall."""
STALLED_LEASES_MAX: Final = 2
"""Limit of remembered stalls, in lease times, so that a long stall does not keep a node out for
hours."""


class Stalls:
    """Present and recent stalls of one service."""

    __slots__ = ("_counted_ms", "_lease_ms", "_owes", "_quarters", "_stall_ms", "still_ms")

    def __init__(self, times: TimeRules) -> None:
        self._lease_ms = times.lease_ms
        self._stall_ms = stall_ms(times)
        self._counted_ms = 0
        """Part of the present stall that is already in the sum."""
        self._quarters = 0
        """Sum of stalls minus what is forgotten, in units of 1 / FORGIVEN_PER_MS ms."""
        self._owes = False
        self.still_ms = 0
        """Time since its last sign of life."""

    @property
    def too_many(self) -> bool:
        """Whether the service stalls for a lease time now, or its recent stalls add up to one.

        In the second case it stays True until the service has recovered for long enough.
        """
        return self._owes or self.hangs

    @property
    def hangs(self) -> bool:
        """Whether the service stalls for a lease time now."""
        return self._counted_ms >= self._lease_ms

    @property
    def remembered_ms(self) -> int:
        """Recent stalls minus what is forgotten."""
        return self._quarters // FORGIVEN_PER_MS

    def forget(self) -> None:
        """Forget all stalls."""
        self._counted_ms = self._quarters = 0
        self._owes = False

    def note(self, still_ms: int, passed_ms: int, *, alive: bool = True) -> None:
        """Record how long the service has shown no progress. passed_ms: time since the last call.

        alive: whether the process is there. A new process starts without stalls.
        """
        self.still_ms = still_ms
        if not alive:
            # Otherwise: 1. A broker hangs and is killed. 2. Its successor serves at once. 3. The
            # node gives away each lease that it takes, because of the stalls of a process that is
            # gone.
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
    """Stalls of all three services of this node."""

    def __init__(self, times: TimeRules) -> None:
        self._stall_ms = stall_ms(times)
        self._began_ms: int | None = None
        self._turned_ms = self._sensed_ms = 0
        self.woke_ms: int | None = None
        """When this process ran again after a stall; None: it never stalled."""
        self.stood_ms = 0
        """Length of that stall."""
        self.broker, self.reput, self.ha = Stalls(times), Stalls(times), Stalls(times)
        self._heard: set[Stalls] = set()
        """Services that gave a sign of life since this start of ha."""

    @property
    def stalling(self) -> str:
        """Name of a service that stalls too long or too often; empty: none does."""
        named = (("broker", self.broker), ("reput", self.reput), ("ha", self.ha))
        return next((name for name, stalls in named if stalls.too_many), "")

    @property
    def hangs(self) -> bool:
        """Whether a service stalls for a lease time now."""
        return any(stalls.hangs for stalls in (self.broker, self.reput, self.ha))

    @property
    def remembered_ms(self) -> int:
        """Recent stalls of the service with the longest ones."""
        return max(stalls.remembered_ms for stalls in (self.broker, self.reput, self.ha))

    def forget(self) -> None:
        """Forget past stalls: a planned switch or a command made this node the master in spite of
        them."""
        for stalls in (self.broker, self.reput, self.ha):
            stalls.forget()

    def turned(self, now_ms: int) -> bool:
        """Record that this process runs; return whether it stalled since the last call."""
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

    def observe(self, snapshot: NodeSnapshot, now_ms: int) -> None:
        """Note the signs of life of broker and reput; ``turned`` was called with now_ms."""
        passed_ms, self._sensed_ms = now_ms - self._sensed_ms, now_ms
        for stalls, silent_ms, alive in (
            (self.broker, snapshot.broker_silent_ms, snapshot.broker_nonce != 0),
            (self.reput, snapshot.reput_silent_ms, snapshot.reput_alive),
        ):
            if silent_ms <= now_ms - (self._began_ms or 0):
                self._heard.add(stalls)
            if stalls not in self._heard:
                # It has not started since ha has, or its heartbeat is of another boot: that is no
                # stall.
                stalls.still_ms = silent_ms
            else:
                ran_ms = now_ms - (self.woke_ms or 0)
                stalls.note(min(silent_ms, ran_ms), passed_ms, alive=alive)


def stall_ms(times: TimeRules) -> int:
    """Return the time without a sign of life that counts as a stall: two heartbeats."""
    return times.broker_silent_ms // 2
