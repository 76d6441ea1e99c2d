"""A page of slots in memory, and a clock that stands, for tests that read the page."""

from __future__ import annotations

from shared.cluster import grant
from shared.runtime.clock import SystemClock
from tidemark.formats.checkpoint import NodeRole, Slot

BOOT = (7, 9)
NONCE = 4711
DEADLINE_MS = 1000


class Page:
    """Slots as they were published last."""

    def __init__(self) -> None:
        self.slots: dict[Slot, int] = {}

    def get(self, slot: Slot) -> int:
        return self.slots.get(slot, 0)

    def publish(self, slot: Slot, value: int) -> None:
        self.slots[slot] = value

    def grant(self, epoch: int, *, nonce: int = NONCE) -> None:
        """As ha does, with a set of two."""
        self.publish(Slot.IN_SYNC_SIZE, 2)
        self.publish(Slot.MIN_IN_SYNC, 1)
        grant.grant(self, epoch=epoch, nonce=nonce, deadline_boot_ms=DEADLINE_MS, boot=BOOT)

    def confirm(self, end: int) -> None:
        """What the group has, the epoch's record included."""
        self.publish(Slot.CONFIRM, end)
        self.publish(Slot.ROLE, NodeRole.MASTER)


class StillClock(SystemClock):
    """The boot clock stands where the test puts it."""

    def __init__(self) -> None:
        self.now_ms = 0

    def boot_ms(self) -> int:
        return self.now_ms
