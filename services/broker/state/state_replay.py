"""Replays the state at start from the log's state records. Blocks.

It searches the state queue backwards for the newest complete snapshot, and applies the records from
there on. So the time does not depend on the amount of old state, and only the state itself is kept
in memory. Reput dispatches the recovered log before this step; ``topics``, ``groups`` and
``state_log`` use the state after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.unit_checks import name_unit
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state import records
from shared.state.records import (
    STATE_QUEUE,
    STATE_TOPIC,
    OtherRecord,
    StateRecord,
    StateRecordUnreadable,
)
from shared.state.state import BrokerState
from tidemark.errors import CorruptRecord, DamagedFile, StoreError, UnreadableState
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset

log = logging.getLogger(__name__)

READ_AT_ONCE: Final = 256


def replay(
    queues: ConsumeQueues, reader: CommitLogReader, dispatched: PhysicalOffset, next_offset: int = 0
) -> BrokerState:
    """Return the state after all records up to ``dispatched``. Blocks.

    next_offset: the state queue's next offset if all its records are dispatched; 0: not known.
    Raises CorruptRecord, DamagedFile.
    """
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    end = int(queue.max_offset(dispatched))
    if end < next_offset:
        raise hidden_from(end)
    first = queue.min_offset(reader.min_offset)
    start = _snapshot_start(queues, reader, dispatched, first, end)
    state = BrokerState()
    for at in range(start, end, READ_AT_ONCE):
        for stored in read(queues, reader, at, min(end, at + READ_AT_ONCE), dispatched):
            state.apply(decoded(stored), stored.physical_offset)
    return state


def _snapshot_start(
    queues: ConsumeQueues,
    reader: CommitLogReader,
    dispatched: PhysicalOffset,
    first: int,
    end: int,
) -> int:
    """Return the queue offset of the newest complete snapshot in [first, end); first if none.

    The search goes backwards: it finds the last part of a snapshot first, and each further part
    must be the previous one of the same snapshot.
    """
    missing: int | None = None
    while end > first:
        start = max(first, end - READ_AT_ONCE)
        for stored in reversed(read(queues, reader, start, end, dispatched)):
            missing = _missing_after(records.part_of(stored.body), missing)
            if missing == 0:
                return stored.queue_offset
        end = start
    return first


def _missing_after(found: tuple[int, int] | None, missing: int | None) -> int | None:
    """Return the number of parts still missing in the backward search; None: none was found.

    found: part number and number of parts if the record is part of a snapshot, else None.
    """
    if found is None:
        return missing
    part, parts = found
    if missing is None or part != missing - 1:
        # A last part starts a new search. Any other part belongs to an incomplete snapshot.
        return part if part == parts - 1 else None
    return part


def read(
    queues: ConsumeQueues,
    reader: CommitLogReader,
    start: int,
    end: int,
    dispatched: PhysicalOffset,
) -> list[Record]:
    """Return the undecoded state records with queue offsets [start, end), in order.

    Raises CorruptRecord, DamagedFile."""
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    found: list[Record] = []
    at = start
    while at < end:
        units = queue.units(at, end - at, dispatched)
        if not units:
            at = min(end, queue.roll_next(at))  # skip a deleted queue file
            continue
        for queue_offset, unit in enumerate(units, at):
            try:
                stored = reader.record(PhysicalOffset(unit.physical_offset), dispatched)
                if stored is not None:
                    _check_place(stored, queue_offset)
                    found.append(stored)
                elif unit.physical_offset >= reader.min_offset:  # below: expired
                    raise DamagedFile(
                        f"unit {queue_offset} of queue {STATE_TOPIC}/{STATE_QUEUE} points to "
                        f"physical offset {unit.physical_offset}, where the log has no record. "
                        "The commit log is safe; nothing is served.",
                        "Reput makes the unit again; if it does not, stop the node and run "
                        "`tidemark store rebuild`.",
                        at=unit.physical_offset,
                    )
            except (CorruptRecord, DamagedFile) as error:
                raise name_unit(error, STATE_TOPIC, STATE_QUEUE, queue_offset) from None
        at += len(units)
    return found


def hidden_from(number: int) -> StoreError:
    """Return the error for a state queue that ends at ``number`` although the log has more."""
    error = DamagedFile(
        f"queue {STATE_TOPIC}/{STATE_QUEUE} ends at {number}, and the log has more of its records: "
        "the unit there is damaged and hides them. The commit log is safe; nothing is served.",
        "Reput makes the unit again; if it does not, stop the node and run "
        "`tidemark store rebuild`.",
    )
    return name_unit(error, STATE_TOPIC, STATE_QUEUE, number)


def _check_place(stored: Record, queue_offset: int) -> None:
    """Raise DamagedFile if a unit points to a record of another queue or queue offset."""
    if (stored.topic, stored.queue_id, stored.queue_offset) != (
        STATE_TOPIC,
        STATE_QUEUE,
        queue_offset,
    ):
        raise DamagedFile(
            f"unit {queue_offset} of queue {STATE_TOPIC}/{STATE_QUEUE} points to physical offset "
            f"{stored.physical_offset}, where {stored.topic}/{stored.queue_id} has its message "
            f"{stored.queue_offset}. The commit log is safe; nothing is served.",
            "Stop the node and run `tidemark store rebuild`.",
            at=stored.physical_offset,
        )


def decoded(stored: Record) -> StateRecord:
    """Decode a state record.

    An undecodable body is logged and has no effect, like a record kind of a later version. Its CRC
    is right, so the disk is not damaged, and refusing the whole log would make every message
    unavailable. Topics and queue offsets are also known from the queues.
    """
    try:
        return records.decode(stored.body)
    except StateRecordUnreadable as error:
        passed_over = UnreadableState(
            f"the state record at physical offset {stored.physical_offset}, queue offset "
            f"{stored.queue_offset} of {STATE_TOPIC}, cannot be read: {error}. It was passed over.",
            "See whether topics and their settings are as they should be.",
        )
        log.error(
            "%s",
            passed_over.detail,
            extra={
                "event": "state-record-unreadable",
                "code": UnreadableState.code,
                "offset": stored.physical_offset,
                "queue_offset": stored.queue_offset,
                "advice": passed_over.advice,
            },
        )
        return OtherRecord(0, UnreadableState.code, records.VERSION)


def next_offsets(
    recovered: Mapping[tuple[str, int], QueueOffset], state: BrokerState
) -> QueueOffsets:
    """Return the next queue offsets at start: the largest value from recovery, the newest snapshot
    and the records of topics."""
    table = QueueOffsets(recovered)
    for queue, offset in _offsets_of_state(state).items():
        table.raise_to(queue, QueueOffset(offset))
    return table


def expired_queues(
    recovered: Mapping[tuple[str, int], QueueOffset], state: BrokerState
) -> dict[tuple[str, int], int]:
    """Return the queues whose messages have all expired, with the next offset of each.

    Their next offsets are known only from the newest snapshot or the record of a deleted topic.
    Otherwise consumers would see such a queue as new: it would end at 0, below their committed
    offsets.
    """
    return {
        queue: offset
        for queue, offset in _offsets_of_state(state).items()
        if offset > recovered.get(queue, 0)
    }


def _offsets_of_state(state: BrokerState) -> dict[tuple[str, int], int]:
    """Return next queue offsets from the snapshot and from the records of topics.

    The queue files of a deleted topic are removed at a clean stop (``files.deleted_queues``), so
    its offsets are not known from them.
    """
    offsets = dict(state.next_queue_offsets)
    for topic in (*state.topics.values(), *state.deleted.values()):
        for queue, offset in topic.min_offsets.items():
            offsets[topic.name, queue] = max(offset, offsets.get((topic.name, queue), 0))
    return offsets
