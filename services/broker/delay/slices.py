"""Reads due messages from the log and makes slices of them: the messages of one append.

The delivered record is the waiting one with its own topic and queue. Body, flag, system flag, born
time, both hosts and the retry count are unchanged. Messages of one request share all of these and
become one run. Messages for the same queue keep the order of their due times. In a batch topic the
run is appended as inner batches, which have no system flag of their messages: a body that a client
of RocketMQ has compressed arrives as it is.

Blocks; called in the delay thread. Step before: ``level_queues`` and ``timer_queue`` find due
messages. Step after: ``delivery`` appends a slice and moves its progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from services.broker.delay.pending_times import Pending
from services.broker.log.unit_checks import name_unit
from shared.files.commit_log import CommitLogReader
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.formats import batch, delay
from tidemark.formats.batch import WireMessage
from tidemark.formats.delay import Delayed
from tidemark.formats.properties import PROPERTIES_SIZE_MAX
from tidemark.formats.record import BLANK_SIZE, CRC_PROPERTY_SIZE, Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

SLICE_COUNT_MAX: Final = 512
"""Maximum number of messages of one append, which takes some milliseconds of the loop."""
SLICE_BYTES_MAX: Final = 1 << 20
SLICES_PER_FILE_MIN: Final = 8
"""A slice is at most this part of a commit log file; a larger one wastes the end of the file."""


class Entry(NamedTuple):
    """One waiting message to deliver or carry; sorts by its due time."""

    due_ms: int
    level: int
    queue_offset: int
    physical_offset: int
    size: int
    row: Pending | None
    """Row of the sorted file, for a timer message."""
    passed_over: bool = False
    """It is cancelled; the progress passes it without a delivery."""


class Lost(StrEnum):
    """Why a message is not delivered."""

    EXPIRED = "its record is no longer in the log"
    NO_PLACE = "it names no queue that it could go to"
    TOPIC_DELETED = "its topic was deleted"
    TOO_LARGE = "with what is added it fits into no record, or no file"


class Slice(NamedTuple):
    """Messages in the order of their due times: one append, and its effect on the progress."""

    runs: Sequence[Run]
    """Empty if no message of the slice is to be delivered."""
    levels: Mapping[int, int]
    """Level → queue offset after the last message of the slice."""
    rows: Sequence[Pending]
    """Rows of the timer's queue."""
    message_count: int
    """Messages in the runs."""
    lost_count: int
    """Messages without a record or a destination."""
    due_ms: int
    """Due time of the first message."""


Change = Callable[[Record, Entry], Delayed | None]
"""Returns the new topic and queue of a record; None: it has none."""


class Slices:
    """Makes slices. One thread uses it."""

    def __init__(
        self,
        log_reader: CommitLogReader,
        *,
        file_size: int,
        topic_is_gone: Callable[[str, PhysicalOffset], bool],
    ) -> None:
        """file_size: size of a commit log file. topic_is_gone: whether the topic of a waiting
        record at that physical offset was deleted. Its waiting messages are dropped, even if a new
        topic has that name."""
        self._log = log_reader
        self._topic_is_gone = topic_is_gone
        self._bytes_max = min(SLICE_BYTES_MAX, file_size // SLICES_PER_FILE_MIN)
        self._record_size_max = file_size - BLANK_SIZE

    def delivering(
        self, entries: Iterable[Entry], dispatched: PhysicalOffset, now_ms: int
    ) -> list[Slice]:
        """Return the copies that deliver the entries. Raises CorruptRecord, DamagedFile."""

        def change(stored: Record, entry: Entry) -> Delayed | None:
            return delay.delivered(stored, now_ms)

        return [self._slice(each, dispatched, change) for each in self._cut(entries)]

    def carrying(self, entries: Iterable[Entry], dispatched: PhysicalOffset) -> list[Slice]:
        """Return copies that wait instead of the entries. Raises CorruptRecord, DamagedFile."""

        def change(stored: Record, entry: Entry) -> Delayed | None:
            return delay.carried(stored, entry.due_ms)

        return [self._slice(each, dispatched, change) for each in self._cut(entries)]

    def _cut(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        part: list[Entry] = []
        size = 0
        for entry in entries:
            grown = size + entry.size + delay.PROPERTIES_ROOM
            if part and (len(part) == SLICE_COUNT_MAX or grown > self._bytes_max):
                yield part
                part, grown = [], entry.size + delay.PROPERTIES_ROOM
            part.append(entry)
            size = grown
        if part:
            yield part

    def _slice(self, entries: Sequence[Entry], dispatched: PhysicalOffset, change: Change) -> Slice:
        made = _Runs()
        levels: dict[int, int] = {}
        lost: list[tuple[Entry, Lost]] = []
        for entry in entries:
            if entry.row is None:
                levels[entry.level] = entry.queue_offset + 1
            if entry.passed_over:
                continue
            stored = read_entry(self._log, entry, dispatched)
            if stored is None:
                lost.append((entry, Lost.EXPIRED))
                continue
            copy = change(stored, entry)
            why = self._why_lost(stored, copy)
            if why is not None:
                lost.append((entry, why))
            elif copy is not None:
                made.add(stored, copy)
        if lost:
            _name(lost)
        rows = [entry.row for entry in entries if entry.row is not None]
        return Slice(made.runs(), levels, rows, made.count, len(lost), entries[0].due_ms)

    def _why_lost(self, stored: Record, copy: Delayed | None) -> Lost | None:
        """Return why a copy cannot be appended; None if it can."""
        if copy is None:
            return Lost.NO_PLACE
        # The topic of the copy may be a delay topic, so the real topic is checked. A carried copy
        # comes after the deletion: once its topic exists again, it could not be distinguished from
        # a new message.
        place = delay.real_place(stored.properties)
        if place is not None and self._topic_is_gone(place.topic, stored.physical_offset):
            return Lost.TOPIC_DELETED
        return Lost.TOO_LARGE if self._is_too_large(stored, copy) else None

    def _is_too_large(self, stored: Record, copy: Delayed) -> bool:
        """Return whether the copy is too large to append; RocketMQ fills some records
        completely."""
        properties_size = len(copy.properties) + CRC_PROPERTY_SIZE + 1
        grown = properties_size - len(stored.properties) + len(copy.topic.encode())
        return (
            properties_size > PROPERTIES_SIZE_MAX or stored.size + grown + 2 > self._record_size_max
        )


def _name(lost: Sequence[tuple[Entry, Lost]]) -> None:
    """Log the lost messages of a slice in one line: a deleted topic may have had a million."""
    entry = lost[0][0]
    log.warning(
        "delayed messages are not delivered",
        extra={
            "event": "delayed-not-delivered",
            "count": len(lost),
            "reasons": dict(Counter(why.value for _, why in lost)),
            "first_level": entry.level,
            "first_queue_offset": entry.queue_offset,
            "first_offset": entry.physical_offset,
        },
    )


def read_entry(
    log_reader: CommitLogReader, entry: Entry, dispatched: PhysicalOffset
) -> Record | None:
    """Return the entry's record with a borrowed body; None if its file no longer exists. Raises
    CorruptRecord; DamagedFile if another message is there, or the unit does not match."""
    offset = PhysicalOffset(entry.physical_offset)
    place = (*delay.place_of(entry.level), entry.queue_offset)
    try:
        stored = log_reader.record(offset, dispatched)
    except CorruptRecord as error:
        raise name_unit(error, *place) from None
    found = None if stored is None else (stored.topic, stored.queue_id, stored.queue_offset)
    if found == place and stored is not None:
        if entry.row is not None or entry.size == stored.size:
            return stored
        what = f"which is {stored.size} bytes long, and its unit says {entry.size}"
    elif found is not None:
        what = f"where {found[0]}/{found[1]} has its message {found[2]}"
    elif entry.row is not None or offset < log_reader.min_offset:
        return None
    else:  # a unit: an entry of the sorted file was checked before
        what = "where the log has no record"
    raise DamagedFile(
        f"message {entry.queue_offset} of queue {place[0]}/{place[1]} should be at physical offset "
        f"{offset}, {what}. Nothing was delivered from there; the commit log is safe.",
        "Reput makes the unit again; if it does not, stop the node and run `tidemark store "
        "rebuild`.",
        at=int(offset),
        topic=place[0],
        queue=place[1],
        queue_offset=place[2],
    )


class _Runs:
    """Collects messages by queue; adjacent ones with equal attributes share a run."""

    def __init__(self) -> None:
        self.count = 0
        self._queues: dict[tuple[str, int], list[tuple[Run, list[WireMessage]]]] = {}

    def add(self, stored: Record, copy: Delayed) -> None:
        """Add the copy of a record."""
        head = Run(
            copy.topic,
            copy.queue_id,
            b"",
            0,
            stored.born_host,
            stored.store_host,
            stored.born_timestamp_ms,
            stored.sys_flag,
            stored.reconsume_times,
        )
        runs = self._queues.setdefault((copy.topic, copy.queue_id), [])
        if not runs or runs[-1][0] != head:
            runs.append((head, []))
        runs[-1][1].append(WireMessage(stored.body, copy.properties, stored.flag))
        self.count += 1

    def runs(self) -> list[Run]:
        """Return all runs; those of one queue are adjacent."""
        return [
            head._replace(entries=batch.encode(messages), message_count=len(messages))
            for runs in self._queues.values()
            for head, messages in runs
        ]
