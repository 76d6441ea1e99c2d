"""Workloads of one queue whose offsets only grow: their answers are closed formulas. Pure.

Times in comments are seconds after the beginning, DAWN. P and C are messages per second produced
and consumed, A the age, pi the pace (seconds of stored time consumed per second).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tests.truth.closed import (
    Capacity,
    broker_of,
    constant,
    drained,
    queue,
    reading,
    varying,
)
from tests.truth.steps import DAWN, Floats, Steps, us
from tests.truth.workload import Pair, Queue, Reading, Truth

GROUP: Final = "billing"


def at(seconds: float) -> int:
    """The time that is this many seconds after the beginning."""
    return DAWN + us(seconds)


def workload(name: str, seconds: float, readings: tuple[Reading, ...], **of_pair: object) -> Truth:
    """One group on one topic of one broker set. of_pair: fields of Pair other than its defaults."""
    queues = [each.queue for each in readings]
    pair = Pair(GROUP, queues[0].topic, queues[0].broker, readings)
    return Truth(name, (broker_of(queues),), (replace(pair, **of_pair),), at(seconds))  # type: ignore[arg-type]


def slow_consumer(produced: float = 10.0, consumed: float = 8.0, seconds: float = 1800.0) -> Truth:
    """From 0 on P in, C < P out, nothing before: A = (1 - C/P) t, lag = (P - C) t, pi = C/P."""
    stored = constant(produced, seconds)
    done = drained(stored, Capacity([(0.0, consumed)]))
    return workload("slow consumer", seconds, (reading(queue(stored), done),))


def draining(produced: float = 10.0, consumed: float = 30.0, backlog: int = 18_000) -> Truth:
    """At 0 a backlog B; from then on C > P: pi = C/P, drained after D = B / (C - P)."""
    seconds = backlog / (consumed - produced) + 600.0
    since = -backlog / produced
    stored = constant(produced, seconds - since, since)
    done = drained(stored, Capacity([(0.0, consumed)]))
    return workload("draining", seconds, (reading(queue(stored), done),))


def swinging(delay: float = 20.0, seconds: float = 3600.0) -> Truth:
    """50 messages per second, 80 % more or less within 10 minutes; each is read after `delay`."""

    def count(t: Floats) -> Floats:
        turn = 2 * np.pi / 600.0
        swung: Floats = 50.0 * (t + 0.8 / turn * (1.0 - np.cos(turn * t)))
        return swung

    stored = varying(count, seconds)
    return workload("swinging", seconds, (reading(queue(stored), stored + us(delay)),))


def stuck_after_stop(seconds: float = 1800.0) -> Truth:
    """Until 600 P = 10, C = 5; then nothing in and nothing out: lag 3000, A = 300 + (t - 600)."""
    stored = constant(10.0, 600.0)
    done = drained(stored, Capacity([(0.0, 5.0), (600.0, 0.0)]))
    return workload("stuck after stop", seconds, (reading(queue(stored), done),))


def old_bulk_load(days: float = 20.0, seconds: float = 1800.0) -> Truth:
    """100,000 messages within 10 s, days ago; nothing since; read at 20 a second from 0 on."""
    stored = constant(10_000.0, 10.0, -days * 86_400.0)
    done = drained(stored, Capacity([(0.0, 20.0)]))
    return workload("old bulk load", seconds, (reading(queue(stored), done),))


def trickle(seconds: float = 3 * 3600.0) -> Truth:
    """A message every 5 minutes, read 2 s later."""
    stored = constant(1 / 300.0, seconds, 137.0)
    return workload("trickle", seconds, (reading(queue(stored), stored + us(2.0)),))


def heads_half_known(seconds: float = 1800.0) -> Truth:
    """As the slow consumer, but every second tick the oldest message's store time is not
    exported."""
    truth = slow_consumer(10.0, 8.0, seconds)
    ticks = truth.ticks()
    known = Steps(ticks, np.arange(len(ticks)) % 2)
    return _with_reading(truth, "heads half known", head_known=known)


def heads_unknown(seconds: float = 1800.0) -> Truth:
    """As the slow consumer, but store times of oldest messages are never exported."""
    never = Steps(np.array([at(-7200.0)]), np.array([0]))
    return _with_reading(slow_consumer(10.0, 8.0, seconds), "heads unknown", head_known=never)


def _with_reading(truth: Truth, name: str, head_known: Steps) -> Truth:
    pair = truth.pairs[0]
    readings = tuple(replace(each, head_known=head_known) for each in pair.readings)
    return replace(truth, name=name, pairs=(replace(pair, readings=readings),))


def only_queue(truth: Truth) -> Queue:
    """The queue of a workload that has a single one."""
    (pair,) = truth.pairs
    (of,) = pair.readings
    return of.queue
