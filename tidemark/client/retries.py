"""Which failed call may be repeated, and after how long. Pure.

The rule that matters: a send whose outcome is unknown is never repeated by itself. After
``ack-timeout`` the messages are stored, after a connection lost behind the request they may be;
sending again could store them twice, and only the caller knows whether that hurts. What was
certainly not stored (no connection, or the broker said 503 before it stored anything) may be.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tidemark import errors

DELAY_FIRST_S: Final = 0.05
DELAY_MAX_S: Final = 2.0


class Failure(Enum):
    """How a call ended without a result."""

    NOT_SENT = "no connection: the broker never saw the request"
    LOST = "the connection ended, or the time did, before the answer"
    BUSY = "the broker answered 503: it did nothing, later it may"
    UNKNOWN_OUTCOME = "the broker answered 504: stored, level not reached"
    REFUSED = "any other error: the same call fails again"


def failure_of(*, status: int, retriable: bool) -> Failure:
    """Judge an error that the broker itself answered."""
    if status == 504:
        return Failure.UNKNOWN_OUTCOME
    return Failure.BUSY if status == 503 and retriable else Failure.REFUSED


def may_repeat(failure: Failure, *, idempotent: bool) -> bool:
    """Whether the same call may be sent again without the caller's word."""
    match failure:
        case Failure.NOT_SENT | Failure.BUSY:
            return True
        case Failure.LOST:
            return idempotent
        case Failure.UNKNOWN_OUTCOME | Failure.REFUSED:
            return False


def delay_s(attempt: int, *, jitter: float) -> float:
    """Seconds before attempt number ``attempt`` (1 = the first repetition); jitter in [0, 1)."""
    ceiling = min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(attempt - 1, 10))
    return ceiling * (0.5 + jitter / 2)


def is_transient(error: errors.TidemarkError) -> bool:
    """Whether who goes on for ever, a member of a group, tries again after this error.

    What the broker calls retriable, and what something between it and us answered in its place
    while it was away; not an answer that cannot be read although it was a success.
    """
    if isinstance(error, errors.BrokenAnswer):
        return int(error.facts.get("http_status", 0)) >= 500
    return error.retriable
