"""When is a batch full or due, and how a long list is cut into requests. Pure: times come in.

Invariants: a batch holds at most ``count_max`` messages and, unless one message alone is larger,
at most ``size_max`` bytes; with ``in_flight_max`` 1 the requests of one lane leave in the order in
which their messages were given, so order within a queue is kept. The shell is ``producer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

MESSAGE_OVERHEAD: Final = 64
"""Bytes that a message adds to a request beyond its body: field names, tags, short keys."""


class Limits(NamedTuple):
    """Bounds of batching.

    count_max, size_max: messages and bytes in one request. Too small: one fdatasync carries few
    messages; too large: a lost answer leaves more messages of unknown outcome.
    linger_ms: how long a batch that is not full waits for more. 0: it leaves as soon as a request
    may be in flight, so a lone ``await send`` pays nothing; more trades latency for larger batches.
    in_flight_max: requests in flight per lane. More than 1 gives up the order of a queue.
    waiting_size_max: bytes taken from callers that have neither been answered nor dropped; beyond
    it ``send`` and ``send_many`` wait. requests_max: requests of all lanes in flight at once, each
    on a connection of its own; more wait for their turn, first come, first served.
    """

    count_max: int = 1000
    size_max: int = 1 << 20
    linger_ms: float = 0.0
    in_flight_max: int = 1
    waiting_size_max: int = 64 << 20
    requests_max: int = 100


class Verdict(Enum):
    """What a lane does with its open batch."""

    EMPTY = "empty"
    SEND = "send"
    WAIT_FOR_TIME = "wait for time"
    WAIT_FOR_ANSWER = "wait for answer"


class Decision(NamedTuple):
    """A verdict, and for WAIT_FOR_TIME how many milliseconds are left."""

    verdict: Verdict
    wait_ms: float = 0.0


def decide(*, count: int, size: int, age_ms: float, in_flight: int, limits: Limits) -> Decision:
    """Say what happens to an open batch of ``count`` messages, ``size`` bytes, ``age_ms`` old."""
    if count == 0:
        return Decision(Verdict.EMPTY)
    if in_flight >= limits.in_flight_max:
        return Decision(Verdict.WAIT_FOR_ANSWER)
    if count >= limits.count_max or size >= limits.size_max or age_ms >= limits.linger_ms:
        return Decision(Verdict.SEND)
    return Decision(Verdict.WAIT_FOR_TIME, limits.linger_ms - age_ms)


def take(sizes: Iterable[int], limits: Limits) -> int:
    """Number of leading messages that go into one request: at least one if there is any."""
    taken = total = 0
    for size in sizes:
        if taken and (taken >= limits.count_max or total + size > limits.size_max):
            break
        taken += 1
        total += size
    return taken


def cut(sizes: Sequence[int], limits: Limits) -> Iterator[range]:
    """Cut a list of message sizes into consecutive ranges, one request each, in order."""
    start = 0
    while start < len(sizes):
        end = start + take(islice(sizes, start, None), limits)
        yield range(start, end)
        start = end
