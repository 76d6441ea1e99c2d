"""Groups whose circumstances are drawn at random: period, rates, queues, members, faults. Pure.

A maker simulates producers, a consumer and retention, and returns the truth about them: when a
fault began, and which statuses must or must not be raised. None of that is taken from a rule. The
consumer is simulated run by run of its process: it goes on from what it committed, and a crash
loses what it had not committed. `tests/support/lag_drawn.py` judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tests.truth import behaviour as do
from tests.truth.behaviour import Random, Spans
from tests.truth.cases import at
from tests.truth.closed import Capacity, broker_of, drained, queue
from tests.truth.reading import totals
from tests.truth.steps import DAWN, NEVER, SECOND, Ints, Steps, always, steps, times, us
from tests.truth.workload import Pair, Reading, Truth

SECONDS: Final = 2 * 3600.0
PERIODS: Final = (5.0, 10.0, 15.0, 15.0, 30.0)
LONG_AGO: Final = -7200.0


class Setting(NamedTuple):
    """What is drawn for every group, whatever it does."""

    period: float
    """Seconds between samples."""
    queues: int
    members: int
    rate: float
    """Messages per second of each queue."""
    able: float
    """What a member does on each queue, in messages per second."""
    commit_every: float

    @classmethod
    def drawn(cls, random: Random, *, queues: tuple[int, int] = (1, 8)) -> Setting:
        """Any of them, with a consumer that can do one and a half to five times what comes."""
        rate = float(np.exp(random.uniform(np.log(0.5), np.log(30.0))))
        count = int(random.integers(queues[0], queues[1], endpoint=True))
        return cls(
            float(random.choice(PERIODS)),
            count,
            int(random.integers(1, count, endpoint=True)),
            rate,
            rate * float(random.uniform(1.5, 5.0)),
            float(random.uniform(1.0, 15.0)),
        )


class Drawn(NamedTuple):
    """A workload and what is true of it."""

    truth: Truth
    faulty: tuple[float, float] | None = None
    """From when to when something is wrong [s]; None: never."""
    within_s: float = 0.0
    """An alarm must stand so long after the objective was broken (or `faulty` began)."""
    stands_s: float = 0.0
    """How long after the end of `faulty` an alarm may stand."""
    at_once: bool = False
    """The time counts from the beginning of `faulty`, not from the objective's being broken."""
    expected: frozenset[str] = frozenset()
    """Statuses of which one must be raised while something is wrong; empty: any alarm will do."""
    must: tuple[str, float] | None = None
    """A status that must be raised soon after a time [s], and not before it."""
    never: frozenset[str] = frozenset()
    """Statuses that must never be raised."""
    skew_kind: str | None = None
    """The kind of skew that must be named while it is wrong."""
    clock: float = 0.0
    """How far the node's clock is ahead [s]: it must be named."""
    known_outside_holes: bool = False
    """A sample that was heard of must give a status, once the group is known."""


def spans(
    random: Random, since: float, up: tuple[float, float], down: tuple[float, float]
) -> list[tuple[float, float]]:
    """Draw the spans in which a process that keeps crashing runs. From `since` on it is down
    first."""
    found = []
    now = since + random.uniform(*down)
    while now < SECONDS:
        end = now + random.uniform(*up)
        found.append((now, min(end, SECONDS)))
        now = end + random.uniform(*down)
    return found


def outside(down: Spans) -> list[tuple[float, float]]:
    """Return the spans in which a process runs that is down in the given ones."""
    edges = [0.0, *(edge for span in down for edge in span), SECONDS]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def runs_of(
    random: Random,
    stored: Ints,
    runs: Spans,
    able: float,
    every: float,
    *,
    jitter: float = 0.2,
    crashes: bool = False,
    commits_until: float = SECONDS,
) -> Steps:
    """Return the commits of a consumer that runs in these spans, each time from its last commit on.

    crashes: a run ends without a commit; otherwise with one. commits_until: the consumer commits
    nothing from then on. Before the first run its commit is offset 0.
    """
    done, moments, offsets = 0, [at(LONG_AGO)], [0]
    for low, high in runs:
        begin, end = at(low), at(high)
        visible = np.maximum(stored[done:], begin)
        visible = visible[visible < end]
        ready = drained(visible, Capacity([(low, able)]))
        gaps = every * (1 + random.uniform(-jitter, jitter, int((high - low) / every * 1.5) + 2))
        asked = begin + np.cumsum(gaps * SECOND).astype(np.int64) // 1000 * 1000
        asked = asked[asked < end]
        if not crashes and high < SECONDS:
            asked = np.append(asked, end)
        asked = asked[asked < at(commits_until)]
        if not len(asked):
            continue
        reached = done + np.searchsorted(ready, asked, "right").astype(np.int64)
        moments += asked.tolist()
        offsets += reached.tolist()
        done = int(reached[-1])
    return Steps(np.array(moments, np.int64), np.array(offsets, np.int64))


def slowed(
    random: Random,
    setting: Setting,
    stored: Ints,
    since: float,
    able: float,
    runs: Spans | None = None,
    *,
    crashes: bool = False,
) -> Steps:
    """Return the commits of a consumer that can do only so much from `since` on, in these runs."""
    whole = runs_of(random, stored, [(0.0, since)], setting.able, setting.commit_every)
    done = int(whole.value[-1])
    runs = [(since, SECONDS)] if runs is None else runs
    rest = runs_of(random, stored[done:], runs, able, setting.commit_every, crashes=crashes)
    return Steps(
        np.concatenate([whole.at, rest.at[1:]]),
        np.concatenate([whole.value, rest.value[1:] + done]),
    )


def presence(runs: Spans, members: int) -> Steps:
    """How many members there are: all of them while a run goes on, else none."""
    changes = [(at(LONG_AGO), 0)]
    for low, high in runs:
        changes += [(at(low), members)]
        changes += [(at(high), 0)] if high < SECONDS else []
    return steps(changes)


def group_of(
    setting: Setting, readings: Sequence[Reading], runs: Spans, *, clock: float = 0.0
) -> Truth:
    """A group of these queues, sampled as the setting asks; clock: seconds by which its node is
    ahead."""
    here = presence(runs, setting.members)
    pair = Pair(
        "billing",
        "orders",
        "g0",
        tuple(readings),
        members=here,
        subscribed=Steps(here.at, (here.value > 0).astype(np.int64)),
    )
    broker = replace(broker_of([each.queue for each in readings]), clock_off=us(clock))
    truth = Truth("drawn", (broker,), (pair,), at(SECONDS))
    return truth.every(setting.period)


def members_of(setting: Setting, number: int) -> Steps:
    """Owner of a queue, while there is a member."""
    return always(1 + number % setting.members)


def working(
    random: Random,
    setting: Setting,
    runs: Spans,
    *,
    crashes: bool = False,
    able: float | None = None,
    commits_until: float = SECONDS,
    jitter: float = 0.2,
    clock: float = 0.0,
) -> Truth:
    """A group that runs in these spans."""
    readings = []
    for number in range(setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        commit = runs_of(
            random,
            stored,
            runs,
            setting.able if able is None else able,
            setting.commit_every,
            crashes=crashes,
            commits_until=commits_until,
            jitter=jitter,
        )
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    return group_of(setting, readings, runs, clock=clock)


# -- crash loops ----------------------------------------------------------------------------------


def crash_loop(random: Random, up: tuple[float, float], down: tuple[float, float]) -> Drawn:
    """The group is well for half an hour; then its members come and go and never commit."""
    setting = Setting.drawn(random)
    since = float(random.uniform(1800.0, 3600.0))
    runs = [(0.0, since), *spans(random, since, up, down)]
    truth = working(random, setting, runs, crashes=True, commits_until=since)
    return Drawn(truth, (since, SECONDS), 120.0 + 3 * setting.period)


def crash_loop_from_the_start(random: Random) -> Drawn:
    """No commit was ever seen: members come and go, nothing moves, and all is unread."""
    setting = Setting.drawn(random)
    up, down = _drawn_spans(random)
    runs = spans(random, 0.0, up, down)
    truth = working(random, setting, runs, crashes=True, commits_until=0.0)
    # Runs shorter than a period may be missed by many samples in a row. Until one finds a member,
    # no sample differs from one at a topic that its group has left.
    sample_times = truth.sample_times()
    found = truth.pairs[0].members(sample_times) > 0
    since = float((sample_times[found][0] - DAWN) / SECOND)
    return Drawn(truth, (since, SECONDS), 240.0 + 3 * setting.period)


def crash_loop_that_commits(random: Random) -> Drawn:
    """Each run gets some work done and commits it: less, over time, than what comes in."""
    setting = Setting.drawn(random)._replace(commit_every=float(random.uniform(2.0, 5.0)))
    up, down = _drawn_spans(random)
    since = float(random.uniform(1800.0, 2700.0))
    share = float(np.mean(up)) / (float(np.mean(up)) + float(np.mean(down)))
    able = setting.rate * float(random.uniform(0.3, 0.8)) / share
    runs = spans(random, since, up, down)
    readings = []
    for number in range(setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        commit = slowed(random, setting, stored, since, able, runs, crashes=True)
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    truth = group_of(setting, readings, [(0.0, since), *runs])
    return Drawn(truth, (since, SECONDS), 420.0 + 6 * setting.period)


def crash_loop_beside_others(random: Random) -> Drawn:
    """As `drawn_crash_loop`; another member of the group reads another topic all the time."""
    found = drawn_crash_loop(random)
    (pair,) = found.truth.pairs
    pair = replace(pair, members=Steps(pair.members.at, pair.members.value + 1))
    # Beside members that stay, a reader that leaves in time may have been taken away on purpose. So
    # a sample must have found one that was late: runs shorter than a period are seen by chance.
    assert found.faulty is not None
    sample_times = found.truth.sample_times()
    seconds = (sample_times - DAWN) / SECOND
    late = found.faulty[0] + pair.objective_seconds
    seen = seconds[(pair.subscribed(sample_times) == 1) & (seconds > late + 15.0)][0]
    return found._replace(
        truth=replace(found.truth, pairs=(pair,)), within_s=found.within_s + float(seen - late)
    )


def crash_loop_that_goes_back(random: Random) -> Drawn:
    """Each run begins at the same old offset, commits it, reads on and crashes."""
    setting = Setting.drawn(random)._replace(commit_every=float(random.uniform(2.0, 5.0)))
    since = float(random.uniform(1800.0, 2700.0))
    up, down = random.uniform(10.0, 60.0), random.uniform(3.0, 30.0)
    runs = spans(random, since, (0.8 * up, 1.2 * up), (0.6 * down, 1.4 * down))
    back = random.uniform(5.0, 60.0)
    readings = []
    for number in range(setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        whole = runs_of(random, stored, [(0.0, since)], setting.able, setting.commit_every)
        begin = max(0, int(whole.value[-1]) - int(back * setting.rate))
        moments, offsets = whole.at.tolist(), whole.value.tolist()
        for run in runs:
            able, every = 1.5 * setting.rate, setting.commit_every
            rest = runs_of(random, stored[begin:], [run], able, every, crashes=True)
            moments += [at(run[0]), *rest.at[1:].tolist()]
            offsets += [begin, *(rest.value[1:] + begin).tolist()]
        commit = Steps(np.array(moments, np.int64), np.array(offsets, np.int64))
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    truth = group_of(setting, readings, [(0.0, since), *runs])
    # Two relapses show it, each of a run and a pause; a restart explains the first 200 s.
    return Drawn(truth, (since, SECONDS), 420.0 + 4 * (up + down) + 6 * setting.period)


def _drawn_spans(random: Random) -> tuple[tuple[float, float], tuple[float, float]]:
    """Draw bounds of the length of a run, and bounds of the length of a pause."""
    up, down = random.uniform(4.0, 40.0), random.uniform(5.0, 80.0)
    return (0.8 * up, 1.2 * up), (0.6 * down, 1.4 * down)


def drawn_crash_loop(random: Random) -> Drawn:
    """As `crash_loop`, of any length of runs and pauses."""
    return crash_loop(random, *_drawn_spans(random))


def restarts(random: Random) -> Drawn:
    """Now and then the group is away for up to 100 s, and it catches up each time."""
    return _restarts(random, Setting.drawn(random))


def _restarts(random: Random, setting: Setting) -> Drawn:
    down: list[tuple[float, float]] = []
    now = random.uniform(900.0, 1800.0)
    while now < SECONDS - 1200.0:
        down.append((float(now), float(now + random.uniform(5.0, 100.0))))
        now += random.uniform(900.0, 1800.0)
    return Drawn(working(random, setting, outside(down)))


def steady(random: Random) -> Drawn:
    """The group reads what comes in."""
    setting = Setting.drawn(random)
    return Drawn(working(random, setting, [(0.0, SECONDS)]))


# -- holes in the samples -------------------------------------------------------------------------


def holed(truth: Truth, holes: Spans) -> Truth:
    """Return the same workload without samples in these spans."""
    ticks = truth.ticks()
    seconds = (ticks - DAWN) / SECOND
    low, high = np.array(holes).T
    dark = ((seconds[:, None] >= low) & (seconds[:, None] < high)).any(axis=1)
    return truth.without(ticks[dark].tolist())


def _holes(random: Random, length: tuple[float, float], apart: tuple[float, float]) -> Spans:
    """Draw holes with lengths and distances within these bounds; the first ten minutes have
    none."""
    found, now = [], 600.0 + random.uniform(*apart)
    while now < SECONDS:
        found.append((float(now), float(now + random.uniform(*length))))
        now = found[-1][1] + random.uniform(*apart)
    return found


def _drawn_holes(random: Random, period: float) -> Spans:
    """Draw long holes that are rare, or short ones that are frequent, with at least two samples
    between two of them."""
    if random.random() < 0.5:
        return _holes(random, (45.0, 600.0), (900.0, 2400.0))
    return _holes(random, (45.0, 150.0), (2.5 * period, 2.5 * period + 150.0))


def steady_in_holes(random: Random) -> Drawn:
    """The group reads what comes in; now and then samples are missing."""
    return in_holes(random, steady(random))


def in_holes(random: Random, found: Drawn) -> Drawn:
    """Return the same group with samples missing now and then."""
    holes = _drawn_holes(random, found.truth.period / SECOND)
    return found._replace(truth=holed(found.truth, holes), known_outside_holes=True)


def dies(random: Random, clock: float = 0.0) -> Drawn:
    """The group leaves and does not come back."""
    setting = Setting.drawn(random)
    when = float(random.uniform(1800.0, 3600.0))
    truth = working(random, setting, [(0.0, when)], crashes=True, clock=clock)
    expected = frozenset({"STOPPED"})
    return Drawn(truth, (when, SECONDS), expected=expected, known_outside_holes=True)


def dies_in_holes_of_a_minute(random: Random) -> Drawn:
    """The group dies, and every two or three minutes all samples of one minute are missing."""
    found = dies(random)
    every = float(random.choice([120.0, 180.0]))
    begin = random.uniform(0.0, every) + np.arange(600.0, SECONDS, every)
    holes = [(float(each), float(each) + 60.0) for each in begin]
    within = 120.0 + 60.0 + 4 * found.truth.period / SECOND
    return found._replace(truth=holed(found.truth, holes), within_s=within)


def dies_in_holes(random: Random) -> Drawn:
    """The group dies, and now and then samples are missing."""
    found = dies(random)
    period = found.truth.period / SECOND
    holes = _drawn_holes(random, period)
    dark = max(high - low for low, high in holes)
    within = 120.0 + 2 * dark + 4 * period
    return found._replace(truth=holed(found.truth, holes), within_s=within)


def stuck_in_holes(random: Random) -> Drawn:
    """The members are there but no longer commit anything; now and then samples are missing."""
    setting = Setting.drawn(random)
    when = float(random.uniform(1800.0, 3600.0))
    truth = working(random, setting, [(0.0, SECONDS)], commits_until=when)
    return _stuck(setting, truth, _drawn_holes(random, setting.period), when)


def stuck_within_a_hole(random: Random) -> Drawn:
    """As `stuck_in_holes`, but the last commit falls into minutes without samples."""
    setting = Setting.drawn(random)
    holes = _holes(random, (150.0, 600.0), (300.0, 900.0))
    among = [hole for hole in holes if 1800.0 < hole[0] < 3600.0]
    when = float(random.uniform(*among[int(random.integers(len(among)))]))
    truth = working(random, setting, [(0.0, SECONDS)], commits_until=when)
    return _stuck(setting, truth, holes, when)


def _stuck(setting: Setting, truth: Truth, holes: Spans, when: float) -> Drawn:
    dark = max(high - low for low, high in holes)
    within = 120.0 + 2 * dark + 4 * setting.period
    return Drawn(
        holed(truth, holes),
        (when, SECONDS),
        within,
        expected=frozenset({"STALLED"}),
        known_outside_holes=True,
    )


def slow_in_holes(random: Random) -> Drawn:
    """The group can process only part of what comes in; now and then samples are missing."""
    setting = Setting.drawn(random)
    if random.random() < 0.5:
        setting = setting._replace(commit_every=float(random.uniform(15.0, 60.0)))
    share = float(random.uniform(0.3, 0.8))
    truth = working(random, setting, [(0.0, SECONDS)], able=share * setting.rate)
    holes = _drawn_holes(random, setting.period)
    dark = max(high - low for low, high in holes)
    return Drawn(holed(truth, holes), (0.0, SECONDS), 420.0 + 2 * dark + 6 * setting.period)


def slow_queue_of_many(random: Random) -> Drawn:
    """One of many members is too slow for its queue; all of them commit rarely."""
    setting = Setting.drawn(random, queues=(11, 14))
    setting = setting._replace(
        members=setting.queues, commit_every=float(random.uniform(60.0, 200.0))
    )
    # At 0.9, random arrivals let its age truly fall for minutes.
    share, readings = float(random.uniform(0.4, 0.8)), []
    for number in range(setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        able = setting.able if number else share * setting.rate
        commit = runs_of(random, stored, [(0.0, SECONDS)], able, setting.commit_every)
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    return Drawn(group_of(setting, readings, [(0.0, SECONDS)]), (0.0, SECONDS), 900.0)


def hangs_after_a_restart(random: Random) -> Drawn:
    """The group is restarted, and then commits nothing."""
    setting = Setting.drawn(random)
    since = float(random.uniform(1800.0, 3600.0))
    back = since + float(random.uniform(20.0, 100.0))
    runs = [(0.0, since), (back, SECONDS)]
    truth = working(random, setting, runs, commits_until=since)
    return Drawn(truth, (since, SECONDS), 120.0 + 4 * setting.period)


# -- clocks, and catching up ----------------------------------------------------------------------


def _clock(random: Random) -> float:
    """Draw the error of a clock: 15 s to 10 min, behind or ahead, in whole seconds."""
    off = round(float(np.exp(random.uniform(np.log(15.0), np.log(600.0)))))
    return float(off if random.random() < 0.3 else -off)


def steady_by_another_clock(random: Random) -> Drawn:
    """The group reads what comes in; the clock of its node is wrong."""
    setting, clock = Setting.drawn(random), _clock(random)
    truth = working(random, setting, [(0.0, SECONDS)], clock=clock)
    return Drawn(truth, clock=clock, known_outside_holes=True)


def dies_by_another_clock(random: Random) -> Drawn:
    """The group dies; the clock of its node is wrong."""
    clock = _clock(random)
    found = dies(random, clock)
    within = 120.0 + 4 * found.truth.period / SECOND
    return found._replace(clock=clock, within_s=within)


def catches_up_by_another_clock(random: Random) -> Drawn:
    """The group is away for ten to thirty minutes, then catches up at three times the pace."""
    setting, clock = Setting.drawn(random), _clock(random) if random.random() < 0.5 else 0.0
    setting = setting._replace(able=3 * setting.rate)
    since = float(random.uniform(1800.0, 2700.0))
    back = since + float(random.uniform(600.0, 1800.0))
    truth = working(random, setting, outside([(since, back)]), clock=clock)
    return Drawn(
        truth,
        (since, back),
        120.0 + 4 * setting.period,
        # The status of the absence may stay until samples show that the age falls.
        stands_s=90.0 + 4 * setting.period + setting.commit_every,
        never=frozenset({"FALLING_BEHIND", "LAGGING"}),
        clock=clock,
        known_outside_holes=True,
    )


# -- retention, and queues that are not read -----------------------------------------------------


def retained(truth: Truth, retention: float, every: float) -> Truth:
    """Return the truth with messages older than `retention` removed, checked every `every` seconds.

    If retention passes a commit, the maker of the workload has to adjust that commit.
    """
    removals = times(np.arange(retention, SECONDS, every))

    def kept(stored: Ints) -> Steps:
        gone = np.searchsorted(stored, removals - us(retention), "left").astype(np.int64)
        return Steps(np.append(at(LONG_AGO), removals), np.append(0, gone))

    (pair,), (broker,) = truth.pairs, truth.brokers
    readings = tuple(
        replace(each, queue=replace(each.queue, kept=kept(each.queue.eras[0].stored)))
        for each in pair.readings
    )
    log = replace(broker.log, kept=kept(broker.log.stored))
    return replace(
        truth,
        pairs=(replace(pair, readings=readings),),
        brokers=(replace(broker, log=log),),
    )


def loses_messages(random: Random) -> Drawn:
    """The group is alive and too slow; retention removes messages before it has read them, and it
    continues after them."""
    setting = Setting.drawn(random)._replace(commit_every=float(random.uniform(1.0, 5.0)))
    when = float(random.uniform(1200.0, 2400.0))
    retention, every = float(random.uniform(200.0, 600.0)), float(random.choice([10.0, 30.0, 60.0]))
    able = setting.rate * float(random.uniform(0.05, 0.4))
    whole = working(random, setting, [(0.0, SECONDS)], commits_until=when)
    truth = retained(whole, retention, every)
    readings = []
    for each in truth.pairs[0].readings:
        late = each.queue.kept.at > at(when)
        front = Steps(each.queue.kept.at[late], each.queue.kept.value[late])
        instants = do.jittered(random, setting.commit_every, 0.2, SECONDS, when)
        done = int(each.commit.value[-1])
        can = Capacity([(0.0, 0.0), (when, able)])
        offset = do.floored(front, can, instants, at(when), done)
        commit = Steps(np.append(each.commit.at, instants), np.append(each.commit.value, offset))
        readings.append(replace(each, commit=commit))
    truth = replace(truth, pairs=(replace(truth.pairs[0], readings=tuple(readings)),))
    seconds = times(np.arange(SECONDS))
    lost = np.sum([totals(each, seconds).expired for each in readings], axis=0)
    first = int(np.flatnonzero(lost > 0)[0])
    return Drawn(truth, (when, SECONDS), 420.0 + 6 * setting.period, must=("LOST", float(first)))


def abandoned(random: Random) -> Drawn:
    """The topic has not been read for long; retention passes the group's commit."""
    setting = Setting.drawn(random)
    truth = working(random, setting, [], commits_until=0.0)
    return Drawn(
        retained(truth, float(random.uniform(300.0, 3000.0)), 30.0), never=frozenset({"UNKNOWN"})
    )


def new_queues(random: Random) -> Drawn:
    """The topic's number of queues doubles; the group does not read the new ones."""
    setting = Setting.drawn(random)
    since = float(random.uniform(900.0, 2400.0))
    truth = working(random, setting, [(0.0, SECONDS)])
    readings = list(truth.pairs[0].readings)
    for number in range(setting.queues, 2 * setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        of = queue(stored[stored >= at(since)], number=number)
        readings.append(Reading(of, NEVER, member=always(0)))
    truth = group_of(setting, readings, [(0.0, SECONDS)])
    return Drawn(
        truth,
        (since, SECONDS),
        300.0 + 4 * setting.period,
        at_once=True,
        expected=frozenset({"STALLED"}),
    )


# -- paused groups --------------------------------------------------------------------------------


def paused(random: Random) -> Drawn:
    """An operator pauses the group, and its members leave. In half of the cases it is resumed."""
    setting = Setting.drawn(random)
    setting = setting._replace(able=setting.rate * float(random.uniform(3.0, 6.0)))
    since = float(random.uniform(1200.0, 2400.0))
    until = since + float(random.uniform(300.0, 1800.0))
    changes = [(at(LONG_AGO), 0), (at(since), 1)]
    runs = [(0.0, since)]
    if random.random() < 0.5:
        runs.append((until, SECONDS))
        changes.append((at(until), 0))
    truth = working(random, setting, runs)
    (pair,) = truth.pairs
    truth = replace(truth, pairs=(replace(pair, paused=steps(changes)),))
    return Drawn(truth, must=("PAUSED", since), never=frozenset({"STOPPED", "STALLED"}))


# -- rare commits ---------------------------------------------------------------------------------


def rare_commits(random: Random) -> Drawn:
    """The group reads what comes in, and commits every one and a half to five minutes."""
    return Drawn(working(random, _rare(random), [(0.0, SECONDS)]))


def rare_commits_and_restarts(random: Random) -> Drawn:
    """As `rare_commits`, but now and then the group is away for up to 100 s."""
    return _restarts(random, _rare(random))


def rare_commits_in_holes(random: Random) -> Drawn:
    """As `rare_commits`, but now and then samples are missing. The group is UNKNOWN while a missing
    sample may have shown a commit."""
    return in_holes(random, rare_commits(random))._replace(known_outside_holes=False)


def _rare(random: Random) -> Setting:
    return Setting.drawn(random)._replace(commit_every=float(random.uniform(90.0, 320.0)))


# -- uneven queues --------------------------------------------------------------------------------


def hot_queue(random: Random) -> Drawn:
    """One queue gets far more than the others, and more than its member can do."""
    setting = Setting.drawn(random, queues=(2, 12))
    setting = setting._replace(members=max(setting.members, 2))
    since = float(random.uniform(900.0, 2400.0))
    hot = int(random.integers(setting.queues))
    times_as_much = setting.queues * float(random.uniform(1.0, 2.0))
    readings = []
    for number in range(setting.queues):
        stored = do.poisson(random, setting.rate, SECONDS)
        able = setting.able
        if number == hot:
            more = do.poisson(random, setting.rate * times_as_much, SECONDS)
            stored = np.sort(np.concatenate([stored, more[more >= at(since)]]))
            able = setting.rate * (1 + times_as_much) * float(random.uniform(0.3, 0.7))
            able = max(able, 1.5 * setting.rate)
        commit = runs_of(random, stored, [(0.0, SECONDS)], able, setting.commit_every)
        of = queue(stored, number=number)
        readings.append(Reading(of, commit, member=members_of(setting, number)))
    truth = group_of(setting, readings, [(0.0, SECONDS)])
    within = 420.0 + 6 * setting.period
    return Drawn(truth, (since, SECONDS), within, skew_kind="hot_queue")
