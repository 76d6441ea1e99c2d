"""Long polls: pulls that wait for a message until ``dispatched`` advances. No I/O, only futures.

A pull is held when it is at the end of its queue. The broker assigns all queue offsets itself, so
it knows which queues have undispatched messages and where these end in the log. When ``dispatched``
passes that end, all pulls of that queue are woken together, and pulls of other queues are not
touched. An idle held pull costs only its entry here.

A group's member waits for many queues with one call. Each of its queues (``groups.sessions``) has a
*watcher* that is notified once, and the call itself is held without a queue. So the cost of a
member with a thousand queues depends only on the queues that get messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Protocol

from tidemark.offsets import PhysicalOffset, Queue

POLLS_PER_S: Final = 50
"""Total rate at which calls that could not be held are asked to poll again."""
POLL_AFTER_MIN_S: Final = 0.5
POLL_AFTER_MAX_S: Final = 60.0


class Polls:
    """Spreads the next polls of calls that could not be held evenly over time. Pure.

    Otherwise: 1. the limit of held calls is reached; 2. a member with nothing to read is answered
    at once and polls again at once; 3. a few such members use all the broker's time.
    """

    def __init__(self) -> None:
        self._next_at = 0.0

    def after_s(self, now: float, wait_s: float) -> float:
        """Return the time that the caller should wait; at most wait_s, the hold it asked for."""
        next_at = max(self._next_at, now) + 1 / POLLS_PER_S
        self._next_at = min(next_at, now + POLL_AFTER_MAX_S)
        return min(max(self._next_at - now, POLL_AFTER_MIN_S), wait_s)


class Wake(Enum):
    """Reason why a held pull continues."""

    MESSAGE = "its queue has something to read"
    TIME = "it has waited as long as it was to"
    GONE = "its client has closed the connection"
    CLOSE = "the node stops, or serves no reads for now"
    CHANGED = "its member has other queues than before, or has asked again"


class Watcher(Protocol):
    """Is notified when a queue has a message to read."""

    def wake(self, why: Wake) -> None:
        """Notify the watcher. It may call ``unwatch`` or ``watch`` from here."""
        ...


class HeldPull:
    """One waiting call. Release it with ``LongPolls.let_go``."""

    __slots__ = ("is_gone", "queue", "woken")

    def __init__(self, queue: Queue | None, is_gone: Callable[[], bool]) -> None:
        self.queue = queue
        self.is_gone = is_gone
        self.woken: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        """Done when the call should continue."""

    def wake(self, why: Wake) -> None:
        """Let the call continue; no effect if it was woken before."""
        if not self.woken.done():
            self.woken.set_result(why)


class LongPolls:
    """Held calls, and the watchers of each queue."""

    def __init__(self) -> None:
        self._held: dict[HeldPull, None] = {}
        """Those that wait, the oldest first."""
        self._watchers: dict[Queue, dict[Watcher, None]] = {}
        # Queue → end of the log when its first undispatched message was appended. Ends only grow,
        # so insertion order is their order.
        self._expected: dict[Queue, PhysicalOffset] = {}
        self._early: dict[Queue, None] = {}
        """Those with a watcher whose message was appended before it came: it may end earlier."""
        self._closed = False

    @property
    def expects(self) -> bool:
        """Whether a held pull waits for a message that is appended but not dispatched yet."""
        return bool(self._expected)

    def appended(self, queues: Iterable[Queue], end: PhysicalOffset) -> bool:
        """Record that queues got messages below end; return whether any of them is watched."""
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
        """Hold one call until its queue has a message to read.

        queue: None for a call that is woken by its own watchers. appended_to: end of the log if the
        queue has an appended message that the pull has not seen, else None. is_gone: returns
        whether the client has disconnected; called by ``wake_disconnected``.
        """
        held = HeldPull(queue, is_gone)
        if self._closed:
            held.wake(Wake.CLOSE)
            return held
        self._held[held] = None
        if queue is not None:
            self.watch(queue, held, appended_to=appended_to)
        return held

    def let_go(self, held: HeldPull) -> None:
        """Release a call; required after every ``hold``."""
        self._held.pop(held, None)
        if held.queue is not None:
            self.unwatch(held.queue, held)

    def watch(self, queue: Queue, watcher: Watcher, *, appended_to: PhysicalOffset | None) -> None:
        """Wake the watcher when the queue has a message to read, until ``unwatch``.

        appended_to: as in ``hold``.
        """
        self._watchers.setdefault(queue, {})[watcher] = None
        if appended_to is not None:
            self._expected.setdefault(queue, appended_to)
            self._early[queue] = None

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Remove the watcher of the queue; no effect if there is none."""
        watchers = self._watchers.get(queue)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[queue]
                self._expected.pop(queue, None)
                self._early.pop(queue, None)

    def dispatched_to(self, dispatched: PhysicalOffset) -> None:
        """Wake the watchers of queues whose messages are dispatched now."""
        expected = self._expected
        while expected:
            queue = next(iter(expected))
            if expected[queue] > dispatched:
                return
            self._wake_queue(queue)

    def wake_early(self) -> None:
        """Wake the watchers of queues whose next message may be dispatched already, because it was
        appended before they were watched."""
        for queue in tuple(self._early):
            self._wake_queue(queue)

    def _wake_queue(self, queue: Queue) -> None:
        self._expected.pop(queue, None)
        self._early.pop(queue, None)
        for watcher in tuple(self._watchers.get(queue, ())):
            watcher.wake(Wake.MESSAGE)

    def wake_all_queues(self) -> None:
        """Wake every call held on a queue. A slave does not know which queues got messages."""
        for held in self._held:
            if held.queue is not None:
                held.wake(Wake.MESSAGE)

    def wake_disconnected(self) -> None:
        """Wake the calls whose clients have disconnected."""
        for held in self._held:
            if held.is_gone():
                held.wake(Wake.GONE)

    @property
    def is_closed(self) -> bool:
        """Whether the node stops: pulls are then answered without waiting."""
        return self._closed

    def close(self) -> None:
        """Wake all held calls, and hold no further calls."""
        self._closed = True
        self._expected.clear()
        self._early.clear()
        self.answer_all()

    def answer_all(self) -> None:
        """Wake all held calls: the node serves no reads for now."""
        for held in self._held:
            held.wake(Wake.CLOSE)
