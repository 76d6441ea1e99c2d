"""Pulls that wait for a message: who is woken when ``dispatched`` moves. No I/O, but futures.

A pull is held at the end of its queue. The broker numbers every message itself, so it knows which
queues got messages that are not dispatched yet, and up to which physical end; only the pulls of
those queues are looked at when ``dispatched`` passes that end, all of a queue in one go, and no
other ones. A held pull that nothing happens to costs nothing but its place here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum

from services.broker.queue_offsets import Queue
from tidemark.offsets import PhysicalOffset


class Wake(Enum):
    """Why a held pull goes on."""

    MESSAGE = "its queue has something to look at"
    TIME = "it has waited as long as it was to"
    GONE = "its client has closed the connection"
    CLOSE = "the node stops"


class HeldPull:
    """One pull that waits. Give it back with ``HeldPulls.let_go``."""

    __slots__ = ("is_gone", "queue", "woken")

    def __init__(self, queue: Queue, is_gone: Callable[[], bool]) -> None:
        self.queue = queue
        self.is_gone = is_gone
        self.woken: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        """Done when it is to go on."""

    def wake(self, why: Wake) -> None:
        """Let it go on; nothing if it was woken before."""
        if not self.woken.done():
            self.woken.set_result(why)


class HeldPulls:
    """Held pulls by queue."""

    def __init__(self) -> None:
        self._waiting: dict[Queue, set[HeldPull]] = {}
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

    def hold(
        self, queue: Queue, *, appended_to: PhysicalOffset | None, is_gone: Callable[[], bool]
    ) -> HeldPull:
        """Hold one pull until it is worth looking again.

        appended_to: end of the log if the queue already has a message that the pull has not seen,
        else None. is_gone: whether the pull's client is; asked by ``let_go_of_gone``.
        """
        held = HeldPull(queue, is_gone)
        if self._closed:
            held.wake(Wake.CLOSE)
            return held
        self._waiting.setdefault(queue, set()).add(held)
        if appended_to is not None:
            self._expected.setdefault(queue, appended_to)
        return held

    def let_go(self, held: HeldPull) -> None:
        """The pull is not held any more, for whatever reason."""
        waiting = self._waiting.get(held.queue)
        if waiting is not None:
            waiting.discard(held)
            if not waiting:
                del self._waiting[held.queue]
                self._expected.pop(held.queue, None)

    def dispatched_to(self, dispatched: PhysicalOffset) -> None:
        """Wake the pulls whose messages can be seen now."""
        expected = self._expected
        while expected:
            queue = next(iter(expected))
            if expected[queue] > dispatched:
                return
            del expected[queue]
            self._wake(queue, Wake.MESSAGE)

    def let_go_of_gone(self) -> None:
        """Wake the pulls that nobody waits for any more."""
        for waiting in self._waiting.values():
            for held in waiting:
                if held.is_gone():
                    held.wake(Wake.GONE)

    @property
    def is_closed(self) -> bool:
        """Whether the node stops: pulls are answered with what there is."""
        return self._closed

    def close(self) -> None:
        """Wake everybody, and hold nobody any more."""
        self._closed = True
        self._expected.clear()
        for queue in self._waiting:
            self._wake(queue, Wake.CLOSE)

    def _wake(self, queue: Queue, why: Wake) -> None:
        for held in self._waiting.get(queue, ()):
            held.wake(why)
