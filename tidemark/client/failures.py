"""What becomes of a message whose handler failed. Pure.

In a group that shares queues it is sent back: it comes again later, and others go on. In an ordered
group nothing behind it may go on, so it is handled again where it is, and goes to the dead letters
when it has failed more often than the group allows. In a broadcast group there is nobody to send it
to: it is left.
"""

from __future__ import annotations

from enum import Enum


class AfterFailure(Enum):
    """What is done with a message whose handler raised."""

    SEND_BACK = "to the retry topic, and later to a member again"
    AGAIN = "handled again after a pause"
    DEAD = "to the dead letters"
    LEAVE = "logged, and counted as done"


def after_failure(*, order: bool, broadcast: bool, failures: int, retry_max: int) -> AfterFailure:
    """Judge a message that has now failed ``failures`` times in a row here (1: for the first time).

    retry_max: the group's; 0 sends an ordered group's message to the dead letters at once.
    """
    if broadcast:
        return AfterFailure.LEAVE
    if not order:
        return AfterFailure.SEND_BACK
    return AfterFailure.AGAIN if failures <= retry_max else AfterFailure.DEAD
