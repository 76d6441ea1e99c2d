"""Hands the master role over before the broker of a master ends, if another node can take it.

1. The broker publishes on the checkpoint page that it is stopping. 2. ha switches to a slave of the
in-sync set: sends are held, and the grant ends. 3. The broker ends. Otherwise the group would have
no master until the lease has expired. Step before: SIGTERM. Step after: ``master`` releases the
append lock.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from services.broker.log.term import GrantedTerm
from shared.files.positions import Positions
from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock
from tidemark.formats.checkpoint import Slot, Trouble

log = logging.getLogger(__name__)

WAIT_S: Final = 1.8
"""A switch takes half a second; after this time the lease expires instead."""
HA_SILENT_MS: Final = 2000
COPIES_MIN: Final = 2


async def leave(
    stop: asyncio.Event,
    may_end: asyncio.Event,
    term: GrantedTerm,
    positions: Positions,
    doorbell: Doorbell,
    clock: Clock,
) -> None:
    """Wait for stop; have ha switch to another node, for at most WAIT_S; then set may_end.

    The task is cancelled if the term ends first.
    """
    await stop.wait()
    silent_ms = clock.boot_ms() - positions.get(Slot.HA_HEARTBEAT_MS)
    if term.is_master and term.in_sync.size >= COPIES_MIN and silent_ms < HA_SILENT_MS:
        log.info("waiting for another master", extra={"event": "leaving", "epoch": term.epoch})
        positions.publish(Slot.BROKER_TROUBLE, Trouble.STOPPING)
        doorbell.ring("ha")
        await asyncio.sleep(WAIT_S)
    may_end.set()
