"""Which ages an absence of all members explains, and whether the group keeps pace after it. Pure.

Example: a group is restarted and absent for 100 s. Its age is 110 s when it returns, and falls from
then on. The slope over a window of progress still contains the absence, so the group would count as
slow for minutes. The pace since the absence decides instead: while the group may keep pace, the
absence explains the whole age.

The store times of messages are random, so the pace is known with an error only. After n messages
with g seconds of stored time between two, the standard error is g × √n seconds. ERRORS times that
error is allowed, plus the time between two commits. A group that keeps pace exceeds this at one
sample of 740 by chance; a group that reads nothing gets less than a minute.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.rules import Rules

ERRORS: Final = 3.0
"""Standard errors that the pace since an absence may be too low."""


def excused(
    members: Floats, age: Floats, alone: Floats, usual: Floats, objective: Floats, rules: Rules
) -> Bools:
    """Return where an absence explains the age: it is no longer than a restart takes.

    An absence does not explain an age that existed before it. Otherwise a group whose members come
    and go would never be late for long enough. alone: longest possible time without a member;
    usual: usual time between two commits. All in seconds.
    """
    slack = rules.objective_slack(objective) + usual
    found: Bools = (members == 0) & (age - alone <= slack) & (age <= slack + rules.grace_s)
    return found


def unfinished(subscribed: Floats, late: Bools, carried: dict[str, Floats]) -> Bools:
    """Return where a series was late when members last subscribed to its topic.

    Matrices are [tick, series]; `carried` is updated.
    """
    found = np.empty(late.shape, np.bool_)
    left_late = carried["left_late"]
    for row, now in enumerate(late):
        np.copyto(left_late, now, where=subscribed[row] > 0)
        found[row] = left_late > 0
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
    """Return where a group may have kept pace since an excused absence in the last window, or
    since an earlier one after which no commit has been due yet.

    If several absences are less than a window apart, only the first counts. Otherwise a group whose
    members come and go, and which commits less than its input, would be excused again after each
    absence. Matrices are [tick, series]. absent: whether the group is excused, or paused. at: the
    ticks [microseconds] as [tick, 1]; they do not depend on the master's clock. alone: as in
    `excused`. due: for how long a member has been present without a commit being due [s].
    `carried` is updated.
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
    recent = (seconds <= rules.progress_window_s) | (due >= seconds - rules.period_s)
    found: Bools = recent & (most >= least)
    return found & ~absent
