"""Acknowledgement levels: which level a send gets, and which level may be reported. Pure.

It is decided twice: before the append, so that an unattainable level is refused with nothing
stored, and in the step of the loop in which the response leaves (docs/replication.md,
acknowledging). Step before: ``send`` read the requested level from the body, or ``messages`` did.
Step after: ``term`` applies the rules to the present in-sync set, and ``sender`` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tidemark.errors import AckTimeout, NotEnoughReplicas


class AckLevel(StrEnum):
    """Acknowledgement level of a send (docs/verification.md, P1)."""

    MEMORY = "memory"
    DISK = "disk"
    REPLICATED = "replicated"


class InSyncCount(NamedTuple):
    """How many members the in-sync set has, and how many it needs, as ha has published them."""

    size: int
    """Members, this node included; 0: unknown."""
    least: int
    """Smallest set that may acknowledge."""


class Admitted(NamedTuple):
    """The level that a send waits for."""

    level: AckLevel
    members: int
    """Size of the in-sync set at the append."""
    asked: bool
    """Whether the sender asked for this level: then a lower one is an error."""

    @property
    def by_the_group(self) -> bool:
        """Whether the send waits until the group has confirmed its messages.

        A send without a requested level waits for this even while the set has one member. Otherwise
        it could be lost: 1. it is on this disk; 2. a second member, which caught up before the
        send, is published in the set; 3. the send is answered; 4. this node is lost, and the second
        member becomes the master without these messages.
        """
        return self.level is AckLevel.REPLICATED or not self.asked


class Reached(NamedTuple):
    """The level that a send has reached, and the number of nodes that have it on disk."""

    level: AckLevel
    copies: int


def admit(asked: AckLevel | None, in_sync: InSyncCount) -> Admitted:
    """Return the level that a send waits for. Raises NotEnoughReplicas: nothing was stored.

    asked: None: the best one available, ``replicated`` while the set has a second member.
    """
    if in_sync.size < max(1, in_sync.least):
        raise NotEnoughReplicas(
            f"only {in_sync.size} members of the in-sync set answer, but min_in_sync is "
            f"{in_sync.least}. Nothing was stored; reads continue.",
            "`tidemark cluster status` shows which members are missing; sends are accepted "
            "again as soon as the set is large enough.",
            in_sync=in_sync.size,
            limit=in_sync.least,
        )
    if asked is AckLevel.REPLICATED and in_sync.size < 2:
        raise NotEnoughReplicas(
            "ack=replicated needs a second copy, and no member of the in-sync set but this node "
            "answers. Nothing was stored.",
            "Ask for ack=disk, or try again: members join the set when they have caught up.",
            in_sync=in_sync.size,
            limit=2,
        )
    if asked is None:
        level = AckLevel.REPLICATED if in_sync.size >= 2 else AckLevel.DISK
        return Admitted(level, in_sync.size, asked=False)
    return Admitted(asked, in_sync.size, asked=True)


def reached(admitted: Admitted, in_sync: InSyncCount) -> Reached | None:
    """Return what may be reported of a send whose level is reached; None: no success.

    in_sync: the set now. If it has shrunk since the append, the send is on as many disks as it has
    members now; if it has grown, on as many as it had then.
    """
    if not admitted.by_the_group:
        return Reached(admitted.level, 1)
    if in_sync.size < max(1, in_sync.least):
        return None
    copies = min(admitted.members, in_sync.size)
    if copies >= 2:
        return Reached(AckLevel.REPLICATED, copies)
    return None if admitted.asked else Reached(AckLevel.DISK, copies)


def not_reached(
    why: str, results: Sequence[dict[str, Any]], *, is_on_disk: bool, **facts: int
) -> AckTimeout:
    """Return the error for stored messages, with the level that is certainly reached."""
    level = AckLevel.DISK if is_on_disk else AckLevel.MEMORY
    return AckTimeout(
        f"{len(results)} messages are stored, level {level.value} is reached, and {why}. The "
        "outcome is unknown: they may still become durable, or be lost with the node.",
        "Do not send them again without looking for them; see the results.",
        ack={"level": level.value, "copies": 1},
        results=results,
        **facts,
    )
