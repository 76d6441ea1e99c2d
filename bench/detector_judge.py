"""Judges alarms of one group against the truth, and counts over many groups. Pure.

All times are seconds after a group's beginning, one value per sample that was heard of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.str_]

DAY_MINUTES: Final = 1440.0


class Alarms(NamedTuple):
    """What one detector says of one group at each sample."""

    standing: Bools
    kinds: Words
    """Its name of the alarm; "" from a detector that knows no kinds."""


class Case(NamedTuple):
    """What is true of one group."""

    at: Floats
    period_s: float
    fault: tuple[float, float] | None = None
    """From when to when something is wrong; None: never."""
    harm_s: float | None = None
    """When the objective was broken, which delays count from; None: it was not for a minute."""
    well_again_s: float = math.inf
    """From when alarms are false again after the end of the fault."""


class Seen(NamedTuple):
    """What a detector made of one group."""

    well_minutes: float
    """Time in which all was well, as far as there were samples."""
    false_minutes: float
    """Time of it in which an alarm stood."""
    delay_s: float | None = None
    """From the harm to the alarm, below 0 if the alarm came first; infinite: never found; None:
    there was no harm."""
    kind: str = ""
    """The detector's name of the alarm that found the fault."""


def judged(case: Case, alarms: Alarms) -> Seen:
    """Compare alarms with the truth.

    An alarm finds a fault if it is raised between the fault's beginning and end. One that already
    stood when the fault began does not: it says nothing about the fault.
    """
    at, standing = case.at, alarms.standing
    minutes = case.period_s / 60.0
    begin, end = case.fault if case.fault is not None else (math.inf, math.inf)
    well = (at < begin) | (at >= case.well_again_s)
    seen = Seen(float(well.sum()) * minutes, float((well & standing).sum()) * minutes)
    if case.fault is None or case.harm_s is None:
        return seen
    raised = standing & ~np.append(False, standing[:-1])
    found = np.flatnonzero(raised & (at >= begin) & (at < end))
    if not len(found):
        return seen._replace(delay_s=math.inf)
    first = int(found[0])
    return seen._replace(delay_s=float(at[first]) - case.harm_s, kind=str(alarms.kinds[first]))


def holding(condition: Bools, at: Floats, seconds: float) -> Bools:
    """Where a condition has held at every sample of so many seconds: `for` of Prometheus."""
    index = np.arange(len(at))
    begun = np.maximum.accumulate(np.where(condition, -1, index)) + 1
    held: Bools = condition & (at - at[np.minimum(begun, len(at) - 1)] >= seconds)
    return held


def change(values: Floats, at: Floats, seconds: float) -> Floats:
    """Change of a value since the last sample that is at least so old; NaN without one."""
    before = np.searchsorted(at, at - seconds, "right") - 1
    return np.where(before >= 0, values - values[np.maximum(before, 0)], np.nan)


class Totals(NamedTuple):
    """What a detector made of many groups."""

    faults: int
    """That did harm."""
    found: float
    """Share of them."""
    median_s: float
    p90_s: float
    """A fault that was never found counts as infinitely late; NaN without faults."""
    false_per_day: float
    """Minutes of false alarms per 24 hours in which all was well; NaN without such time."""


def totals(seen: Sequence[Seen]) -> Totals:
    """Count over groups."""
    delays = np.sort([each.delay_s for each in seen if each.delay_s is not None])
    well = sum(each.well_minutes for each in seen)
    count = len(delays)
    return Totals(
        count,
        float(np.isfinite(delays).mean()) if count else math.nan,
        float(delays[(count - 1) // 2]) if count else math.nan,
        float(delays[math.ceil(0.9 * count) - 1]) if count else math.nan,
        DAY_MINUTES * sum(each.false_minutes for each in seen) / well if well else math.nan,
    )
