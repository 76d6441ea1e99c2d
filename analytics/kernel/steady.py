"""From candidates to statuses: a rule must hold for its time before anybody is told. Pure.

Step before: a candidate per look. After: rows of lag, roll-up, changes.

Evidence from before a hole counts after it: a rule that has held long enough and holds again is
the status at once, one that has held for a part of its time goes on from there. Across a hole of
less than three ticks equal candidates on both sides are taken to have held in between. An alarm
stands until another rule has held for its time; what is no alarm becomes UNKNOWN after a hole
behind which another rule holds. Story: a group stops, the scrape of its second tick fails, and the
third look shows it catching up: whether it was STOPPED meanwhile cannot be known.
While there is no alarm, looks at which a series is late count together, whichever rule holds.
Story: a consumer hangs in a hole. Behind the hole its age rises for 55 s, then its stall time is
over, and the time of a rule would begin again with each of the two. A group that can do 97 % of
its input is FALLING_BEHIND at some looks and LAGGING at others, and would be no alarm for minutes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats
from analytics.kernel.grid import Ticks
from analytics.kernel.rules import Rules
from analytics.kernel.status import AFTER_CUT, CODE, STATUSES, STAYS, UNCLEAR, Codes
from analytics.statuses import TABLE, URGENT, Status

NEVER: Final = np.int8(-1)
UNKNOWN: Final = CODE[Status.UNKNOWN]
OK: Final = CODE[Status.OK]
ALARMING: Final = np.array([TABLE[each].level in URGENT for each in STATUSES] + [False])
"""By status; the last one is NEVER."""
LATE: Final = np.isin(
    np.array([*STATUSES, ""]),
    [
        Status.STOPPED,
        Status.STALLED,
        Status.RACING,
        Status.FALLING_BEHIND,
        Status.LAGGING,
    ],
)
"""By status: the age is beyond the objective, and nothing takes it back."""


class Steady(NamedTuple):
    """Matrices [tick, series], from the first tick that is gone through."""

    status: Codes
    """NEVER: the series was not seen yet, or is forgotten."""
    since: Floats
    """The tick at which it became so [microseconds]."""
    said: Bools
    """There is something to say: a look, or that there has been none for three ticks."""
    before: Codes
    """The status of the tick before."""
    before_since: Floats


def settle(
    candidate: Codes,
    known: Floats,
    present: Bools,
    forgotten: Bools,
    ticks: Ticks,
    begin: int,
    carried: dict[str, Floats],
    rules: Rules,
) -> Steady:
    """Go through the candidates from tick number `begin` on; `carried` is brought forward.

    known: at how many ticks each one's rule is known to have held, looks missing or not.
    """
    shape = candidate.shape
    out = Steady(
        np.empty(shape, np.int8),
        np.empty(shape),
        np.zeros(shape, np.bool_),
        np.empty(shape, np.int8),
        np.empty(shape),
    )
    needed = np.array([*(rules.raise_ticks(status) for status in STATUSES), np.inf])
    lost_after = rules.unknown_after_s * SECOND
    status = np.nan_to_num(carried["status"], nan=float(NEVER)).astype(np.int8)
    before = np.nan_to_num(carried["candidate"], nan=float(NEVER)).astype(np.int8)
    since, held, judged = carried["since"], carried["held"], carried["judged"]
    for row in range(shape[0]):
        now = float(ticks.at[begin + row])
        here, gone = present[row], forgotten[row]
        out.before[row], out.before_since[row] = status, since
        first = here & (status == NEVER)

        found = candidate[row]
        # What held long enough before a time of which nothing is known is the status again as
        # soon as its rule holds after it.
        stood = np.where(held >= needed[before], before, UNKNOWN)
        stood = np.where((status == UNKNOWN) | (status == NEVER), stood, status)
        found = np.where((found == AFTER_CUT) & (stood == OK), CODE[Status.CATCHING_UP], found)
        stays = (found == STAYS) | (found == AFTER_CUT)
        # A rule that does not say anything takes nothing back that another one has said.
        unclear = found == UNCLEAR
        silences = stays | unclear | (found == UNKNOWN)
        keeps = stays | (unclear & ALARMING[stood])
        found = np.where(keeps, stood, np.where(unclear, UNKNOWN, found))

        passed = now - judged
        hole = passed > 1.5 * rules.period_us
        same = found == before
        goes_on = same | (~ALARMING[status] & LATE[found] & LATE[before])
        # A short hole is as long as its ticks; what a long one hides is not counted.
        bridged = hole & same & (passed <= lost_after)
        ticks_passed = np.where(bridged, np.rint(passed / rules.period_us), 1.0)
        held_now = np.where(goes_on, held + ticks_passed, 1.0)
        held_now = np.fmax(held_now, np.where(silences, 0.0, known[row]))
        takes = silences | (held_now >= needed[found]) | (first & (found == OK))
        open_ = first | (hole & ~goes_on & ~ALARMING[status])
        new = np.where(takes, found, np.where(open_, UNKNOWN, status))
        silent = ~here & (passed >= lost_after)
        new = np.where(here, new, np.where(silent, UNKNOWN, status)).astype(np.int8)
        if gone.any():
            new[gone] = NEVER

        says = here & ~silences
        np.copyto(before, found.astype(np.int8), where=says)
        np.copyto(held, held_now, where=says)
        np.copyto(judged, now, where=here)
        np.copyto(since, now, where=new != status)
        if gone.any():
            before[gone], judged[gone], since[gone], held[gone] = NEVER, np.nan, np.nan, 0.0
        status = new
        out.status[row], out.since[row] = status, since
        out.said[row] = here | (silent & ~gone)
    carried["status"][:] = np.where(status == NEVER, np.nan, status)
    carried["candidate"][:] = np.where(before == NEVER, np.nan, before)
    return out
