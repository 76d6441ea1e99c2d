"""Ten groups that are well, odd as they sample: none may raise an alarm. Random, by seed. Pure."""

from __future__ import annotations

import numpy as np

from tests.truth import behaviour as do
from tests.truth.behaviour import Random
from tests.truth.cases import at
from tests.truth.scenario import (
    ABLE,
    RATE,
    SECONDS,
    Commits,
    Scenario,
    each_queue,
    instants_of,
    no_commits,
    working,
)
from tests.truth.steps import DAWN, SECOND, Floats, Ints, steps, times, us


def steady(random: Random) -> Scenario:
    """Messages at random, read within moments, committed every five seconds."""
    return each_queue(lambda: working(random, do.poisson(random, RATE, SECONDS)))


def exact(random: Random) -> Scenario:
    """A producer like a clock, and a group that always holds the same number of messages."""

    def one() -> tuple[Ints, Commits]:
        stored = times(np.arange(int(SECONDS * RATE)) / RATE)
        instants = instants_of(random)
        done = stored + us(2.0)
        return stored, Commits(instants, np.searchsorted(done, instants, "right"))

    return each_queue(one)


def trickle(random: Random) -> Scenario:
    """A message per queue every five minutes, read within a second or two."""
    return each_queue(lambda: working(random, do.sparse(random, 300.0, SECONDS), every=1.0))


def bursts(random: Random) -> Scenario:
    """Every ten minutes there are 15 times as many messages for forty seconds. They are read within
    little more than a minute."""
    begin = 600.0 * np.arange(1, int(SECONDS / 600.0)) + random.uniform(-120, 120)

    def rate(t: Floats) -> Floats:
        bursting = ((t[:, None] >= begin) & (t[:, None] < begin + 40.0)).any(axis=1)
        return np.where(bursting, 15.0, 1.0) * 10.0

    return each_queue(lambda: working(random, do.by_rate(random, rate, SECONDS), able=100.0))


def wave(random: Random) -> Scenario:
    """The rate rises and falls by eighty per cent within an hour."""
    phase = random.uniform(0, 2 * np.pi)

    def rate(t: Floats) -> Floats:
        wave: Floats = RATE * (1.0 + 0.8 * np.sin(2 * np.pi * t / 3600.0 + phase))
        return wave

    return each_queue(lambda: working(random, do.by_rate(random, rate, SECONDS)))


def rebalances(random: Random) -> Scenario:
    """Every twenty minutes a commit goes back to the offset of twenty seconds before."""

    def one() -> tuple[Ints, Commits]:
        stored = do.poisson(random, RATE, SECONDS)
        instants = instants_of(random)
        return stored, Commits(*do.recommitted(random, stored, ABLE, instants, 20.0, 1200.0))

    return each_queue(one)


def unsubscribed(random: Random) -> Scenario:
    """The topic is not read any more."""

    def one() -> tuple[Ints, Commits]:
        return do.poisson(random, RATE, SECONDS), no_commits()

    return each_queue(one, members=steps([(at(-7200), 0)]), subscribed=steps([(at(-7200), 0)]))


def restarts(random: Random) -> Scenario:
    """The only member is away for 75 s, every half hour, and has to catch up."""
    begin = 1800.0 * np.arange(1, int(SECONDS / 1800.0)) + random.uniform(-600, 600)
    down = [(float(each), float(each) + 75.0) for each in begin]
    changes = [(at(-7200.0), 1)]
    for low, high in down:
        changes += [(at(low), 0), (at(high), 1)]
    return each_queue(
        lambda: working(random, do.poisson(random, RATE, SECONDS), down=down),
        members=steps(changes),
    )


def rare_commits(random: Random) -> Scenario:
    """The group reads messages as they come, and commits every two minutes."""
    return each_queue(
        lambda: working(random, do.poisson(random, RATE, SECONDS), every=120.0, jitter=0.05),
    )


def blind(random: Random) -> Scenario:
    """The samples of five minutes are missing, three times."""
    made = steady(random)
    begin = random.uniform(600.0, SECONDS - 900.0, 3)
    ticks = made.truth.ticks()
    seconds = (ticks - DAWN) / SECOND
    dark = ((seconds[:, None] >= begin) & (seconds[:, None] < begin + 300.0)).any(axis=1)
    return made._replace(truth=made.truth.without(ticks[dark].tolist()))
