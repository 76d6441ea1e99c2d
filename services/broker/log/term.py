"""One epoch that this start of the broker serves: may it append, may it answer.

The answers are read from the page (``shared.cluster.grant``) each time and never cached, so that a
process that was paused notices a change at once. Step before: ha granted the epoch. Step after:
``confirmer`` and ``promises`` ask before every answer.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.cluster import grant
from shared.cluster.grant import Slots
from tidemark.clock import Clock
from tidemark.errors import Fenced, SwitchingOver
from tidemark.formats.checkpoint import NodeRole, Slot


class InSync(NamedTuple):
    """The in-sync set that ha has published."""

    size: int
    """Members, this node included; 0: unknown."""
    least: int
    """Smallest set that may acknowledge."""


class Term:
    """One grant. All calls are a few loads of one page."""

    def __init__(self, slots: Slots, clock: Clock, *, epoch: int, nonce: int) -> None:
        """nonce: of this start of the broker."""
        self.epoch = epoch
        self._slots = slots
        self._clock = clock
        self._nonce = nonce

    @property
    def is_valid(self) -> bool:
        """Whether the grant still stands."""
        return grant.is_valid(self._slots, epoch=self.epoch, nonce=self._nonce)

    @property
    def may_answer(self) -> bool:
        """Whether an answer on behalf of the group may leave in this step of the loop."""
        return grant.may_answer(
            self._slots, epoch=self.epoch, nonce=self._nonce, now_boot_ms=self._clock.boot_ms()
        )

    @property
    def is_master(self) -> bool:
        """Whether the group has confirmed the record that opens the epoch."""
        return self.is_valid and self._slots.get(Slot.ROLE) == NodeRole.MASTER

    @property
    def in_sync(self) -> InSync:
        """The set as published now."""
        get = self._slots.get
        return InSync(get(Slot.IN_SYNC_SIZE), get(Slot.MIN_IN_SYNC))

    @property
    def confirmed(self) -> int:
        """End of what every member of the set has on disk."""
        return self._slots.get(Slot.CONFIRM)

    def check_appends(self) -> None:
        """Raise Fenced unless the grant stands, SwitchingOver while a planned switch lets the next
        master catch up. Every append calls it first, also for the broker's own records."""
        if not self.is_valid:
            raise fenced("Nothing was stored.")
        self._check_not_held()

    def check_sends(self) -> None:
        """Raise Fenced or SwitchingOver unless senders may be answered. Nothing was stored."""
        if not self.may_answer:
            raise fenced("Nothing was stored.")
        self._check_not_held()

    def check_reads(self) -> None:
        """Raise Fenced unless reads here show the group's state."""
        if not self.may_answer:
            raise fenced("Nothing is read.")

    def _check_not_held(self) -> None:
        if self._slots.get(Slot.SENDS_HELD):
            raise SwitchingOver(
                "the master is being switched on purpose. Nothing was stored; reading goes on.",
                "Try again: within two seconds the next master takes sends.",
            )


def fenced(safe: str) -> Fenced:
    """Return the error of calls while the lease is over, lost or about to end."""
    return Fenced(
        f"this node was the master, and its lease is over or lost. {safe}",
        "Try again: GET /v1/cluster names the master as soon as there is one.",
    )
