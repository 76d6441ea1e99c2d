"""Workloads whose answers are closed formulas, one function each. Pure.

Times in comments are seconds after the beginning, DAWN. P and C are messages per second produced
and consumed, A the age, pi the pace (seconds of stored time consumed per second).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from analytics.truth.closed import (
    Capacity,
    broker_of,
    commits,
    constant,
    drained,
    queue,
    reading,
    varying,
)
from analytics.truth.steps import ABSENT, DAWN, SECOND, Floats, Ints, Steps, steps, times, us
from analytics.truth.workload import Counter, Pair, Queue, Reading, Reset, Truth

GROUP: Final = "billing"


def at(seconds: float) -> int:
    """A time so long after the beginning."""
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


def failover(cut: int = 37, seconds: float = 1800.0) -> Truth:
    """P = 10, read after 8 s. At 600 the master dies, at 620 the other is: 37 messages fewer."""
    before = constant(10.0, 600.0)
    after = np.concatenate((before[:-cut], constant(10.0, seconds - 630.0, 630.0)))
    whole = queue(before)
    second = whole.eras[0]._replace(since=at(600.0), stored=after, visible=after)
    both = replace(whole, eras=(whole.eras[0], second))
    done = np.maximum(after + us(8.0), 0)
    done = np.where((done > at(600.0)) & (done < at(630.0)), at(630.0), done)
    truth = workload("failover", seconds, (reading(both, done),))
    everything = np.concatenate((before, after[len(before) - cut :]))
    log = replace(
        truth.brokers[0].log,
        stored=everything,
        confirmed=everything,
        dispatched=everything,
        cut=((at(600.0), len(before) - cut),),
    )
    broker = replace(
        truth.brokers[0],
        log=log,
        master=steps([(at(-7200.0), 0), (at(600.0), ABSENT), (at(620.0), 1)]),
        epoch=steps([(at(-7200.0), 4), (at(620.0), 5)]),
    )
    return replace(truth, brokers=(broker,))


def reset_backward(*, by_request: bool, messages: int = 5000, seconds: float = 2400.0) -> Truth:
    """P = 10, kept up with; at 900 the commit goes back 5000 messages, read again at 40 a second.

    Drained after 5000 / 30 s.
    """
    stored = constant(10.0, seconds)
    read = stored + us(0.5)
    return _reset("reset backward", stored, read, 900.0, -messages, 40.0, seconds, by_request)


def reset_forward(messages: int = 3000, seconds: float = 2400.0) -> Truth:
    """P = 10, C = 5 until at 900 an operator passes over 3000 messages; then C = 12."""
    stored = constant(10.0, seconds)
    done = drained(stored, Capacity([(0.0, 5.0)]))
    return _reset("reset forward", stored, done, 900.0, messages, 12.0, seconds, True)


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


def unknowns(seconds: float = 1800.0) -> Truth:
    """Groups with nothing to alarm about: never committed, broadcasting, abandoned, paused.

    Messages come at 10 a second; no group moves its commit.
    """
    of = queue(constant(10.0, seconds))
    still = Steps(np.array([at(-1800.0)]), np.array([0]))
    never = Steps(np.empty(0, np.int64), np.empty(0, np.int64))
    pairs = (
        Pair("never", "orders", "g0", (Reading(of, never),)),
        Pair("broadcast", "orders", "g0", (Reading(of, never),), broadcasting=True),
        Pair(
            "abandoned",
            "orders",
            "g0",
            (Reading(of, still),),
            members=steps([(at(-7200.0), 0)]),
            subscribed=steps([(at(-7200.0), 0)]),
        ),
        Pair("paused", "orders", "g0", (Reading(of, still),), paused=steps([(at(-7200.0), 1)])),
    )
    return Truth("unknowns", (broker_of([of]),), pairs, at(seconds))


def dispatch_stops(seconds: float = 1200.0) -> Truth:
    """P = 20, read after 50 ms; nothing is dispatched from 605.15 to 645.25."""
    stored = constant(20.0, seconds)
    held = (stored >= at(605.15)) & (stored < at(645.25))
    visible = np.where(held, at(645.25), stored)
    of = queue(stored, visible=visible)
    return workload("dispatch stops", seconds, (reading(of, visible + us(0.05)),))


def four_delays(
    delays: tuple[float, float, float, float] = (1.0, 2.0, 3.0, 4.0),
    seconds: float = 1200.0,
    objective: float = 60.0,
) -> Truth:
    """P = 100; each message is so late confirmed, then dispatched, delivered and processed."""
    stored = constant(100.0, seconds)
    confirmed, visible, handed, done = stored + times(np.cumsum(delays), 0)[:, None]
    of = queue(stored, visible=visible)
    counts = np.arange(len(stored) + 1)
    before = at(-1800.0)
    made = Reading(of, commits(done), delivered=Steps(np.concatenate(([before], handed)), counts))
    truth = workload("four delays", seconds, (made,), objective_seconds=objective)
    log = replace(truth.brokers[0].log, confirmed=confirmed)
    return replace(truth, brokers=(replace(truth.brokers[0], log=log),))


def restarts(began: tuple[float, ...] = (305.0, 900.4, 1207.0), seconds: float = 1800.0) -> Truth:
    """As the slow consumer; the master's process is started anew at these times.

    It counts 10 messages a second that come in; so does `tidemark_broker_messages_in_total`.
    """
    truth = slow_consumer(10.0, 8.0, seconds)
    starts = steps([(at(-86_400.0), at(-86_400.0)), *((at(each), at(each)) for each in began)])
    other = steps([(at(-86_400.0), at(-86_400.0))])
    broker = replace(truth.brokers[0], started=(starts, other))
    stored = only_queue(truth).eras[0].stored
    counted = Steps(np.append(at(-86_400.0), stored), np.arange(len(stored) + 1))
    name = "tidemark_broker_messages_in_total"
    labels = (("kind", "normal"), ("topic", "other"))
    counter = Counter("g0", "n1", "broker", name, labels, counted)
    return replace(truth, name="restarts", brokers=(broker,), counters=(counter,))


def many_queues(
    rates: tuple[float, ...], capacities: tuple[float, ...], seconds: float = 1800.0
) -> tuple[Reading, ...]:
    """Readings of one topic's queues, each with its own rate in and capacity out."""
    found = []
    for number, (rate, capacity) in enumerate(zip(rates, capacities, strict=True)):
        stored = constant(rate, seconds)
        done = drained(stored, Capacity([(0.0, capacity)]))
        found.append(reading(queue(stored, number=number), done))
    return tuple(found)


def poison_of_sixteen(seconds: float = 1800.0, since: float = 600.0) -> Truth:
    """16 queues of 2 a second kept up with; from 600 on queue 5 fails at the same message.

    It is delivered again every 5 s.
    """
    readings = list(many_queues((2.0,) * 16, (20.0,) * 16, seconds))
    stored = readings[5].queue.eras[0].stored
    done = drained(stored, Capacity([(0.0, 20.0), (since, 0.0)]))
    readings[5] = reading(readings[5].queue, done)
    again = at(since) + np.arange(0, int((seconds - since) / 5)) * 5 * SECOND
    redelivered = Steps(np.concatenate(([at(-7200.0)], again)), np.arange(len(again) + 1))
    return workload("poison of sixteen", seconds, tuple(readings), redelivered=redelivered)


def slow_member(seconds: float = 1800.0) -> Truth:
    """16 queues of 2 a second; the four of one member are read at 1 a second."""
    capacities = (1.0,) * 4 + (20.0,) * 12
    return workload("slow member", seconds, many_queues((2.0,) * 16, capacities, seconds))


def hot_queue(seconds: float = 1800.0) -> Truth:
    """8 queues; one gets 20 a second, the others 2; each is read at 10 a second at most."""
    rates = (20.0,) + (2.0,) * 7
    return workload("hot queue", seconds, many_queues(rates, (10.0,) * 8, seconds))


def heads_half_known(seconds: float = 1800.0) -> Truth:
    """As the slow consumer, but every second tick the oldest message's store time is not told."""
    truth = slow_consumer(10.0, 8.0, seconds)
    ticks = truth.ticks()
    known = Steps(ticks, np.arange(len(ticks)) % 2)
    return _with_reading(truth, "heads half known", head_known=known)


def heads_unknown(seconds: float = 1800.0) -> Truth:
    """As the slow consumer, but store times of oldest messages are never told."""
    never = Steps(np.array([at(-7200.0)]), np.array([0]))
    return _with_reading(slow_consumer(10.0, 8.0, seconds), "heads unknown", head_known=never)


def _with_reading(truth: Truth, name: str, head_known: Steps) -> Truth:
    pair = truth.pairs[0]
    readings = tuple(replace(each, head_known=head_known) for each in pair.readings)
    return replace(truth, name=name, pairs=(replace(pair, readings=readings),))


def only_queue(truth: Truth) -> Queue:
    """Of a workload with a single one."""
    (pair,) = truth.pairs
    (of,) = pair.readings
    return of.queue


EVERY: Final[Mapping[str, Callable[[], Truth]]] = {
    "slow_consumer": slow_consumer,
    "draining": draining,
    "swinging": swinging,
    "stuck_after_stop": stuck_after_stop,
    "old_bulk_load": old_bulk_load,
    "trickle": trickle,
    "failover": failover,
    "reset_backward_by_request": lambda: reset_backward(by_request=True),
    "reset_backward_without_request": lambda: reset_backward(by_request=False),
    "reset_forward": reset_forward,
    "expiry": expiry,
    "ahead": ahead,
    "unknowns": unknowns,
    "restarts": restarts,
    "dispatch_stops": dispatch_stops,
    "four_delays": four_delays,
    "poison_of_sixteen": poison_of_sixteen,
    "slow_member": slow_member,
    "hot_queue": hot_queue,
    "heads_half_known": heads_half_known,
    "heads_unknown": heads_unknown,
}
"""All of them by name."""
