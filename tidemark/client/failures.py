"""Decides what happens to a message whose handler failed. Pure.

In a group that shares queues the message is nacked: it is delivered again later while others
continue. In an ordered group no later message may be processed first, so the message is handled
again in place, and becomes a dead letter when it has failed more often than the group allows. In a
broadcast group there is no retry topic, so the message is skipped.
"""

from __future__ import annotations

from enum import Enum


class AfterFailure(Enum):
    """The next step for a message whose handler raised."""

    SEND_BACK = "nacked: to the retry topic, and later to a member again"
    AGAIN = "handled again after a pause"
    DEAD = "moved to the dead letters"
    LEAVE = "logged, and counted as done"


def after_failure(*, order: bool, broadcast: bool, failures: int, retry_max: int) -> AfterFailure:
    """Decide for a message that has failed ``failures`` times in a row in this member, at least 1.

    retry_max: the group's setting; 0 dead-letters an ordered group's message at once.
    """
    if broadcast:
        return AfterFailure.LEAVE
    if not order:
        return AfterFailure.SEND_BACK
    return AfterFailure.AGAIN if failures <= retry_max else AfterFailure.DEAD
