"""Values over time as steps, and times as integers. Pure.

Times are UTC microseconds since 1970 in int64 arrays, all whole milliseconds as store timestamps
are, so that every rendering of a truth carries them without loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ABSENT: Final = int(np.iinfo(np.int64).min)
"""Stands for null in the integer arrays of this package; never leaves it."""
SECOND: Final = 1_000_000
MILLISECOND: Final = 1_000
DAWN: Final = 1_767_600_000 * SECOND
"""2026-01-05 08:00:00 UTC, a whole hour: where workloads begin by default."""


def us(seconds: float) -> int:
    """Seconds as whole microseconds, rounded to a millisecond."""
    return round(seconds * 1_000) * MILLISECOND


def times(seconds: npt.ArrayLike, since: int = DAWN) -> Ints:
    """Seconds after `since` as times, rounded to milliseconds."""
    scaled = np.rint(np.asarray(seconds, np.float64) * 1_000).astype(np.int64)
    return scaled * MILLISECOND + since


def moment(at: int) -> datetime:
    """A time as the tables' functions take it."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(at))


def micros(at: datetime) -> int:
    """The inverse of `moment`."""
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def by_clock(true: Ints, off: int) -> Ints:
    """True times as shown by a clock that is this far ahead [microseconds]; ABSENT stays."""
    return np.where(true == ABSENT, ABSENT, true + off) if off else true


class Steps(NamedTuple):
    """A value that holds from each time until the next: commits, members, epochs."""

    at: Ints
    """Ascending; of equal times the last counts."""
    value: Ints

    def __call__(self, when: Ints) -> Ints:
        """The value at each time; ABSENT before the first step."""
        if not len(self.at):
            return np.full(len(when), ABSENT, np.int64)
        index = np.searchsorted(self.at, when, "right") - 1
        return np.where(index >= 0, self.value[np.maximum(index, 0)], ABSENT)


NEVER: Final = Steps(np.empty(0, np.int64), np.empty(0, np.int64))
"""A value that is absent at all times."""


def always(value: int) -> Steps:
    """One value at all times."""
    return Steps(np.array([np.iinfo(np.int64).min]), np.array([value], np.int64))


def steps(changes: Iterable[tuple[int, int]]) -> Steps:
    """From (time, value) pairs in ascending order of time."""
    listed = list(changes)
    at = np.array([time for time, _ in listed], np.int64)
    assert (np.diff(at) >= 0).all()
    return Steps(at, np.array([value for _, value in listed], np.int64))
