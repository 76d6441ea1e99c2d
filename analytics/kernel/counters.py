"""Increases of counters across restarts. Pure.

Step before: samples of counters with the start time of the process. Step after: rates, forecasts
and the balance. Counts between the last sample before a restart and the restart are reported as
unknown, not guessed. No increase is extrapolated to the ends of a window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Bools, Floats, Ints


class Deltas(NamedTuple):
    """One entry per sample, compared with the previous sample of the same counter."""

    counted: Floats
    """NaN at the first sample of a counter, and at a defect."""
    seconds: Floats
    """Time of the increase [s]: since the previous sample or since the start of the process."""
    restarted: Bools
    """The process restarted: what it counted after its last sample is unknown."""
    defect: Bools
    """The counter decreased without a restart."""

    @property
    def per_second(self) -> Floats:
        """Rates; NaN where unknown or where no time passed."""
        rate = np.full(self.counted.size, np.nan)
        np.divide(self.counted, self.seconds, out=rate, where=self.seconds > 0)
        return rate


def increases(rows: pa.Table, *names: str) -> tuple[pa.Table, Floats]:
    """Rows of COUNTERS by counter and time, and by how much each exceeds the previous one.
    names: the columns that together name a counter."""
    counter, ts = columns.codes(columns.joined(rows, *names))[0], columns.micros(rows, "ts")
    order = np.lexsort((ts, counter))
    rows = rows.take(pa.array(order))
    value, started = columns.floats(rows, "value"), columns.instants(rows, "started_at")
    return rows, deltas(counter[order], ts[order], value, started).counted


def deltas(counter: Ints, ts: Ints, value: Floats, started_at: Floats) -> Deltas:
    """Increase of each sample over the previous one of the same counter.

    counter: equal numbers for samples of one counter, which are adjacent and sorted by time. ts and
    started_at: microseconds since 1970. With an unknown started_at (NaN), a decrease counts as a
    restart. value: NaN for a missing sample.
    """
    size = counter.size
    nothing = np.full(size, np.nan)
    no = np.zeros(size, dtype=np.bool_)
    out = Deltas(nothing, nothing.copy(), no, no.copy())
    there = np.flatnonzero(~np.isnan(value))
    if there.size < 2:
        return out
    now, before = there[1:], there[:-1]
    same = counter[now] == counter[before]
    now, before = now[same], before[same]
    both_known = ~np.isnan(started_at[now]) & ~np.isnan(started_at[before])
    step = value[now] - value[before]
    # A process that reports its start at one sample only is judged by its values.
    restarted = np.where(both_known, started_at[now] != started_at[before], step < 0)
    defect = (step < 0) & ~restarted
    since_start = (ts[now] - started_at[now]) / SECOND
    out.counted[now] = np.where(restarted, value[now], np.where(defect, np.nan, step))
    between = (ts[now] - ts[before]) / SECOND
    # If the process started before the last sample, or at an unknown time, the interval begins at
    # that sample.
    shorter = restarted & (since_start >= 0) & (since_start < between)
    out.seconds[now] = np.where(defect, np.nan, np.where(shorter, since_start, between))
    out.restarted[now] = restarted
    out.defect[now] = defect
    return out
