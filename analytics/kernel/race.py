"""Whether retention deletes messages before the group has read them (docs/analytics-methods.md,
"Retention race"). Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from analytics.kernel.columns import Floats

HOUR_S: Final = 3600.0


def expected_ages(
    produced: Floats, to_come: Floats, backlog: float, capacity: float, age: float
) -> Floats:
    """Return the age [s] of the oldest unread message at the end of each hour to come.

    produced: messages per second in past hours, the newest last; NaN unknown. to_come: the
    forecast. backlog: number of unread messages, of which the oldest has this age. capacity:
    messages per second that the group can consume. NaN from the first hour without a forecast.

    The group consumes in order. Its oldest unread message is the one before which as many messages
    were produced as it has consumed; both are read from one curve of cumulative production.
    """
    past = np.nan_to_num(produced, nan=0.0) * HOUR_S
    future = to_come * HOUR_S
    hours = np.arange(-past.size, future.size + 1) * HOUR_S
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([past, future]))])
    total -= total[past.size]  # so that the curve is 0 now
    # The unread messages were all produced since the oldest of them.
    if backlog > 0 and age > 0:
        keep = hours > 0
        hours = np.concatenate([[-age, 0.0], hours[keep]])
        total = np.concatenate([[-backlog, 0.0], total[keep]])
    ages = np.full(future.size, np.nan)
    unread, produced_until = backlog, 0.0
    for hour, more in enumerate(future):
        if np.isnan(more):
            break
        # The pace is constant within an hour; a faster group finishes before its end.
        unread = max(unread + more - capacity * HOUR_S, 0.0)
        produced_until += more
        end = (hour + 1) * HOUR_S
        head = np.interp(produced_until - unread, total, hours) if unread > 0 else end
        ages[hour] = max(end - float(head), 0.0)
    return ages


def time_to_limit(ages: Floats, age: float, retention: float) -> float:
    """Return the seconds until the oldest unread message reaches the age of retention.

    ages: its age at the end of each hour to come. age: its age now. NaN: not within these hours.
    """
    if age >= retention:
        return 0.0
    before = age
    for hour, then in enumerate(ages):
        if np.isnan(then):
            break
        if then >= retention:
            return float(HOUR_S * (hour + (retention - before) / (then - before)))
        before = then
    return float("inf")
