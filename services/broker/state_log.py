"""State records: appended like messages, replayed at start, summed up at the start of a new file.

Keeps its own copy of the state as *appended*, durable or not: the snapshot that a new commit log
file begins with must say what every record before it says, flushed or not (``topics.StateLog``
tells the story of what happens otherwise). Before: ``topics`` decides on a change. After:
``append``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from services.broker.append import Append
from services.broker.flusher import Flusher
from services.broker.queue_offsets import QueueOffsets
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state import records
from shared.state.records import (
    STATE_QUEUE,
    STATE_TOPIC,
    NextOffset,
    OtherRecord,
    SnapshotPart,
    StateRecord,
    StateRecordUnreadable,
)
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import DamagedFile, NotServing, StoreError, UnreadableState
from tidemark.formats import batch, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

log = logging.getLogger(__name__)

PART_SIZE_MAX: Final = 1 << 20
WHOLE_SHARE: Final = 4
"""A snapshot of up to a quarter of a file goes in at once; a larger one in slices, more rarely."""
READ_AT_ONCE: Final = 256
SLICE_RETRY_S: Final = 1.0


class StateLog:
    """Appends state records; provides the snapshots."""

    def __init__(
        self,
        state: BrokerState,
        queue_offsets: QueueOffsets,
        clock: Clock,
        host: Host,
        *,
        flushed: Callable[[], int],
        file_size: int,
    ) -> None:
        """state: as replayed; this object takes it over. flushed: the durable mark of records."""
        self._appended = state
        self._queue_offsets = queue_offsets
        self._clock = clock
        self._host = host
        self._flushed = flushed
        self._file_size = file_size
        self._files_to_skip = 0
        self._slices: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._append: Append | None = None
        self._flusher: Flusher | None = None

    def connect(self, append: Append, flusher: Flusher) -> None:
        """Tell where records go; append asks for snapshots from then on."""
        self._append, self._flusher = append, flusher

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record, durable on return; the physical offset behind it.

        Goes on while sends are refused for lack of space. Raises what ``Append.append`` raises, and
        NotServing if the node stops before the record is on disk.
        """
        assert self._append is not None, "connected before anything is served"
        assert self._flusher is not None
        appended = await self._append.append([self._run([body])], own=True)
        # Still the same step of the loop as the append: no other record can come in between.
        self._appended.apply(records.decode(body))
        await self._flusher.durable(appended.end)
        return appended.end

    def snapshot(self) -> list[Run]:
        """The runs that a new commit log file begins with; called inside the append step."""
        if self._slices:
            return []  # the last snapshot is still going out
        if self._files_to_skip:
            self._files_to_skip -= 1
            return []
        bodies = self._appended.snapshot_records(
            self._flushed(),
            min(PART_SIZE_MAX, self._file_size // 16),
            next_offsets=[
                NextOffset(topic, queue, offset)
                for (topic, queue), offset in sorted(self._queue_offsets.items())
            ],
        )
        room = self._file_size // WHOLE_SHARE
        total = sum(map(len, bodies))
        if total > room:
            self._files_to_skip = total // room
            self._slices.extend(bodies[1:])
            self._more.set()
            del bodies[1:]
        return [self._run(bodies)]

    async def run(self, stop: asyncio.Event) -> None:
        """Append the slices of large snapshots one by one, so that sends go on between them."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                await self._more.wait()
                self._more.clear()
                while self._slices and not stop.is_set():
                    await self._append_slice()
        finally:
            stopper.cancel()

    async def _append_slice(self) -> None:
        assert self._append is not None
        try:
            await self._append.append([self._run([self._slices[0]])], own=True)
        except NotServing:
            self._slices.clear()  # the node stops; a snapshot without its end does not count
        except StoreError as error:
            log.warning(
                "a part of a snapshot waits for space",
                extra={"event": "snapshot-waits", "code": error.code},
            )
            await asyncio.sleep(SLICE_RETRY_S)
        else:
            self._slices.popleft()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._more.set()

    def _run(self, bodies: Sequence[bytes]) -> Run:
        """State records, adjacent and in order."""
        return Run(
            STATE_TOPIC,
            STATE_QUEUE,
            batch.encode(map(WireMessage, bodies)),
            len(bodies),
            self._host,
            self._host,
            self._clock.wall_ms(),
        )


def replay(
    queues: ConsumeQueues, reader: CommitLogReader, dispatched: PhysicalOffset
) -> BrokerState:
    """The state that the log's records add up to, up to ``dispatched``. Blocks.

    Reads the state queue backwards to its newest whole snapshot, and applies from there: how much
    state there ever was does not matter. Raises CorruptRecord, DamagedFile.
    """
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    first = queue.min_offset(reader.min_offset)
    wanted: deque[StateRecord] = deque()
    missing: int | None = None
    end = int(queue.max_offset(dispatched))
    while end > first and missing != 0:
        start = max(first, end - READ_AT_ONCE)
        for state_record in reversed(_read(queues, reader, start, end, dispatched)):
            wanted.appendleft(state_record)
            missing = _missing_after(state_record, missing)
            if missing == 0:
                break
        end = start
    state = BrokerState()
    for state_record in wanted:
        state.apply(state_record)
    return state


def _missing_after(state_record: StateRecord, missing: int | None) -> int | None:
    """How many parts of the snapshot being looked for are still to come; None: none was met."""
    if not isinstance(state_record, SnapshotPart):
        return missing
    if missing is None or state_record.part != missing - 1:
        # The last part of some snapshot; or of another than the one begun, which is no whole one.
        is_last = state_record.part == state_record.parts - 1
        return state_record.part if is_last else None
    return state_record.part


def _read(
    queues: ConsumeQueues,
    reader: CommitLogReader,
    start: int,
    end: int,
    dispatched: PhysicalOffset,
) -> Sequence[StateRecord]:
    """The state records with queue offsets [start, end), in order."""
    queue = queues.get(STATE_TOPIC, STATE_QUEUE)
    found: list[StateRecord] = []
    at = start
    while at < end:
        units = queue.units(at, end - at, dispatched)
        if not units:
            at = min(end, queue.roll_next(at))  # a queue file that is gone
            continue
        for queue_offset, unit in enumerate(units, at):
            stored = reader.record(PhysicalOffset(unit.physical_offset), dispatched)
            if stored is not None:
                found.append(_decoded(stored, queue_offset))
        at += len(units)
    return found


def _decoded(stored: record.Record, queue_offset: int) -> StateRecord:
    """The state record that a unit points to.

    A body that is none changes nothing, like a kind of a later version: its bytes are those that
    were written, so no disk is to blame, and to refuse the whole log for it would keep back every
    message. Topics and queue offsets that it might have told are also known from the queues.
    """
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
    try:
        return records.decode(stored.body)
    except StateRecordUnreadable as error:
        passed_over = UnreadableState(
            f"the state record at physical offset {stored.physical_offset}, queue offset "
            f"{queue_offset} of {STATE_TOPIC}, cannot be read: {error}. It was passed over.",
            "See whether topics and their settings are as they should be.",
        )
        log.error(
            "%s",
            passed_over.detail,
            extra={
                "event": UnreadableState.code,
                "code": UnreadableState.code,
                "at": stored.physical_offset,
                "queue_offset": queue_offset,
                "advice": passed_over.advice,
            },
        )
        return OtherRecord(0, UnreadableState.code, records.VERSION)


def next_offsets(recovered: dict[tuple[str, int], QueueOffset], state: BrokerState) -> QueueOffsets:
    """The table to start with: the larger of what recovery and the newest snapshot know."""
    table = QueueOffsets(recovered)
    for queue, offset in state.next_queue_offsets.items():
        table.raise_to(queue, QueueOffset(offset))
    return table
