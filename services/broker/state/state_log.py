"""State records: appended like messages, and summarized by a snapshot at the start of a new file.

This module keeps its own copy of the *appended* state, durable or not: the snapshot at the start of
a commit log file must cover every record before it, flushed or not (``topics.StateLog`` describes
the failure that would follow otherwise). Consumer offsets and delay progress change many times a
second; their served values are read when a snapshot is taken. ``topics``, ``groups.configs``,
``groups.offsets`` and the delay decide on changes before this step. After it ``append`` writes the
records; at the next start ``state_replay`` reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.broker.log.append import Append, Appended
from services.broker.log.durability_barrier import DurabilityBarrier
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.snapshot_places import SnapshotPlaces
from shared.state import records
from shared.state.records import STATE_QUEUE, STATE_TOPIC, DelayState, NextOffset
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import FileNotReady, NotServing, StoreError, SwitchingOver
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue

log = logging.getLogger(__name__)

PART_SIZE_MAX: Final = 1 << 20
WHOLE_SHARE: Final = 4
"""A snapshot of up to 1/WHOLE_SHARE of a file is appended at once. A larger one is appended in
slices, and not in every file."""
RECORDS_MAX: Final = 20_000
"""State records after which a snapshot is appended inside a file: a start reads all records since
the last snapshot (about a second for this number). Ten offset records a second would otherwise
become millions within days in a large file."""
SLICE_RETRY_S: Final = 1.0


OffsetsNow = Callable[[], Mapping[str, Mapping[Queue, int]]]


class StateLog:
    """Appends state records and snapshots."""

    def __init__(
        self,
        state: BrokerState,
        queue_offsets: QueueOffsets,
        clock: Clock,
        host: Host,
        *,
        flushed: Callable[[], int],
        file_size: int,
        durable_end: Callable[[], int] | None = None,
        log_start: Callable[[], int] = lambda: 0,
    ) -> None:
        """state: as replayed; this object takes ownership. flushed: returns the flushed offset,
        which is stored in records. durable_end: returns the offset up to which no crash or
        failover loses records; by default the flushed offset. log_start: returns the log's min
        offset.
        """
        self._appended = state
        self._queue_offsets = queue_offsets
        self._clock = clock
        self._host = host
        self._flushed = flushed
        self._file_size = file_size
        self._durable_end = durable_end if durable_end is not None else flushed
        self._log_start = log_start
        self._files_to_skip = 0
        self._waits_for: str | None = None
        self._slices: deque[bytes] = deque()
        self._appending = asyncio.Lock()
        """Held while a slice or a snapshot is appended: it may wait for a file. Otherwise: 1. a
        take-over and ``run`` wait with the same slice; 2. both append it, and the next slice is
        dropped; 3. the snapshot counts as complete."""
        self._places = SnapshotPlaces(state.snapshot_at)
        self._records = 0
        self._due = False
        self._snapshots_served = True
        self._more = asyncio.Event()
        self._append: Append | None = None
        self._durability: DurabilityBarrier | None = None
        self._offsets_now: OffsetsNow = lambda: self._appended.offsets

    def delay_now(self) -> DelayState:
        """Return the delay progress; every message it counts as delivered has been appended."""
        return self._appended.delay

    def take_offsets_from(self, offsets_now: OffsetsNow) -> None:
        """Put these offsets into snapshots.

        offsets_now: returns the accepted consumer offsets; never lower than in a record appended
        before.
        """
        self._offsets_now = offsets_now

    def connect(self, append: Append, durability: DurabilityBarrier) -> None:
        """Set the destination of records; append requests snapshots from then on."""
        self._append, self._durability = append, durability

    @property
    def snapshot_start(self) -> PhysicalOffset | None:
        """Start of the newest snapshot that is complete and durable; None: there is none.

        Its file and all later files must be kept; earlier files may be deleted.
        """
        return self._places.newest(self._durable_end())

    @property
    def start_count(self) -> int:
        """Number of starts of this store with writes; includes this start once it is appended."""
        return self._appended.start_count

    # -- records ---------------------------------------------------------------------------------

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record and wait until it is durable; return the end of the record.

        It works even while sends are refused for lack of space. Raises what ``Append.append``
        raises, and NotServing if the node stops before the record is on disk.
        """
        end = await self.append_soon(body)
        await self.durable(end)
        return end

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """Append one state record; wait for the next file if necessary. Return the record's end.

        There is no await between the append and the caller's next statement. Raises like
        ``append_state``.
        """
        assert self._append is not None, "connected before anything is served"
        appended = await self._append.append([self._run([body])], own=True)
        # No await since the append: no other record can be appended in between.
        self._take(body)
        return appended.end

    def append_state_now(self, body: bytes) -> PhysicalOffset:
        """Append one state record without an await; return the end of the record.

        The record is not durable yet: see ``durable``. Raises what ``Append.append_now`` raises;
        after FileNotReady wait for ``file_made``.
        """
        end = self._append_now([body]).end
        self._take(body)
        return end

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        """Append records of offsets that ``offsets_now`` contains already; like
        ``append_state_now``, but without applying them to the state."""
        end = self._append_now(bodies).end
        self._count(len(bodies))
        return end

    async def file_made(self) -> None:
        """Wait until the file that an append found missing exists.

        Raises FileNotReady if that takes too long, or the error that prevents its creation.
        """
        assert self._append is not None
        await self._append.file_made()

    async def durable(self, end: PhysicalOffset) -> None:
        """Return when the log is on disk up to end. Raises NotServing if the node stops first."""
        assert self._durability is not None
        await self._durability.durable(end)

    def _append_now(self, bodies: Sequence[bytes]) -> Appended:
        assert self._append is not None, "connected before anything is served"
        return self._append.append_now([self._run(bodies)], own=True)

    def _take(self, body: bytes) -> None:
        self._appended.apply(records.decode(body))
        self._count(1)

    def _count(self, appended: int) -> None:
        self._records += appended
        if self._records >= RECORDS_MAX and not self._due:
            self._due = True
            self._more.set()

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> list[Run]:
        """Return the runs at the start of a new commit log file; called by the append step."""
        if self._slices:
            return []  # the previous snapshot is still being appended
        if self._files_to_skip:
            self._files_to_skip -= 1
            return []
        # It stays due until snapshot_placed: the append may have no room for the snapshot.
        self._due = True
        self._more.set()
        return [self._run(self._begin())]

    async def append_snapshot(self, state: BrokerState | None = None) -> PhysicalOffset:
        """Append a complete snapshot anywhere in a file; return its end, which is not durable yet.

        state: replaces the state, including offsets and delay progress; call it only while nothing
        else changes the state. Raises what ``append_state`` raises; an incomplete snapshot has no
        effect.
        """
        async with self._appending:
            return await self._append_whole(state)

    async def _append_whole(self, state: BrokerState | None = None) -> PhysicalOffset:
        if state is not None:
            self._appended, self._snapshots_served = state, False
        try:
            while True:
                await self._finish_slices()
                try:
                    end = self._snapshot_now()
                except FileNotReady:
                    await self.file_made()
                    continue
                last = await self._finish_slices()
                return end if last is None else last
        finally:
            self._snapshots_served = True

    async def run(self, stop: asyncio.Event) -> None:
        """Append the slices of large snapshots one by one, so that sends continue between them."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                await self._more.wait()
                self._more.clear()
                while (self._slices or self._due) and not stop.is_set():
                    await self._go_on(stop)
        finally:
            stopper.cancel()

    async def _go_on(self, stop: asyncio.Event) -> None:
        try:
            async with self._appending:
                if self._slices:
                    await self._append_slice()
                elif self._due:
                    await self._append_whole()
            self._waits_for = None
        except SwitchingOver:
            await asyncio.sleep(SLICE_RETRY_S)  # this node may remain the master
        except NotServing:
            self._forget_slices()  # the node stops; an incomplete snapshot has no effect
            await stop.wait()
        except StoreError as error:
            if self._waits_for != error.code:  # log the same error only once
                self._waits_for = error.code
                log.warning(
                    "a part of a snapshot waits for space",
                    extra={"event": "snapshot-waits", "code": error.code},
                )
            await asyncio.sleep(SLICE_RETRY_S)

    def _snapshot_now(self) -> PhysicalOffset:
        """Append a snapshot of the current state, or its first part if it is large."""
        bodies = self._bodies()
        # The other parts of a large snapshot become slices, as at the start of a new file.
        at_once = bodies if self._fits(bodies) else bodies[:1]
        appended = self._append_now(at_once)
        if not self._slices:
            # Slices exist if the append opened a new file, which began with the same snapshot.
            self._slices.extend(bodies[len(at_once) :])
            self.snapshot_placed(appended.start, appended.end - appended.start)
        return appended.end

    def _begin(self) -> list[bytes]:
        """Return the bodies to append now; the others become slices."""
        bodies = self._bodies()
        if not self._fits(bodies):
            self._files_to_skip = sum(map(len, bodies)) // (self._file_size // WHOLE_SHARE)
            self._slices.extend(bodies[1:])
            self._more.set()
            del bodies[1:]
        return bodies

    def _fits(self, bodies: Sequence[bytes]) -> bool:
        return sum(map(len, bodies)) <= self._file_size // WHOLE_SHARE

    def _bodies(self) -> list[bytes]:
        return self._appended.snapshot_records(
            self._flushed(),
            min(PART_SIZE_MAX, self._file_size // 16),
            next_offsets=[
                NextOffset(topic, queue, offset)
                for (topic, queue), offset in sorted(self._queue_offsets.items())
            ],
            offsets=self._offsets_now() if self._snapshots_served else None,
            delay=self.delay_now() if self._snapshots_served else None,
            foreign_from=self._log_start(),
        )

    def snapshot_placed(self, start: PhysicalOffset, size: int) -> None:
        """Record that a snapshot, or its first part, is in the log."""
        self._due, self._records = False, 0
        self._places.begin(start)
        if not self._slices:
            self._places.complete(start + size)

    async def _finish_slices(self) -> PhysicalOffset | None:
        """Append the remaining slices of a snapshot; return its end; None if none is left."""
        end = None
        while self._slices:
            end = await self._append_slice()
        return end

    async def _append_slice(self) -> PhysicalOffset | None:
        assert self._append is not None
        if not self._places.begun:
            # The append that requested this snapshot had no room for its first part.
            self._forget_slices()
            self._due = True
            return None
        appended = await self._append.append([self._run([self._slices[0]])], own=True)
        self._slices.popleft()
        if not self._slices:
            self._places.complete(appended.end)
        return appended.end

    def _forget_slices(self) -> None:
        self._slices.clear()
        self._places.abandon()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._more.set()

    def _run(self, bodies: Sequence[bytes]) -> Run:
        """Make one run of state records."""
        return Run(
            STATE_TOPIC,
            STATE_QUEUE,
            batch.encode(map(WireMessage, bodies)),
            len(bodies),
            self._host,
            self._host,
            self._clock.wall_ms(),
        )
