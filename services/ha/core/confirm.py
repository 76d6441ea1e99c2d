"""The confirm offset: how far every electable replica has the log on disk. Pure.

The smallest durable end over the wait set, the master included. A member counts only by what it
acknowledged on its present link in the present epoch, the master only once its broker serves the
epoch; while one is unknown, the offset stands still (docs/replication.md, acknowledging).
Step before: an ACK or the broker's flush. Step after: the page's CONFIRM, and answers to senders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.ha.lease.value import Member


class ConfirmOffset:
    """Of one term. Never decreases within it."""

    __slots__ = ("value",)

    def __init__(self, at_start: int) -> None:
        """at_start: the own confirm checkpoint, never the log's end: what older terms left behind
        it is confirmed only together with the record that opens this one."""
        self.value = at_start

    def advance(
        self, own: int | None, durable: Mapping[Member, int], wait_set: Collection[Member]
    ) -> bool:
        """Take in what is known; True if the offset moved.

        own: the master's durable end, None until its broker serves the epoch. durable: what
        members acknowledged on their present links; a member that is not in it is unknown.
        wait_set: the others whose ends are needed.
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
