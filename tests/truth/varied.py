"""More groups whose circumstances are drawn at random: shapes of traffic, orders, stages. Pure.

`drawn` has what its makers are built of. `bench.analytics_detectors` judges detectors by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.truth import behaviour as do
from tests.truth.behaviour import Random, Spans
from tests.truth.cases import at
from tests.truth.closed import Capacity, drained, queue
from tests.truth.drawn import (
    LONG_AGO,
    SECONDS,
    Drawn,
    Setting,
    group_of,
    in_holes,
    members_of,
    outside,
    runs_of,
    slowed,
    working,
)
from tests.truth.steps import ABSENT, SECOND, Floats, Ints, Steps, steps
from tests.truth.workload import Reading, Reset, Truth

ALWAYS: Spans = ((0.0, SECONDS),)


def handed_out(truth: Truth) -> Truth:
    """Return the truth with all visible messages in the hands of members, while there are any.

    That is what brokers report of a busy member: what waits behind it counts as processing.
    """
    (pair,) = truth.pairs
    readings = []
    for each in pair.readings:
        visible = each.queue.eras[-1].visible
        moments = np.sort(np.concatenate([pair.members.at, visible]))
        count = np.searchsorted(visible, moments, "right")
        held = np.where(pair.members(moments) > 0, count, 0)
        readings.append(replace(each, delivered=Steps(moments, held)))
    return replace(truth, pairs=(replace(pair, readings=tuple(readings)),))


def _group(
    random: Random,
    setting: Setting,
    stored: Sequence[Ints],
    *,
    visible: Sequence[Ints] | None = None,
    runs: Spans = ALWAYS,
) -> Truth:
    """A group whose members are always there, and work on these queues in these runs."""
    readings = []
    for number, of in enumerate(stored):
        seen = of if visible is None else visible[number]
        commit = runs_of(random, seen, runs, setting.able, setting.commit_every)
        there = queue(of, number=number, visible=seen)
        readings.append(Reading(there, commit, member=members_of(setting, number)))
    return group_of(setting, readings, ALWAYS)


def _poisson(random: Random, setting: Setting) -> list[Ints]:
    return [do.poisson(random, setting.rate, SECONDS) for _ in range(setting.queues)]


def _fault_begins(random: Random) -> float:
    return float(random.uniform(1800.0, 3600.0))


# -- groups that are well -------------------------------------------------------------------------


def bursts(random: Random) -> Drawn:
    """Every ten to twenty minutes there are 5 to 15 times as many messages for up to 40 s.

    They are read within the objective.
    """
    setting, factor = Setting.drawn(random), float(random.uniform(5.0, 15.0))
    setting = setting._replace(able=setting.rate * factor * float(random.uniform(0.6, 1.0)))
    begin = np.cumsum(random.uniform(600.0, 1200.0, 12))
    length = float(random.uniform(10.0, 40.0))

    def rate(t: Floats) -> Floats:
        bursting = ((t[:, None] >= begin) & (t[:, None] < begin + length)).any(axis=1)
        return np.where(bursting, factor, 1.0) * setting.rate

    stored = [do.by_rate(random, rate, SECONDS) for _ in range(setting.queues)]
    return Drawn(_group(random, setting, stored))


def nights(random: Random) -> Drawn:
    """Traffic falls to a few per cent or to nothing, and comes back, within two hours."""
    setting = Setting.drawn(random)
    least, phase = float(random.choice([0.0, 0.02, 0.1])), random.uniform(0.0, 2 * np.pi)
    turn = 2 * np.pi / random.uniform(3600.0, 7200.0)

    def rate(t: Floats) -> Floats:
        share: Floats = np.maximum(0.6 + np.cos(turn * t + phase), 0.0) / 1.6
        return setting.rate * np.maximum(share, least)

    stored = [do.by_rate(random, rate, SECONDS) for _ in range(setting.queues)]
    return Drawn(_group(random, setting, stored))


def few_messages(random: Random) -> Drawn:
    """A message per queue every one to ten minutes."""
    setting, every = Setting.drawn(random), float(random.uniform(60.0, 600.0))
    stored = [do.sparse(random, every, SECONDS) for _ in range(setting.queues)]
    return Drawn(_group(random, setting, stored))


def rebalances(random: Random) -> Drawn:
    """Now and then a queue moves, and its new member commits what was committed a while ago."""
    setting, back = Setting.drawn(random), float(random.uniform(10.0, 25.0))
    readings = []
    for number, stored in enumerate(_poisson(random, setting)):
        instants = do.jittered(random, setting.commit_every, 0.2, SECONDS)
        commit = do.recommitted(random, stored, setting.able, instants, back, 1200.0)
        of = queue(stored, number=number)
        readings.append(Reading(of, do.steps_of(*commit), member=members_of(setting, number)))
    return Drawn(group_of(setting, readings, ALWAYS))


def broker_away(random: Random) -> Drawn:
    """The master is away twice, for up to two minutes; the other node takes over each time.

    Producers send what they have when it is back. What was unread when it left stays unread.
    """
    setting, down = Setting.drawn(random), []
    for begin in (1800.0, 4500.0):
        low = begin + float(random.uniform(0.0, 1200.0))
        down.append((low, low + float(random.uniform(10.0, 120.0))))
    stored = _poisson(random, setting)
    for low, high in down:
        stored = [np.where((of >= at(low)) & (of < at(high)), at(high), of) for of in stored]
    truth = _group(random, setting, stored, runs=outside(down))
    masters, epochs = [(at(LONG_AGO), 0)], [(at(LONG_AGO), 1)]
    for number, (low, high) in enumerate(down, 1):
        masters += [(at(low), ABSENT), (at(high), number % 2)]
        epochs.append((at(high), 1 + number))
    (broker,) = truth.brokers
    broker = replace(broker, master=steps(masters), epoch=steps(epochs))
    return Drawn(replace(truth, brokers=(broker,)))


def dispatch_pauses(random: Random) -> Drawn:
    """Reput is restarted now and then: for 5 to 30 s nothing new becomes visible."""
    setting = Setting.drawn(random)
    stored = visible = _poisson(random, setting)
    for begin in np.cumsum(random.uniform(900.0, 1800.0, 5)):
        low, high = at(float(begin)), at(float(begin + random.uniform(5.0, 30.0)))
        visible = [np.where((of >= low) & (of < high), high, of) for of in visible]
    return Drawn(_group(random, setting, stored, visible=visible))


def rewound(random: Random) -> Drawn:
    """An operator sets the group back by ten minutes to an hour, and it catches up by itself."""
    setting, when = Setting.drawn(random), float(random.uniform(3600.0, 4500.0))
    setting = setting._replace(able=setting.rate * float(random.uniform(3.0, 6.0)))
    back, readings = float(random.uniform(600.0, 3600.0)), []
    for number, stored in enumerate(_poisson(random, setting)):
        before = runs_of(random, stored, [(0.0, when)], setting.able, setting.commit_every)
        to = int(np.searchsorted(stored, at(when - back)))
        again = runs_of(random, stored[to:], [(when, SECONDS)], setting.able, setting.commit_every)
        moments = np.concatenate([before.at, [at(when)], again.at[1:]])
        commit = Steps(moments, np.concatenate([before.value, [to], again.value[1:] + to]))
        resets = (Reset(at(when), int(before.value[-1]), to),)
        member = members_of(setting, number)
        readings.append(Reading(queue(stored, number=number), commit, None, resets, member=member))
    return Drawn(group_of(setting, readings, ALWAYS))


# -- faults ---------------------------------------------------------------------------------------


def hangs(random: Random) -> Drawn:
    """The members are there and commit nothing any more."""
    when = _fault_begins(random)
    truth = working(random, Setting.drawn(random), ALWAYS, commits_until=when)
    return Drawn(truth, (when, SECONDS))


def slows(random: Random) -> Drawn:
    """From some time on the group can do 0.3 to 0.95 of what comes in."""
    setting = Setting.drawn(random)
    return _slow(random, setting, range(setting.members), float(random.uniform(0.3, 0.95)))


def slows_in_holes(random: Random) -> Drawn:
    """As `slows`; now and then samples are missing."""
    return in_holes(random, slows(random))


def slow_queue_of_many(random: Random) -> Drawn:
    """From some time on one of many members can do 0.4 to 0.8 of what comes to its only queue.

    All of them commit every 20 to 45 s.
    """
    setting = Setting.drawn(random, queues=(11, 14))
    every = float(random.uniform(20.0, 45.0))
    setting = setting._replace(members=setting.queues, commit_every=every)
    return _slow(random, setting, [0], float(random.uniform(0.4, 0.8)))


def slow_member(random: Random) -> Drawn:
    """From some time on one of several members can do 0.3 to 0.8 of what comes to its queues."""
    setting = Setting.drawn(random, queues=(4, 12))
    setting = setting._replace(members=int(random.integers(2, 4, endpoint=True)))
    found = _slow(random, setting, [0], float(random.uniform(0.3, 0.8)))
    return found._replace(skew_kind="slow_member")


def _slow(random: Random, setting: Setting, members: Sequence[int], share: float) -> Drawn:
    since, readings = _fault_begins(random), []
    for number, stored in enumerate(_poisson(random, setting)):
        able = share * setting.rate if number % setting.members in members else setting.able
        commit = slowed(random, setting, stored, since, able)
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    return Drawn(group_of(setting, readings, ALWAYS), (since, SECONDS))


def poison(random: Random) -> Drawn:
    """One queue of several fails at a message, which is delivered again every five seconds.

    In half of the cases its member commits the same offset again and again, else nothing.
    """
    setting, when = Setting.drawn(random, queues=(2, 12)), _fault_begins(random)
    truth = _group(random, setting, _poisson(random, setting))
    (pair,) = truth.pairs
    first, *others = pair.readings
    kept = first.commit.at < at(when)
    offset = np.where(kept, first.commit.value, first.commit.value[kept][-1])
    if random.random() < 0.5:
        stuck = Steps(first.commit.at, offset)
    else:
        stuck = Steps(first.commit.at[kept], offset[kept])
    tries = np.arange(at(when), truth.end, 5 * SECOND)
    again = Steps(np.append(at(LONG_AGO), tries), np.arange(len(tries) + 1))
    readings = (replace(first, commit=stuck), *others)
    pair = replace(pair, readings=readings, redelivered=again)
    return Drawn(replace(truth, pairs=(pair,)), (when, SECONDS), skew_kind="poison_message")


def dispatch_behind(random: Random) -> Drawn:
    """Reput stands still or does only a part of what comes in; the group reads what is visible."""
    return _behind(random, replicated=False)


def replication_behind(random: Random) -> Drawn:
    """Records are confirmed too slowly, or not at all; the group reads what is visible."""
    return _behind(random, replicated=True)


def _behind(random: Random, *, replicated: bool) -> Drawn:
    setting, since = Setting.drawn(random), _fault_begins(random)
    stored = _poisson(random, setting)
    records = np.sort(np.concatenate(stored))
    share = float(random.choice([0.0, random.uniform(0.2, 0.8)]))
    rate = setting.rate * setting.queues
    passed = drained(records, Capacity([(0.0, 1000 * rate), (since, share * rate)]))
    # Of records with one store time all wait for the last.
    visible = [passed[np.searchsorted(records, of, "right") - 1] for of in stored]
    truth = _group(random, setting, stored, visible=visible)
    if replicated:
        (broker,) = truth.brokers
        log = replace(broker.log, confirmed=broker.log.dispatched)
        truth = replace(truth, brokers=(replace(broker, log=log),))
    return Drawn(truth, (since, SECONDS))
