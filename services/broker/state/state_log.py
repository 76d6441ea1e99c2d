"""State records: appended like messages, summed up at the start of a new file.

Keeps its own copy of the state as *appended*, durable or not: the snapshot that a new commit log
file begins with must say what every record before it says, flushed or not (``topics.StateLog``
tells the story of what happens otherwise). Consumer offsets and delay progress move many times a
second; those are asked for when a snapshot is taken, as they are served then.
Before: ``topics``, ``groups.configs``, ``groups.offsets`` and the delay decide on a change. After:
``append``; at the next start ``state_replay``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.broker.log.append import Append, Appended
from services.broker.log.lasting import Lasting
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.snapshot_places import SnapshotPlaces
from shared.state import records
from shared.state.records import STATE_QUEUE, STATE_TOPIC, DelayState, NextOffset
from shared.state.records import Queue as TopicQueue
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import FileNotReady, NotServing, StoreError, SwitchingOver
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

PART_SIZE_MAX: Final = 1 << 20
WHOLE_SHARE: Final = 4
"""A snapshot of up to a quarter of a file goes in at once; a larger one in slices, more rarely."""
RECORDS_MAX: Final = 20_000
"""State records until there is a snapshot inside a file: a start reads them all (about a second).
Offsets that move all day fill a large file with ten records a second, in a few days with millions.
"""
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
        lasting: Callable[[], int] | None = None,
        log_start: Callable[[], int] = lambda: 0,
    ) -> None:
        """state: as replayed; this object takes it over. flushed: the durable mark of records.

        lasting: end of what no crash and no failover takes back; by default the same. log_start:
        the log's smallest physical offset.
        """
        self._appended = state
        self._queue_offsets = queue_offsets
        self._clock = clock
        self._host = host
        self._flushed = flushed
        self._file_size = file_size
        self._lasting_end = lasting if lasting is not None else flushed
        self._log_start = log_start
        self._files_to_skip = 0
        self._waits_for: str | None = None
        self._slices: deque[bytes] = deque()
        self._places = SnapshotPlaces(state.snapshot_at)
        self._records = 0
        self._due = False
        self._tells_served = True
        self._more = asyncio.Event()
        self._append: Append | None = None
        self._lasting: Lasting | None = None
        self.offsets_now: Callable[[], Mapping[str, Mapping[TopicQueue, int]]] = lambda: (
            self._appended.offsets
        )
        """Consumer offsets as accepted: never less far than a record appended before says."""
        self.delay_now: Callable[[], DelayState] = lambda: self._appended.delay
        """Delay progress: whatever it says is delivered has been appended."""

    def connect(self, append: Append, lasting: Lasting) -> None:
        """Tell where records go; append asks for snapshots from then on."""
        self._append, self._lasting = append, lasting

    @property
    def snapshot_start(self) -> PhysicalOffset | None:
        """Where the newest snapshot that is whole and lasts begins; None: there is none.

        The file that holds it must stay, and all behind it: what is before can go.
        """
        return self._places.newest(self._lasting_end())

    @property
    def start_count(self) -> int:
        """Starts of this store that took writes, the current one included once it is appended."""
        return self._appended.start_count

    # -- records ---------------------------------------------------------------------------------

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record, durable on return; the physical offset behind it.

        Goes on while sends are refused for lack of space. Raises what ``Append.append`` raises, and
        NotServing if the node stops before the record is on disk.
        """
        end = await self.append_soon(body)
        await self.durable(end)
        return end

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """``append_state_now``, after waiting for a file if one has to be made.

        The caller goes on in the same step of the loop as the append. Raises like ``append_state``.
        """
        assert self._append is not None, "connected before anything is served"
        appended = await self._append.append([self._run([body])], own=True)
        # Still the same step of the loop as the append: no other record can come in between.
        self._take(body)
        return appended.end

    def append_state_now(self, body: bytes) -> PhysicalOffset:
        """Append one state record in this step of the loop; the physical offset behind it.

        Not durable yet: see ``durable``. Raises what ``Append.append_now`` raises; FileNotReady
        means that ``file_made`` is to be waited for.
        """
        end = self._append_now([body]).end
        self._take(body)
        return end

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        """``append_state_now`` of records that say nothing but what ``offsets_now`` says."""
        end = self._append_now(bodies).end
        self._count(len(bodies))
        return end

    async def file_made(self) -> None:
        """Wait, for a while, until the file that an append found missing is there.

        Raises FileNotReady if that takes too long, or why it cannot be made.
        """
        assert self._append is not None
        await self._append.file_made()

    async def durable(self, end: PhysicalOffset) -> None:
        """Return when the log is on disk up to end. Raises NotServing if the node stops before."""
        assert self._lasting is not None
        await self._lasting.durable(end)

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
        """The runs that a new commit log file begins with; called inside the append step."""
        if self._slices:
            return []  # the last snapshot is still going out
        if self._files_to_skip:
            self._files_to_skip -= 1
            return []
        # Until it is known to be in the log: the append may turn out to leave no room for it.
        self._due = True
        self._more.set()
        return [self._run(self._begin())]

    async def append_snapshot(self, state: BrokerState | None = None) -> PhysicalOffset:
        """Append a whole snapshot, wherever in a file; the physical offset behind it, not durable.

        state: to be the state from now on, whatever the records before say, offsets and delay
        progress included; to be called while nothing else is changed. Raises what ``append_state``
        raises; a snapshot without its end does not count.
        """
        if state is not None:
            self._appended, self._tells_served = state, False
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
            self._tells_served = True

    async def run(self, stop: asyncio.Event) -> None:
        """Append the slices of large snapshots one by one, so that sends go on between them."""
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
            if self._slices:
                await self._append_slice()
            else:
                await self.append_snapshot()
            self._waits_for = None
        except SwitchingOver:
            await asyncio.sleep(SLICE_RETRY_S)  # this node may stay the master after all
        except NotServing:
            self._forget_slices()  # the node stops; a snapshot without its end does not count
            await stop.wait()
        except StoreError as error:
            if self._waits_for != error.code:  # else it is the same at every try
                self._waits_for = error.code
                log.warning(
                    "a part of a snapshot waits for space",
                    extra={"event": "snapshot-waits", "code": error.code},
                )
            await asyncio.sleep(SLICE_RETRY_S)

    def _snapshot_now(self) -> PhysicalOffset:
        """Append the first part, or all, of a snapshot of this moment."""
        bodies = self._bodies()
        # Its first part alone if it is large; the others follow as those of a new file's do.
        at_once = bodies if self._fits(bodies) else bodies[:1]
        appended = self._append_now(at_once)
        if not self._slices:
            # Otherwise the append has opened a file, which began with the same snapshot.
            self._slices.extend(bodies[len(at_once) :])
            self.snapshot_placed(appended.start, appended.end - appended.start)
        return appended.end

    def _begin(self) -> list[bytes]:
        """The bodies that go in now; the others become slices."""
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
            offsets=self.offsets_now() if self._tells_served else None,
            delay=self.delay_now() if self._tells_served else None,
            foreign_from=self._log_start(),
        )

    def snapshot_placed(self, start: PhysicalOffset, size: int) -> None:
        """A snapshot, or its first part, is in the log."""
        self._due, self._records = False, 0
        self._places.begin(start)
        if not self._slices:
            self._places.complete(start + size)

    async def _finish_slices(self) -> PhysicalOffset | None:
        """Append what is left of a snapshot; the physical offset behind it."""
        end = None
        while self._slices:
            end = await self._append_slice()
        return end

    async def _append_slice(self) -> PhysicalOffset | None:
        assert self._append is not None
        if not self._places.begun:
            # The append that this snapshot was taken for left no room for its first part.
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
