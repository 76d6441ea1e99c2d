"""Closed formulas: when each message is stored, read and committed. Pure.

A consumer is a server with a capacity in messages per second, which may change over time. With
W(t) the work it can have done until t, message j is done when W reaches
``(j + 1) + max over k <= j of (W(visible k) - k)``: exact, and one pass of array code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.truth.steps import DAWN, MILLISECOND, SECOND, Floats, Ints, Steps, times
from tests.truth.workload import Broker, Era, Log, Queue, Reading

LONG_BEFORE = 3600 * SECOND
"""How long before the beginning groups committed for the first time."""


def constant(rate: float, seconds: float, since: float = 0.0) -> Ints:
    """Store times of messages at a constant rate, the first at `since` seconds."""
    return times(since + np.arange(int(np.ceil(rate * seconds))) / rate)


def varying(count: Callable[[Floats], Floats], seconds: float) -> Ints:
    """Store times where the count of messages until a time (seconds) is a rising function.

    Between points 50 ms apart the function is taken as straight.
    """
    step = 0.05
    grid = np.arange(0.0, seconds + step, step)
    total = count(grid)
    wanted = np.arange(int(np.ceil(total[0])), int(np.floor(total[-1])) + 1, dtype=np.float64)
    return times(np.interp(wanted, total, grid))


class Capacity:
    """Messages per second that a consumer can do, from each of some times on."""

    def __init__(self, changes: Sequence[tuple[float, float]], since: int = DAWN) -> None:
        """changes: (seconds after the beginning, messages per second), ascending."""
        self._since = since
        self._at = np.array([at for at, _ in changes], np.float64)
        self._rate = np.array([rate for _, rate in changes], np.float64)
        done = np.diff(self._at) * self._rate[:-1]
        self._work = np.concatenate(([0.0], np.cumsum(done)))

    def work(self, when: Ints) -> Floats:
        """Messages it can have done until each time."""
        at = (when - self._since) / SECOND
        index = np.clip(np.searchsorted(self._at, at, "right") - 1, 0, None)
        rest = np.maximum(at - self._at[index], 0.0)
        found: Floats = self._work[index] + rest * self._rate[index]
        return found

    def when(self, work: Floats) -> Ints:
        """Return the first time at which this much work can be done; int64's maximum if there is
        none."""
        # From the left, for a stretch without capacity: work that is done as it begins is done
        # there, and what is more than that, behind it.
        index = np.clip(np.searchsorted(self._work, work, "left") - 1, 0, len(self._at) - 1)
        rate = self._rate[index]
        with np.errstate(divide="ignore", invalid="ignore"):
            at = self._at[index] + np.maximum(work - self._work[index], 0.0) / rate
        at = np.where(work <= self._work[index], self._at[index], at)
        possible = np.isfinite(at)
        found = np.full(len(work), np.iinfo(np.int64).max, np.int64)
        scaled = np.rint(at[possible] * 1000).astype(np.int64) * MILLISECOND
        found[possible] = scaled + self._since
        return found


def drained(visible: Ints, capacity: Capacity) -> Ints:
    """When a consumer of this capacity is done with each message; int64's maximum if never."""
    order = np.arange(len(visible), dtype=np.float64)
    begun = np.maximum.accumulate(capacity.work(visible) - order)
    return np.maximum(capacity.when(begun + order + 1.0), visible)


def delivered(visible: Ints, done: Ints, prefetch: int) -> Steps:
    """Offsets handed out by a group that holds at most `prefetch` messages."""
    freed = np.concatenate((np.full(prefetch, np.iinfo(np.int64).min), done[:-prefetch]))
    at = np.maximum(visible, freed[: len(visible)])
    at = at[at < np.iinfo(np.int64).max]
    return _counted(at)


def commits(done: Ints) -> Steps:
    """Commit offsets of a group that is done with messages at these times, and commits each."""
    return _counted(done[done < np.iinfo(np.int64).max])


def _counted(at: Ints) -> Steps:
    """A count that begins at 0 and rises by one at each time."""
    offsets = np.arange(len(at) + 1, dtype=np.int64)
    return Steps(np.concatenate(([at.min(initial=DAWN - LONG_BEFORE)], at)), offsets)


def queue(stored: Ints, *, number: int = 0, visible: Ints | None = None) -> Queue:
    """A queue whose messages, from offset 0, are visible as soon as they are stored, or later."""
    era = Era(DAWN - LONG_BEFORE, 0, stored, stored if visible is None else visible)
    return Queue("g0", "orders", number, (era,))


def reading(of: Queue, done: Ints) -> Reading:
    """A group that is done with the messages of a queue at these times."""
    return Reading(of, commits(done))


def log_of(queues: Sequence[Queue]) -> Log:
    """The log that holds the messages of these queues, each confirmed as it is stored."""
    stored = np.concatenate([each.eras[-1].stored for each in queues])
    visible = np.concatenate([each.eras[-1].visible for each in queues])
    order = np.argsort(stored, kind="stable")
    # Dispatch goes through the log in order: a record waits for all before it.
    return Log(stored[order], stored[order], np.maximum.accumulate(visible[order]))


def broker_of(queues: Sequence[Queue]) -> Broker:
    """A broker set of two nodes that holds these queues."""
    return Broker("g0", log_of(queues))
