"""Decides which failed call may be repeated, and after how long. Pure.

A call of unknown outcome is repeated only if a second execution does no harm. After ``ack-timeout``
the messages are stored; after a connection lost during the request they may be. Repeating a send is
harmless: its messages have unique ids of the client, and the second request is marked as a retry,
so the broker first searches for them. A call that was certainly not executed (no connection, 503
before anything was stored, or another node is the master) may always be repeated.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tidemark import errors

DELAY_FIRST_S: Final = 0.05
DELAY_MAX_S: Final = 2.0
SEARCH_DELAY_MAX_S: Final = 0.25
"""Shorter maximum while the group has no known master, so that a new one is found soon."""


class Failure(Enum):
    """How a call ended without a result."""

    NOT_SENT = "no connection: the broker never saw the request"
    LOST = "the connection broke or the time ran out before the answer"
    BUSY = "the broker answered 503: it did nothing, but may accept the call later"
    NOT_MASTER = "the broker answered 421: it did nothing, because it is not the master"
    UNKNOWN_OUTCOME = "the broker answered 504: stored, level not reached"
    REFUSED = "any other error: the same call fails again"


def failure_of(*, status: int, retriable: bool) -> Failure:
    """Classify an error that the broker itself answered."""
    if status == 504:
        return Failure.UNKNOWN_OUTCOME
    if status == 421:
        return Failure.NOT_MASTER
    return Failure.BUSY if status == 503 and retriable else Failure.REFUSED


def may_repeat(failure: Failure, *, idempotent: bool) -> bool:
    """Whether the client may repeat the same call by itself."""
    match failure:
        case Failure.NOT_SENT | Failure.BUSY | Failure.NOT_MASTER:
            return True
        case Failure.LOST | Failure.UNKNOWN_OUTCOME:
            return idempotent
        case Failure.REFUSED:
            return False


def delay_s(attempt: int, *, jitter: float, searching: bool = False) -> float:
    """Seconds before attempt number ``attempt`` (1 = the first repetition); jitter in [0, 1).

    searching: whether the client searches for the master of a group.
    """
    limit_s = SEARCH_DELAY_MAX_S if searching else DELAY_MAX_S
    ceiling = min(limit_s, DELAY_FIRST_S * 2.0 ** min(attempt - 1, 10))
    return ceiling * (0.5 + jitter / 2)


def is_transient(error: errors.TidemarkError) -> bool:
    """Whether a group member, which retries forever, retries after this error.

    True for errors that the broker calls retriable, and for 5xx answers of a proxy while the broker
    was down. False for a successful answer that cannot be decoded.
    """
    if isinstance(error, errors.BrokenAnswer):
        return int(error.facts.get("http_status", 0)) >= 500
    return error.retriable


def may_move_on(error: errors.TidemarkError) -> bool:
    """Whether a send certainly stored nothing, and another broker group may accept it."""
    return is_not_there(error) or is_outage(error)


def is_not_there(error: errors.TidemarkError) -> bool:
    """Whether a broker group has lost the topic, or takes no messages for it any more."""
    return error.code in _NOT_THERE


def is_outage(error: errors.TidemarkError) -> bool:
    """Whether a broker group has stored nothing and serves no topic now."""
    if isinstance(error, errors.Unreachable):
        return error.facts.get("sent") is False
    return error.retriable and error.status in (421, 503, 507)


_NOT_THERE: Final = frozenset(
    {
        errors.UnknownTopic.code,
        errors.UnknownQueue.code,
        errors.NotPermitted.code,
        errors.Drained.code,
    }
)
"""See ``is_not_there``."""


def is_of_failover(error: errors.TidemarkError) -> bool:
    """Whether the group may be changing its master, so that a search for it is useful."""
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
