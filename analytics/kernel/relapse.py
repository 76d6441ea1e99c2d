"""Which groups repeatedly lose what they have caught up. Pure.

Example: a consumer hangs for 200 s of every 280 s. Between two hangs it reads three times as fast
as messages come in, so its age falls for a while in each round, but rises from round to round. By
the slope of each fall it would be catching up, for hours.

A group relapses where its age, after a fall, exceeds the value before the fall, and exceeds what a
restart explains. One relapse is a second outage before the end of the first recovery; the next fall
counts as a recovery. From the second relapse on, a fall counts as catching up only if it is 1.5
times the second longest fall before a relapse, or ends below the last one. The longest fall is not
used, because it may be the recovery from a long outage.

A commit that goes back without a request loses what was caught up, too. With samples further apart
than the crashes of a group, no fall of its age is seen.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analytics.kernel.columns import Bools, Floats

LONGER: Final = 1.5
"""A fall must be longer by this factor than the second longest one that a relapse followed."""


def relapsed(
    age: Floats, calm: Bools, rewound: Bools, restart: Floats, carried: dict[str, Floats]
) -> Bools:
    """Return where a group has relapsed twice and its age has not fallen far enough since.

    All arguments are matrices [tick, series]; ages are in seconds. age: NaN where it is not known.
    calm: the history before this sample is ignored, because the group is in time, is paused or was
    cut. rewound: the commit went back without a request. restart: the highest age that a restart
    explains. `carried` is updated.
    """
    found = np.empty(age.shape, np.bool_)
    peak, low = carried["peak_age"], carried["low_age"]
    end, fall, longest = carried["relapse_age"], carried["fall_age"], carried["longest_fall_age"]
    for row, now in enumerate(age):
        for values in (peak, low, end, fall, longest):
            values[calm[row]] = np.nan
        counts = ~np.isnan(now) & ~calm[row]
        highest = counts & ~(now <= peak)
        again = highest & ((low < peak) | rewound[row]) & (now > restart[row])
        np.copyto(fall, np.fmax(fall, np.minimum(longest, peak - low)), where=again)
        np.copyto(longest, np.fmax(longest, peak - low), where=again)
        np.copyto(end, low, where=again)
        np.copyto(peak, now, where=highest)
        np.copyto(low, now, where=highest | (counts & (now < low)))
        np.copyto(end, np.nan, where=counts & (now < np.fmax(end, peak - LONGER * fall)))
        found[row] = ~np.isnan(end) & ~np.isnan(fall)
    return found
