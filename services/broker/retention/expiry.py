"""Unread messages of the log's oldest file: a warning before they are deleted, counts afterwards.

For each queue with a group's offset it keeps the present min offset and the one after the deletion
of the oldest file. Both are read in a thread. They are compared with the committed offsets in one
step of the loop, so that no commit comes between the comparison and the publication of the new
minimum. Many groups are processed in slices. Messages that a topic's own retention hides are
counted in the same way, in the step that hides them.

Step before: ``deletion``, or a request for a group's state. Step after: ``losses``, the log, the
metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from services.broker.retention.borders import borders
from services.broker.retention.losses import Losses, Reading, unread
from shared.files.store_dir import StoreDir
from tidemark.offsets import Queue

log = logging.getLogger(__name__)

GROUPS_AT_ONCE: Final = 256
"""Groups processed between two turns of the loop."""
GROUPS_SCANNED_MAX: Final = 2000
"""Groups processed in one step: about a millisecond."""
WARNED_MAX: Final = 10_000
"""Maximum number of groups whose warning is remembered; others are warned again."""


class Committed(Protocol):
    """Consumer offsets (implemented by ``groups.offsets.Offsets``)."""

    def groups(self) -> Iterable[str]:
        """Return the groups with a committed offset."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """Return the offsets of a group."""
        ...


class Readers(Protocol):
    """The members that read queues (implemented by ``groups.coordinator.Coordinator``)."""

    def holder(self, group: str, topic: str, queue: int) -> str | None:
        """Return the member that may still commit messages of the queue."""
        ...

    def in_flight(self, group: str) -> Mapping[Queue, int]:
        """Messages delivered and not committed."""
        ...


class Ahead(NamedTuple):
    """The effect of the next deletion."""

    end: int
    """Physical end of the oldest file, at which the log will begin."""
    now: Mapping[Queue, int]
    """Present min offsets of the queues."""
    then: Mapping[Queue, int]
    """Their min offsets after the deletion."""


NOTHING: Final = Ahead(-1, {}, {})


class Expiry:
    """Unread messages of the oldest file. Belongs to one loop."""

    def __init__(
        self,
        store: StoreDir,
        committed: Committed,
        readers: Readers,
        *,
        shown_from: Callable[[str, int], int | None],
        hides: Callable[[str], bool],
        on_skipped: Callable[[str, str, int, str], None],
    ) -> None:
        """shown_from: queue offset below which a queue shows nothing; None if its topic does not
        exist. hides: whether a topic has its own retention. on_skipped: called with group, topic,
        messages and the reason ``expired``."""
        self._store = store
        self._committed = committed
        self._readers = readers
        self._shown_from = shown_from
        self._hides = hides
        self._on_skipped = on_skipped
        self._losses = Losses()
        self._ahead = NOTHING
        self._warned: set[str] = set()
        self._readers_of: dict[Queue, list[str]] = {}
        """Queue of a topic with its own retention → groups with an offset in it."""

    # -- before a deletion ------------------------------------------------------------------------

    @property
    def warned_groups(self) -> int:
        """Number of groups that had unread messages in the oldest file at the last check."""
        return len(self._warned)

    async def plan(self, *, log_min: int, end: int) -> None:
        """Find the min offsets of queues now and after a deletion up to end; all below is
        dispatched.
        log_min: present start of the log."""
        queues = set[Queue]()
        for number, group in enumerate(list(self._committed.groups()), 1):
            queues |= self._committed.of_group(group).keys()
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        now, then = dict[Queue, int](), dict[Queue, int]()
        if self._ahead.end == end:
            now, then = dict(self._ahead.now), dict(self._ahead.then)
        elif self._ahead.end == log_min:  # known from the deletion of the previous file
            now = dict(self._ahead.then)
        store = self._store
        now |= await asyncio.to_thread(borders, store, queues - now.keys(), log_min)
        then |= await asyncio.to_thread(borders, store, queues - then.keys(), end)
        self._ahead = Ahead(
            end,
            {queue: now[queue] for queue in queues},
            {queue: then[queue] for queue in queues},
        )

    def expiring(self, group: str) -> dict[Queue, int]:
        """Return the unread messages of each queue that the next deletion would remove."""
        ahead, found = self._ahead, {}
        for queue, committed in self._committed.of_group(group).items():
            begin, end = self._range(ahead, queue)
            if count := unread(committed, begin, end):
                found[queue] = count
        return found

    def _range(self, ahead: Ahead, queue: Queue) -> tuple[int, int]:
        """Return the queue offsets that the deletion removes: [first, end)."""
        end = ahead.then.get(queue)
        shown_from = None if end is None else self._shown_from(*queue)
        if end is None or shown_from is None:
            return 0, 0
        return max(ahead.now[queue], shown_from), end

    async def warn(self, *, why: str, at_ms: int | None) -> None:
        """Log the groups that are about to lose messages, each once until that changes.
        why: reason of the deletion. at_ms: when it is due; None: now."""
        threatened = set[str]()
        for number, group in enumerate(list(self._committed.groups()), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            expiring = self.expiring(group)
            if not expiring or len(threatened) >= WARNED_MAX:
                continue
            threatened.add(group)
            if group not in self._warned:
                topic, queue = max(expiring, key=lambda each: expiring[each])
                log.warning(
                    "a group is about to lose messages that it has not read",
                    extra={
                        "event": "messages-expiring",
                        "group": group,
                        "messages": sum(expiring.values()),
                        "queues": len(expiring),
                        "topic": topic,
                        "queue": queue,
                        "why": why,
                        "at_ms": at_ms,
                    },
                )
        self._take_back(self._warned - threatened)
        self._warned = threatened

    async def apply_topic_retention(self) -> None:
        """Find the groups that read topics with their own retention, and apply it to their queues;
        otherwise only a request for messages would apply it."""
        readers_of: dict[Queue, list[str]] = {}
        for number, group in enumerate(list(self._committed.groups()), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            for queue in self._committed.of_group(group):
                if self._hides(queue[0]):
                    readers_of.setdefault(queue, []).append(group)
        self._readers_of = readers_of
        for number, queue in enumerate(list(readers_of), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._shown_from(*queue)

    def hidden(self, topic: str, queue: int, first: int, end: int) -> None:
        """Count messages [first, end), which are hidden in this step of the loop."""
        key = (topic, queue)
        for group in self._groups_reading(key):
            committed = self._committed.of_group(group).get(key)
            if committed is not None:
                in_flight = self._readers.in_flight(group).get(key, 0)
                self._move_up(group, key, committed, in_flight, first, end)

    def _groups_reading(self, queue: Queue) -> Iterable[str]:
        """Return groups with an offset in the queue; if there are many, those of the last check."""
        groups = list(self._committed.groups())
        if len(groups) > GROUPS_SCANNED_MAX and (known := self._readers_of.get(queue)) is not None:
            return known
        return [group for group in groups if queue in self._committed.of_group(group)]

    def withdraw_warnings(self) -> None:
        """Log for each warned group that no deletion is near."""
        self._take_back(self._warned)
        self._warned = set()

    def _take_back(self, groups: Iterable[str]) -> None:
        for group in groups:
            log.info(
                "a group has no unread messages any more in the log file that is deleted next",
                extra={"event": "messages-safe", "group": group},
            )

    # -- a deletion -------------------------------------------------------------------------------

    async def candidates(self) -> list[str]:
        """Return the groups that may lose messages by the deletion that was prepared."""
        found = []
        for number, group in enumerate(list(self._committed.groups()), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self.expiring(group):
                found.append(group)
        return found

    def count(self, groups: Iterable[str]) -> int:
        """Count what groups lose, in the step of the loop in which the minimum moves up."""
        ahead, lost_in_all = self._ahead, 0
        for group in groups:
            in_flight = self._readers.in_flight(group)  # visits all queues of the group
            for queue, committed in self._committed.of_group(group).items():
                lost_in_all += self._move_up(
                    group,
                    queue,
                    committed,
                    in_flight.get(queue, 0),
                    *self._range(ahead, queue),
                )
        return lost_in_all

    def _move_up(
        self, group: str, queue: Queue, committed: int, in_flight: int, begin: int, end: int
    ) -> int:
        """Count what a group loses in a queue whose minimum moves from begin to end."""
        if not unread(committed, begin, end):
            return 0
        holder = self._readers.holder(group, *queue)
        lost = self._losses.moved_up(
            group,
            queue,
            committed=committed,
            old_min=begin,
            new_min=end,
            reading=None if holder is None else Reading(holder, committed + in_flight),
        )
        return self._skip(group, queue, lost)

    @property
    def is_waiting(self) -> bool:
        """Whether members still process deleted messages, whose outcome ``settle`` will count."""
        return bool(self._losses.waiting)

    def settle(self) -> None:
        """Count deleted messages that members were processing and that are known to be lost now."""
        for group, queue in self._losses.waiting:
            committed = self._committed.of_group(group).get(queue)
            holder = self._readers.holder(group, *queue)
            lost = self._losses.settle(group, queue, committed=committed, holder=holder)
            self._skip(group, queue, lost)

    def _skip(self, group: str, queue: Queue, lost: int) -> int:
        if lost:
            self._on_skipped(group, queue[0], lost, "expired")
        return lost
