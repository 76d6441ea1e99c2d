"""Burrow's published rules of consumer lag, written anew, so that both judge the same groups.

From its documentation ("Consumer Lag Evaluation Rules") and the behaviour of version 1.6 with its
default settings; not its code. It knows of a partition: the last ten commits, each with the lag at
that time, and the end of the partition, requested every ten seconds. It knows no members and no
store times. The rules, for a partition whose present lag is not 0:

1. STOP: more time has passed since the last commit than the ten commits cover. Not if the last
   commit reaches one of the last ten known ends: it had no lag a short while ago.
2. REWIND: one of the ten is lower than the one before, and that one was not reached again.
3. OK if the lag of one of the ten was 0.
4. STALL: all ten are the same offset.
5. WARN: the lag of none is lower than of the one before it.

A group is as bad as its worst partition. Its notifier sends messages from WARN on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.truth.scenario import Commits, Scenario
from tests.truth.steps import SECOND, Ints
from tests.truth.workload import Queue

WINDOW: Final = 10
REFRESH: Final = 10 * SECOND
"""Interval of requests of the ends of partitions, in microseconds."""


class Verdict(IntEnum):
    """Status of a partition, from good to bad; everything above OK is notified."""

    OK = 0
    WARN = 1
    STOP = 2
    STALL = 3
    REWIND = 4


def group(scenario: Scenario, when: Ints, refresh: int = REFRESH) -> npt.NDArray[np.int64]:
    """The verdict on a scenario's group at each time: the worst of its partitions.

    refresh: microseconds between requests of the ends; 1 is better than Burrow can be: then every
    commit's lag is exact. With commits more frequent than requests, lag falls between two requests
    even in a group that has nearly stalled, and rule 5 does not detect it.
    """
    verdicts = [
        partition(reading.queue, commits, when, refresh)
        for reading, commits in zip(scenario.truth.pairs[0].readings, scenario.commits, strict=True)
    ]
    worst: npt.NDArray[np.int64] = np.max(verdicts, axis=0)
    return worst


def partition(
    queue: Queue, commits: Commits, when: Ints, refresh: int = REFRESH
) -> npt.NDArray[np.int64]:
    """The verdict on one partition at each time."""
    found = np.full(len(when), int(Verdict.OK), np.int64)
    count = np.searchsorted(commits.at, when, "right")
    seen = count > 0
    if not seen.any():
        return found
    when, count = when[seen], count[seen]
    # Ends are known as of the last refresh; the lag of a commit is against the end known then.
    refreshed_at_commit = commits.at // refresh * refresh
    lag = np.maximum(queue.max_offset(refreshed_at_commit) - commits.offset, 0)
    # One column per commit of the window, the newest last; those before the first repeat it,
    # which changes no rule but 1, and that takes the first real one.
    index = np.maximum(count[:, None] - WINDOW + np.arange(WINDOW), 0)
    offsets, lags, stamps = commits.offset[index], lag[index], commits.at[index]
    last, covered = stamps[:, -1], stamps[:, -1] - stamps[:, 0]
    refreshed = when // refresh * refresh
    ends = np.stack([queue.max_offset(refreshed - back * REFRESH) for back in range(WINDOW)], 1)
    present = np.maximum(ends[:, 0] - offsets[:, -1], 0) > 0
    recently_at_end = (ends <= offsets[:, -1:]).any(axis=1)
    stopped = (when - last > covered) & ~recently_at_end
    peak = np.maximum.accumulate(offsets, axis=1)
    rewound = (np.diff(offsets, axis=1) < 0).any(axis=1) & (offsets[:, -1] < peak[:, -1])
    never_zero = (lags > 0).all(axis=1)
    stalled = never_zero & (offsets == offsets[:, :1]).all(axis=1)
    growing = never_zero & (np.diff(lags, axis=1) >= 0).all(axis=1)
    verdict = np.select(
        [~present, stopped, rewound, stalled, growing],
        [Verdict.OK, Verdict.STOP, Verdict.REWIND, Verdict.STALL, Verdict.WARN],
        Verdict.OK,
    )
    found[seen] = verdict
    return found
