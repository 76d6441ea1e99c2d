"""Answers of brokers about groups over their API, as a reference for computed numbers.

Offsets and store times of heads only grow without a reset. The figures of a sample are read during
the sample, each at an instant of its own. So each of them lies between an answer that was there
before the sample began and one that was requested after it ended: that is the error of the
comparison, and no other tolerance is allowed.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from drills.node_group import ask


class Queue(NamedTuple):
    """One queue of a group."""

    committed: int | None
    max_offset: int
    head_low_s: float | None
    head_high_s: float | None
    """Store time of the oldest unread message lies between; None: there is none. The answer says
    an age, and when it was taken lies between asking and answering. Infinite: it is not known."""


class Seen(NamedTuple):
    """One answer."""

    asked_s: float
    answered_s: float
    """Wall clock: the broker read its state between the two."""
    generation: int | None
    """Generation of the group, read after the members, which change only with it."""
    members: int
    objective_s: float
    queues: Mapping[int, Queue]


class Range(NamedTuple):
    """Bounds of a value, both included."""

    low: float
    high: float

    def holds(self, value: float | None, rounding: float = 0.0) -> bool:
        """Whether a value lies within."""
        return value is not None and self.low - rounding <= value <= self.high + rounding


class Observer:
    """Asks for groups in a thread of its own until it is closed."""

    def __init__(
        self,
        groups: Mapping[tuple[str, str], Callable[[], str]],
        pause_s: float,
        sent_at: Mapping[tuple[str, int], Sequence[tuple[int, float]]] = MappingProxyType({}),
    ) -> None:
        """groups: for each (group, topic), a function that returns where to ask, since the master
        may change. sent_at: see ``Load.sent_at``."""
        self._groups, self._pause_s, self._sent_at = groups, pause_s, sent_at
        self._seen: dict[tuple[str, str], list[Seen]] = {key: [] for key in groups}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(30)

    def _watch(self) -> None:
        while not self._over.wait(self._pause_s):
            for (group, topic), url in self._groups.items():
                asked_s = time.time()
                status, answer = ask(f"{url()}/v1/groups/{group}")
                if status == 200:
                    self.take(group, topic, answer, asked_s, time.time())

    def take(
        self, group: str, topic: str, answer: dict[str, Any], asked_s: float, answered_s: float
    ) -> None:
        """Keep an answer, with when it was asked for and when it was there."""
        self._seen[group, topic].append(_seen(answer, topic, asked_s, answered_s))

    def around(self, group: str, topic: str, sample: Range) -> tuple[Seen, Seen]:
        """The last answer that was there before a sample, and the first that was asked for after
        it.

        sample: when it began and when it ended [seconds since 1970].
        """
        seen = self._seen[group, topic]
        before = bisect.bisect_right([each.answered_s for each in seen], sample.low) - 1
        after = bisect.bisect_left([each.asked_s for each in seen], sample.high)
        assert before >= 0, f"{group} was not asked for before {sample.low}"
        assert after < len(seen), f"{group} was not asked for after {sample.high}"
        return seen[before], seen[after]

    def lag(self, group: str, topic: str, sample: Range) -> Range:
        """Messages unread at a sample, over all queues."""
        each = [
            self.queue_lag(group, topic, number, sample)
            for number in self.around(group, topic, sample)[0].queues
        ]
        return Range(sum(lag.low for lag in each), sum(lag.high for lag in each))

    def queue_lag(self, group: str, topic: str, number: int, sample: Range) -> Range:
        """Messages unread at a sample in one queue."""
        before, after = (each.queues[number] for each in self.around(group, topic, sample))
        return Range(
            max(0, before.max_offset - (after.committed or 0)),
            max(0, after.max_offset - (before.committed or 0)),
        )

    def moved(self, group: str, topic: str, field: str, first: Range, last: Range) -> Range:
        """By how much the max offsets, or the committed ones, moved from one sample to another."""

        def of(seen: Seen) -> int:
            return sum(getattr(queue, field) or 0 for queue in seen.queues.values())

        early, late = self.around(group, topic, first), self.around(group, topic, last)
        return Range(max(0, of(late[0]) - of(early[1])), of(late[1]) - of(early[0]))

    def age(self, group: str, topic: str, sample: Range) -> Range:
        """Seconds from the oldest unread message's store time to the sample's beginning; 0 if there
        may be none."""
        before, after = self.around(group, topic, sample)
        numbers = before.queues.keys() & after.queues.keys()
        high = max(sample.low - self._head_low_s(topic, each, before, after) for each in numbers)
        low = max(
            0.0
            # The sample may not have had a message that the answer before it did not have.
            if queue.head_high_s is None
            or (queue.committed or 0) >= before.queues[number].max_offset
            else sample.low - queue.head_high_s
            for number, queue in after.queues.items()
            if number in numbers
        )
        return Range(max(0.0, low), max(0.0, high))

    def _head_low_s(self, topic: str, number: int, before: Seen, after: Seen) -> float:
        """Earliest time at which the oldest message that was unread between two answers may have
        been stored; infinite if there was none.

        One that the first answer does not have may have been stored before it: on a loaded machine
        a message can be read some time after it was stored. But it was not stored before it was
        sent.
        """
        queue = before.queues[number]
        if queue.head_low_s is not None:
            return queue.head_low_s
        if after.queues[number].max_offset <= queue.max_offset:
            return math.inf
        sent = self._sent_at.get((topic, number), ())
        at = bisect.bisect_right([first for first, _ in sent], queue.max_offset) - 1
        return before.asked_s if at < 0 else min(before.asked_s, sent[at][1])


def _seen(answer: dict[str, Any], topic: str, asked_s: float, answered_s: float) -> Seen:
    queues = {}
    for each in answer["topics"]:
        if each["topic"] != topic:
            continue
        for queue in each["queues"]:
            low: float | None = None
            high: float | None = None
            if queue["messages"]:
                seconds = queue["seconds"]
                low = -math.inf if seconds is None else asked_s - seconds
                high = math.inf if seconds is None else answered_s - seconds
            queues[queue["queue"]] = Queue(queue["committed"], queue["max_offset"], low, high)
    return Seen(
        asked_s,
        answered_s,
        answer["generation"],
        len(answer["members"]),
        answer["lag_objective_ms"] / 1000,
        queues,
    )
