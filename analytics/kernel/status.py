"""The numbered rules: what status each look of a series speaks for. Pure.

`RULES` is the table; the first rule that holds is the look's *candidate*. It becomes the status
when it has held for its time (`steady`, the step after). A rule that may hold, and would be known
to but for looks that are missing, gives UNKNOWN: never better and never worse than the truth.
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
"""A candidate: the status stays as it was."""
AFTER_CUT: Final = np.int8(len(STATUSES) + 2)
"""A candidate: too little is known since a cut; it stays as it was, CATCHING_UP if it was OK."""
UNCLEAR: Final = np.int8(len(STATUSES) + 1)
"""A candidate: UNKNOWN, because of looks that are missing."""


class Looks(NamedTuple):
    """What the rules judge: matrices [tick, series]. Seconds; NaN: not known."""

    lag: Floats
    lost: Floats
    lost_ago: Floats
    """For how long it has lost none [s]; NaN: it never has."""
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
    """No member is there, and that explains the age."""
    keeps_pace: Bools
    """It may have kept pace since such an absence."""
    recovers: Bools
    """The age has fallen look by look for a minute."""
    may_recover: Bools
    """It is lower than a minute ago."""
    rises: Bools
    """It is higher than at the look before, and no commit is due for long."""
    relapsed: Bools
    """It has risen beyond what it was before its last fall: a fall is no recovery yet."""
    still: Floats
    still_most: Floats
    stall_after: Floats
    not_due: Floats
    """How much of `still` is usual between two commits of the pair; 0 once it is more."""
    not_due_most: Floats
    """How much of the age may be usual, while it is not known how often the pair commits."""
    progress: Floats
    progress_least: Floats
    progress_most: Floats
    young: Bools
    was_cut: Bools
    """The segment began with a cut, and not with the first look."""
    kept: Floats
    """How far back the log goes [s]; NaN: not known, or retention has taken nothing yet."""


def _nowhere(looks: Looks, rules: Rules) -> Bools:
    return np.zeros(looks.lag.shape, np.bool_)


def _unknown(looks: Looks, rules: Rules) -> Bools:
    return np.isnan(looks.lag) | np.isnan(looks.age)


def _ahead(looks: Looks, rules: Rules) -> Bools:
    held: Bools = looks.ahead > 0
    return held


def _lost(looks: Looks, rules: Rules) -> Bools:
    # A group that is alive goes on where what it lost ends: a look seldom finds it below.
    held: Bools = (looks.lost > 0) | (looks.lost_ago < rules.lost_for_s)
    return held


def _abandoned(looks: Looks, rules: Rules) -> Bools:
    # A broker says "subscribed" of members that are there. A pair that was just subscribed and has
    # nobody now did not turn away from its topic: its consumers stopped, and rule 7 must say so.
    gone = (looks.members == 0) & ~looks.recently_subscribed
    held: Bools = (looks.subscribed == 0) & ~looks.paused & (gone | (looks.members > 0))
    return held


def _paused(looks: Looks, rules: Rules) -> Bools:
    return looks.paused


def _ok(looks: Looks, rules: Rules) -> Bools:
    known = (looks.method == EXACT) | ((looks.method == INTERPOLATED) & ~looks.across_hole)
    age = np.where(known, looks.age, looks.age_high)
    # Of a group that commits every two minutes the age counts that it had after its last commit,
    # until the next one is overdue: it would else be late for one minute in two, in good health.
    held: Bools = (looks.lag == 0) | (age - looks.not_due <= looks.objective)
    return held


def _may_be_ok(looks: Looks, rules: Rules) -> Bools:
    bounds = looks.across_hole | (looks.method == BOUNDED)
    least = np.where(bounds, looks.age_low, looks.age) - looks.not_due_most
    held: Bools = least <= looks.objective
    return held


def _stopped(looks: Looks, rules: Rules) -> Bools:
    held: Bools = looks.alone >= rules.grace_s
    return held


def _grace(looks: Looks, rules: Rules) -> Bools:
    return looks.excused


def stands_still(looks: Looks) -> Bools:
    """Whether the commit has not moved for the stall time."""
    held: Bools = looks.still >= looks.stall_after
    return held


def _stalled(looks: Looks, rules: Rules) -> Bools:
    return stands_still(looks)


def _may_be_stalled(looks: Looks, rules: Rules) -> Bools:
    # One that falls behind for certain is late, stalled or not: a hole must not hide that.
    held: Bools = (looks.still_most >= looks.stall_after) & ~_falling_behind(looks, rules)
    return held


def _racing(looks: Looks, rules: Rules) -> Bools:
    # A group that gains on its topic gains on retention as much, however long it takes: how long
    # its backlog lasts says nothing of a loss.
    held: Bools = looks.age > rules.racing_share * looks.kept
    return held


def _catching_up(looks: Looks, rules: Rules) -> Bools:
    held: Bools = (looks.progress_least > rules.catches_up_above) | looks.recovers
    return held & ~looks.relapsed


def _may_catch_up(looks: Looks, rules: Rules) -> Bools:
    held: Bools = (looks.progress_most > rules.catches_up_above) & (looks.method != BOUNDED)
    return held & ~_falling_behind(looks, rules) & ~looks.relapsed


def _recovering(looks: Looks, rules: Rules) -> Bools:
    return (looks.may_recover & ~looks.relapsed) | looks.keeps_pace


def _falling_behind(looks: Looks, rules: Rules) -> Bools:
    # Where missing looks leave the slope open, those that are there count: an age that rises from
    # each to the next for the time of the rule.
    open_ = (looks.progress_least < looks.progress_most) & looks.rises
    held: Bools = (looks.progress_most < rules.keeps_pace_above) | open_
    return held


def _may_fall_behind(looks: Looks, rules: Rules) -> Bools:
    held: Bools = (looks.progress_least < rules.keeps_pace_above) & (looks.method != BOUNDED)
    return held


def _young(looks: Looks, rules: Rules) -> Bools:
    return looks.young & looks.was_cut


def _new(looks: Looks, rules: Rules) -> Bools:
    return looks.young


def _otherwise(looks: Looks, rules: Rules) -> Bools:
    return np.ones(looks.lag.shape, np.bool_)


Condition = Callable[[Looks, Rules], Bools]


class Rule(NamedTuple):
    """One rule. Level, raise time and meaning of its status are in `statuses.TABLE`."""

    number: str
    status: Status | None
    """None: the status stays as it was."""
    holds: Condition
    may_hold: Condition
    """With the looks that are missing; where it is so and `holds` is not, the rule is unclear."""


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
    Rule("less", None, _recovering, _nowhere),  # younger than a minute ago, or members are back
    Rule("10", Status.FALLING_BEHIND, _falling_behind, _may_fall_behind),
    Rule("11", Status.LAGGING, _otherwise, _nowhere),
)


def _code(rule: Rule) -> np.int8:
    if rule.status is not None:
        return CODE[rule.status]
    return AFTER_CUT if rule.holds is _young else STAYS


def candidates(looks: Looks, rules: Rules) -> Codes:
    """The first rule that holds at each look: its status' number, STAYS, AFTER_CUT or UNCLEAR."""
    conditions, codes = [], []
    for rule in RULES:
        conditions.append(rule.holds(looks, rules))
        codes.append(_code(rule))
        if rule.may_hold is not _nowhere:
            conditions.append(rule.may_hold(looks, rules))
            codes.append(UNCLEAR)
    return np.select(conditions, codes, UNCLEAR).astype(np.int8)


def held_ticks(candidate: Codes, looks: Looks, rules: Rules) -> Floats:
    """At how many ticks the rule of each look is known to have held, looks missing or not.

    Known of STOPPED: nobody was there on both sides of a hole and nothing was committed in it, so
    the age rose all through it. Of others 1: a queue may stand still while a restart excuses it.
    """
    late = np.ceil((looks.age - looks.objective) / rules.period_s - MICROSECOND)
    alone = np.floor((looks.alone - rules.grace_s) / rules.period_s + MICROSECOND) + 1
    stopped = candidate == CODE[Status.STOPPED]
    return np.where(stopped, np.minimum(alone, late), 1.0)
