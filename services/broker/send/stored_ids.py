"""Finds messages of a repeated send that are in the log already, by their unique ids.

The client chooses the unique ids and marks the request as a repeat. Dispatched messages are looked
up in the index, in slices and within a bound. The ids of records after the dispatched offset are
read from the log once and kept until they are dispatched. The index search goes back to the
position at which the log ended ten minutes ago. That time is measured by the monotonic clock,
because the wall clock may be set between a send and its repeat. If the position is not known, after
a start, the search covers 4 GiB of log. In a store without an index, repeats of dispatched messages
are stored again. While the index is rebuilt, only messages after the dispatched offset can be
found; repeats of other messages are refused for the time being. ``deduplicator`` calls this module
for a repeated request, or one that waited, and afterwards appends the messages that were not found.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from services.broker.log.log_context import LogContext
from services.broker.send.placing import Wait
from services.broker.send.repeats import Part
from shared.files.commit_log import CommitLogReader
from shared.files.index import HITS_MAX, Asked, Budget, IndexReader
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from tidemark.errors import CorruptRecord, DispatchBehind, Overloaded
from tidemark.formats import batch, delay, ids, inner_batch, native, properties
from tidemark.formats.batch import BadBatch
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hosts import Host
from tidemark.formats.record import Checks, Record
from tidemark.formats.scan import Entry
from tidemark.offsets import PhysicalOffset

SEARCH_BACK_S: Final = 600.0
NOTE_INTERVAL_S: Final = 10.0
SEARCH_BACK_SIZE: Final = 4 << 30
"""Bytes of log that are searched while the end of the log SEARCH_BACK_S ago is not known."""
TAIL_MAX: Final = 64 << 20
"""Undispatched bytes of log that are searched at most; if there are more, the repeated send is
refused until reput has caught up."""
TAIL_IDS_MAX: Final = 1 << 18
"""Unique ids of undispatched records that are kept: about 70 MiB."""
PART_SIZE: Final = 4 << 20
"""Bytes of log whose ids are kept, and dropped, as one unit."""
WALKED_AT_ONCE: Final = 1024
TAIL_READ_AT_ONCE: Final = 1 << 17
"""Bytes of log that may remain unread for ``find``, which runs in the same step as the append."""
ENTRIES_MAX: Final = 1 << 18
RECORDS_MAX: Final = 8192
BYTES_MAX: Final = 64 << 20
"""Limits of the index search of one repeated request; the largest request needs far less."""
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode("ascii")


class Place(NamedTuple):
    """Location of a stored message."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp_ms: int
    due_ms: int | None = None
    """Delivery time stored in the record; None if the record is not a timer message."""
    message_count: int = 1
    """Messages of the record."""

    @property
    def end(self) -> int:
        """Physical offset of the end of the record."""
        return self.physical_offset + self.size

    def result(self, unique_id: str | None, host: Host, wait: Wait | None = None) -> dict[str, Any]:
        """Return the location in the form of a send's answer. wait: delay of the repeated send.

        For a timer message the delivery time of the stored record applies: a repeat with
        ``delay_ms`` computes a later time than the first attempt did.
        """
        due_ms = self.due_ms
        if due_ms is None and wait is not None and wait.topic == self.topic:
            due_ms = wait.due_ms(self.store_timestamp_ms)
        more = {} if due_ms is None else {"topic": self.topic, "deliver_at_ms": due_ms}
        return {
            "message_id": ids.offset_id(host, PhysicalOffset(self.physical_offset)),
            "unique_id": unique_id,
            "queue": self.queue,
            "queue_offset": self.queue_offset,
            "physical_offset": self.physical_offset,
            "store_timestamp_ms": self.store_timestamp_ms,
            **more,
        }


class Indexed(NamedTuple):
    """Result of an index search for some unique ids."""

    places: dict[str, Place]
    """Locations of the ids that were found."""
    up_to: int
    """Physical offset up to which the records were searched."""
    is_whole: bool
    """False while part of the index is rebuilt: ids that were not found may be stored."""


class _Tail:
    """Unique ids of the undispatched log; reads each record once. Belongs to one loop."""

    def __init__(self, reader: CommitLogReader) -> None:
        self._reader = reader
        self._parts: deque[tuple[int, dict[tuple[str, str], int]]] = deque()
        """(end, (topic, unique id) → physical offset of the first such record), oldest first."""
        self.start = self.end = 0
        """Physical offsets of the range that was read."""
        self._part_start = 0
        """Physical offset of the start of the newest part."""
        self._id_count = 0

    def drop_below(self, offset: int) -> None:
        """Drop the parts that end at or below offset; if all do, continue reading at offset."""
        while self._parts and self._parts[0][0] <= offset:
            self.start, known = self._parts.popleft()
            self._id_count -= len(known)
        if offset >= self.end:
            self.start = self.end = offset

    def read_some(self, end: PhysicalOffset) -> None:
        """Read up to WALKED_AT_ONCE records. Raises CorruptRecord, Overloaded."""
        if self._id_count > TAIL_IDS_MAX:
            raise Overloaded(
                f"more than {TAIL_IDS_MAX} messages are not dispatched yet, and a repeated send "
                "cannot be compared with more. Nothing was stored.",
                "Try again when they are dispatched.",
                limit=TAIL_IDS_MAX,
            )
        entries, read_to = walk(self._reader, PhysicalOffset(self.end), end)
        if self._parts and self.end - self._part_start < PART_SIZE:
            _, known = self._parts.pop()
        else:
            known, self._part_start = {}, self.end
        before = len(known)
        for entry in entries:
            if entry.unique_id is not None:
                known.setdefault((entry.topic, entry.unique_id), entry.physical_offset)
        self._id_count += len(known) - before
        self.end = int(read_to)
        self._parts.append((self.end, known))

    def find(self, topics: Collection[str], unique_id: str) -> int | None:
        """Return the offset of the first record with this id in any of the topics, or None."""
        found: int | None = None
        for _, known in self._parts:
            for topic in topics:
                offset = known.get((topic, unique_id))
                if offset is not None and (found is None or offset < found):
                    found = offset
            if found is not None:
                return found
        return None


class StoredIds:
    """Finds stored messages by unique id, up to the end of the log. Belongs to one loop."""

    def __init__(self, log_context: LogContext, index: IndexReader | None) -> None:
        """index: None if the store has no index."""
        self._index = index
        self._reader = log_context.reader
        self._clock = log_context.clock
        self._dispatched = log_context.dispatched
        # Everything appended is searched: the first attempt may be only milliseconds old.
        self._written = log_context.readable_end
        self._index_is_whole = log_context.index_is_whole
        self._searching = asyncio.Lock()
        self._tail = _Tail(self._reader)
        self._notes: deque[tuple[float, int]] = deque()
        """(monotonic time, end of the log), oldest first, at least NOTE_INTERVAL_S apart."""

    async def find_indexed(
        self, topics: Sequence[str], unique_ids: Iterable[str], pauses: Pauses
    ) -> Indexed:
        """Search the index for these ids in these topics; read most of the undispatched log.

        topics: that of the send first, then those in which its delayed messages wait. unique_ids:
        in the order of the request: a batch is found by the id of its first message.

        ``find`` completes the search. The work is done in slices, and one call runs at a time.
        pauses: the pauses between the slices. Raises DispatchBehind, Overloaded, CorruptRecord,
        DamagedFile.
        """
        async with self._searching:
            slicer = TimeSlicer(self._clock, pauses)
            is_whole, up_to = self._index_is_whole(), self._dispatched()
            places: dict[str, Place] = {}
            if self._index is not None and is_whole:
                floor = self._floor()
                budget = Budget(ENTRIES_MAX, RECORDS_MAX, BYTES_MAX)
                wanted = dict.fromkeys(unique_ids)
                for unique_id in wanted:
                    if unique_id in places:
                        continue  # in a batch that was found by its first message
                    # In the topic of the send last: a delayed message is there too once it is
                    # delivered, but the first attempt was answered where it waits.
                    for topic in reversed(topics):
                        asked = Asked(topic, unique_id, up_to, unique_id_only=True, floor=floor)
                        hits_max = 1 if topic == topics[0] else HITS_MAX
                        search = self._index.search(asked, hits_max=hits_max, budget=budget)
                        await slicer.through(search.steps())
                        if mine := [each for each in search.found if _is_for(each, topics[0])]:
                            _note_places(places, mine[0], unique_id, wanted)
                            break
                        if budget.is_spent and not search.has_ended:
                            raise _too_much()
                is_whole = self._index_is_whole()  # False if it was removed between two searches
            self._tail.drop_below(self._tail_start())
            while (end := self._checked_end()) - self._tail.end > TAIL_READ_AT_ONCE:
                self._tail.read_some(end)
                if slicer.over:
                    await slicer.pass_on()
                self._tail.drop_below(self._tail_start())
            return Indexed(places, int(up_to), is_whole or self._index is None)

    def find(
        self, indexed: Indexed, topics: Sequence[str], unique_ids: Iterable[str]
    ) -> dict[str, Place]:
        """Return the locations of these ids in these topics; ids that are not stored are left out.

        indexed: result of ``find_indexed`` for the same ids, in the same order. If an id is stored
        several times, the first location is returned. The method has no await, so an id that is
        not found is not in the log when it returns. Raises as ``find_indexed``.
        """
        wanted, found = dict.fromkeys(unique_ids), dict(indexed.places)
        tail = self._tail
        tail.drop_below(self._tail_start())
        end = self._checked_end()
        while tail.end < end:
            tail.read_some(end)
        start = max(indexed.up_to, int(self._reader.min_offset))
        if start < tail.start:  # dispatched since the index search, and dropped from the tail
            self._walk(
                Part(PhysicalOffset(start), PhysicalOffset(tail.start)),
                frozenset(topics),
                wanted,
                found,
            )
        for unique_id in wanted:
            offset = None if unique_id in found else tail.find(topics, unique_id)
            if offset is not None:
                _note_places(found, self._read(offset, end), unique_id, wanted)
        if not indexed.is_whole:
            # Without this check: 1. a message is stored, dispatched and synced, but its answer is
            # lost; 2. the node loses power; 3. reput rebuilds the index, while the whole log counts
            # as dispatched; 4. the client repeats the send: the message is neither in the tail nor
            # in the index, and is stored twice.
            _check_all(wanted, found)
        return found

    def find_in(
        self, parts: Sequence[Part], topics: Sequence[str], unique_ids: Iterable[str]
    ) -> dict[str, Place]:
        """Search only the given parts of the log, and return the locations of these ids in topics.

        Raises CorruptRecord.
        """
        wanted, found = dict.fromkeys(unique_ids), dict[str, Place]()
        self._written()
        for part in parts:
            self._walk(part, frozenset(topics), wanted, found)
        return found

    def _tail_start(self) -> int:
        return max(self._dispatched(), self._reader.min_offset)

    def _checked_end(self) -> PhysicalOffset:
        """Return the end of the log. Raises DispatchBehind if the undispatched tail is too long."""
        end = self._written()
        behind = int(end) - self._tail_start()
        if behind > TAIL_MAX:
            raise DispatchBehind(
                f"{behind} bytes are not dispatched yet, but a repeated send searches at most "
                f"{TAIL_MAX}. Nothing was stored.",
                "Try again when they are dispatched.",
                behind=behind,
                limit=TAIL_MAX,
            )
        return end

    def _floor(self) -> int:
        """Return the physical offset from which the index search starts."""
        now, notes = self._clock.monotonic(), self._notes
        while len(notes) > 1 and now - notes[1][0] >= SEARCH_BACK_S:
            notes.popleft()
        end = int(self._written())
        if not notes or now - notes[-1][0] >= NOTE_INTERVAL_S:
            notes.append((now, end))
        then, floor = notes[0]
        return floor if now - then >= SEARCH_BACK_S else max(0, end - SEARCH_BACK_SIZE)

    def _read(self, offset: int, end: PhysicalOffset) -> Record:
        found = self._reader.record(PhysicalOffset(offset), end)
        assert found is not None, "a record was read there before"
        return found

    def _walk(
        self, part: Part, topics: frozenset[str], wanted: Collection[str], found: dict[str, Place]
    ) -> None:
        """Add to found the location of the first message of each wanted id in a part of the log."""
        at, end = part
        while at < end:
            entries, at = walk(self._reader, at, end)
            for entry in entries:
                unique_id = entry.unique_id
                if unique_id is None or entry.topic not in topics:
                    continue
                if unique_id in wanted and unique_id not in found:
                    stored = self._read(entry.physical_offset, end)
                    _note_places(found, stored, unique_id, wanted)


def walk(
    reader: CommitLogReader, at: PhysicalOffset, end: PhysicalOffset
) -> tuple[Sequence[Entry], PhysicalOffset]:
    """Read up to WALKED_AT_ONCE records from the record at ``at`` on.

    Returns the records and the offset at which to continue. Raises CorruptRecord.
    """
    walked = native.walk(
        reader.window(at, end),
        at=at,
        checks=Checks(body_crc=False, record_crc=False),
        records_max=WALKED_AT_ONCE,
        delay_levels_ms=(),
    )
    if walked.entries:
        return walked.entries, PhysicalOffset(at + walked.end)
    reader.record(PhysicalOffset(at + walked.end), end)  # raises CorruptRecord if it is damaged
    return (), reader.next_file(at)


def _too_much() -> Overloaded:
    return Overloaded(
        f"the index has more than {ENTRIES_MAX} entries, or {RECORDS_MAX} messages, whose keys "
        "have the same hashes as the unique ids of this repeated send; whether it is stored "
        "is not known. Nothing more was stored.",
        "Send fewer messages per request, and unique ids that are random.",
        limit=ENTRIES_MAX,
    )


def _check_all(wanted: Collection[str], found: Collection[str]) -> None:
    """Raise DispatchBehind if an id was not found. Called while the index is incomplete."""
    missing_count = len(wanted) - len(found)
    if missing_count:
        raise DispatchBehind(
            "the index is being rebuilt; until it is complete, it is unknown whether "
            f"{missing_count} messages of a repeated send are stored already. Nothing was stored.",
            "Try again when reput's /ready says that it has caught up.",
            missing=missing_count,
        )


def _is_for(stored: Record, topic: str) -> bool:
    """Return whether a message was sent to a topic. A nacked message also waits, for a retry."""
    if stored.topic == topic:
        return True
    place = delay.real_place(stored.properties)
    return place is not None and place.topic == topic


def _note_places(
    found: dict[str, Place], stored: Record, unique_id: str, wanted: Collection[str]
) -> None:
    """Add to found the location of a record under its unique id, and those of wanted messages.

    The messages of a batch have ids of their own, of which only the first is the batch's. Raises
    CorruptRecord for a batch whose entries cannot be read.
    """
    place = found[unique_id] = _place(stored)
    if len(wanted) == 1 or not stored.sys_flag & inner_batch.INNER_BATCH:
        return
    try:
        for number, entry in enumerate(batch.iterate(stored.body), stored.queue_offset):
            raw = properties.find(bytes(entry.properties), b"UNIQ_KEY")
            own_id = None if raw is None else properties.text(raw)
            if own_id is not None and own_id in wanted:
                found.setdefault(own_id, place._replace(queue_offset=number))
    except BadBatch as error:
        raise CorruptRecord(stored.physical_offset, str(error)) from None


def _place(stored: Record) -> Place:
    return Place(
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        stored.physical_offset,
        stored.size,
        stored.store_timestamp_ms,
        delay.timer_due_ms(stored.properties) if stored.topic == TIMER_TOPIC else None,
        inner_batch.message_count(stored.sys_flag, stored.properties, stored.queue_offset) or 1,
    )


def unique_ids_of(entries: bytes) -> list[str | None]:
    """Return the unique id of each message; in a repeated request every message has one."""
    raws = (
        properties.find(bytes(entry.properties), _UNIQUE_ID) for entry in batch.iterate(entries)
    )
    return [None if raw is None else properties.text(raw) for raw in raws]


def without(entries: bytes, gone: frozenset[int]) -> bytes:
    """Return the messages of a request without those at the given positions."""
    return batch.encode(
        entry for number, entry in enumerate(batch.iterate(entries)) if number not in gone
    )
