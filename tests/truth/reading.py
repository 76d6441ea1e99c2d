"""The state of a workload at given times: every figure a broker reports, as arrays. Pure.

Step before: `workload`. Next: `tables` and `samples` render these arrays, `answers` computes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.truth.steps import ABSENT, Ints
from tests.truth.workload import RECORD_SIZE, Broker, Pair, Reading, Truth


class Position(NamedTuple):
    """A group on a queue at each time."""

    min_offset: Ints
    max_offset: Ints
    commit: Ints
    pull: Ints
    head: Ints
    """Effective commit: the oldest message not consumed."""
    head_time: Ints
    """Its store time; ABSENT where nothing is unread or nothing was ever committed."""
    head_exported: Ints
    """The same, as the broker exports it."""
    member: Ints
    """Number of the queue's owner, 0: none; ABSENT where the broker does not export it."""


def position(reading: Reading, when: Ints) -> Position:
    """Look at one queue of a group at each time."""
    queue = reading.queue
    low, high = queue.kept(when), queue.max_offset(when)
    low = np.minimum(low, high)
    commit = reading.commit(when)
    known = commit != ABSENT
    head = np.where(known, np.minimum(np.maximum(commit, low), high), ABSENT)
    if reading.delivered is None:
        pull = np.where(known, head, ABSENT)
    else:
        pull = reading.delivered(when)
        there = known & (pull != ABSENT)
        pull = np.where(there, np.minimum(np.maximum(pull, head), high), ABSENT)
    unread = known & (head < high)
    head_time = np.where(unread, queue.store_time(when, np.where(known, head, 0)), ABSENT)
    exported = np.where(reading.head_known(when) == 1, head_time, ABSENT)
    return Position(low, high, commit, pull, head, head_time, exported, reading.member(when))


class Stages(NamedTuple):
    """The log at each time: physical offsets in bytes, and store times of what waits."""

    min_offset: Ints
    max_offset: Ints
    confirm: Ints
    dispatched: Ints
    t_min: Ints
    t_max: Ints
    t_confirm: Ints
    t_dispatched: Ints


def stages(broker: Broker, when: Ints) -> Stages:
    """Look at the log of a broker set."""
    log = broker.log
    counts = []
    for passed in (log.stored, log.confirmed, log.dispatched):
        count = np.searchsorted(passed, when, "right")
        for at, kept in log.cut:
            gone = np.searchsorted(log.stored, at, "left") - kept
            count = np.where(when >= at, np.maximum(count - gone, 0), count)
        counts.append(count.astype(np.int64))
    stored, confirmed, dispatched = counts
    low = np.minimum(np.maximum(log.kept(when), 0), stored)
    newest = _stored(broker, when, stored - 1)
    confirm_time = np.where(confirmed < stored, _stored(broker, when, confirmed), newest)
    dispatch_time = np.where(
        dispatched < confirmed, _stored(broker, when, dispatched), confirm_time
    )
    return Stages(
        low * RECORD_SIZE,
        stored * RECORD_SIZE,
        confirmed * RECORD_SIZE,
        dispatched * RECORD_SIZE,
        np.where(low < stored, _stored(broker, when, low), ABSENT),
        newest,
        confirm_time,
        dispatch_time,
    )


def _stored(broker: Broker, when: Ints, index: Ints) -> Ints:
    """Store time of the record that is the index-th at each time; ABSENT where there is none."""
    log = broker.log
    index = index.copy()
    for at, kept in reversed(log.cut):
        gone = np.searchsorted(log.stored, at, "left") - kept
        index = np.where((when >= at) & (index >= kept), index + gone, index)
    there = (index >= 0) & (index < len(log.stored))
    if not len(log.stored):
        return np.full(len(when), ABSENT, np.int64)
    return np.where(there, log.stored[np.clip(index, 0, len(log.stored) - 1)], ABSENT)


class Totals(NamedTuple):
    """Counts of a reading or a pair since the beginning, at each time."""

    consumed: Ints
    expired: Ints
    reset_forward: Ints
    resets_forward: Ints
    resets_backward: Ints


def totals(reading: Reading, when: Ints) -> Totals:
    """Counts of what a group did on a queue until each time, as if no process had restarted."""
    commit, kept = reading.commit, reading.queue.kept
    ordered = np.array([reset.at for reset in reading.resets], np.int64)
    before, after = commit.value[:-1], commit.value[1:]
    moved_at = commit.at[1:]
    low = np.maximum(kept(moved_at), 0) if len(moved_at) else np.empty(0, np.int64)
    floor = np.maximum(before, low)
    moves = np.where(np.isin(moved_at, ordered), 0, np.maximum(after - floor, 0))
    moves = np.where(before == ABSENT, 0, moves)
    expired_at = kept.at[1:]
    at_expiry = commit(expired_at)
    lost = np.maximum(kept.value[1:] - np.maximum(at_expiry, kept.value[:-1]), 0)
    lost = np.where(at_expiry == ABSENT, 0, lost)
    forward = [reset for reset in reading.resets if reset.to_offset > reset.from_offset]
    backward = [reset for reset in reading.resets if reset.to_offset < reset.from_offset]
    skipped = np.array([each.to_offset - each.from_offset for each in forward], np.int64)
    forward_at = np.array([each.at for each in forward], np.int64)
    backward_at = np.array([each.at for each in backward], np.int64)
    return Totals(
        _running(moved_at, moves, when),
        _running(expired_at, lost, when),
        _running(forward_at, skipped, when),
        np.searchsorted(forward_at, when, "right").astype(np.int64),
        np.searchsorted(backward_at, when, "right").astype(np.int64),
    )


def _running(at: Ints, amount: Ints, when: Ints) -> Ints:
    sums = np.concatenate(([0], np.cumsum(amount))).astype(np.int64)
    return sums[np.searchsorted(at, when, "right")]


def pair_totals(pair: Pair, when: Ints) -> Totals:
    """The sum over a pair's queues."""
    each = [totals(reading, when) for reading in pair.readings]
    zero = np.zeros(len(when), np.int64)
    return Totals(*(sum(column, zero) for column in zip(*each, strict=True)))


def started(truth: Truth, broker: Broker, node: int, when: Ints) -> Ints:
    """When the process that runs on a node at each time was started."""
    if not broker.started:
        return np.full(len(when), truth.start - 86_400_000_000, np.int64)
    return broker.started[node](when)


def master(broker: Broker, when: Ints) -> Ints:
    """Index of the master's node at each time; ABSENT without one."""
    return broker.master(when)


def counting_since(truth: Truth, broker: Broker, when: Ints) -> Ints:
    """Return since when the master of each time has counted what groups do: since its start, or
    since it became master."""
    who = master(broker, when)
    found = np.full(len(when), ABSENT, np.int64)
    for node in range(len(broker.nodes)):
        found = np.where(who == node, started(truth, broker, node, when), found)
    index = np.searchsorted(broker.master.at, when, "right") - 1
    return np.maximum(found, broker.master.at[np.maximum(index, 0)])


class PairSample(NamedTuple):
    """A pair at each time, as its master reports it."""

    inflight: Ints
    oldest_undelivered: Ints
    oldest_uncommitted: Ints
    awaiting_delivery: Ints
    """Of the queue with the oldest uncommitted message: its oldest undelivered one."""
    totals: Totals
    redelivered: Ints
    arrived: Ints
    """Messages appended to the topic."""
    unknown_queues: Ints


def pair_sample(truth: Truth, pair: Pair, when: Ints) -> PairSample:
    """Look at a pair: what is in flight, the oldest of each stage, counters since the start."""
    broker = truth.broker(pair.broker)
    dispatched = stages(broker, when).t_dispatched
    inflight = np.zeros(len(when), np.int64)
    undelivered = np.full(len(when), np.iinfo(np.int64).max, np.int64)
    uncommitted = undelivered.copy()
    head, awaiting = undelivered.copy(), undelivered.copy()
    for reading in pair.readings:
        at = position(reading, when)
        known = at.pull != ABSENT
        inflight += np.where(known, at.pull - at.head, 0)
        ready = known & (at.pull < at.max_offset)
        waiting = reading.queue.store_time(when, np.where(known, at.pull, 0))
        undelivered = np.where(ready, np.minimum(undelivered, waiting), undelivered)
        flying = known & (at.head < at.pull)
        uncommitted = np.where(flying, np.minimum(uncommitted, at.head_time), uncommitted)
        own_head = np.where(at.head_time == ABSENT, np.iinfo(np.int64).max, at.head_time)
        own = np.where(ready, waiting, np.iinfo(np.int64).max)
        awaiting = np.where(own_head < head, own, awaiting)
        awaiting = np.where(own_head == head, np.minimum(own, awaiting), awaiting)
        head = np.minimum(head, own_head)
    none = np.iinfo(np.int64).max
    undelivered = np.where(undelivered == none, dispatched, undelivered)
    uncommitted = np.where(uncommitted == none, undelivered, uncommitted)
    awaiting = np.where(awaiting == none, dispatched, awaiting)
    begun = counting_since(truth, broker, when)
    now, then = pair_totals(pair, when), pair_totals(pair, begun)
    since = Totals(*(a - b for a, b in zip(now, then, strict=True)))
    again = pair.redelivered(when) - np.maximum(pair.redelivered(begun), 0)
    arrived = np.zeros(len(when), np.int64)
    unknown = arrived.copy()
    for reading in pair.readings:
        queue = reading.queue
        arrived += queue.arrived(when) - np.maximum(queue.arrived(np.maximum(begun, 0)), 0)
        unknown += reading.commit(when) == ABSENT
    return PairSample(inflight, undelivered, uncommitted, awaiting, since, again, arrived, unknown)
