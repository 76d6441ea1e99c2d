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

from analytics.kernel.age import BOUNDED, EXACT, INTERPOLATED
from analytics.kernel.columns import Bools, Floats, Ints
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

    lag: Floats
    lost: Floats
    lost_ago: Floats
    """Time since the last loss [s]; NaN: none."""
    ahead: Floats
    age: Floats
    age_low: Floats
    age_high: Floats
    method: Ints
    across_hole: Bools
    objective: Floats
    members: Floats
    subscribed: Floats
    recently_subscribed: Bools
    paused: Bools
    alone: Floats
    excused: Bools
    """There is no member, and this absence explains the age."""
    keeps_pace: Bools
    """The group may have kept pace since such an absence."""
    recovers: Bools
    """The age has fallen at every sample for a minute."""
    may_recover: Bools
    """The age is lower than a minute ago."""
    rises: Bools
    """The age exceeds that of the previous sample, and the next commit is due soon."""
    relapsed: Bools
    """The age exceeds its value before its last fall, so a fall is no recovery yet."""
    still: Floats
    still_most: Floats
    stall_after: Floats
    not_due: Floats
    """Part of `still` that is usual between two commits of the pair; 0 if a commit is overdue."""
    not_due_most: Floats
    """Part of the age that may be usual while the commit interval of the pair is not known."""
    progress: Floats
    progress_least: Floats
    progress_most: Floats
    young: Bools
    was_cut: Bools
    """The segment began with a cut, not with the first sample."""
    kept: Floats
    """Age of the oldest record in the log [s]; NaN: not known, or retention deleted nothing yet."""


def _nowhere(inputs: RuleInputs, rules: Rules) -> Bools:
    return np.zeros(inputs.lag.shape, np.bool_)


def _unknown(inputs: RuleInputs, rules: Rules) -> Bools:
    return np.isnan(inputs.lag) | np.isnan(inputs.age)


def _ahead(inputs: RuleInputs, rules: Rules) -> Bools:
    held: Bools = inputs.ahead > 0
    return held


def _lost(inputs: RuleInputs, rules: Rules) -> Bools:
    # A live group continues after the lost messages, so a sample rarely has a commit below them.
    held: Bools = (inputs.lost > 0) | (inputs.lost_ago < rules.lost_for_s)
    return held


def _abandoned(inputs: RuleInputs, rules: Rules) -> Bools:
    # A broker reports subscriptions of present members only. A pair that was subscribed a moment
    # ago and has no member now is not abandoned: its consumers stopped, which is rule 7.
    gone = (inputs.members == 0) & ~inputs.recently_subscribed
    held: Bools = (inputs.subscribed == 0) & ~inputs.paused & (gone | (inputs.members > 0))
    return held


def _paused(inputs: RuleInputs, rules: Rules) -> Bools:
    return inputs.paused


def _ok(inputs: RuleInputs, rules: Rules) -> Bools:
    known = (inputs.method == EXACT) | ((inputs.method == INTERPOLATED) & ~inputs.across_hole)
    age = np.where(known, inputs.age, inputs.age_high)
    # The age of a group that commits every two minutes counts from its last commit, until the next
    # one is overdue. A healthy group would otherwise be late for one minute in two.
    held: Bools = (inputs.lag == 0) | (age - inputs.not_due <= inputs.objective)
    return held


def _may_be_ok(inputs: RuleInputs, rules: Rules) -> Bools:
    bounds = inputs.across_hole | (inputs.method == BOUNDED)
    least = np.where(bounds, inputs.age_low, inputs.age) - inputs.not_due_most
    held: Bools = least <= inputs.objective
    return held


def _stopped(inputs: RuleInputs, rules: Rules) -> Bools:
    held: Bools = inputs.alone >= rules.grace_s
    return held


def _grace(inputs: RuleInputs, rules: Rules) -> Bools:
    return inputs.excused


def stands_still(inputs: RuleInputs) -> Bools:
    """Whether the commit has not moved for the stall time."""
    held: Bools = inputs.still >= inputs.stall_after
    return held


def _stalled(inputs: RuleInputs, rules: Rules) -> Bools:
    return stands_still(inputs)


def _may_be_stalled(inputs: RuleInputs, rules: Rules) -> Bools:
    # A group that certainly falls behind is late, stalled or not; a hole must not hide that.
    held: Bools = (inputs.still_most >= inputs.stall_after) & ~_falling_behind(inputs, rules)
    return held


def _racing(inputs: RuleInputs, rules: Rules) -> Bools:
    # A group that catches up moves away from retention, however long its backlog lasts.
    held: Bools = inputs.age > rules.racing_share * inputs.kept
    return held


def _catching_up(inputs: RuleInputs, rules: Rules) -> Bools:
    held: Bools = (inputs.progress_least > rules.catches_up_above) | inputs.recovers
    return held & ~inputs.relapsed


def _may_catch_up(inputs: RuleInputs, rules: Rules) -> Bools:
    held: Bools = (inputs.progress_most > rules.catches_up_above) & (inputs.method != BOUNDED)
    return held & ~_falling_behind(inputs, rules) & ~inputs.relapsed


def _recovering(inputs: RuleInputs, rules: Rules) -> Bools:
    return (inputs.may_recover & ~inputs.relapsed) | inputs.keeps_pace


def _falling_behind(inputs: RuleInputs, rules: Rules) -> Bools:
    # If missing samples leave the slope open, the present samples decide: the age must rise at each
    # of them for the time of the rule.
    open_ = (inputs.progress_least < inputs.progress_most) & inputs.rises
    held: Bools = (inputs.progress_most < rules.keeps_pace_above) | open_
    return held


def _may_fall_behind(inputs: RuleInputs, rules: Rules) -> Bools:
    held: Bools = (inputs.progress_least < rules.keeps_pace_above) & (inputs.method != BOUNDED)
    return held


def _young(inputs: RuleInputs, rules: Rules) -> Bools:
    return inputs.young & inputs.was_cut


def _new(inputs: RuleInputs, rules: Rules) -> Bools:
    return inputs.young


def _otherwise(inputs: RuleInputs, rules: Rules) -> Bools:
    return np.ones(inputs.lag.shape, np.bool_)


Condition = Callable[[RuleInputs, Rules], Bools]


class Rule(NamedTuple):
    """One rule. Level, raise time and meaning of its status are in `statuses.TABLE`."""

    number: str
    status: Status | None
    """None: the status stays as it was."""
    holds: Condition
    may_hold: Condition
    """Whether it may hold with the missing samples; if only this holds, the rule is unclear."""


RULES: Final = (
    Rule("1", Status.UNKNOWN, _unknown, _nowhere),
    Rule("2", Status.ABANDONED, _abandoned, _nowhere),
    Rule("3", Status.AHEAD, _ahead, _nowhere),
    Rule("4", Status.LOST, _lost, _nowhere),
    Rule("5", Status.PAUSED, _paused, _nowhere),
    Rule("6", Status.OK, _ok, _may_be_ok),
    Rule("7", Status.STOPPED, _stopped, _nowhere),
    Rule("grace", None, _grace, _nowhere),  # no member for a moment: restarts are normal
    Rule("8", Status.STALLED, _stalled, _may_be_stalled),
    Rule("9–11", Status.RACING, _racing, _nowhere),
    Rule("cut", None, _young, _new),  # less than half a window since a cut
    Rule("9", Status.CATCHING_UP, _catching_up, _may_catch_up),
    Rule("less", None, _recovering, _nowhere),  # age below a minute ago, or members are back
    Rule("10", Status.FALLING_BEHIND, _falling_behind, _may_fall_behind),
    Rule("11", Status.LAGGING, _otherwise, _nowhere),
)


def _code(rule: Rule) -> np.int8:
    if rule.status is not None:
        return CODE[rule.status]
    return AFTER_CUT if rule.holds is _young else STAYS


def candidates(inputs: RuleInputs, rules: Rules) -> Codes:
    """Code of the first rule that holds at each sample, or STAYS, AFTER_CUT, UNCLEAR."""
    conditions, codes = [], []
    for rule in RULES:
        conditions.append(rule.holds(inputs, rules))
        codes.append(_code(rule))
        if rule.may_hold is not _nowhere:
            conditions.append(rule.may_hold(inputs, rules))
            codes.append(UNCLEAR)
    return np.select(conditions, codes, UNCLEAR).astype(np.int8)


def held_ticks(candidate: Codes, inputs: RuleInputs, rules: Rules) -> Floats:
    """Number of ticks at which each candidate's rule is known to have held, holes included.

    For STOPPED it is known: without a member on both sides of a hole and without a commit in it,
    the age rose all the time. For others it is 1: a queue may stand still during an excused
    restart.
    """
    late = np.ceil((inputs.age - inputs.objective) / rules.period_s - MICROSECOND)
    alone = np.floor((inputs.alone - rules.grace_s) / rules.period_s + MICROSECOND) + 1
    stopped = candidate == CODE[Status.STOPPED]
    return np.where(stopped, np.minimum(alone, late), 1.0)
