"""What a cluster does in a workload with known answers: the state that renderings show. Pure.

A queue is the store time and the time of dispatch of every message in it; a group's position on it
is steps. Nothing here is an estimate: every answer is a look-up. Next step: `reading` gives its
state at given times, `answers` has what must be computed from it, `tables` and `samples` render it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from tests.truth.steps import ABSENT, DAWN, NEVER, SECOND, Ints, Steps, always

RECORD_SIZE: Final = 512
"""Bytes of every record in the log."""
SCRAPE_AFTER_SAMPLE: Final = 100_000
"""Microseconds from the sample to the timestamp of the scrape."""


class Era(NamedTuple):
    """The messages of a queue, or records of a log, as one master had them.

    A failover that cuts messages off begins another era with an array that ends earlier.
    """

    since: int
    first: int
    """Queue offset of the first message listed."""
    stored: Ints
    """Store time of each, ascending."""
    visible: Ints
    """When consumers could see it: confirmed and dispatched. Ascending, not before `stored`."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic."""

    broker: str
    topic: str
    queue: int
    eras: tuple[Era, ...]
    kept: Steps = field(default_factory=lambda: always(0))
    """Min offset."""

    def max_offset(self, when: Ints) -> Ints:
        """Next offset that consumers will see."""
        end = np.zeros(len(when), np.int64)
        for era, here in _by_era(self.eras, when):
            end[here] = era.first + np.searchsorted(era.visible, when[here], "right")
        return end

    def arrived(self, when: Ints) -> Ints:
        """Messages that the master of each time has appended, visible or not."""
        count = np.zeros(len(when), np.int64)
        for era, here in _by_era(self.eras, when):
            before = np.searchsorted(era.stored, era.since, "right")
            count[here] = np.searchsorted(era.stored, when[here], "right") - before
        return count

    def store_time(self, when: Ints, offset: Ints) -> Ints:
        """Store time of the message at each offset, as known at each time; ABSENT without one."""
        found = np.full(len(when), ABSENT, np.int64)
        for era, here in _by_era(self.eras, when):
            index = offset[here] - era.first
            there = (index >= 0) & (index < len(era.stored))
            if len(era.stored):
                at = era.stored[np.clip(index, 0, len(era.stored) - 1)]
                found[here] = np.where(there, at, ABSENT)
        return found


def _by_era(eras: tuple[Era, ...], when: Ints) -> Iterable[tuple[Era, np.ndarray]]:
    since = np.array([era.since for era in eras], np.int64)
    number = np.maximum(np.searchsorted(since, when, "right") - 1, 0)
    for index, era in enumerate(eras):
        here = number == index
        if here.any():
            yield era, here


class Reset(NamedTuple):
    """An order of an operator that moved a commit."""

    at: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A group on one queue."""

    queue: Queue
    commit: Steps
    delivered: Steps | None = None
    """Next offset to hand out; None: as committed."""
    resets: tuple[Reset, ...] = ()
    """Steps of `commit` that were ordered."""
    head_known: Steps = field(default_factory=lambda: always(1))
    """0 while the broker does not export the store time of the oldest unread message."""
    member: Steps = NEVER
    """Number of the member that holds the queue; 0: none does. NEVER: not exported."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A group on a topic of one broker set."""

    group: str
    topic: str
    broker: str
    readings: tuple[Reading, ...]
    members: Steps = field(default_factory=lambda: always(1))
    subscribed: Steps = field(default_factory=lambda: always(1))
    objective_seconds: float = 60.0
    stall_after_seconds: float | None = None
    """None: not set, the kernel's default holds."""
    paused: Steps = NEVER
    broadcasting: bool | None = None
    redelivered: Steps = field(default_factory=lambda: always(0))
    """Deliveries beyond the first since the beginning."""


@dataclass(frozen=True, slots=True)
class Log:
    """The commit log of a broker set: its records, and when they passed each stage."""

    stored: Ints
    confirmed: Ints
    dispatched: Ints
    kept: Steps = field(default_factory=lambda: always(0))
    """Count of records removed from the front."""
    free_bytes: Steps = field(default_factory=lambda: always(800 << 30))
    capacity_bytes: int = 1 << 40
    cut: tuple[tuple[int, int], ...] = ()
    """(time, count): from then on only that many of the records before it are there."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker set: its nodes, and who is master."""

    name: str
    log: Log
    nodes: tuple[str, ...] = ("n1", "n2")
    master: Steps = field(default_factory=lambda: always(0))
    """Index of the node; ABSENT while there is none."""
    epoch: Steps = field(default_factory=lambda: always(1))
    started: tuple[Steps, ...] = ()
    """Per node: when the process that runs at a time was started. Empty: a day before the start."""
    replica_lag_bytes: Steps = field(default_factory=lambda: always(0))
    skew_microseconds: Steps = field(default_factory=lambda: always(0))
    clock_off: int = 0
    """How far the clock of its nodes is ahead of everybody else's [microseconds]; below 0: behind.
    All times of a truth are true ones; those that a node exports are by its own clock."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A workload from `start` to `end`, sampled every `period`; some samples may be missing."""

    name: str
    brokers: tuple[Broker, ...]
    pairs: tuple[Pair, ...]
    end: int
    start: int = DAWN
    period: int = 15 * SECOND
    sample_delay: int = 200_000
    """Delay of the sample after its tick [µs]; the scrape ends 0.1 s later."""
    cluster: str = "c1"
    missing: frozenset[int] = frozenset()
    """Ticks (times) of which nothing was heard."""

    def ticks(self, *, with_missing: bool = False) -> Ints:
        """Times of the ticks after `start` with samples until `end`: those heard of, or all."""
        first = self.start // self.period * self.period + self.period
        last = self.end - self.sample_delay
        every = np.arange(first, last + 1, self.period, dtype=np.int64)
        if with_missing or not self.missing:
            return every
        return every[~np.isin(every, np.fromiter(self.missing, np.int64))]

    def sample_times(self) -> Ints:
        """Sample time of each tick that was heard of: `ts` of positions."""
        return self.ticks() + self.sample_delay

    def without(self, ticks: Iterable[int]) -> Truth:
        """The same workload with these ticks (times) not heard of."""
        return replace(self, missing=self.missing | frozenset(int(tick) for tick in ticks))

    def every(self, seconds: float) -> Truth:
        """The same workload sampled with another period."""
        return replace(self, period=round(seconds * SECOND))

    def broker(self, name: str) -> Broker:
        """The broker set with this name."""
        return next(broker for broker in self.brokers if broker.name == name)
