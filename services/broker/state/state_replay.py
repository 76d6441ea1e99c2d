"""The state at start: what the log's records add up to. Blocks.

Reads the state queue backwards to its newest whole snapshot, and applies from there: how much state
there ever was does not matter, and nothing but the state itself is kept in memory.
Before: reput has dispatched the recovered log. After: ``topics``, ``groups`` and ``state_log``.
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
    """The state that the log's records add up to, up to ``dispatched``. Blocks.

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
    """Queue offset of the first part of the newest whole snapshot in [first, end); first if none.

    A part counts with those around it: looked for from behind, the last one of some snapshot comes
    first, and each further one must be the one before it.
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
    """How many parts of the snapshot being looked for are still to come; None: none was met.

    found: part and parts, if the next record is one of a snapshot.
    """
    if found is None:
        return missing
    part, parts = found
    if missing is None or part != missing - 1:
        # The last part of some snapshot; or of another than the one begun, which is no whole one.
        return part if part == parts - 1 else None
    return part


def read(
    queues: ConsumeQueues,
    reader: CommitLogReader,
    start: int,
    end: int,
    dispatched: PhysicalOffset,
) -> list[Record]:
    """The state records with queue offsets [start, end), in order, not decoded yet. Raises
    CorruptRecord, DamagedFile."""
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    found: list[Record] = []
    at = start
    while at < end:
        units = queue.units(at, end - at, dispatched)
        if not units:
            at = min(end, queue.roll_next(at))  # a queue file that is gone
            continue
        for queue_offset, unit in enumerate(units, at):
            try:
                stored = reader.record(PhysicalOffset(unit.physical_offset), dispatched)
                if stored is not None:
                    _check_place(stored, queue_offset)
                    found.append(stored)
                elif unit.physical_offset >= reader.min_offset:  # else it has expired
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
    """The error for a state queue that ends at ``number``, although the log has that record."""
    error = DamagedFile(
        f"queue {STATE_TOPIC}/{STATE_QUEUE} ends at {number}, and the log has more of its records: "
        "the unit there is damaged and hides them. The commit log is safe; nothing is served.",
        "Reput makes the unit again; if it does not, stop the node and run "
        "`tidemark store rebuild`.",
    )
    return name_unit(error, STATE_TOPIC, STATE_QUEUE, number)


def _check_place(stored: Record, queue_offset: int) -> None:
    """Raise DamagedFile if a unit points to another record than its own."""
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
    """What a state record says.

    A body that is none changes nothing, like a kind of a later version: its bytes are those that
    were written, so no disk is to blame, and to refuse the whole log for it would keep back every
    message. Topics and queue offsets that it might have told are also known from the queues.
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
    """The table to start with: the largest of what recovery, the newest snapshot and the records of
    topics know."""
    table = QueueOffsets(recovered)
    for queue, offset in _offsets_told(state).items():
        table.raise_to(queue, QueueOffset(offset))
    return table


def expired_queues(
    recovered: Mapping[tuple[str, int], QueueOffset], state: BrokerState
) -> dict[tuple[str, int], int]:
    """Queues that hold nothing any more, and the next offset of each.

    Only the newest snapshot, or the record of a topic that was deleted, tells of their messages.
    Without it such a queue would look new to its consumers: it would end at 0, below what they have
    committed.
    """
    return {
        queue: offset
        for queue, offset in _offsets_told(state).items()
        if offset > recovered.get(queue, 0)
    }


def _offsets_told(state: BrokerState) -> dict[tuple[str, int], int]:
    """Next queue offsets as the snapshot and the deletions of topics say.

    The queue files of a deleted topic go at an orderly stop (``files.deleted_queues``).
    """
    told = dict(state.next_queue_offsets)
    for topic in (*state.topics.values(), *state.deleted.values()):
        for queue, offset in topic.min_offsets.items():
            told[topic.name, queue] = max(offset, told.get((topic.name, queue), 0))
    return told
