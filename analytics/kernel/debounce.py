"""From candidates to statuses: a rule must hold for its time before the status changes. Pure.

Step before: a candidate per sample. Step after: rows of lag, roll-up, changes.

A *hole* is a time without samples. What held before a hole counts after it:

- A rule that held long enough before it and holds after it is the status at once. A rule that held
  for part of its time continues from there.
- Equal candidates on both sides of a hole of less than three ticks are assumed to have held in
  between.
- An alarm stays until another rule has held for its time. Any other status becomes UNKNOWN if
  another rule holds after the hole. Example: a group stops, the scrape of its second tick fails,
  and the third sample shows it catching up. It is not known whether it was STOPPED in between.

Without an alarm, all samples at which a series is late count together, whichever rule holds.
Example: a consumer hangs in a hole. After the hole the age rises for 55 s, then the stall time is
over; each of the two rules alone would start again. A group that reads 97 % of its input is
FALLING_BEHIND at some samples and LAGGING at others, and would raise no alarm for minutes.
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
"""Whether each status is an alarm; the last entry is NEVER."""
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
"""Whether each status means that the age exceeds the objective and does not fall."""


class Debounced(NamedTuple):
    """Statuses as matrices [tick, series], from tick number `begin` on."""

    status: Codes
    """NEVER: the series was not seen yet, or was dropped."""
    since: Floats
    """The tick at which the status began [microseconds]."""
    reported: Bools
    """A row is written: there is a sample, or there has been none for three ticks."""
    before: Codes
    """The status at the previous tick."""
    before_since: Floats


def debounce(
    candidate: Codes,
    known: Floats,
    present: Bools,
    forgotten: Bools,
    ticks: Ticks,
    begin: int,
    carried: dict[str, Floats],
    rules: Rules,
) -> Debounced:
    """Turn the candidates from tick number `begin` on into statuses, and update `carried`.
    known: for each candidate, the number of ticks for which its rule is known to have held,
    missing ticks included."""
    shape = candidate.shape
    out = Debounced(
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
        # A rule that held long enough before an unknown time becomes the status at once if it holds
        # after that time.
        stood = np.where(held >= needed[before], before, UNKNOWN)
        stood = np.where((status == UNKNOWN) | (status == NEVER), stood, status)
        found = np.where((found == AFTER_CUT) & (stood == OK), CODE[Status.CATCHING_UP], found)
        stays = (found == STAYS) | (found == AFTER_CUT)
        # An unclear candidate does not end an alarm.
        unclear = found == UNCLEAR
        silences = stays | unclear | (found == UNKNOWN)
        keeps = stays | (unclear & ALARMING[stood])
        found = np.where(keeps, stood, np.where(unclear, UNKNOWN, found))

        passed = now - judged
        hole = passed > 1.5 * rules.period_us
        same = found == before
        goes_on = same | (~ALARMING[status] & LATE[found] & LATE[before])
        # The ticks of a short hole count; those of a long one do not.
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

        decides = here & ~silences
        np.copyto(before, found.astype(np.int8), where=decides)
        np.copyto(held, held_now, where=decides)
        np.copyto(judged, now, where=here)
        np.copyto(since, now, where=new != status)
        if gone.any():
            before[gone], judged[gone], since[gone], held[gone] = NEVER, np.nan, np.nan, 0.0
        status = new
        out.status[row], out.since[row] = status, since
        out.reported[row] = here | (silent & ~gone)
    carried["status"][:] = np.where(status == NEVER, np.nan, status)
    carried["candidate"][:] = np.where(before == NEVER, np.nan, before)
    return out
