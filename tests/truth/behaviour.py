"""Random producers and consumers, every draw from a seeded generator. Pure.

What a group does to one queue: when messages come, what it can do, when it commits. `scenarios`
puts these together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.truth.closed import Capacity, drained
from tests.truth.steps import DAWN, SECOND, Floats, Ints, Steps, times

Random = np.random.Generator
Spans = Sequence[tuple[float, float]]
"""(from, to) in seconds after the beginning, ascending."""


def poisson(random: Random, rate: float, seconds: float) -> Ints:
    """Arrivals at random at a constant rate."""
    return by_rate(random, lambda t: np.full_like(t, rate), seconds)


def by_rate(random: Random, rate: Callable[[Floats], Floats], seconds: float) -> Ints:
    """Arrivals at random where the rate (per second) changes with time (seconds)."""
    grid = np.arange(0.0, seconds + 1.0, 1.0)
    expected = np.concatenate(([0.0], np.cumsum(rate(grid[:-1]))))
    most = int(expected[-1] + 10 * np.sqrt(expected[-1]) + 50)
    unit = np.cumsum(random.exponential(size=most))
    return times(np.interp(unit[unit < expected[-1]], expected, grid))


def sparse(random: Random, every: float, seconds: float) -> Ints:
    """A message about `every` seconds after the one before, up to a fifth sooner or later."""
    return jittered(random, every, 0.2, seconds)


def jittered(
    random: Random, every: float, jitter: float, seconds: float, since: float = 0.0
) -> Ints:
    """Instants about `every` seconds apart; each gap is up to the share `jitter` shorter or
    longer."""
    count = int((seconds - since) / (every * (1.0 - jitter))) + 2
    gaps = every * (1.0 + random.uniform(-jitter, jitter, count))
    at = since + random.uniform(0.0, every) + np.cumsum(gaps) - gaps[0]
    return times(at[at < seconds])


def capacity(changes: Sequence[tuple[float, float]], down: Spans = ()) -> Capacity:
    """Messages per second from each time on, and none in the spans without work."""
    points = {at for at, _ in changes} | {edge for span in down for edge in span}
    listed = []
    for at in sorted(points):
        rate = [value for since, value in changes if since <= at][-1]
        works = not any(low <= at < high for low, high in down)
        listed.append((at, rate if works else 0.0))
    return Capacity(listed)


def outside(instants: Ints, down: Spans) -> Ints:
    """Those instants that lie in none of the spans."""
    kept = np.ones(len(instants), np.bool_)
    for low, high in down:
        kept &= ~((instants >= DAWN + low * SECOND) & (instants < DAWN + high * SECOND))
    return instants[kept]


def committed(visible: Ints, can: Capacity, instants: Ints) -> Ints:
    """Offset of each commit of a group that does all it can and keeps its place."""
    return np.searchsorted(drained(visible, can), instants, "right").astype(np.int64)


def recommitted(
    random: Random, visible: Ints, rate: float, instants: Ints, back: float, every: float
) -> tuple[Ints, Ints]:
    """Commits (times, offsets) of a group that now and then commits what it had `back` s before.

    It reads from there again at its rate: a rebalance gave the queue to a member that knew only
    the older offset. Such a commit comes in place of the regular one.
    """
    offsets = committed(visible, Capacity([(0.0, rate)]), instants)
    at = instants.astype(np.float64) / SECOND
    shown = offsets.copy()
    moments = np.arange(every, at[-1] - DAWN / SECOND, every) * random.uniform(0.9, 1.1)
    for moment in moments:
        first = int(np.searchsorted(at, DAWN / SECOND + moment))
        old = int(np.searchsorted(at, at[first] - back)) - 1
        if first >= len(at) or old < 0:
            continue
        again = offsets[old] + (rate * (at[first:] - at[first])).astype(np.int64)
        shown[first:] = np.minimum(shown[first:], again)
    return instants, shown


def steps_of(at: Ints, offsets: Ints) -> Steps:
    """Commits as steps; the group stood at 0 long before."""
    return Steps(
        np.concatenate(([DAWN - 3600 * SECOND], at)),
        np.concatenate((np.zeros(1, np.int64), offsets)),
    )


def floored(
    kept: Steps, can: Capacity, instants: Ints, caught_up_until: int, from_offset: int
) -> Ints:
    """Offset of each commit of a group that works through a backlog while retention removes it.

    If the front of the queue has overtaken the group, the group continues at the front.
    """
    front = np.concatenate(([caught_up_until], kept.at))
    floor = np.concatenate(([from_offset], kept.value))
    later = front >= caught_up_until
    front, floor = front[later], floor[later]
    lead = np.maximum.accumulate(floor - can.work(front))
    index = np.searchsorted(front, instants, "right") - 1
    found: Ints = np.floor(can.work(instants) + lead[np.maximum(index, 0)]).astype(np.int64)
    return found
