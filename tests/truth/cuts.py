"""Workloads whose offsets go back, jump or end: failover, resets, retention. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.truth.closed import (
    Capacity,
    commits,
    constant,
    drained,
    queue,
    reading,
)
from tests.truth.paces import at, workload
from tests.truth.steps import ABSENT, Ints, Steps, steps, us
from tests.truth.workload import Reading, Reset, Truth


def failover(cut: int = 37, seconds: float = 1800.0) -> Truth:
    """P = 10 until 590, read after 8 s. At 601 the master dies; the other has 37 messages fewer.

    It is master from 614 on, and messages come again from 630 on.
    """
    before = constant(10.0, 590.0)
    after = np.concatenate((before[:-cut], constant(10.0, seconds - 630.0, 630.0)))
    whole = queue(before)
    second = whole.eras[0]._replace(since=at(614.0), stored=after, visible=after)
    both = replace(whole, eras=(whole.eras[0], second))
    truth = workload("failover", seconds, (reading(both, after + us(8.0)),))
    everything = np.concatenate((before, after[len(before) - cut :]))
    log = replace(
        truth.brokers[0].log,
        stored=everything,
        confirmed=everything,
        dispatched=everything,
        cut=((at(614.0), len(before) - cut),),
    )
    broker = replace(
        truth.brokers[0],
        log=log,
        master=steps([(at(-7200.0), 0), (at(601.0), ABSENT), (at(614.0), 1)]),
        epoch=steps([(at(-7200.0), 4), (at(614.0), 5)]),
    )
    return replace(truth, brokers=(broker,))


def reset_backward(*, by_request: bool, messages: int = 5000, seconds: float = 2400.0) -> Truth:
    """P = 10, kept up with; at 900 the commit goes back 5000 messages, read again at 40 a second.

    Drained after 5000 / 30 s.
    """
    stored = constant(10.0, seconds)
    read = stored + us(0.5)
    return _reset("reset backward", stored, read, 900.05, -messages, 40.0, seconds, by_request)


def reset_forward(messages: int = 3000, seconds: float = 2400.0) -> Truth:
    """P = 10, C = 5 until at 900 an operator passes over 3000 messages; then C = 12."""
    stored = constant(10.0, seconds)
    done = drained(stored, Capacity([(0.0, 5.0)]))
    return _reset("reset forward", stored, done, 900.05, messages, 12.0, seconds, True)


def _reset(
    name: str,
    stored: Ints,
    done: Ints,
    when: float,
    by: int,
    capacity: float,
    seconds: float,
    by_request: bool,
) -> Truth:
    moment = at(when)
    offset = int(np.searchsorted(done, moment, "right"))
    to = offset + by
    again = drained(np.maximum(stored[to:], moment), Capacity([(when, capacity)]))
    first = commits(done[:offset])
    commit = Steps(
        np.concatenate((first.at, [moment], again)),
        np.concatenate((first.value, [to], to + 1 + np.arange(len(again)))),
    )
    ordered = ((moment, offset, to),) if by_request else ()
    made = Reading(queue(stored), commit, resets=tuple(Reset(*each) for each in ordered))
    return workload(name, seconds, (made,))


def expiry(seconds: float = 2400.0) -> Truth:
    """P = 10, the group stuck at 3000; at 900 retention removes all below 4000; at 1200 it goes on.

    1000 messages are lost; then C = 40 until it has caught up.
    """
    stored = constant(10.0, seconds)
    first = commits(stored[:3000] + us(0.5))
    again = drained(np.maximum(stored[4000:], at(1200.0)), Capacity([(1200.0, 40.0)]))
    commit = Steps(
        np.concatenate((first.at, again)),
        np.concatenate((first.value, 4001 + np.arange(len(again)))),
    )
    of = replace(queue(stored), kept=steps([(at(-7200.0), 0), (at(900.0), 4000)]))
    truth = workload("expiry", seconds, (Reading(of, commit),))
    log = replace(truth.brokers[0].log, kept=of.kept)
    return replace(truth, brokers=(replace(truth.brokers[0], log=log),))


def ahead(beyond: int = 100, seconds: float = 1800.0) -> Truth:
    """Until 600 P = 10, kept up with; then nothing, but a commit 100 beyond the end."""
    stored = constant(10.0, 600.0)
    first = commits(stored)
    commit = Steps(np.append(first.at, at(620.0)), np.append(first.value, len(stored) + beyond))
    return workload("ahead", seconds, (Reading(queue(stored), commit),))
