"""What the groups have not read of the log's oldest file: warned of before it goes, counted after.

Keeps where each queue that a group has an offset of begins now, and where it will begin once the
oldest file is gone. Both are read in a thread; what groups have committed is then compared in one
step of the loop, so that no commit comes between the look and the publication of the new minimum.
Large numbers of groups are looked through in slices. What a topic's own retention hides is counted
the same way, in the step in which it is hidden.

Before: ``deletion``, and a view of a group that asks. After: ``losses``, the log, the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from services.broker.retention.borders import Queue, borders
from services.broker.retention.losses import Losses, Reading, unread
from shared.files.store_dir import StoreDir

log = logging.getLogger(__name__)

GROUPS_AT_ONCE: Final = 256
"""Looked through between two turns of the loop."""
GROUPS_SCANNED_MAX: Final = 2000
"""Looked through at once: about a millisecond."""
WARNED_MAX: Final = 10_000
"""Groups whose warning is remembered; further ones are warned of again."""


class Committed(Protocol):
    """Consumer offsets (``groups.offsets.Offsets``)."""

    def groups(self) -> Iterable[str]:
        """All that ever committed."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """What a group has committed."""
        ...


class Readers(Protocol):
    """Who reads what (``groups.coordinator.Coordinator``)."""

    def holder(self, group: str, topic: str, queue: int) -> str | None:
        """The member that may commit what it got of the queue."""
        ...

    def in_flight(self, group: str) -> Mapping[Queue, int]:
        """Messages handed out and not committed."""
        ...


class Ahead(NamedTuple):
    """What the next deletion changes."""

    end: int
    """Physical end of the oldest file: where the log begins after it."""
    now: Mapping[Queue, int]
    """Where queues begin now."""
    then: Mapping[Queue, int]
    """Where they will."""


NOTHING: Final = Ahead(-1, {}, {})


class Expiry:
    """Unread messages of the oldest file. One loop uses it."""

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
        """shown_from: queue offset below which a queue shows nothing anyhow; None if its topic does
        not exist. hides: whether a topic has a retention of its own. on_skipped: called with group,
        topic, messages and the reason ``expired``.
        """
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
        """Queue of a topic with its own retention → groups with an offset there."""

    # -- before a deletion ------------------------------------------------------------------------

    @property
    def warned_groups(self) -> int:
        """Groups that had unread messages in the oldest file at the last look."""
        return len(self._warned)

    async def look_ahead(self, *, log_min: int, end: int) -> None:
        """Find where queues begin now and once the log begins at end, all of which is dispatched.

        log_min: where it begins now.
        """
        queues = set[Queue]()
        for number, group in enumerate(list(self._committed.groups()), 1):
            queues |= self._committed.of_group(group).keys()
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        now, then = dict[Queue, int](), dict[Queue, int]()
        if self._ahead.end == end:
            now, then = dict(self._ahead.now), dict(self._ahead.then)
        elif self._ahead.end == log_min:  # the file before this one went: known from then
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
        """Unread messages of each queue that the next deletion of a log file would take."""
        ahead, found = self._ahead, {}
        for queue, committed in self._committed.of_group(group).items():
            begin, end = self._range(ahead, queue)
            if count := unread(committed, begin, end):
                found[queue] = count
        return found

    def _range(self, ahead: Ahead, queue: Queue) -> tuple[int, int]:
        """What of the queue goes: [first, end)."""
        end = ahead.then.get(queue)
        shown_from = None if end is None else self._shown_from(*queue)
        if end is None or shown_from is None:
            return 0, 0
        return max(ahead.now[queue], shown_from), end

    async def warn(self, *, why: str, at_ms: int | None) -> None:
        """Name the groups that are about to lose messages, each once until that has changed.

        why: of the deletion. at_ms: when it is due; None: now.
        """
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

    async def look_at_hiding_topics(self) -> None:
        """Find who reads topics with a retention of their own, and have these judged: nobody may
        ask for their messages any more."""
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
        """Messages [first, end) are not shown any more from this step of the loop on."""
        key = (topic, queue)
        for group in self._groups_reading(key):
            committed = self._committed.of_group(group).get(key)
            if committed is not None:
                in_flight = self._readers.in_flight(group).get(key, 0)
                self._move_up(group, key, committed, in_flight, first, end)

    def _groups_reading(self, queue: Queue) -> Iterable[str]:
        """Groups with an offset in the queue: as of now, or of the last look if there are many."""
        groups = list(self._committed.groups())
        if len(groups) > GROUPS_SCANNED_MAX and (known := self._readers_of.get(queue)) is not None:
            return known
        return [group for group in groups if queue in self._committed.of_group(group)]

    def nothing_goes(self) -> None:
        """No deletion is near: nobody is threatened."""
        self._take_back(self._warned)
        self._warned = set()

    def _take_back(self, groups: Iterable[str]) -> None:
        for group in groups:
            log.info(
                "a group has no unread messages in the next file to go any more",
                extra={"event": "messages-safe", "group": group},
            )

    # -- a deletion -------------------------------------------------------------------------------

    async def candidates(self) -> list[str]:
        """Groups that may lose something to the deletion that was looked ahead at."""
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
            in_flight = self._readers.in_flight(group)  # once: it walks all of the group's queues
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
        """A queue that began at begin begins at end: count what the group has lost."""
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
        """Whether members hold messages that are gone: ``settle`` will tell what became of them."""
        return bool(self._losses.waiting)

    def settle(self) -> None:
        """Count what turned out to be lost, of messages that were in members' hands."""
        for group, queue in self._losses.waiting:
            committed = self._committed.of_group(group).get(queue)
            holder = self._readers.holder(group, *queue)
            lost = self._losses.settle(group, queue, committed=committed, holder=holder)
            self._skip(group, queue, lost)

    def _skip(self, group: str, queue: Queue, lost: int) -> int:
        if lost:
            self._on_skipped(group, queue[0], lost, "expired")
        return lost
