"""Pages of waiting messages, next due first, for ``GET /v1/delayed``.

Sources are sorted by due time and merged, so a page costs only its own entries. The topic is only
in the record. A page of one topic therefore ends after a bounded number of records, and the next
page begins there. After a clock step backwards, messages of a level are in queue order.

Blocks; called in the delay thread. Step before: ``delay_calls``. Step after: its answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from services.broker.delay.level_queues import LevelQueues
from services.broker.delay.progress import Progress
from services.broker.delay.slices import Entry, read_entry
from services.broker.delay.timer_queue import TimerQueue
from shared.files.commit_log import CommitLogReader
from tidemark.formats import delay
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.offsets import PhysicalOffset

EXAMINED_MAX: Final = 8192
"""Maximum number of records read for one page."""
ROWS_AT_ONCE: Final = 256
_I64_MAX: Final = (1 << 63) - 1


class ListTime(NamedTuple):
    """Position in the list; the next page begins after it."""

    due_ms: int
    level: int
    queue_offset: int


BEGIN: Final = ListTime(-1, -1, -1)


class Page(NamedTuple):
    """One page of waiting messages."""

    messages: Sequence[dict[str, Any]]
    """Messages in the form of ``GET /v1/delayed``."""
    after: ListTime | None
    """Position of the next page; None for the last page."""


def of_levels(
    levels: LevelQueues,
    progress: Progress,
    after: ListTime,
    dispatched: PhysicalOffset,
    now_ms: int,
) -> list[Iterator[Entry]]:
    """Return the waiting messages of each level after a position."""

    def one(level: int) -> Iterator[Entry]:
        begin = progress.levels[level]
        first = levels.first_due_from(level, begin, after.due_ms, dispatched)
        for entry in levels.waiting(level, first, dispatched, now_ms):
            if time_of(entry) > after and not progress.is_cancelled(level, entry.queue_offset):
                yield entry

    return [one(level) for level in sorted(progress.levels)]


def of_timer(timer: TimerQueue, after: ListTime) -> Iterator[Entry]:
    """Return the waiting messages of the timer's queue after a position."""
    # At equal times messages of the timer come before those of levels.
    at = (after.due_ms, after.queue_offset if after.level <= TIMER_LEVEL else _I64_MAX)
    while rows := timer.after(at, ROWS_AT_ONCE):
        yield from rows
        at = (rows[-1].due_ms, rows[-1].queue_offset)


def page(
    sources: Sequence[Iterator[Entry]],
    log_reader: CommitLogReader,
    dispatched: PhysicalOffset,
    *,
    topic: str | None,
    count_max: int,
) -> Page:
    """Return the next count_max messages of all sources. topic: restricts them to this topic.
    Raises CorruptRecord, DamagedFile."""
    messages: list[dict[str, Any]] = []
    for examined, entry in enumerate(heapq.merge(*sources, key=time_of), 1):
        shown = _shown(entry, log_reader, dispatched)
        if shown is not None and topic in (None, shown["topic"]):
            messages.append(shown)
        if len(messages) == count_max or examined == EXAMINED_MAX:
            return Page(messages, time_of(entry))
    return Page(messages, None)


def time_of(entry: Entry) -> ListTime:
    """Return the position of an entry."""
    return ListTime(entry.due_ms, entry.level, entry.queue_offset)


def _shown(
    entry: Entry, log_reader: CommitLogReader, dispatched: PhysicalOffset
) -> dict[str, Any] | None:
    stored = read_entry(log_reader, entry, dispatched)
    place = None if stored is None else delay.real_place(stored.properties)
    if stored is None or place is None:
        return None
    return {
        "unique_id": stored.unique_id,
        "message_id": stored.message_id,
        "topic": place.topic,
        "queue": place.queue_id,
        "deliver_at_ms": entry.due_ms,
        "delay_level": entry.level or None,
        "store_timestamp_ms": stored.store_timestamp_ms,
        "size": stored.size,
    }
