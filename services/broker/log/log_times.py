"""Store times at the stages of the log: newest record, first unconfirmed, first undispatched. Pure.

With the oldest message that a group was not handed and the oldest that it has not committed
(``groups.oldest``) they split how far the group is behind the newest record into replication,
dispatch, delivery and processing, exactly: the four add up, and none is negative. So all of it is
taken against one look at the log: this one.

Before: ``log_look`` reads the records. After: ``groups.oldest``, and the gauges of the log.
"""

from __future__ import annotations

from typing import NamedTuple


class LogTimes(NamedTuple):
    """Store times [wall clock ms] of one look; each at most the one before it."""

    newest_ms: int
    """Of the newest record."""
    confirmed_ms: int
    """Of the first record that is not confirmed; as the newest if all are."""
    dispatched_ms: int
    """Of the first confirmed record that is not dispatched; as confirmed if all are."""


def log_times(
    newest_ms: int, first_unconfirmed_ms: int | None, first_undispatched_ms: int | None
) -> LogTimes:
    """Judge what one look at the log found; None: there is no such record.

    Store times only run backwards where the clock stepped back further than they are held
    (``clock_step_max_ms``): such a record then counts as old as the stage before it.
    """
    confirmed_ms = newest_ms if first_unconfirmed_ms is None else first_unconfirmed_ms
    confirmed_ms = min(confirmed_ms, newest_ms)
    dispatched_ms = confirmed_ms if first_undispatched_ms is None else first_undispatched_ms
    return LogTimes(newest_ms, confirmed_ms, min(dispatched_ms, confirmed_ms))
