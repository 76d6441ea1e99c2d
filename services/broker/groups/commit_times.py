"""When groups committed: read from the state records, which carry every offset that moved.

A record holds what moved within a tenth of a second, so its store time is that of the commits in
it. Only so many records are looked through: a commit long after the message was stored, or before
the oldest record there is, has no known time.
Before: ``trace`` asks. After: it says so of each commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state import records
from shared.state.records import (
    STATE_QUEUE,
    STATE_TOPIC,
    OffsetsRecord,
    Queue,
    StateRecordUnreadable,
)
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset

RECORDS_MAX: Final = 4096
"""State records that one question looks through: seven minutes of them if offsets always move."""
RECORDS_AT_ONCE: Final = 64

GroupQueue = tuple[str, Queue]
"""A group, and a queue that it reads."""


class CommitTimes:
    """Looks through the state records. One loop uses it."""

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLogReader,
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        self._queues = queues
        self._log = log
        self._dispatched = dispatched

    async def moves(
        self, since_ms: int, wanted: Collection[GroupQueue]
    ) -> list[tuple[int, dict[GroupQueue, int]]]:
        """How the offsets wanted moved since a time: (store time [ms], offsets), oldest first."""
        found: list[tuple[int, dict[GroupQueue, int]]] = []
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
                if stored is not None and (moved := _moved(stored, wanted)):
                    found.append((stored.store_timestamp_ms, moved))
            await asyncio.sleep(0)  # whoever waits for the loop goes first
        return found


def _moved(stored: Record, wanted: Collection[GroupQueue]) -> dict[GroupQueue, int]:
    """What a state record says of the offsets wanted."""
    try:
        state_record = records.decode(stored.body)
    except StateRecordUnreadable:
        return {}  # replay has named it; a trace goes on without
    if not isinstance(state_record, OffsetsRecord):
        return {}
    return {
        (group, queue): offset
        for group, queue in wanted
        if (offset := state_record.moves.get(group, {}).get(queue)) is not None
    }
