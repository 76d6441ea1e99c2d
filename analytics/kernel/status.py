"""The numbered rules: the candidate status of each sample of a series. Pure.

The first rule in `RULES` that holds gives the *candidate*. It becomes the status when it has held
for its time (`debounce`, the next step). If missing samples leave open whether a rule holds, the
candidate is UNKNOWN: a status is never better or worse than the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analytics.kernel.age import BOUNDED, EXACT, INTERPOLATED, Age
from analytics.kernel.columns import Bools, Floats
from analytics.kernel.lag import Lag
from analytics.kernel.progress import Progress
from analytics.kernel.rules import MICROSECOND, Rules
from analytics.statuses import Status

Codes = npt.NDArray[np.int8]
STATUSES: Final = tuple(Status)
CODE: Final = {status: np.int8(number) for number, status in enumerate(STATUSES)}
STAYS: Final = np.int8(len(STATUSES))
"""Candidate: the status does not change."""
AFTER_CUT: Final = np.int8(len(STATUSES) + 2)
"""Candidate: too little is known since a cut. The status stays; OK becomes CATCHING_UP."""
UNCLEAR: Final = np.int8(len(STATUSES) + 1)
"""Candidate: UNKNOWN because of missing samples."""


class RuleInputs(NamedTuple):
    """Input of the rules: matrices [tick, series]. Times in seconds; NaN: not known."""

    lag: Lag
    age: Age
    """At least the time for which the head has been seen unread."""
    progress: Progress
    lost_ago: Floats
    """Time since the last loss [s]; NaN: none."""
    objective: Floats
    members: Floats
    subscribed: Floats
    recently_subscribed: Bools
    unfinished: Bools
    """The series was late when members last subscribed to the topic."""
    paused: Bools
    alone: Floats
    excused: Bools
    """There is no member, and this absence explains the age."""
    keeps_pace: Bools
    """The group may have kept pace since such an absence."""
    relapsed: Bools
    """The age exceeds its value before its last fall, so a fall is not yet a recovery."""
    still: Floats
    still_most: Floats
    stall_after: Floats
    not_due: Floats
    """Part of `still` that is usual between two commits of the pair; 0 if a commit is overdue."""
    not_due_most: Floats
    """Part of the age that may be usual while the commit interval of the pair is not known."""
    was_cut: Bools
    """The segment began with a cut, not with the first sample."""
    kept: Floats
    """Age of the oldest record in the log [s]; NaN: not known, or retention deleted nothing yet."""


def stands_still(inputs: RuleInputs) -> Bools:
    """Whether the commit has not moved for the stall time."""
    held: Bools = inputs.still >= inputs.stall_after
    return held


def _lost(now: RuleInputs, rules: Rules) -> Bools:
    # A live group continues after the lost messages, so a sample rarely has a commit below them.
    held: Bools = (now.lag.lost > 0) | (now.lost_ago < rules.lost_for_s)
    return held


def _abandoned(now: RuleInputs, _: Rules) -> Bools:
    # A broker reports subscriptions of present members only. A pair that was subscribed a moment
    # ago and has no member now is not abandoned: its consumers stopped, which is rule 7. The same
    # holds for a pair that was late when its readers left while the group has other members: a
    # consumer in a crash loop comes and goes next to those that read other topics.
    gone = (now.members == 0) & ~now.recently_subscribed
    elsewhere = (now.members > 0) & ~(now.unfinished & now.recently_subscribed)
    held: Bools = (now.subscribed == 0) & ~now.paused & (gone | elsewhere)
    return held


def _ok(now: RuleInputs, _: Rules) -> Bools:
    known = (now.age.method == EXACT) | ((now.age.method == INTERPOLATED) & ~now.age.across_hole)
    age = np.where(known, now.age.age, now.age.high)
    # The age of a group that commits every two minutes counts from its last commit, until the next
    # one is overdue. A healthy group would otherwise be late for one minute in two.
    held: Bools = (now.lag.lag == 0) | (age - now.not_due <= now.objective)
    return held


def _may_be_ok(now: RuleInputs, _: Rules) -> Bools:
    bounds = now.age.across_hole | (now.age.method == BOUNDED)
    held: Bools = np.where(bounds, now.age.low, now.age.age) - now.not_due_most <= now.objective
    return held


def _falling_behind(now: RuleInputs, rules: Rules) -> Bools:
    # If missing samples leave the slope open, the present samples decide: the age must rise at each
    # of them for the time of the rule.
    open_ = (now.progress.least < now.progress.most) & now.progress.rises
    lost_again = now.progress.young & now.relapsed
    held: Bools = (now.progress.most < rules.keeps_pace_above) | open_ | lost_again
    return held


def _may_be_stalled(now: RuleInputs, rules: Rules) -> Bools:
    # A group that certainly falls behind is late, stalled or not; a hole must not hide that.
    held: Bools = (now.still_most >= now.stall_after) & ~_falling_behind(now, rules)
    return held


def _catching_up(now: RuleInputs, rules: Rules) -> Bools:
    held: Bools = (now.progress.least > rules.catches_up_above) | now.progress.recovers
    return held & ~now.relapsed


def _may_catch_up(now: RuleInputs, rules: Rules) -> Bools:
    held: Bools = (now.progress.most > rules.catches_up_above) & (now.age.method != BOUNDED)
    return held & ~_falling_behind(now, rules) & ~now.relapsed


def _young(now: RuleInputs, _: Rules) -> Bools:
    # A group that commits an old offset at each restart is cut again before half a window has
    # passed, each time. It loses what it has caught up, so no more has to be known.
    held: Bools = now.progress.young & ~now.relapsed
    return held


Condition = Callable[[RuleInputs, Rules], Bools]


class Rule(NamedTuple):
    """One rule. Level, raise time and meaning of its status are in `statuses.TABLE`."""

    number: str
    status: Status | None
    """None: the status stays as it was."""
    holds: Condition
    may_hold: Condition | None = None
    """Whether it may hold with the missing samples; if only this holds, the rule is unclear."""
    code: np.int8 = STAYS
    """Candidate of a rule without a status."""


RULES: Final = (
    Rule("1", Status.UNKNOWN, lambda now, _: np.isnan(now.lag.lag) | np.isnan(now.age.age)),
    Rule("2", Status.ABANDONED, _abandoned),
    Rule("3", Status.AHEAD, lambda now, _: now.lag.ahead > 0),
    Rule("4", Status.LOST, _lost),
    Rule("5", Status.PAUSED, lambda now, _: now.paused),
    Rule("6", Status.OK, _ok, _may_be_ok),
    Rule("7", Status.STOPPED, lambda now, rules: now.alone >= rules.grace_s),
    # There is no member for a moment: restarts are normal.
    Rule("grace", None, lambda now, _: now.excused),
    Rule("8", Status.STALLED, lambda now, _: stands_still(now), _may_be_stalled),
    # A group that catches up moves away from retention, however long its backlog lasts.
    Rule("9–11", Status.RACING, lambda now, rules: now.age.age > rules.racing_share * now.kept),
    # Less than half a window has passed since a cut.
    Rule("cut", None, lambda now, rules: _young(now, rules) & now.was_cut, _young, AFTER_CUT),
    Rule("9", Status.CATCHING_UP, _catching_up, _may_catch_up),
    # The age is below that of a minute ago, or members are back.
    Rule("less", None, lambda now, _: (now.progress.may_recover & ~now.relapsed) | now.keeps_pace),
    Rule("10", Status.FALLING_BEHIND, _falling_behind),
    Rule("11", Status.LAGGING, lambda now, _: np.ones(now.lag.lag.shape, np.bool_)),
)


def candidates(inputs: RuleInputs, rules: Rules) -> Codes:
    """Code of the first rule that holds at each sample, or STAYS, AFTER_CUT, UNCLEAR."""
    conditions, codes = [], []
    for rule in RULES:
        conditions.append(rule.holds(inputs, rules))
        codes.append(rule.code if rule.status is None else CODE[rule.status])
        if rule.may_hold is not None:
            conditions.append(rule.may_hold(inputs, rules))
            codes.append(UNCLEAR)
    return np.select(conditions, codes, UNCLEAR).astype(np.int8)


def held_ticks(candidate: Codes, inputs: RuleInputs, rules: Rules) -> Floats:
    """Number of ticks at which each candidate's rule is known to have held, holes included.

    For STOPPED it is known: without a member on both sides of a hole and without a commit in it,
    the age rose all the time. For others it is 1: a queue may stand still during an excused
    restart.
    """
    late = np.ceil((inputs.age.age - inputs.objective) / rules.period_s - MICROSECOND)
    alone = np.floor((inputs.alone - rules.grace_s) / rules.period_s + MICROSECOND) + 1
    stopped = candidate == CODE[Status.STOPPED]
    return np.where(stopped, np.minimum(alone, late), 1.0)
