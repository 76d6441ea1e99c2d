"""Pulls that wait for a message: who is woken when ``dispatched`` moves. No I/O, but futures.

A pull is held at the end of its queue. The broker numbers every message itself, so it knows which
queues got messages that are not dispatched yet, and up to which physical end; only the pulls of
those queues are looked at when ``dispatched`` passes that end, all of a queue in one go, and no
other ones. A held pull that nothing happens to costs nothing but its place here.

A group's member waits for many queues with one call: each of its places (``groups.sessions``) is a
*watcher* of one queue, told once, and the call itself is held without a queue. So a member of a
thousand queues costs as much as the ones that got messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Protocol

from services.broker.log.queue_offsets import Queue
from tidemark.offsets import PhysicalOffset

POLLS_PER_S: Final = 50
"""Calls that could not be held come again at this rate, all together."""
POLL_AFTER_MIN_S: Final = 0.5
POLL_AFTER_MAX_S: Final = 60.0


class Polls:
    """When a call comes again that could not be held: each has a turn of its own. Pure.

    Otherwise: 1. the bound of held calls is reached; 2. a member that has nothing to read is
    answered at once, and asks again at once; 3. a few such members take all the broker's time.
    """

    def __init__(self) -> None:
        self._next_at = 0.0

    def after_s(self, now: float, wait_s: float) -> float:
        """How long the caller is to wait: at most as long as it wanted to be held."""
        next_at = max(self._next_at, now) + 1 / POLLS_PER_S
        self._next_at = min(next_at, now + POLL_AFTER_MAX_S)
        return min(max(self._next_at - now, POLL_AFTER_MIN_S), wait_s)


class Wake(Enum):
    """Why a held pull goes on."""

    MESSAGE = "its queue has something to look at"
    TIME = "it has waited as long as it was to"
    GONE = "its client has closed the connection"
    CLOSE = "the node stops"
    CHANGED = "its member has other queues than before, or has asked again"


class Watcher(Protocol):
    """Who is told that a queue has something to look at."""

    def wake(self, why: Wake) -> None:
        """There is something. A watcher may stop watching in here, or begin anew."""
        ...


class HeldPull:
    """One call that waits. Give it back with ``HeldPulls.let_go``."""

    __slots__ = ("is_gone", "queue", "woken")

    def __init__(self, queue: Queue | None, is_gone: Callable[[], bool]) -> None:
        self.queue = queue
        self.is_gone = is_gone
        self.woken: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        """Done when it is to go on."""

    def wake(self, why: Wake) -> None:
        """Let it go on; nothing if it was woken before."""
        if not self.woken.done():
            self.woken.set_result(why)


class HeldPulls:
    """Held calls, and who watches which queue."""

    def __init__(self) -> None:
        self._held: set[HeldPull] = set()
        self._watchers: dict[Queue, dict[Watcher, None]] = {}
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
        if not self._watchers:
            return False
        expected = False
        for queue in queues:
            if queue in self._watchers:
                self._expected.setdefault(queue, end)
                expected = True
        return expected

    def hold(
        self,
        queue: Queue | None,
        *,
        appended_to: PhysicalOffset | None,
        is_gone: Callable[[], bool],
    ) -> HeldPull:
        """Hold one call until it is worth looking again.

        queue: None for one whose watchers wake it. appended_to: end of the log if the queue already
        has a message that the pull has not seen, else None. is_gone: whether the call's client is;
        asked by ``let_go_of_gone``.
        """
        held = HeldPull(queue, is_gone)
        if self._closed:
            held.wake(Wake.CLOSE)
            return held
        self._held.add(held)
        if queue is not None:
            self.watch(queue, held, appended_to=appended_to)
        return held

    def let_go(self, held: HeldPull) -> None:
        """The call is not held any more, for whatever reason."""
        self._held.discard(held)
        if held.queue is not None:
            self.unwatch(held.queue, held)

    def watch(self, queue: Queue, watcher: Watcher, *, appended_to: PhysicalOffset | None) -> None:
        """Tell the watcher when the queue has something to look at, until ``unwatch``.

        appended_to: as in ``hold``.
        """
        self._watchers.setdefault(queue, {})[watcher] = None
        if appended_to is not None:
            self._expected.setdefault(queue, appended_to)

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Tell the watcher no more; nothing if it does not watch."""
        watchers = self._watchers.get(queue)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[queue]
                self._expected.pop(queue, None)

    def dispatched_to(self, dispatched: PhysicalOffset) -> None:
        """Wake the pulls whose messages can be seen now."""
        expected = self._expected
        while expected:
            queue = next(iter(expected))
            if expected[queue] > dispatched:
                return
            del expected[queue]
            for watcher in tuple(self._watchers.get(queue, ())):
                watcher.wake(Wake.MESSAGE)

    def may_all_look(self) -> None:
        """Wake every held call of a queue: of a slave nobody says which queues got messages."""
        for held in self._held:
            if held.queue is not None:
                held.wake(Wake.MESSAGE)

    def let_go_of_gone(self) -> None:
        """Wake the calls that nobody waits for any more."""
        for held in self._held:
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
        for held in self._held:
            held.wake(Wake.CLOSE)
