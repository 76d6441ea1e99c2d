"""All workloads with known answers by name, and those of several queues or stages. Pure.

Those of one queue are in `paces` and `cuts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tests.truth.closed import (
    Capacity,
    broker_of,
    commits,
    constant,
    drained,
    queue,
    reading,
)
from tests.truth.cuts import ahead, expiry, failover, reset_backward, reset_forward
from tests.truth.paces import (
    at,
    draining,
    heads_half_known,
    heads_unknown,
    old_bulk_load,
    only_queue,
    slow_consumer,
    stuck_after_stop,
    swinging,
    trickle,
    workload,
)
from tests.truth.steps import SECOND, Steps, always, steps, times, us
from tests.truth.workload import Pair, Reading, Truth

__all__ = [
    "EVERY",
    "ahead",
    "at",
    "dispatch_stops",
    "draining",
    "expiry",
    "failover",
    "four_delays",
    "heads_half_known",
    "heads_unknown",
    "hot_queue",
    "many_queues",
    "old_bulk_load",
    "only_queue",
    "poison_of_sixteen",
    "reset_backward",
    "reset_forward",
    "restarts",
    "slow_consumer",
    "slow_member",
    "stuck_after_stop",
    "swinging",
    "trickle",
    "unassigned_queue",
    "unknowns",
    "workload",
]


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
    made = (reading(of, visible + us(0.05)),)
    # Blame needs a quarter of the objective on three of four ticks.
    return workload("dispatch stops", seconds, made, objective_seconds=30.0)


def four_delays(
    delays: tuple[float, float, float, float] = (1.0, 2.0, 3.0, 4.0),
    seconds: float = 1200.0,
    objective: float = 60.0,
) -> Truth:
    """P = 100; each message is confirmed, dispatched, delivered and processed after these delays,
    in turn."""
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
    """As the slow consumer; the master's process is started anew at these times."""
    truth = slow_consumer(10.0, 8.0, seconds)
    starts = steps([(at(-86_400.0), at(-86_400.0)), *((at(each), at(each)) for each in began)])
    other = steps([(at(-86_400.0), at(-86_400.0))])
    return replace(
        truth, name="restarts", brokers=(replace(truth.brokers[0], started=(starts, other)),)
    )


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
    """16 queues of 2 a second, four members; the four of member 1 are read at 1 a second."""
    capacities = (1.0,) * 4 + (20.0,) * 12
    readings = many_queues((2.0,) * 16, capacities, seconds)
    held = tuple(replace(each, member=always(1 + each.queue.queue // 4)) for each in readings)
    return workload("slow member", seconds, held, members=always(4))


def unassigned_queue(seconds: float = 1800.0, since: float = 600.0) -> Truth:
    """16 queues of 2 a second, four members; from 600 on queue 5 has no owner and is not read.

    The former owner joins anew with its other three queues, and so has another number.
    """
    readings = list(many_queues((2.0,) * 16, (20.0,) * 16, seconds))
    for number, each in enumerate(readings):
        readings[number] = replace(each, member=always(1 + number // 4))
    stored = readings[5].queue.eras[0].stored
    left = reading(readings[5].queue, drained(stored, Capacity([(0.0, 20.0), (since, 0.0)])))
    before, then = at(-7200.0), at(since)
    readings[5] = replace(left, member=steps([(before, 2), (then, 0)]))
    for number in (4, 6, 7):
        again = steps([(before, 2), (then, 5)])
        readings[number] = replace(readings[number], member=again)
    return workload("unassigned queue", seconds, tuple(readings), members=always(4))


def hot_queue(seconds: float = 1800.0) -> Truth:
    """8 queues; one gets 20 a second, the others 2; each is read at 10 a second at most."""
    rates = (20.0,) + (2.0,) * 7
    return workload("hot queue", seconds, many_queues(rates, (10.0,) * 8, seconds))


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
    "unassigned_queue": unassigned_queue,
    "hot_queue": hot_queue,
    "heads_half_known": heads_half_known,
    "heads_unknown": heads_unknown,
}
"""All of them by name."""
