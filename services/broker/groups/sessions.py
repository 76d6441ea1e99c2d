"""What a member is to be given next: its place in each of its queues. No I/O.

A *place* says from which queue offset the member's next batch of one queue begins. It is *ready*
(there may be something to look at), *watched* (at the end; told when a message is dispatched) or
*blocked* (an ordered group's queue whose last batch is not committed). Ready places stand in line:
a look takes the first and puts it at the end again, so no queue starves; places that are not ready
cost a fetch nothing. Before: ``membership`` granted or revoked a queue, a message was dispatched,
or a commit came. After: ``fetch`` looks at the ready places.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from services.broker.log.queue_offsets import Queue
from services.broker.read.long_polls import HeldPull, Wake, Watcher
from tidemark.formats.select import Wanted

BATCHES_REMEMBERED_MAX: Final = 64
"""Batches of one place that are handed out and not committed, whose store times are kept."""
ASKING_WINDOW_S: Final = 5.0
"""Whether a member fetches is judged by the last one to two of these."""


class Watching(Protocol):
    """Who tells of new messages (``pull.Puller``)."""

    def watch(self, queue: Queue, offset: int, watcher: Watcher) -> None:
        """Tell the watcher when there is a message from this queue offset on."""
        ...

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Tell it no more."""
        ...


class Batch(NamedTuple):
    """One queue's share of a fetch, not committed yet."""

    end: int
    """Queue offset behind its last message."""
    store_timestamp_ms: int
    """Of its first message."""


class Place:
    """Where one member stands in one queue. A watcher of the queue while it is at the end."""

    __slots__ = ("batches", "handed_to", "is_claimed", "next_offset", "queue", "session", "tags")

    def __init__(self, session: Session, queue: Queue, offset: int, tags: Wanted | None) -> None:
        self.session = session
        self.queue = queue
        self.tags = tags
        self.next_offset = offset
        """Queue offset of the next unit to look at."""
        self.handed_to = offset
        """Queue offset behind the last message handed out."""
        self.is_claimed = False
        """Whether it stands where the member says, and nobody has looked whether that exists."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES_REMEMBERED_MAX)

    def wake(self, why: Wake) -> None:
        """The queue has a message again."""
        self.session.ready(self)

    def committed(self, offset: int) -> Batch | None:
        """The group is done with everything before offset; the oldest batch of that, if any."""
        oldest: Batch | None = None
        while self.batches and self.batches[0].end <= offset:
            batch = self.batches.popleft()
            oldest = oldest or batch
        return oldest


class Asking:
    """How much of the last seconds a member had a fetch open. Times on the monotonic clock [s].

    Two windows, the present one and the one before it, so that a member that fetches in bursts is
    judged by more than the instant of the look.
    """

    __slots__ = ("_before", "_began_s", "_fetches", "_since_s", "_spent_s")

    def __init__(self) -> None:
        self._began_s: float | None = None
        """Begin of the present window; None before the first fetch."""
        self._before = (0.0, 0.0)
        """Of the window before: time with an open fetch, length."""
        self._spent_s = 0.0
        """The present window's time with an open fetch, up to `_since_s`."""
        self._since_s = 0.0
        """When that was counted last."""
        self._fetches = 0
        """Open now: a later one ends an earlier one, which overlaps it for a moment."""

    def begins(self, now_s: float) -> None:
        """A fetch has come."""
        self._count(now_s)
        self._fetches += 1

    def ends(self, now_s: float) -> None:
        """A fetch was answered, or given up."""
        self._count(now_s)
        self._fetches -= 1

    def is_frequent(self, now_s: float) -> bool:
        """Whether a fetch was open for half of the time or more."""
        if self._began_s is None:
            return False
        self._count(now_s)
        spent_s, length_s = self._before
        return 2 * (spent_s + self._spent_s) >= length_s + (now_s - self._began_s)

    def _count(self, now_s: float) -> None:
        if self._began_s is None:
            self._began_s = self._since_s = now_s
        if self._fetches:
            self._spent_s += now_s - self._since_s
        if now_s - self._since_s >= 2 * ASKING_WINDOW_S:
            # Nothing began or ended for so long: both windows are as it is now.
            spent_s = ASKING_WINDOW_S if self._fetches else 0.0
            self._before, self._spent_s = (spent_s, ASKING_WINDOW_S), 0.0
            self._began_s = now_s
        elif now_s - self._began_s >= ASKING_WINDOW_S:
            self._before, self._spent_s = (self._spent_s, now_s - self._began_s), 0.0
            self._began_s = now_s
        self._since_s = now_s


class Session:
    """The places of one member, and its fetch if one is held."""

    def __init__(self, member: str, watching: Watching) -> None:
        self.member = member
        self.incarnation: str | None = None
        """Which program speaks under the member's name; None: it has not said."""
        self.places: dict[Queue, Place] = {}
        self.line: dict[Place, None] = {}
        """Ready places, the one to look at first in front."""
        self.parked: dict[Queue, Place] = {}
        """Of queues that were taken from the member, while it has not heard of it."""
        self.paused: frozenset[Queue] = frozenset()
        """Queues of which the member wants nothing now: their places are not looked at."""
        self.held: HeldPull | None = None
        """The member's fetch that waits."""
        self.fetches = 0
        """Of the member so far: a later one ends an earlier one."""
        self.sequence = 0
        """Of the latest fetch that named its own; see ``FetchRequest``."""
        self.asking = Asking()
        self._watching = watching

    def grant(self, queue: Queue, offset: int, tags: Wanted | None) -> None:
        """The queue is the member's from now on; its next batch begins at offset.

        One that comes back before the member has heard that it was gone goes on where it was:
        what the member has got of it is still in its hands.
        """
        self.revoke(queue)
        place = self.parked.pop(queue, None)
        if place is None:
            place = Place(self, queue, offset, tags)
        place.tags = tags  # a parked one may have others: the member's have changed since
        self.places[queue] = place
        self.ready(place)

    def revoke(self, queue: Queue) -> None:
        """Nothing more of the queue; nothing if the member does not have it."""
        place = self.places.pop(queue, None)
        if place is not None:
            self.parked[queue] = place
            self.line.pop(place, None)
            self._watching.unwatch(queue, place)

    def heard(self) -> None:
        """The member is told which queues it has: what it no longer has begins anew if it comes
        back, for the member has thrown away what it got of it."""
        self.parked.clear()

    def begin_anew(self) -> None:
        """Another has joined under this name: what the one of before asked for is not for it.

        1. A member's machine loses its power; its fetch is held, for no connection was closed;
        2. it joins again under its name; 3. a message comes, the old fetch takes it, and the place
        stands behind it; 4. the next message is committed, and that one with it, unread.
        """
        self.heard()
        self.fetches += 1
        self.wake(Wake.CHANGED)

    def close(self) -> None:
        """The member is gone: its fetch, if one is held, is to find out."""
        for queue in list(self.places):
            self.revoke(queue)
        self.wake(Wake.CHANGED)

    def move(self, queue: Queue, offset: int) -> None:
        """The member's next batch of its queue begins at offset. KeyError if it is not its own.

        The place is looked at again even if it stood there: members say where they stand after a
        failure, and nobody knows what became of the place in it. A blocked one stays blocked.
        """
        place = self.places[queue]
        if place.next_offset != offset:
            place.next_offset = place.handed_to = offset
            place.is_claimed = True
            place.batches.clear()
        self.ready(place)

    def ready(self, place: Place) -> None:
        """There may be something to look at: at the end of the line, unless it stands there."""
        self._watching.unwatch(place.queue, place)
        if self.places.get(place.queue) is place and place.queue not in self.paused:
            self.line.setdefault(place)
            self.wake(Wake.MESSAGE)

    def pause(self, queues: frozenset[Queue]) -> None:
        """Nothing of these queues is wanted from now on, and again of those paused before."""
        before, self.paused = self.paused, queues
        for queue in queues - before:
            if (place := self.places.get(queue)) is not None:
                self.line.pop(place, None)
                self._watching.unwatch(queue, place)
        for queue in before - queues:
            if (place := self.places.get(queue)) is not None:
                self.ready(place)

    def watch(self, place: Place) -> None:
        """It is at the end of its queue: told when there is more."""
        self.line.pop(place, None)
        self._watching.watch(place.queue, place.next_offset, place)

    def wake(self, why: Wake) -> None:
        """Let the member's held fetch go on; nothing if there is none."""
        if self.held is not None:
            self.held.wake(why)
