"""Store times at the stages of the log: newest record, first unconfirmed, first undispatched. Pure.

``groups.oldest`` adds the oldest message that a group has not received and the oldest that it has
not committed. Together these times split the group's lag behind the newest record exactly into
replication, dispatch, delivery and processing: the four parts add up, and none is negative. For
that, all of them must be computed from the same sample of the log, which is a ``LogTimes``.

``log_sampler`` reads the records before this step. ``groups.oldest`` and the gauges of the log use
the result.
"""

from __future__ import annotations

from typing import NamedTuple


class LogTimes(NamedTuple):
    """Store times [wall clock ms] of one sample; each is at most the one before it."""

    newest_ms: int
    """Store time of the newest record."""
    confirmed_ms: int
    """Store time of the first unconfirmed record; ``newest_ms`` if all are confirmed."""
    dispatched_ms: int
    """Store time of the first confirmed record that is not dispatched; ``confirmed_ms`` if all
    are dispatched."""


def log_times(
    newest_ms: int, first_unconfirmed_ms: int | None, first_undispatched_ms: int | None
) -> LogTimes:
    """Compute the store times of one sample. An argument is None if there is no such record.

    Store times decrease only where the clock stepped back by more than ``clock_step_max_ms``. A
    record whose time is later than that of the stage before it gets the time of that stage.
    """
    confirmed_ms = newest_ms if first_unconfirmed_ms is None else first_unconfirmed_ms
    confirmed_ms = min(confirmed_ms, newest_ms)
    dispatched_ms = confirmed_ms if first_undispatched_ms is None else first_undispatched_ms
    return LogTimes(newest_ms, confirmed_ms, min(dispatched_ms, confirmed_ms))
