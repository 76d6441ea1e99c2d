"""The term in which this start of the broker is the master and may append and answer.

There are two kinds. A node of a group has the term that ha granted it (``GrantedTerm``); its
answers are read from the page (``shared.cluster.grant``) each time and never cached, so that a
process that was paused notices a change at once. A standalone node is the master of a group of one,
and its term ends only with the process (``EndlessTerm``). A slave has no term. Step before: ha
granted the epoch, or a standalone node opened its store. Step after: ``append`` asks before every
append, and ``sender`` before every answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from services.broker.log import ack_levels
from services.broker.log.ack_levels import AckLevel, Admitted, InSyncCount, Reached
from services.broker.log.confirmer import Confirmer
from services.broker.log.durability_barrier import DurabilityBarrier
from services.broker.log.flusher import Flusher
from shared.cluster import grant
from shared.cluster.grant import Slots
from tidemark.clock import Clock
from tidemark.errors import AckTimeout, Fenced, NodeAlone, SwitchingOver
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.offsets import PhysicalOffset


class GrantedTerm:
    """One grant. All calls are a few loads of one page."""

    def __init__(self, slots: Slots, clock: Clock, *, epoch: int, nonce: int) -> None:
        """nonce: nonce of this start of the broker."""
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
    def in_sync(self) -> InSyncCount:
        """Size and minimum size of the in-sync set that ha has published."""
        get = self._slots.get
        return InSyncCount(get(Slot.IN_SYNC_SIZE), get(Slot.MIN_IN_SYNC))

    @property
    def confirmed(self) -> PhysicalOffset:
        """End of the log that every member of the in-sync set has on disk."""
        return PhysicalOffset(self._slots.get(Slot.CONFIRM))

    def barrier(self, flusher: Flusher, clock: Clock) -> DurabilityBarrier:
        """Return the barrier that waits until the in-sync set has a record on disk."""
        return Confirmer(self, flusher, clock)

    def check_appends(self) -> None:
        """Raise Fenced unless the grant stands, SwitchingOver while a planned switch lets the next
        master catch up. Every append calls it first, including appends of the broker's own
        records."""
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
            raise fenced("Nothing was read.")

    def admit(self, asked: AckLevel | None) -> Admitted:
        """Return the level that a send waits for. asked: the requested level; None: the default.

        Raises Fenced, SwitchingOver, NotEnoughReplicas: nothing was stored.
        """
        self.check_sends()
        return ack_levels.admit(asked, self.in_sync)

    def reached(self, admitted: Admitted) -> Reached | None:
        """Return the level that may be reported once it is reached; None: no success.

        The response must leave in the same step of the loop; after an await, call it again.
        """
        return ack_levels.reached(admitted, self.in_sync) if self.may_answer else None

    def interrupted(
        self, level: AckLevel, results: Sequence[dict[str, Any]], *, is_on_disk: bool
    ) -> AckTimeout:
        """Return the error for appended messages when the term ends before they have the level."""
        why = f"this node's term ended before level {level.value}"
        return ack_levels.not_reached(why, results, is_on_disk=is_on_disk)

    def _check_not_held(self) -> None:
        if self._slots.get(Slot.SENDS_HELD):
            raise SwitchingOver(
                "a planned switch of the master is under way. Nothing was stored; reads continue.",
                "Try again: within two seconds the next master takes sends.",
            )


class EndlessTerm:
    """The term of a standalone node: what is on its disk is confirmed."""

    epoch: Final = 0
    is_valid: Final = True

    def barrier(self, flusher: Flusher, clock: Clock) -> DurabilityBarrier:
        """Return the barrier that waits until this node has a record on disk."""
        return flusher

    def check_appends(self) -> None:
        """Raise nothing: no other process appends."""

    def admit(self, asked: AckLevel | None) -> Admitted:
        """Return the level that a send waits for. Raises NodeAlone: nothing was stored."""
        if asked is AckLevel.MEMORY:
            return _IN_MEMORY
        if asked is AckLevel.REPLICATED:
            raise NodeAlone(
                "ack=replicated needs a second copy, and this node is alone. Nothing was stored.",
                "Ask for ack=disk, or run a group with slaves.",
            )
        return _ON_DISK

    def reached(self, admitted: Admitted) -> Reached | None:
        """Return the admitted level: no other node can have taken over meanwhile."""
        return _REACHED_MEMORY if admitted is _IN_MEMORY else _REACHED_DISK

    def interrupted(
        self, level: AckLevel, results: Sequence[dict[str, Any]], *, is_on_disk: bool
    ) -> AckTimeout:
        """Return the error for appended messages when the node stops before they have the level."""
        return AckTimeout(
            f"the node is stopping: {len(results)} messages are appended, but level {level.value} "
            "was not reached. The outcome is unknown: they may survive, or be lost with the "
            "node.",
            "Do not send them again without looking for them; see the results.",
            results=results,
        )


Term = GrantedTerm | EndlessTerm

_IN_MEMORY: Final = Admitted(AckLevel.MEMORY, 1, asked=True)
_ON_DISK: Final = Admitted(AckLevel.DISK, 1, asked=True)
_REACHED_MEMORY: Final = Reached(AckLevel.MEMORY, 1)
_REACHED_DISK: Final = Reached(AckLevel.DISK, 1)


def fenced(safe: str) -> Fenced:
    """Return the error of calls while the lease is over, lost or about to end."""
    return Fenced(
        f"this node was the master, and its lease is over or lost. {safe}",
        "Try again: GET /v1/cluster names the master as soon as there is one.",
    )
