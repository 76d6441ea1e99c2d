"""Groups that fail at a known time, each in its own way. Random, by seed. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.truth import behaviour as do
from tests.truth import healthy
from tests.truth.behaviour import Random
from tests.truth.cases import at
from tests.truth.closed import Capacity, queue
from tests.truth.scenario import (
    ABLE,
    QUEUES,
    RATE,
    RETAINED,
    SECONDS,
    Commits,
    Scenario,
    each_queue,
    instants_of,
    scenario_of,
    working,
)
from tests.truth.steps import SECOND, Steps, steps, times, us
from tests.truth.workload import Reading, Reset


def _moment(random: Random) -> float:
    return float(random.uniform(3600.0, 5400.0))


def dies(random: Random, rate: float, every: float) -> Scenario:
    """The group leaves and does not come back."""
    when = _moment(random)
    down = [(when, SECONDS)]
    made = each_queue(
        lambda: working(
            random, do.poisson(random, rate, SECONDS), able=3 * rate, every=every, down=down
        ),
        members=steps([(at(-7200.0), 1), (at(when), 0)]),
    )
    return made._replace(since=at(when), shows=at(when))


def trickle_dies(random: Random) -> Scenario:
    """The group dies between two messages: nothing is wrong before the next message comes."""
    when = _moment(random)
    down = [(when, SECONDS)]
    made = each_queue(
        lambda: working(random, do.sparse(random, 300.0, SECONDS), every=1.0, down=down),
        members=steps([(at(-7200.0), 1), (at(when), 0)]),
    )
    unread = min(
        int(each.queue.eras[0].stored[int(each.commit.value[-1])])
        for each in made.truth.pairs[0].readings
    )
    return made._replace(since=at(when), shows=max(at(when), unread))


def poison(random: Random, again: bool) -> Scenario:
    """One queue fails at a message; the other is read. The members are there."""
    when = _moment(random)
    made = healthy.steady(random)
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


def batch_stuck(random: Random) -> Scenario:
    """The group takes all there is and commits after 120 s. At some point it stops doing so, but
    stays connected."""
    when = _moment(random)
    made = healthy.rare_commits(random)
    readings, commits, due = [], [], []
    for reading, sent in zip(made.truth.pairs[0].readings, made.commits, strict=True):
        kept = sent.at < at(when)
        commits.append(Commits(sent.at[kept], sent.offset[kept]))
        readings.append(replace(reading, commit=do.steps_of(*commits[-1])))
        due.append(int(sent.at[~kept][0]))
    pair = replace(made.truth.pairs[0], readings=tuple(readings))
    # Until the first commit is missing, it cannot be distinguished from a batch that is being
    # worked on.
    return Scenario(replace(made.truth, pairs=(pair,)), tuple(commits), at(when), min(due))


def slows(random: Random, share: float) -> Scenario:
    """From some time on, the group can process only a share of what comes in."""
    when = _moment(random)
    can = Capacity([(0.0, ABLE), (when, share * RATE)])
    made = each_queue(lambda: working(random, do.poisson(random, RATE, SECONDS), can=can))
    return made._replace(since=at(when), shows=at(when))


def retention(random: Random) -> Scenario:
    """A tenth of the input from some time on; messages older than ten minutes are removed."""
    when = _moment(random)
    can = Capacity([(0.0, ABLE), (when, 0.1 * RATE)])
    readings, commits = [], []
    removals = times(np.arange(RETAINED, SECONDS, 30.0))
    for number in range(QUEUES):
        stored = do.poisson(random, RATE, SECONDS)
        floor = np.searchsorted(stored, removals - us(RETAINED), "left").astype(np.int64)
        kept = Steps(np.concatenate(([at(-7200)], removals)), np.concatenate(([0], floor)))
        instants = instants_of(random)
        offset = do.committed(stored, can, instants)
        late = instants >= at(when)
        caught_up = int(offset[~late][-1])
        after = Steps(kept.at[kept.at > at(when)], kept.value[kept.at > at(when)])
        offset[late] = do.floored(after, can, instants[late], at(when), caught_up)
        commits.append(Commits(instants, offset))
        of = replace(queue(stored, number=number), kept=kept)
        readings.append(Reading(of, do.steps_of(instants, offset)))
    made = scenario_of(tuple(readings), tuple(commits))
    records = np.sort(np.concatenate([each.queue.eras[0].stored for each in readings]))
    gone = np.searchsorted(records, removals - us(RETAINED), "left").astype(np.int64)
    broker = made.truth.brokers[0]
    front = Steps(np.concatenate(([at(-7200)], removals)), np.concatenate(([0], gone)))
    broker = replace(broker, log=replace(broker.log, kept=front))
    return made._replace(
        truth=replace(made.truth, brokers=(broker,)), since=at(when), shows=at(when)
    )


def rewound(random: Random) -> Scenario:
    """An operator sets the group back to the start, and it drains by itself. That is no alarm but
    an event and a status.

    An hour and more of messages are read again at five times their rate.
    """
    when = _moment(random)
    readings, commits = [], []
    for number in range(QUEUES):
        stored = do.poisson(random, RATE, SECONDS)
        instants = instants_of(random)
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
    return scenario_of(tuple(readings), tuple(commits))._replace(since=at(when), shows=at(when))
