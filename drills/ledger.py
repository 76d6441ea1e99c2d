"""Record of acks and consumed messages during a drill, with times. Pure: no I/O.

The step before is ``workload``, which sends and reads; the step after is ``checker``, which
compares the ledger with the final log. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

OWED_LEVEL: Final = "replicated"
"""Messages acked at this level survive every fault that leaves one in-sync member its volume."""


class Outcome(StrEnum):
    ACKED = "acked"
    REFUSED = "refused"
    """The error states that nothing was stored."""
    UNKNOWN = "unknown"
    """There was no response, or one that states that the message may be stored."""


class Place(NamedTuple):
    """Position of a message, from an ack or from a consumer."""

    queue: int
    queue_offset: int


class Ack(NamedTuple):
    place: Place
    physical_offset: int
    level: str
    copies: int
    node: str
    """Node that acked; empty if unknown."""
    sent_at: float
    answered_at: float
    repeated: bool
    """Whether an earlier request with this message had an unknown outcome."""

    @classmethod
    def of(
        cls, answer: dict[str, Any], number: int, request: Request, *, repeated: bool = False
    ) -> Ack:
        """Return the ack of the message with a number in the answer to a send."""
        result, reached = answer["results"][number], answer["ack"]
        return cls(
            Place(result["queue"], result["queue_offset"]),
            result["physical_offset"],
            reached["level"],
            reached["copies"],
            request.node,
            request.sent_at,
            request.ended_at,
            repeated,
        )


class Request(NamedTuple):
    producer: int
    sent_at: float
    ended_at: float
    outcome: Outcome
    code: str
    """Error code; empty for a success."""
    node: str
    messages: int


@dataclass(slots=True)
class Ledger:
    """Everything that a workload did. The key of a message is ``producer.number``."""

    sent: dict[str, float] = field(default_factory=dict)
    """Time of the first request of every message that was sent."""
    acked: dict[str, Ack] = field(default_factory=dict)
    conflicting_acks: list[str] = field(default_factory=list)
    """Contradictions between acks, as sentences."""
    requests: list[Request] = field(default_factory=list)
    """Requests in the order in which they ended."""
    seen: dict[int, dict[Place, str]] = field(default_factory=dict)
    """Consumer → queue position → key of the message that it read there."""
    seen_wrong: list[str] = field(default_factory=list)
    """Contradictory reads of a consumer, as sentences."""

    def record_ack(self, key: str, ack: Ack) -> None:
        before = self.acked.get(key)
        if before is not None and before.place != ack.place:
            self.conflicting_acks.append(f"{key} was acked at {before} and again at {ack}")
        self.acked[key] = ack

    def see(self, consumer: int, place: Place, key: str) -> None:
        """Record a message that a consumer read; note if the place held another message before."""
        places = self.seen.setdefault(consumer, {})
        before = places.setdefault(place, key)
        if before != key:
            self.seen_wrong.append(
                f"consumer {consumer} saw {before} at {place}, and later {key} at the same place"
            )

    def give_up(self, offset: int) -> int:
        """Drop acks from a physical offset on, which an operator gave up; return their number."""
        gone = [key for key, ack in self.acked.items() if ack.physical_offset >= offset]
        for key in gone:
            del self.acked[key]
        return len(gone)

    def acks(self) -> list[Request]:
        return [request for request in self.requests if request.outcome is Outcome.ACKED]

    def longest_gap(self, begin: float, end: float) -> float:
        """Return the longest time within [begin, end] without a successful request [s]."""
        began, ended = self.longest_gap_at(begin, end)
        return ended - began

    def longest_gap_at(self, begin: float, end: float) -> tuple[float, float]:
        """Return when the longest time without a successful request began and ended."""
        times = [request.ended_at for request in self.acks()]
        inside = times[bisect_left(times, begin) : bisect_left(times, end)]
        edges = [begin, *inside, end]
        return max(pairwise(edges), key=lambda gap: gap[1] - gap[0])

    def acked_at(self, at: float) -> str:
        """Return the node that acked at this time; empty if there is none or it is unknown."""
        return next((ack.node for ack in self.acks() if ack.ended_at == at), "")

    def first_ack(self, sent_after: float) -> float | None:
        """Return when the first request sent after a time was acked; None if none was."""
        times = [request.ended_at for request in self.acks() if request.sent_at > sent_after]
        return min(times, default=None)

    def acked_by(self, node: str, sent_after: float) -> list[Request]:
        return [
            request
            for request in self.acks()
            if request.node == node and request.sent_at > sent_after
        ]

    def codes(self, begin: float, end: float) -> Counter[str]:
        """Count the error codes of requests that ended within [begin, end]."""
        return Counter(
            request.code
            for request in self.requests
            if request.code and begin <= request.ended_at <= end
        )

    def outcomes(self, begin: float, end: float) -> Counter[Outcome]:
        """Count the outcomes of requests that ended within [begin, end]."""
        return Counter(
            request.outcome for request in self.requests if begin <= request.ended_at <= end
        )
