"""What an absence of all members excuses, and whether the group keeps pace after it. Pure.

Example: a group is restarted and away for 100 s. Its age is 110 s when it is back, and falls from
then on. The slope over a window of progress still contains the absence, so the group counts as
slower for minutes. The pace since the absence decides instead: while it may be that of a group that
keeps pace, the absence is the whole reason of the age.

Store times of the messages that a group reads are random, so its pace is known with an error only:
after n messages that are on average g seconds of stored time apart it has a standard error of
g × √n seconds of stored time. ERRORS times that error is granted, and the time between two commits.
A group that keeps pace with its topic is outside of that at one sample of 740 by chance, one that
reads 1.5 × as fast far more rarely; a group that reads nothing gets less than a minute.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.rules import Rules

ERRORS: Final = 3.0
"""Standard errors by which the pace since an absence may be short."""


def excused(
    members: Floats, age: Floats, alone: Floats, usual: Floats, objective: Floats, rules: Rules
) -> Bools:
    """Return where an absence explains the age: it is no longer than a restart takes.

    An absence does not explain an age that was there before it: otherwise a group whose members
    come and go would never be late for long enough, whatever its age. alone: for how long there may
    be no member; usual: what is usual between two commits. All in seconds.
    """
    slack = rules.objective_slack(objective) + usual
    found: Bools = (members == 0) & (age - alone <= slack) & (age <= slack + rules.grace_s)
    return found


def keeps_pace(
    absent: Bools,
    at: Ints,
    age: Floats,
    lag: Floats,
    alone: Floats,
    due: Floats,
    carried: dict[str, Floats],
    rules: Rules,
) -> Bools:
    """Return where a group may have kept pace since an excused absence in the last window.

    Of several absences with less than a window between them the first counts: members that come
    and go, and commit less than what comes in, would otherwise get time after each.
    Matrices [tick, series]: absent: from `excused`; at: [tick, 1], the ticks [microseconds], which
    do not change with the master's clock; alone: as there; due: for how long a member is there that
    has not committed, and need not have [s]. `carried` is updated.
    """
    since, age_then = np.empty(age.shape), np.empty(age.shape)
    anchor, anchor_age = carried["excused_tick"], carried["excused_age"]
    last = carried["excused_last"]
    for row, away in enumerate(absent):
        passed = (at[row] - last) / SECOND
        first = ~(passed <= rules.progress_window_s)
        goes_on = (anchor == last) & (passed < alone[row] + rules.period_s / 2)
        moves = away & (first | goes_on)
        np.copyto(anchor, at[row], where=moves)
        np.copyto(anchor_age, age[row], where=moves)
        np.copyto(last, at[row], where=away)
        since[row], age_then[row] = anchor, anchor_age
    seconds = (at - since) / SECOND
    consumed = seconds - (age - age_then)
    apart = np.full(age.shape, np.nan)
    np.divide(age, lag, out=apart, where=lag > 0)
    # The absence ended within the period after its last sample, and the last commit came within the
    # period before this one: half a period each, with the variance of a uniform distribution.
    variance = apart * (np.maximum(consumed, 0) + apart) + rules.period_s**2 / 6
    most = consumed + ERRORS * np.sqrt(variance)
    least = rules.keeps_pace_above * (seconds - due - rules.period_s)
    found: Bools = (seconds <= rules.progress_window_s) & (most >= least)
    return found & ~absent
