"""Requests in hand, by kind of work: how many, and how old the oldest is.

A request is in hand from its head to its answer, but not while it is held because there is nothing
for it: waiting for a message is no work. Kinds are RocketMQ's pools of threads; here they share one
loop, so a request that is old waits for the disk, for other nodes, or for its turn.
Before: ``http_api`` has a request. After: the gauges ``tidemark_broker_requests_queued`` and
``tidemark_broker_oldest_queued_request_seconds``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, NamedTuple

from shared.runtime.give_way import GiveWay, Pace
from tidemark.clock import Clock


class Pool(StrEnum):
    """A kind of work; the values are label values."""

    PUT = "put"
    PULL = "pull"
    QUERY = "query"
    ADMIN = "admin"
    HEARTBEAT = "heartbeat"


class Role(StrEnum):
    """What a connection is for, by what it last asked; the values are label values."""

    NEW = "new"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


class Kind(NamedTuple):
    """What a call is."""

    pool: Pool
    role: Role


_SEND: Final = Kind(Pool.PUT, Role.PRODUCER)
_SEND_BACK: Final = Kind(Pool.PUT, Role.CONSUMER)
_PULL: Final = Kind(Pool.PULL, Role.CONSUMER)
_MEMBER: Final = Kind(Pool.HEARTBEAT, Role.CONSUMER)
_QUERY: Final = Kind(Pool.QUERY, Role.ADMIN)
_ADMIN: Final = Kind(Pool.ADMIN, Role.ADMIN)

KINDS: Final[Mapping[str, Kind]] = {
    "send": _SEND,
    "nack": _SEND_BACK,
    "pull": _PULL,
    "fetch": _PULL,
    "member-join": _MEMBER,
    "member-leave": _MEMBER,
    "commit": _MEMBER,
    "cluster": _QUERY,
    "committed": _QUERY,
    "dead-list": _QUERY,
    "delayed": _QUERY,
    "group-get": _QUERY,
    "groups": _QUERY,
    "message": _QUERY,
    "offset": _QUERY,
    "openapi": _QUERY,
    "query": _QUERY,
    "retention": _QUERY,
    "topic-get": _QUERY,
    "topics": _QUERY,
    "trace": _QUERY,
    "delayed-cancel": _ADMIN,
    "group-delete": _ADMIN,
    "group-put": _ADMIN,
    "group-reset": _ADMIN,
    "redrive": _ADMIN,
    "topic-delete": _ADMIN,
    "topic-put": _ADMIN,
}
"""Of every call, by its route's name."""
UNKNOWN: Final = _QUERY
"""Of a call that there is not."""
CHANGES: Final = frozenset({"member-join", *(n for n, k in KINDS.items() if k.pool is Pool.ADMIN)})
"""Calls that change a topic or a group: each takes about a millisecond of the loop."""
CHANGE_SLICES: Final = 4
REPEAT_SLICES: Final = 2
"""What a change, and a repeated send, takes of the loop in slices."""
SENT_LATELY_S: Final = 0.005


class Requests:
    """Those of one pool that are in hand. For the event loop."""

    __slots__ = ("_numbers", "_since")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._since: dict[int, float] = {}
        """In the order in which they began."""

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, now_s: float) -> int:
        """One more, since now; its number, for ``end``."""
        number = next(self._numbers)
        self._since[number] = now_s
        return number

    def end(self, number: int) -> None:
        """It is answered."""
        del self._since[number]

    def oldest_s(self, now_s: float) -> float:
        """How old the oldest is; 0 if there is none."""
        for since_s in self._since.values():
            return max(0.0, now_s - since_s)
        return 0.0


class _Pulling:
    """A pull or fetch in hand."""

    __slots__ = ("number", "requests")

    def __init__(self, requests: Requests, number: int) -> None:
        self.requests = requests
        self.number: int | None = number
        """None while it is held."""


_pulling: ContextVar[_Pulling | None] = ContextVar("pulling", default=None)


class Pools:
    """All requests in hand. For the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.of: Final = {pool: Requests() for pool in Pool}
        self._pace = Pace()
        self._long_sends = 0
        self._sent_at = float("-inf")

    @contextlib.contextmanager
    def pulling(self) -> Iterator[None]:
        """A pull or fetch is in hand, but not while it is ``held``."""
        requests = self.of[Pool.PULL]
        mine = _Pulling(requests, requests.begin(self._clock.monotonic()))
        token = _pulling.set(mine)
        try:
            yield
        finally:
            _pulling.reset(token)
            if mine.number is not None:
                requests.end(mine.number)

    @contextlib.contextmanager
    def long_send(self) -> Iterator[None]:
        """A send in hand takes long by itself, or its body has not come: others do not rest for
        it."""
        self._long_sends += 1
        try:
            yield
        finally:
            self._long_sends -= 1

    def note_sent(self) -> None:
        """A send that was no long one is done."""
        self._sent_at = self._clock.monotonic()

    def others_send(self) -> bool:
        """Whether a send that is no long one is in hand, or was a moment ago: who sends one after
        the other meets work that has begun in between. For any thread."""
        return (
            len(self.of[Pool.PUT]) > self._long_sends
            or self._clock.monotonic() < self._sent_at + SENT_LATELY_S
        )

    async def turn(self, slices: int) -> None:
        """Wait for the turn of a request that takes long by itself: beside other sends one begins
        in so many rests, however many there are."""
        if self.others_send():
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(self._pace.rest_s(now, slices))

    def behind_sends(self) -> GiveWay:
        """The rests of work for a reader or of a long send: a millisecond after each slice while
        other sends are in hand, so that such work leaves them most of the loop."""
        return GiveWay(self.others_send, patience_s=0.0, pace=self._pace)

    def is_awaited(self) -> bool:
        """Whether a request is in hand."""
        return any(self.of.values())

    def queued(self) -> dict[str, int]:
        """Requests in hand by pool."""
        return {pool.value: len(requests) for pool, requests in self.of.items()}

    def oldest_s(self) -> dict[str, float]:
        """Age of the oldest by pool; 0 where there is none."""
        now_s = self._clock.monotonic()
        return {pool.value: requests.oldest_s(now_s) for pool, requests in self.of.items()}


@contextlib.contextmanager
def held(clock: Clock) -> Iterator[None]:
    """The request at work here is held: it is not in hand meanwhile, and begins anew after."""
    mine = _pulling.get()
    if mine is None or mine.number is None:
        yield
        return
    mine.requests.end(mine.number)
    mine.number = None
    try:
        yield
    finally:
        mine.number = mine.requests.begin(clock.monotonic())
