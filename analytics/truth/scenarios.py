"""Three hours of groups that are well, or that fail at a known time; random, by seed. Pure.

Ten behaviours must raise no alarm, however odd they look; of each fault it is known when it began
to show and what must be said of it. `tests/support/lag_scenarios.py` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from analytics.truth import behaviour as do
from analytics.truth.behaviour import Random, Spans
from analytics.truth.cases import at
from analytics.truth.closed import Capacity, broker_of, queue
from analytics.truth.steps import DAWN, SECOND, Floats, Ints, Steps, steps, times, us
from analytics.truth.workload import Pair, Queue, Reading, Reset, Truth

SECONDS: Final = 3 * 3600.0
QUEUES: Final = 2
RATE: Final = 20.0
"""Messages per second of each queue, unless a scenario is about something else."""
ABLE: Final = 60.0
"""What a consumer can do on each queue, in messages per second."""
COMMIT_EVERY: Final = 5.0
RETAINED: Final = 600.0


class Commits(NamedTuple):
    """Every commit request that a group sent for a queue, those that changed nothing included."""

    at: Ints
    offset: Ints


class Scenario(NamedTuple):
    """A workload, and what must be found in it."""

    truth: Truth
    commits: tuple[Commits, ...]
    """Per queue."""
    since: int | None = None
    """When a fault began; None: all is well."""
    shows: int | None = None
    """From when on a look at it differs from one at a healthy group; `since` if at once."""


class Fault(NamedTuple):
    """What must be found, and when."""

    make: Callable[[Random], Scenario]
    within_s: float
    """After it began to show, 30 s may be added."""
    said: frozenset[str]
    """Statuses of which the first must be one."""
    later: str | None = None
    """A status that must follow."""
    breaks_after_s: float | None = None
    """How long at the rates meant until the objective is broken: what `within_s` contains of it.

    The limit then counts from the time at which the objective is truly broken: arrivals at random
    move that by minutes where a group is but 3 % too slow.
    """


def healthy() -> Mapping[str, Callable[[Random], Scenario]]:
    """By name."""
    return {
        "steady": _steady,
        "exact rate, constant in flight": _exact,
        "a message per 5 min": _trickle,
        "15-fold bursts": _bursts,
        "slow wave": _wave,
        "rebalance re-commits old offsets": _rebalances,
        "topic not subscribed": _unsubscribed,
        "restarts of 75 s": _restarts,
        "commits every 120 s": _rare_commits,
        "monitor blind for 5 min": _blind,
    }


def faults() -> Mapping[str, Fault]:
    """By name."""
    stopped, stalled = frozenset({"STOPPED"}), frozenset({"STALLED"})
    falls = frozenset({"FALLING_BEHIND"})
    return {
        "dies, 100 messages/s": Fault(lambda r: _dies(r, 50.0, COMMIT_EVERY), 135.0, stopped),
        "dies, a message per 5 min": Fault(_trickle_dies, 180.0, stopped),
        "dies, commits every 120 s": Fault(lambda r: _dies(r, RATE, 120.0), 135.0, stopped),
        "poison message, same commit again": Fault(lambda r: _poison(r, True), 75.0, stalled),
        "poison message, no commit": Fault(lambda r: _poison(r, False), 75.0, stalled),
        "120 s batch stuck, connected": Fault(_batch_stuck, 105.0, falls | stalled, "STALLED"),
        "capacity 1 % of input": _slow(0.01, 120.0),
        "capacity 20 % of input": _slow(0.2, 120.0),
        "capacity 80 % of input": _slow(0.8, 375.0),
        "capacity 97 % of input": _slow(0.97, 2175.0),
        "retention overtakes": Fault(
            _retention, 120.0, falls | {"RACING"}, "LOST", breaks_after_s=60.0 / 0.9
        ),
    }


def _slow(share: float, within: float) -> Fault:
    said = frozenset({"FALLING_BEHIND"})
    breaks = 60.0 / (1.0 - share)
    return Fault(lambda r: _slows(r, share), within, said, breaks_after_s=breaks)


# -- well -----------------------------------------------------------------------------------------


def _steady(random: Random) -> Scenario:
    return _each(random, lambda: _working(random, do.poisson(random, RATE, SECONDS)))


def _exact(random: Random) -> Scenario:
    """A producer like a clock, and a group that always holds the same number of messages."""

    def one() -> tuple[Ints, Commits]:
        stored = times(np.arange(int(SECONDS * RATE)) / RATE)
        instants = _instants(random)
        done = stored + us(2.0)
        return stored, Commits(instants, np.searchsorted(done, instants, "right"))

    return _each(random, one)


def _trickle(random: Random) -> Scenario:
    return _each(random, lambda: _working(random, do.sparse(random, 300.0, SECONDS), every=1.0))


def _bursts(random: Random) -> Scenario:
    """Forty seconds of 15 times as much, every ten minutes; read within a minute and a bit."""
    begin = 600.0 * np.arange(1, int(SECONDS / 600.0)) + random.uniform(-120, 120)

    def rate(t: Floats) -> Floats:
        bursting = ((t[:, None] >= begin) & (t[:, None] < begin + 40.0)).any(axis=1)
        return np.where(bursting, 15.0, 1.0) * 10.0

    return _each(random, lambda: _working(random, do.by_rate(random, rate, SECONDS), able=100.0))


def _wave(random: Random) -> Scenario:
    phase = random.uniform(0, 2 * np.pi)

    def rate(t: Floats) -> Floats:
        wave: Floats = RATE * (1.0 + 0.8 * np.sin(2 * np.pi * t / 3600.0 + phase))
        return wave

    return _each(random, lambda: _working(random, do.by_rate(random, rate, SECONDS)))


def _rebalances(random: Random) -> Scenario:
    def one() -> tuple[Ints, Commits]:
        stored = do.poisson(random, RATE, SECONDS)
        instants = _instants(random)
        return stored, Commits(*do.recommitted(random, stored, ABLE, instants, 20.0, 1200.0))

    return _each(random, one)


def _unsubscribed(random: Random) -> Scenario:
    def one() -> tuple[Ints, Commits]:
        return do.poisson(random, RATE, SECONDS), _none()

    return _each(random, one, members=steps([(at(-7200), 0)]), subscribed=steps([(at(-7200), 0)]))


def _restarts(random: Random) -> Scenario:
    """The only member is away for 75 s, every half hour, and has to catch up."""
    begin = 1800.0 * np.arange(1, int(SECONDS / 1800.0)) + random.uniform(-600, 600)
    down = [(float(each), float(each) + 75.0) for each in begin]
    changes = [(at(-7200.0), 1)]
    for low, high in down:
        changes += [(at(low), 0), (at(high), 1)]
    return _each(
        random,
        lambda: _working(random, do.poisson(random, RATE, SECONDS), down=down),
        members=steps(changes),
    )


def _rare_commits(random: Random) -> Scenario:
    return _each(
        random,
        lambda: _working(random, do.poisson(random, RATE, SECONDS), every=120.0, jitter=0.05),
    )


def _blind(random: Random) -> Scenario:
    made = _steady(random)
    begin = random.uniform(600.0, SECONDS - 900.0, 3)
    ticks = made.truth.ticks()
    seconds = (ticks - DAWN) / SECOND
    dark = ((seconds[:, None] >= begin) & (seconds[:, None] < begin + 300.0)).any(axis=1)
    return made._replace(truth=made.truth.without(ticks[dark].tolist()))


# -- failing --------------------------------------------------------------------------------------


def _moment(random: Random) -> float:
    return float(random.uniform(3600.0, 5400.0))


def _dies(random: Random, rate: float, every: float) -> Scenario:
    when = _moment(random)
    down = [(when, SECONDS)]
    made = _each(
        random,
        lambda: _working(
            random, do.poisson(random, rate, SECONDS), able=3 * rate, every=every, down=down
        ),
        members=steps([(at(-7200.0), 1), (at(when), 0)]),
    )
    return made._replace(since=at(when), shows=at(when))


def _trickle_dies(random: Random) -> Scenario:
    when = _moment(random)
    down = [(when, SECONDS)]
    made = _each(
        random,
        lambda: _working(random, do.sparse(random, 300.0, SECONDS), every=1.0, down=down),
        members=steps([(at(-7200.0), 1), (at(when), 0)]),
    )
    unread = min(
        int(each.queue.eras[0].stored[int(each.commit.value[-1])])
        for each in made.truth.pairs[0].readings
    )
    return made._replace(since=at(when), shows=max(at(when), unread))


def _poison(random: Random, again: bool) -> Scenario:
    """One queue fails at a message; the other is read. The members are there."""
    when = _moment(random)
    made = _steady(random)
    first, *others = made.truth.pairs[0].readings
    commits = made.commits[0]
    kept = commits.at < at(when)
    offset = int(commits.offset[kept][-1])
    stuck = Commits(commits.at[kept], commits.offset[kept])
    if again:
        stuck = Commits(commits.at, np.where(kept, commits.offset, offset))
    tries = at(when) + np.arange(int((SECONDS - when) / 5.0)) * 5 * SECOND
    pair = replace(
        made.truth.pairs[0],
        readings=(replace(first, commit=do.steps_of(*stuck)), *others),
        redelivered=Steps(np.concatenate(([at(-7200)], tries)), np.arange(len(tries) + 1)),
    )
    truth = replace(made.truth, pairs=(pair,))
    unread = int(first.queue.eras[0].stored[offset])
    return Scenario(truth, (stuck, *made.commits[1:]), at(when), max(at(when), unread))


def _batch_stuck(random: Random) -> Scenario:
    """It takes all there is, commits after 120 s; once it does not come back, but is connected."""
    when = _moment(random)
    made = _rare_commits(random)
    readings, commits, due = [], [], []
    for reading, sent in zip(made.truth.pairs[0].readings, made.commits, strict=True):
        kept = sent.at < at(when)
        commits.append(Commits(sent.at[kept], sent.offset[kept]))
        readings.append(replace(reading, commit=do.steps_of(*commits[-1])))
        due.append(int(sent.at[~kept][0]))
    pair = replace(made.truth.pairs[0], readings=tuple(readings))
    # Until the first commit is missing, nobody can tell it from a batch that is being worked on.
    return Scenario(replace(made.truth, pairs=(pair,)), tuple(commits), at(when), min(due))


def _slows(random: Random, share: float) -> Scenario:
    when = _moment(random)
    can = Capacity([(0.0, ABLE), (when, share * RATE)])
    made = _each(random, lambda: _working(random, do.poisson(random, RATE, SECONDS), can=can))
    return made._replace(since=at(when), shows=at(when))


def _retention(random: Random) -> Scenario:
    """A tenth of the input from some time on; messages older than ten minutes are removed."""
    when = _moment(random)
    can = Capacity([(0.0, ABLE), (when, 0.1 * RATE)])
    readings, commits = [], []
    removals = times(np.arange(RETAINED, SECONDS, 30.0))
    for number in range(QUEUES):
        stored = do.poisson(random, RATE, SECONDS)
        floor = np.searchsorted(stored, removals - us(RETAINED), "left").astype(np.int64)
        kept = Steps(np.concatenate(([at(-7200)], removals)), np.concatenate(([0], floor)))
        instants = _instants(random)
        offset = do.committed(stored, can, instants)
        late = instants >= at(when)
        caught_up = int(offset[~late][-1])
        after = Steps(kept.at[kept.at > at(when)], kept.value[kept.at > at(when)])
        offset[late] = do.floored(after, can, instants[late], at(when), caught_up)
        commits.append(Commits(instants, offset))
        of = replace(queue(stored, number=number), kept=kept)
        readings.append(Reading(of, do.steps_of(instants, offset)))
    made = _scenario(tuple(readings), tuple(commits))
    records = np.sort(np.concatenate([each.queue.eras[0].stored for each in readings]))
    gone = np.searchsorted(records, removals - us(RETAINED), "left").astype(np.int64)
    broker = made.truth.brokers[0]
    front = Steps(np.concatenate(([at(-7200)], removals)), np.concatenate(([0], gone)))
    broker = replace(broker, log=replace(broker.log, kept=front))
    return made._replace(
        truth=replace(made.truth, brokers=(broker,)), since=at(when), shows=at(when)
    )


def rewound(random: Random) -> Scenario:
    """An operator sets it back to the start; it drains by itself. No alarm: an event, and a status.

    An hour and more of messages are read again at five times their rate.
    """
    when = _moment(random)
    readings, commits = [], []
    for number in range(QUEUES):
        stored = do.poisson(random, RATE, SECONDS)
        instants = _instants(random)
        offset = do.committed(stored, Capacity([(0.0, ABLE)]), instants)
        late = instants >= at(when)
        before = int(offset[~late][-1])
        visible = np.maximum(stored, at(when))
        again = do.committed(visible, Capacity([(when, 5 * RATE)]), instants[late])
        moments = np.concatenate((instants[~late], [at(when)], instants[late]))
        offsets = np.concatenate((offset[~late], [0], again))
        commits.append(Commits(moments, offsets))
        readings.append(
            Reading(
                queue(stored, number=number),
                do.steps_of(moments, offsets),
                resets=(Reset(at(when), before, 0),),
            )
        )
    return _scenario(tuple(readings), tuple(commits))._replace(since=at(when), shows=at(when))


# -- parts ----------------------------------------------------------------------------------------


def _instants(random: Random, every: float = COMMIT_EVERY, jitter: float = 0.2) -> Ints:
    return do.jittered(random, every, jitter, SECONDS)


def _none() -> Commits:
    return Commits(np.empty(0, np.int64), np.empty(0, np.int64))


def _working(
    random: Random,
    stored: Ints,
    *,
    able: float = ABLE,
    can: Capacity | None = None,
    every: float = COMMIT_EVERY,
    jitter: float = 0.2,
    down: Spans = (),
) -> tuple[Ints, Commits]:
    """A queue's messages, and the commits of a group that does what it can outside the spans."""
    can = do.capacity([(0.0, able)], down) if can is None else can
    instants = do.outside(_instants(random, every, jitter), down)
    return stored, Commits(instants, do.committed(stored, can, instants))


def _each(random: Random, one: Callable[[], tuple[Ints, Commits]], **of_pair: Steps) -> Scenario:
    del random
    readings, commits = [], []
    for number in range(QUEUES):
        stored, sent = one()
        of: Queue = queue(stored, number=number)
        readings.append(Reading(of, do.steps_of(*sent)))
        commits.append(sent)
    return _scenario(tuple(readings), tuple(commits), **of_pair)


def _scenario(
    readings: tuple[Reading, ...], commits: tuple[Commits, ...], **of_pair: Steps
) -> Scenario:
    pair = replace(Pair("billing", "orders", "g0", readings), **of_pair)  # type: ignore[arg-type]
    broker = broker_of([each.queue for each in readings])
    return Scenario(Truth("scenario", (broker,), (pair,), at(SECONDS)), commits)
