"""Which failed call may be repeated, and after how long. Pure.

The rule that matters: a call whose outcome is unknown is repeated only if a second one does no
harm. After ``ack-timeout`` the messages are stored, after a connection lost behind the request they
may be. A send is harmless because its messages bear unique ids of the client's and the second
request says that it is one: the broker looks for them first. What was certainly not done (no
connection, 503 before anything was stored, or another node is the master) may be repeated in any
case.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tidemark import errors

DELAY_FIRST_S: Final = 0.05
DELAY_MAX_S: Final = 2.0
SEARCH_DELAY_MAX_S: Final = 0.25
"""While the group has no master, or nobody tells who it is: it is looked for more often."""


class Failure(Enum):
    """How a call ended without a result."""

    NOT_SENT = "no connection: the broker never saw the request"
    LOST = "the connection ended, or the time did, before the answer"
    BUSY = "the broker answered 503: it did nothing, later it may"
    NOT_MASTER = "the broker answered 421: it did nothing, the master of its group would"
    UNKNOWN_OUTCOME = "the broker answered 504: stored, level not reached"
    REFUSED = "any other error: the same call fails again"


def failure_of(*, status: int, retriable: bool) -> Failure:
    """Judge an error that the broker itself answered."""
    if status == 504:
        return Failure.UNKNOWN_OUTCOME
    if status == 421:
        return Failure.NOT_MASTER
    return Failure.BUSY if status == 503 and retriable else Failure.REFUSED


def may_repeat(failure: Failure, *, idempotent: bool) -> bool:
    """Whether the same call may be sent again without the caller's word."""
    match failure:
        case Failure.NOT_SENT | Failure.BUSY | Failure.NOT_MASTER:
            return True
        case Failure.LOST | Failure.UNKNOWN_OUTCOME:
            return idempotent
        case Failure.REFUSED:
            return False


def delay_s(attempt: int, *, jitter: float, searching: bool = False) -> float:
    """Seconds before attempt number ``attempt`` (1 = the first repetition); jitter in [0, 1).

    searching: for the master of a group.
    """
    limit_s = SEARCH_DELAY_MAX_S if searching else DELAY_MAX_S
    ceiling = min(limit_s, DELAY_FIRST_S * 2.0 ** min(attempt - 1, 10))
    return ceiling * (0.5 + jitter / 2)


def is_transient(error: errors.TidemarkError) -> bool:
    """Whether who goes on for ever, a member of a group, tries again after this error.

    What the broker calls retriable, and what something between it and us answered in its place
    while it was away; not an answer that cannot be read although it was a success.
    """
    if isinstance(error, errors.BrokenAnswer):
        return int(error.facts.get("http_status", 0)) >= 500
    return error.retriable


def is_of_failover(error: errors.TidemarkError) -> bool:
    """Whether the group may be changing its master, so that it is worth looking for another."""
    if isinstance(error, errors.Unreachable):
        return True
    return error.code in _OF_FAILOVER


_OF_FAILOVER: Final = frozenset(
    {
        errors.NotMaster.code,
        errors.Fenced.code,
        errors.SwitchingOver.code,
        errors.NotServing.code,
    }
)
