"""Requests in progress, by class: their number, and the age of the oldest.

A request is in progress from its head to its answer, except while it is held as a long poll. A
plain send (``direct_sends``) is in progress while it waits for its level. The
classes correspond to RocketMQ's thread pools. Here they share one event loop, so an old request
waits for the disk, for other nodes, or for the loop. ``http_api`` registers other requests. The
gauges ``tidemark_broker_requests_queued`` and ``tidemark_broker_oldest_queued_request_seconds``
show the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, NamedTuple

from shared.runtime.pauses import Pace, Pauses
from tidemark.clock import Clock


class RequestClass(StrEnum):
    """A class of requests; the values are label values."""

    PUT = "put"
    PULL = "pull"
    QUERY = "query"
    ADMIN = "admin"
    HEARTBEAT = "heartbeat"


class ClientRole(StrEnum):
    """ClientRole of a connection, given by its last request; the values are label values."""

    NEW = "new"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


class Kind(NamedTuple):
    """Request class and client role of a call."""

    request_class: RequestClass
    role: ClientRole


_SEND: Final = Kind(RequestClass.PUT, ClientRole.PRODUCER)
_NACK: Final = Kind(RequestClass.PUT, ClientRole.CONSUMER)
_PULL: Final = Kind(RequestClass.PULL, ClientRole.CONSUMER)
_ROUTE: Final = Kind(RequestClass.PULL, ClientRole.ADMIN)  # may be held, as pulls are
_MEMBER: Final = Kind(RequestClass.HEARTBEAT, ClientRole.CONSUMER)
_QUERY: Final = Kind(RequestClass.QUERY, ClientRole.ADMIN)
_ADMIN: Final = Kind(RequestClass.ADMIN, ClientRole.ADMIN)

KINDS: Final[Mapping[str, Kind]] = {
    "send": _SEND,
    "send-batch": _SEND,
    "nack": _NACK,
    "pull": _PULL,
    "fetch": _PULL,
    "route": _ROUTE,
    "route-groups": _ROUTE,
    "member-join": _MEMBER,
    "member-leave": _MEMBER,
    "commit": _MEMBER,
    "cluster": _QUERY,
    "committed": _QUERY,
    "dead-list": _QUERY,
    "delayed": _QUERY,
    "drain-get": _QUERY,
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
    "drain": _ADMIN,
    "undrain": _ADMIN,
    "group-delete": _ADMIN,
    "group-put": _ADMIN,
    "group-reset": _ADMIN,
    "redrive": _ADMIN,
    "topic-delete": _ADMIN,
    "topic-put": _ADMIN,
}
"""Kind of every call, by route name."""
UNKNOWN: Final = _QUERY
"""Kind of a call that does not exist."""
CHANGES: Final = frozenset(
    {"member-join", *(n for n, k in KINDS.items() if k.request_class is RequestClass.ADMIN)}
)
"""Calls that change a topic or a group: each takes about a millisecond of the event loop."""
CHANGE_SLICES: Final = 4
REPEAT_SLICES: Final = 2
"""Cost of a change, and of a repeated send, in slices of the event loop."""
SENT_LATELY_S: Final = 0.005


class Requests:
    """Requests of one class in progress. For the event loop."""

    __slots__ = ("_numbers", "_since")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._since: dict[int, float] = {}
        """Request number → start time [s], in the order of the starts."""

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, now_s: float) -> int:
        """Add a request that starts now; return its number for ``end``."""
        number = next(self._numbers)
        self._since[number] = now_s
        return number

    def end(self, number: int) -> None:
        """Remove an answered request."""
        del self._since[number]

    def oldest_s(self, now_s: float) -> float:
        """Return the age of the oldest request; 0 if there is none."""
        for since_s in self._since.values():
            return max(0.0, now_s - since_s)
        return 0.0


class _Pulling:
    """A pull or fetch in progress."""

    __slots__ = ("number", "requests")

    def __init__(self, requests: Requests, number: int) -> None:
        self.requests = requests
        self.number: int | None = number
        """Number of the request; None while it is held as a long poll."""


_pulling: ContextVar[_Pulling | None] = ContextVar("pulling", default=None)


class RequestClasses:
    """All requests in progress. For the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.of: Final = {each: Requests() for each in RequestClass}
        self._pace = Pace()
        self._long_sends = 0
        self._sent_at = float("-inf")

    @contextlib.contextmanager
    def pulling(self) -> Iterator[None]:
        """Count a pull or fetch as in progress during the block, except while it is ``held``."""
        requests = self.of[RequestClass.PULL]
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
        """Mark a send as long during the block: its work is slow, or its body has not arrived.

        Background work does not pause for long sends."""
        self._long_sends += 1
        try:
            yield
        finally:
            self._long_sends -= 1

    def note_sent(self) -> None:
        """Record the end of a send that was not a long one."""
        self._sent_at = self._clock.monotonic()

    def others_send(self) -> bool:
        """Return whether a short send is in progress or ended within SENT_LATELY_S. Thread-safe.

        The time matters for a client that sends one request after another: otherwise other work
        would start between two of its sends."""
        return (
            len(self.of[RequestClass.PUT]) > self._long_sends
            or self._clock.monotonic() < self._sent_at + SENT_LATELY_S
        )

    async def turn(self, slices: int) -> None:
        """Delay a long request while short sends are in progress.

        Long requests are then started one at a time, each after as many pauses as it has slices."""
        if self.others_send():
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(self._pace.rest_s(now, slices))

    def behind_sends(self) -> Pauses:
        """Return the pauses for slices of reads and long sends.

        While other sends are in progress there is a pause of a millisecond after each slice, so
        that most of the event loop is left to them."""
        return Pauses(self.others_send, patience_s=0.0, pace=self._pace)

    def is_awaited(self) -> bool:
        """Return whether a request is in progress."""
        return any(self.of.values())

    def queued(self) -> dict[str, int]:
        """Return the number of requests in progress, by class."""
        return {each.value: len(requests) for each, requests in self.of.items()}

    def oldest_s(self) -> dict[str, float]:
        """Return the age of the oldest request [s], by class; 0 where there is none."""
        now_s = self._clock.monotonic()
        return {each.value: requests.oldest_s(now_s) for each, requests in self.of.items()}


@contextlib.contextmanager
def held(clock: Clock) -> Iterator[None]:
    """Do not count the current request during the block; its age restarts after the block."""
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
