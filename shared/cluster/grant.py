"""Permission to append and to answer: the slots that ha and broker exchange in the page. Pure.

ha grants an epoch to one start of the broker, which its nonce identifies. The broker may take the
append lock for it, checks the grant again once it holds the lock, and appends and answers only
while the grant is valid. A grant of another boot, to another start, or of an epoch that this start
has already served, is void. A grant is published with the data first, then ROLE, then FENCED = 0.
When it ends, FENCED = 1 is published first.
"""

from __future__ import annotations

from typing import Protocol

from tidemark.formats.checkpoint import NodeRole, Slot


class Slots(Protocol):
    """The checkpoint page: each access is one aligned 8-byte load or store."""

    def get(self, slot: Slot) -> int:
        """Return the value that the slot's owner published last."""

    def publish(self, slot: Slot, value: int) -> None:
        """Make value visible to other processes."""


def granted(slots: Slots, *, nonce: int, boot: tuple[int, int], served: int) -> int | None:
    """Return the epoch that this start of the broker may serve now; None if there is none.

    nonce: nonce of this start. boot: id of this boot of the machine. served: the highest epoch that
    this start has served before; an epoch is never served twice.
    """
    if slots.get(Slot.FENCED) or (boot != _boot(slots)):
        return None
    if slots.get(Slot.ROLE) not in (NodeRole.PROMOTING, NodeRole.MASTER):
        return None
    epoch = slots.get(Slot.EPOCH)
    if epoch <= served or slots.get(Slot.GRANTED_TO) != nonce:
        return None
    # Checked again: ha may have fenced, and begun the next epoch, between two of the loads.
    if slots.get(Slot.EPOCH) != epoch or slots.get(Slot.FENCED):
        return None
    return epoch


def is_valid(slots: Slots, *, epoch: int, nonce: int) -> bool:
    """Whether the grant that this start serves under is still valid."""
    return (
        not slots.get(Slot.FENCED)
        and slots.get(Slot.EPOCH) == epoch
        and slots.get(Slot.GRANTED_TO) == nonce
    )


def may_answer(slots: Slots, *, epoch: int, nonce: int, now_boot_ms: int) -> bool:
    """Whether an answer in the name of the group may be sent now.

    Before the call, the caller has compared the record's epoch and the confirm offset. It sends the
    answer right after the call, with no await in between.
    """
    return (
        is_valid(slots, epoch=epoch, nonce=nonce)
        and slots.get(Slot.ROLE) in (NodeRole.PROMOTING, NodeRole.MASTER)
        and now_boot_ms < slots.get(Slot.LEASE_DEADLINE)
    )


def fence(slots: Slots) -> None:
    """End any grant. Called by ha, as the first step of every start and every demotion."""
    slots.publish(Slot.FENCED, 1)
    slots.publish(Slot.GRANTED_TO, 0)
    slots.publish(Slot.ROLE, NodeRole.VOID)
    slots.publish(Slot.LEASE_DEADLINE, 0)


def grant(
    slots: Slots, *, epoch: int, nonce: int, deadline_boot_ms: int, boot: tuple[int, int]
) -> None:
    """Let that start of the broker append under epoch; ha calls it once the append lock is free."""
    slots.publish(Slot.HA_BOOT_ID_HIGH, boot[0])
    slots.publish(Slot.HA_BOOT_ID_LOW, boot[1])
    slots.publish(Slot.LEASE_DEADLINE, deadline_boot_ms)
    slots.publish(Slot.EPOCH, epoch)
    slots.publish(Slot.GRANTED_TO, nonce)
    slots.publish(Slot.ROLE, NodeRole.PROMOTING)
    slots.publish(Slot.FENCED, 0)


def _boot(slots: Slots) -> tuple[int, int]:
    return slots.get(Slot.HA_BOOT_ID_HIGH), slots.get(Slot.HA_BOOT_ID_LOW)
