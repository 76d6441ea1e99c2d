"""A group over three hours, with what it commits and when it fails: the parts of one. Pure.

Next: `healthy` and `failing` make them, `scenarios` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tests.truth import behaviour as do
from tests.truth.behaviour import Random, Spans
from tests.truth.cases import at
from tests.truth.closed import Capacity, broker_of, queue
from tests.truth.steps import Ints, Steps
from tests.truth.workload import Pair, Queue, Reading, Truth

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
    """When its samples begin to differ from those of a healthy group; `since` if at once."""


class Fault(NamedTuple):
    """What must be found, and when."""

    make: Callable[[Random], Scenario]
    within_s: float
    """Time to find it after it began to show; 30 s may be added."""
    expected: frozenset[str]
    """The first status that is found must be one of these."""
    later: str | None = None
    """A status that must follow."""
    breaks_after_s: float | None = None
    """How long at the rates meant until the objective is broken: what `within_s` contains of it.

    The limit then counts from the time at which the objective is truly broken: arrivals at random
    move that by minutes where a group is but 3 % too slow.
    """


def instants_of(random: Random, every: float = COMMIT_EVERY, jitter: float = 0.2) -> Ints:
    """Times at which a group commits: about every `every` seconds."""
    return do.jittered(random, every, jitter, SECONDS)


def no_commits() -> Commits:
    """Commits of a group that is not there."""
    return Commits(np.empty(0, np.int64), np.empty(0, np.int64))


def working(
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
    instants = do.outside(instants_of(random, every, jitter), down)
    return stored, Commits(instants, do.committed(stored, can, instants))


def each_queue(one: Callable[[], tuple[Ints, Commits]], **of_pair: Steps) -> Scenario:
    """A scenario of queues made one after the other. of_pair: members and subscription."""
    readings, commits = [], []
    for number in range(QUEUES):
        stored, sent = one()
        of: Queue = queue(stored, number=number)
        readings.append(Reading(of, do.steps_of(*sent)))
        commits.append(sent)
    return scenario_of(tuple(readings), tuple(commits), **of_pair)


def scenario_of(
    readings: tuple[Reading, ...], commits: tuple[Commits, ...], **of_pair: Steps
) -> Scenario:
    """A scenario of these queues."""
    pair = replace(Pair("billing", "orders", "g0", readings), **of_pair)  # type: ignore[arg-type]
    broker = broker_of([each.queue for each in readings])
    return Scenario(Truth("scenario", (broker,), (pair,), at(SECONDS)), commits)
