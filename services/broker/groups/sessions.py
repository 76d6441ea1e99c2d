"""What a member receives next: its place in each of its queues. No I/O.

A *place* is the queue offset from which the member's next batch of one queue begins. It is *ready*
(there may be messages to read), *watched* (at the end, and woken when a message is dispatched) or
*blocked* (a queue of an ordered group whose last batch is not committed). Ready places form a line:
a read takes the first one and puts it back at the end, so no queue starves. Places that are not
ready cost a fetch nothing. Step before: ``membership`` granted or revoked a queue, a message was
dispatched, or a commit came. Step after: ``fetch`` reads the ready places.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from services.broker.read.long_polls import HeldPull, Wake, Watcher
from tidemark.formats.select import Wanted
from tidemark.offsets import Queue

BATCHES_REMEMBERED_MAX: Final = 64
"""Uncommitted batches per place whose store times are kept."""
ASKING_WINDOW_S: Final = 5.0
"""Length of a window [s]: the last one or two decide whether a member counts as fetching."""


class Watching(Protocol):
    """The source of wake-ups for new messages (implemented by ``pull.Puller``)."""

    def watch(self, queue: Queue, offset: int, watcher: Watcher) -> None:
        """Wake the watcher when there is a message from this queue offset on."""
        ...

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Stop waking it."""
        ...


class Batch(NamedTuple):
    """One queue's share of a fetch that is not committed yet."""

    end: int
    """Queue offset after its last message."""
    store_timestamp_ms: int
    """Store time of its first message."""


class Place:
    """The position of one member in one queue. It watches the queue while it is at the end."""

    __slots__ = ("batches", "handed_to", "is_claimed", "next_offset", "queue", "session", "tags")

    def __init__(self, session: Session, queue: Queue, offset: int, tags: Wanted | None) -> None:
        self.session = session
        self.queue = queue
        self.tags = tags
        self.next_offset = offset
        """Queue offset of the next unit to read."""
        self.handed_to = offset
        """Queue offset after the last message handed out."""
        self.is_claimed = False
        """Whether the member set the position and no read has checked yet that it exists."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES_REMEMBERED_MAX)

    def wake(self, why: Wake) -> None:
        """Get ready: the queue has a message again."""
        self.session.ready(self)

    def committed(self, offset: int) -> Batch | None:
        """Drop the batches before a committed offset; return the oldest of them, if any."""
        oldest: Batch | None = None
        while self.batches and self.batches[0].end <= offset:
            batch = self.batches.popleft()
            oldest = oldest or batch
        return oldest


class Asking:
    """The share of the last seconds in which a member had a fetch open. Monotonic times [s].

    There are two windows, the present and the previous one, so that a member that fetches in bursts
    is not judged by a single instant.
    """

    __slots__ = ("_before", "_began_s", "_fetches", "_since_s", "_spent_s")

    def __init__(self) -> None:
        self._began_s: float | None = None
        """Start of the present window; None before the first fetch."""
        self._before = (0.0, 0.0)
        """Time with an open fetch, and length, of the previous window."""
        self._spent_s = 0.0
        """Time with an open fetch in the present window, up to `_since_s`."""
        self._since_s = 0.0
        """Time of the last count."""
        self._fetches = 0
        """Open fetches: a later one ends an earlier one, which overlaps it for a moment."""

    def begins(self, now_s: float) -> None:
        """Count a fetch that begins."""
        self._count(now_s)
        self._fetches += 1

    def ends(self, now_s: float) -> None:
        """Count a fetch that was answered or abandoned."""
        self._count(now_s)
        self._fetches -= 1

    def is_frequent(self, now_s: float) -> bool:
        """Return whether a fetch was open for at least half of the time."""
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
            # No change for that long: both windows have the present state throughout.
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
        """Id of the program that uses the member's name; None: it sent none."""
        self.places: dict[Queue, Place] = {}
        self.line: dict[Place, None] = {}
        """Ready places, the next one to read first."""
        self.parked: dict[Queue, Place] = {}
        """Places of queues that were taken from the member before it has learned of it."""
        self.paused: frozenset[Queue] = frozenset()
        """Queues that the member does not want to read now: their places are skipped."""
        self.held_fetch: HeldPull | None = None
        """The member's waiting fetch."""
        self.fetches = 0
        """Number of the member's fetches so far: a later one ends an earlier one."""
        self.sequence = 0
        """Sequence number of the latest fetch that had one; see ``FetchRequest``."""
        self.asking = Asking()
        self._watching = watching

    def grant(self, queue: Queue, offset: int, tags: Wanted | None) -> None:
        """Give the member a queue; its next batch begins at offset.

        A queue that returns before the member has learned of its loss continues where it was: the
        member still has the messages in its hands.
        """
        self.revoke(queue)
        place = self.parked.pop(queue, None)
        if place is None:
            place = Place(self, queue, offset, tags)
        place.tags = tags  # the member's subscriptions may have changed while it was parked
        self.places[queue] = place
        self.ready(place)

    def revoke(self, queue: Queue) -> None:
        """Take a queue away; no effect if the member does not have it."""
        place = self.places.pop(queue, None)
        if place is not None:
            self.parked[queue] = place
            self.line.pop(place, None)
            self._watching.unwatch(queue, place)

    def assignment_received(self) -> None:
        """Note that the member has received its assignment.

        The member discards the messages of queues that it lost. If such a queue is granted
        again, it begins at the offset of that grant.
        """
        self.parked.clear()

    def begin_anew(self) -> None:
        """Reset the session for another program under the same name: fetches of the previous
        program must not take its messages.

        1. A member's machine loses power; its fetch stays held, because no connection was closed;
        2. it joins again under its name; 3. a message comes, the old fetch takes it, and the place
        moves past it; 4. the next message is committed, and with it the lost one.
        """
        self.assignment_received()
        self.fetches += 1
        self.wake(Wake.CHANGED)

    def close(self) -> None:
        """End the session: a held fetch is woken and finds the member gone."""
        for queue in list(self.places):
            self.revoke(queue)
        self.wake(Wake.CHANGED)

    def move(self, queue: Queue, offset: int) -> None:
        """Set where the member's next batch of its queue begins. KeyError if it does not own it.

        The place is read again even if it was there already: members report their position after a
        failure, in which the state of the place may have been lost. A blocked place stays blocked.
        """
        place = self.places[queue]
        if place.next_offset != offset:
            place.next_offset = place.handed_to = offset
            place.is_claimed = True
            place.batches.clear()
        self.ready(place)

    def ready(self, place: Place) -> None:
        """Put a place at the end of the line unless it is in line already."""
        self._watching.unwatch(place.queue, place)
        if self.places.get(place.queue) is place and place.queue not in self.paused:
            self.line.setdefault(place)
            self.wake(Wake.MESSAGE)

    def ready_first(self, place: Place) -> None:
        """Put a place that was taken from the line at its front again."""
        self.line = {place: None, **self.line}

    def pause(self, queues: frozenset[Queue]) -> None:
        """Pause these queues, and resume those that were paused before."""
        before, self.paused = self.paused, queues
        for queue in queues - before:
            if (place := self.places.get(queue)) is not None:
                self.line.pop(place, None)
                self._watching.unwatch(queue, place)
        for queue in before - queues:
            if (place := self.places.get(queue)) is not None:
                self.ready(place)

    def watch(self, place: Place) -> None:
        """Watch a place at the end of its queue: it is woken by the next message."""
        self.line.pop(place, None)
        self._watching.watch(place.queue, place.next_offset, place)

    def hold(self, fetch: HeldPull) -> None:
        """Note that a fetch of the member is held until ``wake`` or ``let_go``."""
        self.held_fetch = fetch

    def let_go(self, fetch: HeldPull) -> None:
        """Note that a fetch is no longer held; a newer one stays."""
        if self.held_fetch is fetch:
            self.held_fetch = None

    def wake(self, why: Wake) -> None:
        """Wake the member's held fetch; no effect if there is none."""
        if self.held_fetch is not None:
            self.held_fetch.wake(why)
