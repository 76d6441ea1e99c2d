"""What producers were told and consumers saw during a drill, with times. Pure: it only remembers.

Step before: ``workload`` sends and reads. Step after: ``checker`` compares with the final log.
Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

OWED_LEVEL: Final = "replicated"
"""What is acknowledged at this level survives every fault that leaves one member its volume."""


class Outcome(StrEnum):
    """How one request ended."""

    ACKED = "acked"
    REFUSED = "refused"
    """An error that says that nothing was stored."""
    UNKNOWN = "unknown"
    """No answer, or one that says that it may be stored."""


class Place(NamedTuple):
    """Where a message is, as its sender was told or a consumer saw."""

    queue: int
    queue_offset: int


class Told(NamedTuple):
    """A success, of one message."""

    place: Place
    physical_offset: int
    level: str
    copies: int
    node: str
    """Who answered; empty: not known."""
    sent_at: float
    answered_at: float
    repeated: bool
    """An earlier request with this message had an unknown outcome."""


class Request(NamedTuple):
    """One request of a producer, however it ended."""

    producer: int
    sent_at: float
    ended_at: float
    outcome: Outcome
    code: str
    """Of the error; empty for a success."""
    node: str
    messages: int


@dataclass(slots=True)
class Ledger:
    """Everything that a workload did. Messages are known by their keys, ``producer.number``."""

    sent: dict[str, float] = field(default_factory=dict)
    """Every message that was ever on its way, with the time of its first request."""
    told: dict[str, Told] = field(default_factory=dict)
    told_twice: list[str] = field(default_factory=list)
    """What is wrong in the answers themselves, as sentences."""
    requests: list[Request] = field(default_factory=list)
    """In the order in which they ended."""
    seen: dict[int, dict[Place, str]] = field(default_factory=dict)
    """By consumer: what it saw at each place."""
    seen_wrong: list[str] = field(default_factory=list)
    """What a consumer saw that no order of events explains, as sentences."""

    def tell(self, key: str, told: Told) -> None:
        """A message was acknowledged."""
        before = self.told.get(key)
        if before is not None and before.place != told.place:
            self.told_twice.append(f"{key} was acked at {before} and again at {told}")
        self.told[key] = told

    def see(self, consumer: int, place: Place, key: str) -> None:
        """A consumer saw a message; a place that it saw before still holds the same."""
        places = self.seen.setdefault(consumer, {})
        before = places.setdefault(place, key)
        if before != key:
            self.seen_wrong.append(
                f"consumer {consumer} saw {before} at {place}, and later {key} at the same place"
            )

    def give_up(self, offset: int) -> int:
        """Forget acks at or behind a physical offset: an operator gave them up. How many."""
        gone = [key for key, told in self.told.items() if told.physical_offset >= offset]
        for key in gone:
            del self.told[key]
        return len(gone)

    def acks(self) -> list[Request]:
        """Requests that ended with a success, by time."""
        return [request for request in self.requests if request.outcome is Outcome.ACKED]

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time within [begin, end] in which no request ended with a success."""
        began, ended = self.longest_gap_at(begin, end)
        return ended - began

    def longest_gap_at(self, begin: float, end: float) -> tuple[float, float]:
        """When that time began and ended."""
        times = [request.ended_at for request in self.acks()]
        inside = times[bisect_left(times, begin) : bisect_left(times, end)]
        edges = [begin, *inside, end]
        return max(pairwise(edges), key=lambda gap: gap[1] - gap[0])

    def acked_at(self, at: float) -> str:
        """The node that gave the success of this time; empty: none, or not known."""
        return next((ack.node for ack in self.acks() if ack.ended_at == at), "")

    def first_ack(self, sent_after: float) -> float | None:
        """When the first success of a request came that was sent after a time; None: never."""
        times = [request.ended_at for request in self.acks() if request.sent_at > sent_after]
        return min(times, default=None)

    def acked_by(self, node: str, sent_after: float) -> list[Request]:
        """Successes that a node gave to requests sent after a time."""
        return [
            request
            for request in self.acks()
            if request.node == node and request.sent_at > sent_after
        ]

    def codes(self, begin: float, end: float) -> Counter[str]:
        """How often each error was told within [begin, end]."""
        return Counter(
            request.code
            for request in self.requests
            if request.code and begin <= request.ended_at <= end
        )

    def outcomes(self, begin: float, end: float) -> Counter[Outcome]:
        """How requests ended within [begin, end]."""
        return Counter(
            request.outcome for request in self.requests if begin <= request.ended_at <= end
        )
