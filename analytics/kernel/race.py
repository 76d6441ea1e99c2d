"""Will retention take messages before the group has read them (docs/analytics-methods.md,
"Retention race")? Pure: what will be produced against what can be consumed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analytics.kernel.columns import Floats

HOUR_S: Final = 3600.0


def expected_ages(
    produced: Floats, to_come: Floats, backlog: float, capacity: float, age: float
) -> Floats:
    """The age [s] that the oldest unread message will have at the end of each hour to come.

    produced: messages per second in the hours until now, the last one the newest; NaN unknown.
    to_come: the same, forecast. backlog: messages unread now, their oldest age [s] old. capacity:
    messages per second the group can consume. NaN from the first hour that is not forecast.

    The group consumes in order, so its oldest unread message is the one before which as many
    were produced as it has consumed: both are read off one curve of what is produced in all.
    """
    past = np.nan_to_num(produced, nan=0.0) * HOUR_S
    future = to_come * HOUR_S
    hours = np.arange(-past.size, future.size + 1) * HOUR_S
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([past, future]))])
    total -= total[past.size]  # nothing produced yet, as of now
    # What is unread now lies between its oldest message and now, however much was produced since.
    if backlog > 0 and age > 0:
        keep = hours > 0
        hours = np.concatenate([[-age, 0.0], hours[keep]])
        total = np.concatenate([[-backlog, 0.0], total[keep]])
    ages = np.full(future.size, np.nan)
    unread, produced_until = backlog, 0.0
    for hour, more in enumerate(future):
        if np.isnan(more):
            break
        # Within an hour the pace is even: a group that can do more is through before it ends.
        unread = max(unread + more - capacity * HOUR_S, 0.0)
        produced_until += more
        end = (hour + 1) * HOUR_S
        head = np.interp(produced_until - unread, total, hours) if unread > 0 else end
        ages[hour] = max(end - float(head), 0.0)
    return ages


def time_to_limit(ages: Floats, age: float, retention: float) -> float:
    """Seconds until the oldest unread message is as old as retention keeps any; infinity: not
    within the forecast. Between hours the age grows evenly.
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
