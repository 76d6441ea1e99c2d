"""The confirm offset: the end of the log that every electable replica has on disk. Pure.

It is the smallest durable end over the wait set, the master included. A member counts only by what
it acknowledged on its present link in the present epoch, and the master only once its broker serves
the epoch. While one of these ends is unknown, the offset does not move (docs/replication.md,
acknowledging). Step before: an ACK or a flush of the broker. Step after: the page's CONFIRM, and
answers to senders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.ha.lease.value import Member


class ConfirmOffset:
    """The confirm offset of one term. It never decreases."""

    __slots__ = ("value",)

    def __init__(self, at_start: int) -> None:
        """at_start: this node's confirm checkpoint, not the end of the log.

        Later records of older terms are confirmed as soon as the broker serves the epoch and the
        whole wait set has them on disk, perhaps before the record that opens this term. They cannot
        be lost: only a member may become the next master, each member has these bytes, and each has
        promised this epoch, so it accepts no cut from a master of an older one.
        """
        self.value = at_start

    def advance(
        self, own: int | None, durable: Mapping[Member, int], wait_set: Collection[Member]
    ) -> bool:
        """Update the offset from the known ends; return whether it moved.

        own: the master's durable end; None until its broker serves the epoch. durable: what members
        acknowledged on their present links; the end of a member that is missing is unknown.
        wait_set: the other members whose ends are needed.
        """
        if own is None:
            return False
        least = own
        for member in wait_set:
            acknowledged = durable.get(member)
            if acknowledged is None:
                return False
            if acknowledged < least:
                least = acknowledged
        if least <= self.value:
            return False
        self.value = least
        return True
