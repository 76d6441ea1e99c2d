"""Consumer offsets: the position of each group, served at once and in the log a moment later.

An accepted offset is served from that step of the loop on. The log gets at most one record per
``WINDOW_S`` with all offsets that moved, the first one at once. A SIGKILL loses the moves of the
last window, so a commit reports ``accepted`` unless it waits for ``durable``.

The offsets are those of the served ``BrokerState``. A snapshot reads them here, so that it is never
older than a record before it. An offset can go back, by a reset.
Step before: ``fetch`` and commits, reset. Step after: ``state_log``; ``config_files`` writes them
for RocketMQ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from shared.state import records
from shared.state.records import OffsetsRecord
from shared.state.state import BrokerState
from tidemark.errors import FileNotReady, NotServing, Overloaded, StoreError
from tidemark.offsets import PhysicalOffset, Queue

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.1
RETRY_S: Final = 1.0
"""Interval of attempts while the disk refuses writes."""
PAIRS_MAX: Final = 2_000_000
"""Bound of the offsets of all groups: each takes 200 bytes of memory and 30 of each snapshot."""
RECORD_SIZE_MAX: Final = 128 << 10
"""Approximate size of a record; only one step's moves can exceed it."""
STEP_SIZE_MAX: Final = 1 << 20
"""Bytes of the records of one step of the loop; then other tasks run."""
_PAIR_SIZE: Final = 15
"""Maximum size of a queue and its offset in a record."""

_NONE: Final[Mapping[Queue, int]] = MappingProxyType({})


class OffsetsLog(Protocol):
    """The writer of state records (implemented by ``state_log.StateLog``)."""

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        """Append in this step of the loop; return the physical offset after the last record."""
        ...

    async def file_made(self) -> None:
        """Wait for the file that an append found missing."""
        ...

    async def durable(self, end: PhysicalOffset) -> None:
        """Return when the log is on disk up to end."""
        ...


class Offsets:
    """The offsets of all groups. Belongs to one loop."""

    def __init__(
        self,
        state: BrokerState,
        state_log: OffsetsLog,
        *,
        flushed: Callable[[], int],
        pairs_max: int = PAIRS_MAX,
    ) -> None:
        """state: the served state; only this object changes the offsets in it.

        flushed: the durable mark that records carry. pairs_max: bound of the offsets of all groups.
        """
        self._state = state
        self._log = state_log
        self._flushed = flushed
        self._pairs_max = pairs_max
        self._pairs = 0
        self._moved: dict[str, dict[Queue, int]] = {}
        """Moves that are not in the log yet."""
        self._end = PhysicalOffset(0)
        """Physical offset after the last record."""
        self._written: asyncio.Future[None] | None = None
        """Callers that wait until all moves are in the log."""
        self._dirty = asyncio.Event()
        self._failing: str | None = None
        self._finished = False
        self.changes = 0
        """Grows with every change, so that a copy can be checked for its age."""
        self._moved_groups: set[str] = set()
        """See ``take_moved``."""
        self.recount()

    def recount(self) -> None:
        """Count the offsets of the state again after they were replaced as a whole."""
        self._pairs = sum(map(len, self._state.offsets.values()))
        self.changes += 1
        self._moved_groups.update(self._state.offsets)

    # -- asking ----------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Return the next queue offset to consume; None if the group committed none."""
        return self._state.offsets.get(group, _NONE).get((topic, queue))

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """Return (topic, queue) → next queue offset to consume: a view, to be read before an
        await."""
        return self._state.offsets.get(group, _NONE)

    def groups(self) -> Collection[str]:
        """Return the groups with a committed offset: a view, to be read before an await."""
        return self._state.offsets.keys()

    def now(self) -> Mapping[str, Mapping[Queue, int]]:
        """Return all offsets for a snapshot: a view, to be read before an await."""
        return self._state.offsets

    def take_moved(self) -> Collection[str]:
        """Return the groups whose offsets have changed since the last call; for one caller."""
        moved, self._moved_groups = self._moved_groups, set()
        return moved

    # -- changing --------------------------------------------------------------------------------

    def accept(self, group: str, moves: Mapping[Queue, int]) -> None:
        """Accept new offsets of a group: served at once, in the log within the window.

        All are accepted or none. The caller has checked group, queues and ends. Raises Overloaded.
        """
        known = self._state.offsets.get(group, _NONE)
        moved = {queue: offset for queue, offset in moves.items() if known.get(queue) != offset}
        if not moved:
            return
        new = len(moved.keys() - known.keys())
        if self._pairs + new > self._pairs_max:
            raise Overloaded(
                f"the groups' offsets of {self._pairs} queues are kept, {self._pairs_max} is the "
                "limit. Nothing was committed.",
                "Delete unused groups.",
                limit=self._pairs_max,
            )
        self._pairs += new
        self._state.offsets.setdefault(group, {}).update(moved)
        self._moved.setdefault(group, {}).update(moved)
        self.changes += 1
        self._moved_groups.add(group)
        self._dirty.set()

    def remove_group(self, group: str) -> None:
        """Forget a group's offsets, in the step in which the record of its deletion is appended.

        Otherwise: 1. the deletion is appended; 2. earlier moves are written after it; 3. after the
        next start a new group of that name begins in the middle.
        """
        self._pairs -= len(self._state.offsets.pop(group, _NONE))
        self._moved.pop(group, None)
        self.changes += 1
        self._moved_groups.add(group)

    async def durable(self) -> None:
        """Return when everything accepted so far is on disk.

        Raises the error that keeps the offsets from being written, such as DiskFull, and NotServing
        if the node stops first. The offsets are served nevertheless, and written when possible.
        """
        if self._moved and self._finished:
            # A request that is still running while the node stops: the writer has ended.
            if not await self._try_to_write():
                raise NotServing(
                    "the node is stopping. The offsets are not on disk.", "Commit them again."
                )
        elif self._moved:
            if self._written is None:
                self._written = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._written)
        await self._log.durable(self._end)

    # -- writing ---------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Write moves until stop, then the rest."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                await self._dirty.wait()
                self._dirty.clear()
                failed = not await self._try_to_write()
                if failed:
                    self._dirty.set()
                await _pause(stop, RETRY_S if failed else WINDOW_S)
        finally:
            stopper.cancel()
        await self.finish()

    async def finish(self) -> None:
        """Write the rest because the node stops. Call it before appending ends."""
        self._finished = True
        if self._moved and not await self._try_to_write():
            log.warning(
                "the last commits of groups could not be written: their messages are redelivered",
                extra={
                    "event": "offsets-not-written",
                    "code": self._failing,
                    "queues": sum(map(len, self._moved.values())),
                },
            )

    async def _try_to_write(self) -> bool:
        try:
            await self._write()
        except StoreError as error:
            self._note_failure(error.code)
            self._release(error)
            return False
        except NotServing as error:
            self._failing = error.code
            self._release(error)
            return False
        self._failing = None
        self._release(None)
        return True

    async def _write(self) -> None:
        """Append all moves. The offsets are read in the step that appends them.

        Otherwise: 1. a record is made; 2. it waits for a file, and a commit comes in; 3. the file
        begins with a snapshot that has the commit; 4. the record follows and takes it back.
        """
        while self._moved:
            bodies, rest = encoded(self._moved, self._flushed())
            try:
                self._end = self._log.append_offsets_now(bodies)
            except FileNotReady:
                await self._log.file_made()
                continue
            self._moved = rest
            if rest:
                await asyncio.sleep(0)  # other tasks run in between

    def _note_failure(self, code: str) -> None:
        if self._failing != code:
            self._failing = code
            log.warning(
                "consumer offsets wait for a disk that takes writes; they are served",
                extra={"event": "offsets-wait", "code": code},
            )

    def _release(self, error: Exception | None) -> None:
        written, self._written = self._written, None
        if written is None or written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
            written.exception()  # retrieved, in case no caller waits any more

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._dirty.set()


def encoded(
    moved: Mapping[str, Mapping[Queue, int]], flushed: int
) -> tuple[list[bytes], dict[str, dict[Queue, int]]]:
    """Return the records of one step for these moves, and the moves left for the next step."""
    bodies: list[bytes] = []
    now: dict[str, dict[Queue, int]] = {}
    rest: dict[str, dict[Queue, int]] = {}
    total = size = 0
    for group, queue, offset in _flat(moved):
        if total >= STEP_SIZE_MAX:
            rest.setdefault(group, {})[queue] = offset
            continue
        if size >= RECORD_SIZE_MAX:
            bodies.append(records.encode(OffsetsRecord(flushed, now)))
            now, size = {}, 0
        now.setdefault(group, {})[queue] = offset
        # An upper estimate: a record has the names once per group and topic.
        pair = len(group) + len(queue[0]) + _PAIR_SIZE
        size += pair
        total += pair
    bodies.append(records.encode(OffsetsRecord(flushed, now)))
    return bodies, rest


def _flat(moved: Mapping[str, Mapping[Queue, int]]) -> Iterator[tuple[str, Queue, int]]:
    for group, queues in moved.items():
        for queue, offset in queues.items():
            yield group, queue, offset


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
