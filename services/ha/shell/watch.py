"""Watches this node: slots of the checkpoint page, lock bytes, the time.

It reads on every doorbell and at least every 50 ms, publishes ha's heartbeat, and ends the process
if the mapped page is no longer the one at its path. Everything runs on the one loop of the process:
a loop that hangs renews no lease, and reads the clock first when it runs again. Step before: broker
and reput publish. Step after: the replica decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.ha.core.events import Event, NodeSnapshot, Tick
from shared.files.lock_probe import LockProbe
from shared.files.positions import Positions
from shared.files.store_dir import LockByte
from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock
from tidemark.errors import ReplacedPositions
from tidemark.formats.checkpoint import BrokerPhase, Slot, Trouble

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 500
LOOP_STALL_MS: Final = 2000
"""A stall of the loop from which on it is logged and counted; ``liveness`` judges services."""
SILENT_FOR_EVER: Final = 1 << 40


class SnapshotReader:
    """Reads page and locks, each slot once."""

    def __init__(
        self,
        positions: Positions,
        locks: LockProbe,
        clock: Clock,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """wall_ms: the wall clock, sent to peers; None: it is not sent. It is separate from clock
        because no decision may use it."""
        self._positions, self._locks, self._clock = positions, locks, clock
        self._wall_ms = wall_ms
        self._of_another_boot: dict[Slot, int] = {}
        """Heartbeats that were ahead of the clock when they were read."""

    def read(self) -> NodeSnapshot:
        """Return the present state. The order of the loads is part of the promise: see
        ``NodeSnapshot``."""
        get = self._positions.get
        alive = self._locks.is_held(LockByte.BROKER)
        nonce = get(Slot.BROKER_NONCE) if alive else 0
        damaged_at = get(Slot.DAMAGED_AT) if alive else 0
        return NodeSnapshot(
            nonce,
            self._silent_ms(Slot.BROKER_HEARTBEAT_MS),
            get(Slot.SERVING_EPOCH),
            get(Slot.EPOCH_RECORD_END),
            get(Slot.FLUSHED),
            get(Slot.WRITTEN),
            trouble(get(Slot.BROKER_TROUBLE)),
            trouble(get(Slot.REPUT_TROUBLE)),
            get(Slot.MIN),
            (get(Slot.FOREIGN_FROM), get(Slot.FOREIGN_UNTIL)),
            None if self._wall_ms is None else self._wall_ms() - self._clock.boot_ms(),
            get(Slot.BROKER_STATE) == BrokerPhase.SERVING,
            get(Slot.DISPATCHED),
            self._locks.is_held(LockByte.REPUT),
            self._silent_ms(Slot.REPUT_HEARTBEAT_MS),
            damaged_at - 1 if damaged_at else None,
        )

    def _silent_ms(self, heartbeat: Slot) -> int:
        # The slot first: a heartbeat written between the two loads must not be in the future.
        given_ms = self._positions.get(heartbeat)
        silent_ms = self._clock.boot_ms() - given_ms
        # 1. The power fails; the page keeps a heartbeat of the boot before. 2. The broker starts,
        #    and hangs before its first heartbeat. 3. The clock reaches the old heartbeat, which
        #    still does not count.
        if silent_ms < 0:
            self._of_another_boot[heartbeat] = given_ms
        is_of_another = self._of_another_boot.get(heartbeat) == given_ms
        return SILENT_FOR_EVER if is_of_another else silent_ms


def trouble(value: int) -> Trouble:
    """Return a slot's value; an unknown one, of a later version, counts as damage."""
    try:
        return Trouble(value)
    except ValueError:
        return Trouble.DAMAGED


class Watch:
    """Posts snapshots of the node and ticks to the replica."""

    def __init__(
        self,
        reader: SnapshotReader,
        positions: Positions,
        doorbell: Doorbell,
        clock: Clock,
        post: Callable[[Event], None],
        *,
        interval_ms: int,
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """post: hands an event to the replica. interval_ms: longest time between two snapshots.
        turned: called after each."""
        self._turned = turned
        self._reader, self._positions, self._doorbell = reader, positions, doorbell
        self._clock, self._post, self._interval_ms = clock, post, interval_ms
        self._beat_at = self._turned_at = clock.boot_ms()
        self.loop_stalls = 0
        """Number of stalls of the loop longer than LOOP_STALL_MS."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop. Raises ReplacedPositions."""
        self._positions.publish(Slot.HA_HEARTBEAT_MS, self._clock.boot_ms())
        tick_at = 0
        while not stop.is_set():
            now = self._clock.boot_ms()
            self._note_stall(now)
            if now >= tick_at:
                tick_at = now + self._interval_ms
                self._post(Tick())
            self._post(self._reader.read())
            self._turned()
            if now - self._beat_at >= HEARTBEAT_MS:
                self._beat(now)
            left = max(1, tick_at - self._clock.boot_ms())
            await self._doorbell.wait(left / 1000)

    def _note_stall(self, now: int) -> None:
        stood = now - self._turned_at - self._interval_ms
        self._turned_at = now
        if stood > LOOP_STALL_MS:
            self.loop_stalls += 1
            log.warning(
                "the loop stood still, or the machine slept",
                extra={"event": "loop-stalled", "stood_ms": stood},
            )

    def _beat(self, now: int) -> None:
        positions, self._beat_at = self._positions, now
        positions.publish(Slot.HA_HEARTBEAT_MS, now)
        if not positions.is_current():
            raise ReplacedPositions(
                f"{positions.path} was replaced or overwritten. What was acknowledged at disk is "
                "safe.",
                "Start the node's processes again; do not replace files of a running node.",
                path=positions.path,
            )
