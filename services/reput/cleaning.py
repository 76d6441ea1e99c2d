"""Queues and index follow the log's start: leading files of expired records go (store layout 14.4).

Derived files have totals by which the next start knows that none is missing. So that a kill, or a
power cut, in the middle of a removal does not pass for a loss and have everything made again:

1. how much the totals may be off is published and on disk (REMOVING_FIRSTS, REMOVING_ENTRIES);
2. the files go, one after the other, each name's removal on disk before the next of its queue;
3. the next sync publishes the totals as they are now, and nothing is off any more.

A few files at a time, between two steps of dispatch; the last file of a queue and of the index
stays, however old: it keeps the numbering. Before: the broker published MIN. After: it lets go of
what it has mapped when CLEANED_MIN has followed; on a full disk it waits for RELEASED_MIN, which
says that the log's own files are let go of here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from services.reput.index_writer import IndexWriter
from services.reput.queue_writer import QueueWriter
from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from tidemark.formats.checkpoint import Slot
from tidemark.formats.plan import QueueKey

FILES_AT_ONCE: Final = 8
"""Removed between two steps of dispatch: each takes a sync of its directory, milliseconds."""
QUEUES_AT_ONCE: Final = 200
"""Queues looked at between two steps; each takes two short reads."""


class Removed(NamedTuple):
    """By how much removals changed the totals, summed up since the start of the process."""

    firsts: int
    """Sum of the first queue offsets of the queues' first files: it grew by so much."""
    entries: int
    """Entries in all index files: so many fewer."""


NOTHING: Final = Removed(0, 0)


class Cleaning:
    """Removes leading files. For the thread that dispatches."""

    def __init__(
        self,
        positions: Positions,
        log: CommitLogReader,
        queues: QueueWriter,
        index: IndexWriter,
        *,
        durable: Callable[[], int],
        on_removed: Callable[[Removed], None],
    ) -> None:
        """durable: end of what is dispatched and on disk. on_removed: called after each removal
        with the change of the totals.
        """
        self._positions = positions
        self._log = log
        self._queues = queues
        self._index = index
        self._durable = durable
        self._on_removed = on_removed
        self._round_for = -1
        self._keys: deque[QueueKey] = deque()
        self._not_yet: list[QueueKey] = []
        self._off = self._settled = NOTHING
        self._base = NOTHING
        self.removed = NOTHING
        """Since the start of the process."""

    def begin(self) -> None:
        """Dispatch has resumed: look at everything anew; totals may be off from before."""
        get = self._positions.get
        self._base = Removed(get(Slot.REMOVING_FIRSTS), get(Slot.REMOVING_ENTRIES))
        self._settled = self.removed
        self._round_for = -1

    @property
    def is_due(self) -> bool:
        """Whether the log's start has moved since everything below was removed."""
        return self._log.min_offset != self._positions.get(Slot.CLEANED_MIN)

    def step(self) -> int:
        """Remove a few files; how many. Raises OSError or StoreError if one cannot be: call again.

        Not while queues or index are compared with the log or made again.
        """
        log_min = int(self._log.min_offset)
        if log_min != self._round_for:
            self._round_for = log_min
            self._keys = deque(self._queues.with_several_files())
            self._not_yet = []
        queue_files = self._expired_queue_files(log_min)
        index_files = self._index.expired_entries(log_min)[: FILES_AT_ONCE - len(queue_files)]
        if queue_files or index_files:
            firsts = len(queue_files) * self._queues.units_per_file
            self._announce(Removed(firsts, sum(index_files)))
        for key in queue_files:
            self._note(Removed(self._queues.remove_first_file(key), 0))
        for _ in index_files:
            self._note(Removed(0, self._index.remove_first_file()))
        if not (self._keys or self._not_yet or queue_files or index_files):
            self._end_round(log_min)
        elif not self._keys:
            self._keys, self._not_yet = deque(self._not_yet), []
        return len(queue_files) + len(index_files)

    def _expired_queue_files(self, log_min: int) -> list[QueueKey]:
        """The queues whose first file goes now; one that loses several is named several times."""
        found: list[QueueKey] = []
        for _ in range(min(QUEUES_AT_ONCE, len(self._keys))):
            key = self._keys[0]
            room = FILES_AT_ONCE - len(found)
            expired = self._queues.expired_files(
                key, log_min=log_min, durable=self._durable(), files_max=room
            )
            found += [key] * expired.now
            if expired.now == room:
                break  # it may have more: looked at again
            self._keys.popleft()
            if expired.later:
                self._not_yet.append(key)
        return found

    def _announce(self, more: Removed) -> None:
        """Let the next start know by how much the totals may be off, before they are."""
        now, settled, base = self.removed, self._settled, self._base
        publish = self._positions.publish
        publish(Slot.REMOVING_FIRSTS, base.firsts + now.firsts - settled.firsts + more.firsts)
        publish(Slot.REMOVING_ENTRIES, base.entries + now.entries - settled.entries + more.entries)
        self._positions.sync()

    def _note(self, change: Removed) -> None:
        before = self.removed
        self.removed = Removed(before.firsts + change.firsts, before.entries + change.entries)
        self._on_removed(change)

    def totals_published(self, removed: Removed) -> None:
        """The totals on the page cover what was removed up to then, and nothing that came after."""
        now = self.removed
        self._settled, self._base = removed, NOTHING
        self._positions.publish(Slot.REMOVING_FIRSTS, now.firsts - removed.firsts)
        self._positions.publish(Slot.REMOVING_ENTRIES, now.entries - removed.entries)

    def _end_round(self, log_min: int) -> None:
        """Everything below is gone."""
        self._positions.publish(Slot.CLEANED_MIN, log_min)

    def release(self) -> None:
        """Let go of log files that are gone, and say so. Cheap; the broker removes a name a moment
        after it has published MIN, and rings both times."""
        log_min = self._positions.get(Slot.MIN)
        if log_min == self._positions.get(Slot.RELEASED_MIN):
            return
        files = self._log.files
        files.refresh()
        if files.min_offset is None or files.min_offset >= log_min:
            self._positions.publish(Slot.RELEASED_MIN, log_min)
