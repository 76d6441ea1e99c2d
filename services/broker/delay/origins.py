"""Finds delivered messages in the log: the origins in copies after the last ``delay`` record.

A delivered copy names its origin, the queue and offset at which its message waited. Progress is
recorded at most once a second. A start reads the log from the last such checkpoint on, so that each
delivery happens once, however often the node is killed. A snapshot is not a checkpoint: it repeats
the last one, but may come after copies that the last one does not cover.

A copy that RocketMQ delivered has no origin, but the unique id, due time and topic of its message.
``config/timercheck`` covers most of these copies. Those of RocketMQ's last minute are found here.

Copies for a batch topic are messages of inner batches, which are taken apart.

Blocks; called in the delay thread. Step before: the state is replayed. Step after: ``progress``.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.broker.delay.progress import Found
from services.broker.read.unpacking import messages_of
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state import records
from shared.state.records import STATE_QUEUE, STATE_TOPIC, DelayRecord, StateRecordUnreadable
from tidemark.errors import CorruptRecord
from tidemark.formats import delay, properties, record
from tidemark.formats.delay import Identity
from tidemark.offsets import PhysicalOffset

CHUNK_SIZE: Final = 4 << 20
"""Bytes copied from a mapping at a time; they bound the memory of the search."""
UNITS_AT_ONCE: Final = 4096
_HEAD: Final = struct.Struct(">ii")  # size, magic
_MAGICS: Final = frozenset({record.MAGIC_V1, record.MAGIC_V2})
_NEEDLES: Final = (
    properties.DELAY_ORIGIN.encode() + b"\x01",
    delay.TIMER_DEQUEUE_MS.encode() + b"\x01",
)
COPIES_MAX: Final = 1_000_000
"""Maximum number of RocketMQ's copies kept in memory: some hundred MB. The messages of further
copies are delivered again."""
CHECK_IS_LATE_MS: Final = 60_000
"""Longest time that RocketMQ may deliver without writing ``timercheck``, with a wide margin: it
writes it every second."""
_KIND: Final = records.KIND_DELAY.encode()


class Copy(NamedTuple):
    """Identity of the message of a copy that RocketMQ delivered."""

    due_ms: int
    identity: Identity


def last_checkpoint(
    queues: ConsumeQueues, log: CommitLogReader, dispatched: PhysicalOffset
) -> PhysicalOffset:
    """Return the physical offset of the last record with delay progress; without one, the log's
    start.

    It reads the state queue backwards; every 64 MiB of log have such a record. Raises
    CorruptRecord.
    """
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    first = int(queue.min_offset(log.min_offset))
    end = int(queue.max_offset(dispatched))
    while end > first:
        start = max(first, end - UNITS_AT_ONCE)
        for unit in reversed(_units(queues, start, end, dispatched)):
            stored = log.record(PhysicalOffset(unit), dispatched)
            if stored is not None and _has_progress(stored):
                return stored.physical_offset
        end = start
    return log.min_offset


def _units(
    queues: ConsumeQueues, start: int, end: int, dispatched: PhysicalOffset
) -> list[PhysicalOffset]:
    """Return the physical offsets of the state records with queue offsets [start, end)."""
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    found: list[PhysicalOffset] = []
    while start < end:
        units = queue.units(start, end - start, dispatched)
        found += [PhysicalOffset(unit.physical_offset) for unit in units]
        start = start + len(units) if units else int(queue.roll_next(start))
    return found


def _has_progress(stored: record.Record) -> bool:
    body = bytes(stored.body)
    if _KIND not in body:
        return False
    try:
        state_record = records.decode(body)
    except StateRecordUnreadable:
        return False  # the replay of the state reports the damage
    # A record that has only cancellations has no progress.
    return isinstance(state_record, DelayRecord) and (
        bool(state_record.levels) or state_record.timer is not None
    )


def find_origins(
    log: CommitLogReader,
    start: PhysicalOffset,
    end: PhysicalOffset,
    *,
    rocketmq_from_ms: int = 0,
    copies: Counter[Copy] | None = None,
) -> Found:
    """Return what was delivered or carried by records that begin in [start, end).
    start: start of a record. end: a published offset. copies: counts copies that RocketMQ appended
    and stored at rocketmq_from_ms or later. Raises CorruptRecord."""
    levels: dict[int, int] = {}
    timer: dict[int, int | None] = {}
    at = start
    while at < end:
        window = log.window(at, end)
        if not window:
            at = max(log.min_offset, log.next_file(at))  # the file expired meanwhile
            continue
        for stored in _with_origin(window, at):
            if copies is not None and stored.store_timestamp_ms >= rocketmq_from_ms:
                copy = _rocketmqs(log, stored)
                if copy is not None and (len(copies) < COPIES_MAX or copy in copies):
                    copies[copy] += 1
            origin = delay.origin_of(stored.properties)
            if origin is None:
                continue
            if origin.level != delay.TIMER_LEVEL:
                after = origin.queue_offset + 1
                levels[origin.level] = max(after, levels.get(origin.level, 0))
            elif stored.topic == delay.TIMER_TOPIC:
                timer.setdefault(origin.queue_offset, None)
            else:
                due_ms = delay.timer_due_ms(stored.properties)
                timer[origin.queue_offset] = stored.store_timestamp_ms if due_ms is None else due_ms
        at = log.next_file(at)
    return Found(levels, timer)


def _rocketmqs(log: CommitLogReader, stored: record.Record) -> Copy | None:
    """Return the copy if RocketMQ delivered the record; None for any other record."""
    if stored.topic == delay.TIMER_TOPIC:
        return None
    # All our copies have an origin. A copy of RocketMQ has one if its message was carried.
    is_ours = delay.origin_of(stored.properties) is not None
    if is_ours and log.checks_at(stored.physical_offset).record_crc:
        return None
    due_ms, identity = delay.timer_due_ms(stored.properties), delay.identity_of(stored.properties)
    if due_ms is None or identity is None or not delay.is_out_of_wheel(stored.properties):
        return None
    return Copy(due_ms, identity)


class _Hits:
    """Positions in some bytes that contain an origin, or the time at which a timer delivered."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = [data.find(needle) for needle in _NEEDLES]

    def at_or_after(self, start: int) -> int:
        """Return the first position at or after start; the end of the data if there is none."""
        # Each needle is searched once between two of its hits, so that a rare or absent one is not
        # searched again at every hit of the other.
        for number, needle in enumerate(_NEEDLES):
            if 0 <= self._next[number] < start:
                self._next[number] = self._data.find(needle, start)
        return min((hit for hit in self._next if hit >= 0), default=len(self._data))


def _with_origin(window: memoryview, at: PhysicalOffset) -> Iterator[record.Record]:
    """Return messages of one file that may be copies; window[0] is the start of a record."""
    base, chunk_size = 0, CHUNK_SIZE
    while base < len(window):
        data = bytes(window[base : base + chunk_size])
        hits = _Hits(data)
        start, hit = 0, hits.at_or_after(0)
        while len(data) - start >= _HEAD.size:
            size, magic = _HEAD.unpack_from(data, start)
            if magic == record.MAGIC_BLANK:
                return
            if magic not in _MAGICS or size < record.RECORD_SIZE_MIN:
                reason = f"magic {magic & 0xFFFFFFFF:#010x}, size {size} bytes"
                raise CorruptRecord(at + base + start, reason)
            if start + size > len(data):
                break
            if hit < start + size:
                yield from messages_of(record.decode(data, start))
                hit = hits.at_or_after(start + size)
            start += size
        if base + len(data) == len(window):
            return  # the rest is too short for a record or a filler
        # A record is larger than a chunk: read all of it at once.
        chunk_size = CHUNK_SIZE if start else 2 * chunk_size
        base += start
