"""When groups committed, and when delayed messages were cancelled: read from the state records.

A record holds every offset that moved within a tenth of a second, so its store time is that of the
commits in it. At most ``RECORDS_MAX`` records are read: a commit long after the message was stored,
or before the oldest state record, has no known time.
Step before: ``trace`` asks. Step after: ``trace`` shows the time of each commit and cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state import records
from shared.state.records import (
    STATE_QUEUE,
    STATE_TOPIC,
    Delayed,
    DelayRecord,
    OffsetsRecord,
    StateRecordUnreadable,
)
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

RECORDS_MAX: Final = 4096
"""State records read for one question: seven minutes of them if offsets move all the time."""
RECORDS_AT_ONCE: Final = 64

GroupQueue = tuple[str, Queue]
"""A group and a queue that it reads."""


class StateHistory(NamedTuple):
    """Commits and cancellations found in the state records, with store times [wall clock ms]."""

    moves: list[tuple[int, dict[GroupQueue, int]]]
    """Offsets as they moved, oldest first."""
    cancelled: dict[Delayed, int]
    """Delayed messages that were cancelled."""


class CommitTimes:
    """Searches the state records. Belongs to one loop."""

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLogReader,
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        self._queues = queues
        self._log = log
        self._dispatched = dispatched

    async def since(
        self, since_ms: int, offsets: Collection[GroupQueue], delayed: Collection[Delayed]
    ) -> StateHistory:
        """Return commits and cancellations of these offsets and messages in state records since a
        time."""
        history = StateHistory([], {})
        if not offsets and not delayed:
            return history
        dispatched = self._dispatched()
        with self._queues.glance(STATE_TOPIC, STATE_QUEUE) as reader:
            at = int(reader.offset_by_time(since_ms, dispatched=dispatched))
            end = min(int(reader.max_offset(dispatched)), at + RECORDS_MAX)
        while at < end:
            with self._queues.glance(STATE_TOPIC, STATE_QUEUE) as reader:
                units = reader.units(QueueOffset(at), min(RECORDS_AT_ONCE, end - at), dispatched)
                at = at + len(units) if units else min(end, int(reader.roll_next(at)))
            for unit in units:
                stored = self._log.record(PhysicalOffset(unit.physical_offset), dispatched)
                if stored is not None:
                    _note(stored, offsets, delayed, history)
            await asyncio.sleep(0)  # other tasks run between two batches
        return history


def _note(
    stored: Record,
    offsets: Collection[GroupQueue],
    delayed: Collection[Delayed],
    history: StateHistory,
) -> None:
    """Add the moves and cancellations of one state record."""
    try:
        state_record = records.decode(stored.body)
    except StateRecordUnreadable:
        return  # replay reports the damage; a trace goes on without the record
    at_ms = stored.store_timestamp_ms
    match state_record:
        case OffsetsRecord(_, moves):
            moved = {
                (group, queue): offset
                for group, queue in offsets
                if (offset := moves.get(group, {}).get(queue)) is not None
            }
            if moved:
                history.moves.append((at_ms, moved))
        case DelayRecord():
            for each in delayed:
                if each in state_record.cancelled:
                    history.cancelled.setdefault(each, at_ms)
