"""Pulls that wait for a message: who is woken when (dispatched) moves. Pure but for its futures.

A pull is held at the end of its queue. The broker numbers every message itself, so it knows which
queues got messages that are not dispatched yet, and up to which physical end; only the pulls of
those queues are looked at when ``dispatched`` passes that end, not all of them at every move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from services.broker.queue_offsets import Queue
from tidemark.offsets import PhysicalOffset


class HeldPulls:
    """Held pulls by queue."""

    def __init__(self) -> None:
        self._waiting: dict[Queue, set[asyncio.Future[None]]] = {}
        # Queue → end of the log when its first undispatched message was appended. Ends only grow,
        # so insertion order is their order.
        self._expected: dict[Queue, PhysicalOffset] = {}
        self._closed = False

    @property
    def expects(self) -> bool:
        """Whether a held pull's message is on its way: appended, not yet dispatched."""
        return bool(self._expected)

    def appended(self, queues: Iterable[Queue], end: PhysicalOffset) -> bool:
        """Note that queues got messages below end; whether a held pull waits for one of them."""
        if not self._waiting:
            return False
        expected = False
        for queue in queues:
            if queue in self._waiting:
                self._expected.setdefault(queue, end)
                expected = True
        return expected

    def hold(self, queue: Queue, *, appended_to: PhysicalOffset | None) -> asyncio.Future[None]:
        """Hold one pull; the future is done when it is worth looking again.

        appended_to: end of the log if the queue already has a message that the pull has not seen,
        else None. Give the future back with ``let_go``.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(None)
            return future
        self._waiting.setdefault(queue, set()).add(future)
        if appended_to is not None:
            self._expected.setdefault(queue, appended_to)
        return future

    def let_go(self, queue: Queue, future: asyncio.Future[None]) -> None:
        """The pull is not held any more, for whatever reason."""
        waiting = self._waiting.get(queue)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[queue]
                self._expected.pop(queue, None)

    def dispatched_to(self, dispatched: PhysicalOffset) -> None:
        """Wake the pulls whose messages can be seen now."""
        expected = self._expected
        while expected:
            queue = next(iter(expected))
            if expected[queue] > dispatched:
                return
            del expected[queue]
            self._wake(queue)

    @property
    def is_closed(self) -> bool:
        """Whether the node stops: pulls are answered with what there is."""
        return self._closed

    def close(self) -> None:
        """Wake everybody, and hold nobody any more."""
        self._closed = True
        self._expected.clear()
        for queue in list(self._waiting):
            self._wake(queue)

    def _wake(self, queue: Queue) -> None:
        for future in self._waiting.get(queue, ()):
            if not future.done():
                future.set_result(None)
