"""Writes ha's slots of the page and rings the doorbells of broker and reput.

Step before: ``effect_runner``. Step after: broker and reput read the slots.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.effects import Grant
from services.ha.shell import hooks
from shared.cluster import grant
from shared.files.positions import Positions
from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock
from tidemark.formats.checkpoint import NodeRole, Slot

REPUT_RING_INTERVAL_S: Final = 0.002
"""A ring wakes another process. While reput has work, it polls at least twice as often as this."""


class PageWriter:
    """Publishes slots. On the loop only."""

    def __init__(
        self, positions: Positions, boot: tuple[int, int], clock: Clock, doorbell: Doorbell
    ) -> None:
        """boot: id of this boot of the machine."""
        self._positions, self._boot, self._clock = positions, boot, clock
        self._doorbell = doorbell
        self._is_granted = False
        """Whether the broker has a grant, so that its senders wait for the confirm offset."""
        self._reput_rung_at = 0.0

    def publish(self, slots: tuple[tuple[Slot, int], ...]) -> None:
        """Store slots in this order, then ring. The broker of a slave is not rung for a confirm
        offset: it shows what reput has dispatched, and reput rings it then."""
        for slot, value in slots:
            if slot is Slot.ROLE and value == NodeRole.MASTER:
                hooks.before("promote-10")
            self._positions.publish(slot, value)
        changed = {slot for slot, _ in slots}
        if self._is_granted or changed != {Slot.CONFIRM}:
            self._doorbell.ring("broker")
        if Slot.ROLE in changed:
            self._doorbell.ring("reput")
        elif Slot.CONFIRM in changed:
            self._ring_reput_for_work()

    def fence(self) -> None:
        """End the grant of the broker, if it has one."""
        self._is_granted = False
        grant.fence(self._positions)
        self._ring()

    def grant(self, effect: Grant) -> None:
        """Let one start of the broker append under an epoch."""
        self._is_granted = True
        grant.grant(
            self._positions,
            epoch=effect.epoch,
            nonce=effect.nonce,
            deadline_boot_ms=effect.deadline_ms,
            boot=self._boot,
        )
        self._ring()

    def _ring(self) -> None:
        self._doorbell.ring("broker")
        self._doorbell.ring("reput")

    def _ring_reput_for_work(self) -> None:
        """Ring unless reput was rung for work just before: then it is working or polling."""
        now = self._clock.monotonic()
        if now - self._reput_rung_at >= REPUT_RING_INTERVAL_S:
            self._reput_rung_at = now
            self._doorbell.ring("reput")
