"""Decides when a batch is full or due, and splits a list into requests. Pure: times are arguments.

Invariants: a batch holds at most ``count_max`` messages. It holds at most ``size_max`` bytes unless
a single message is larger. With ``in_flight_max`` 1 the requests of one lane are sent in the order
in which their messages were submitted, so order within a queue is kept. The shell is ``producer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

MESSAGE_OVERHEAD: Final = 64
"""Bytes a message adds to a request besides its body: field names, tags, short keys."""
HELD_OVERHEAD: Final = 256
"""Bytes of memory that a message takes besides until it is sent: its map, its unique id."""


def held_size(weight: int, count: int) -> int:
    """Approximate bytes of memory that messages take until they are sent.

    weight: bytes that they add to requests.
    """
    return weight + count * HELD_OVERHEAD


class Limits(NamedTuple):
    """Bounds of batching.

    count_max, size_max: messages and bytes in one request. Too small: one fdatasync covers few
    messages. Too large: a lost answer leaves more messages of unknown outcome.
    linger_ms: how long a batch that is not full waits for more messages. 0 sends it as soon as a
    request may be in flight, so a single ``await send`` has no added latency. A larger value trades
    latency for larger batches.
    in_flight_max: requests in flight per lane. More than 1 does not preserve the order of a queue.
    waiting_size_max: bytes accepted from callers and not yet answered or dropped. Above this bound
    ``send`` and ``send_many`` wait.
    requests_max: requests of all lanes in flight at once, each on its own connection. Further
    requests wait in first-come, first-served order.
    """

    count_max: int = 1000
    size_max: int = 1 << 20
    linger_ms: float = 0.0
    in_flight_max: int = 1
    waiting_size_max: int = 64 << 20
    requests_max: int = 100


class Verdict(Enum):
    """What a lane does next with its open batch."""

    EMPTY = "empty"
    SEND = "send"
    WAIT_FOR_TIME = "wait for time"
    WAIT_FOR_ANSWER = "wait for answer"


class Decision(NamedTuple):
    """A verdict, and for WAIT_FOR_TIME the remaining time in milliseconds."""

    verdict: Verdict
    wait_ms: float = 0.0


def decide(*, count: int, size: int, age_ms: float, in_flight: int, limits: Limits) -> Decision:
    """Decide about an open batch of ``count`` messages, ``size`` bytes, ``age_ms`` old."""
    if count == 0:
        return Decision(Verdict.EMPTY)
    if in_flight >= limits.in_flight_max:
        return Decision(Verdict.WAIT_FOR_ANSWER)
    if count >= limits.count_max or size >= limits.size_max or age_ms >= limits.linger_ms:
        return Decision(Verdict.SEND)
    return Decision(Verdict.WAIT_FOR_TIME, limits.linger_ms - age_ms)


def take(sizes: Iterable[int], limits: Limits) -> int:
    """Number of leading messages that fit into one request: at least one unless sizes is empty."""
    taken = total = 0
    for size in sizes:
        if taken and (taken >= limits.count_max or total + size > limits.size_max):
            break
        taken += 1
        total += size
    return taken


def cut(sizes: Sequence[int], limits: Limits) -> Iterator[range]:
    """Split a list of message sizes into consecutive ranges, one per request, in order."""
    start = 0
    if sizes and len(sizes) <= limits.count_max and sum(sizes) <= limits.size_max:
        yield range(len(sizes))
        return
    while start < len(sizes):
        end = start + take(islice(sizes, start, None), limits)
        yield range(start, end)
        start = end
