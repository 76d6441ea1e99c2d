"""Appends the first records of a start, before the node accepts sends.

1. The state in RocketMQ's JSON files is taken over with one snapshot, so that a partial take-over
   has no effect.
2. A range of the log that RocketMQ wrote is recorded, so that it is known even without the
   checkpoint: record CRC properties are not checked there.
3. The *epoch record* records the start (``EpochRecord``): generations of groups begin with its
   number, so that a generation of an earlier start is never valid.

If the disk does not accept writes, the steps are retried until it does. Meanwhile sends and groups
are refused, and only a standalone node serves reads. Step before: the state was replayed. Step
after: the gate opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from services.broker.groups.offsets import Offsets
from services.broker.state import foreign_state
from services.broker.state.config_files import PAUSE_S, ConfigFiles
from shared.state import records
from shared.state.json_cache import ForeignTables
from shared.state.records import EpochRecord, ForeignRange, ForeignRecord, TopicConfig
from shared.state.state import BrokerState
from tidemark.errors import DiskFull, FileNotReady, OutOfResources, ReadOnlyDisk
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)


class AdoptingTopics(Protocol):
    """Takes over topics (implemented by ``topics.Topics``)."""

    def adopt(self, state: BrokerState, foreign: Iterable[TopicConfig]) -> int:
        """Put the topics into state; return how many topics that changes."""
        ...


class OpeningLog(Protocol):
    """Appends the records (implemented by ``state_log.StateLog``)."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append a record; it is durable on return."""
        ...

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """Append a record without waiting until it is durable."""
        ...

    async def append_snapshot(self, state: BrokerState | None = None) -> PhysicalOffset:
        """Append a snapshot of the given state."""
        ...

    async def durable(self, end: PhysicalOffset) -> None:
        """Return when the log is on disk up to end."""
        ...


class Opening:
    """The first records of one start."""

    def __init__(
        self,
        state: BrokerState,
        state_log: OpeningLog,
        files: ConfigFiles,
        topics: AdoptingTopics,
        offsets: Offsets,
        *,
        flushed: Callable[[], int],
        foreign: ForeignRange | None,
        epoch: int = 0,
    ) -> None:
        """state: the served state. foreign: range of the log that RocketMQ wrote, from recovery;
        None: there is none. epoch: the epoch that this start opens; 0: the node is alone.
        """
        self._epoch = epoch
        self._end: PhysicalOffset | None = None
        self._state = state
        self._log = state_log
        self._files = files
        self._topics = topics
        self._offsets = offsets
        self._flushed = flushed
        self._foreign = foreign
        self._waits_for: str | None = None
        """Error code of the disk while it does not accept writes."""

    async def run(self, stop: asyncio.Event) -> PhysicalOffset | None:
        """Append the records and write the JSON files; return the end of the epoch record, in the
        step in which it was appended, or None if stopped first.

        All records are durable on return except the epoch record."""
        left = await self._files.read_foreign(state_known=self._state.is_known)
        steps: tuple[Callable[[], Awaitable[bool]], ...] = (
            self._record_range,
            lambda: self._take_over(left),
            self._begin_files,
            # As long as the files are RocketMQ's, a restart would take them over again and undo all
            # later changes.
            self._files.write_all if any_left(left) else _nothing,
            self._files.opened,
            self._append_epoch_record,
        )
        for step in steps:
            while not await self._tried(step):
                await _pause(stop)
                if stop.is_set():
                    return None
        return self._end

    async def _tried(self, step: Callable[[], Awaitable[bool]]) -> bool:
        try:
            done = await step()
        except (DiskFull, ReadOnlyDisk, OutOfResources, FileNotReady) as error:
            if self._waits_for != error.code:
                self._waits_for = error.code
                log.warning(
                    "the first records of this start wait for a disk that takes writes",
                    extra={"event": "opening-waits", "code": error.code},
                )
            return False
        self._waits_for = None
        return done

    async def _record_range(self) -> bool:
        foreign = self._foreign
        known = self._state.foreign
        if foreign is not None and not any(
            each.start <= foreign.start and foreign.end <= each.end for each in known
        ):
            record = ForeignRecord(self._flushed(), foreign)
            await self._log.append_state(records.encode(record))
            self._state.apply(record)
            log.info(
                "RocketMQ wrote a part of the log",
                extra={
                    "event": "foreign-range",
                    "start_offset": foreign.start,
                    "end_offset": foreign.end,
                },
            )
        return True

    async def _take_over(self, left: ForeignTables) -> bool:
        # Log files of RocketMQ have no snapshot. A slave whose copy begins in them needs one.
        is_foreign = self._foreign is not None or bool(self._state.foreign)
        is_needed = is_foreign and not self._state.snapshots
        if not any_left(left) and not is_needed:
            return True
        state = self._state.copy()
        changed = {
            "topics": 0 if left.topics is None else self._topics.adopt(state, left.topics),
            "groups": 0 if left.groups is None else foreign_state.adopt_groups(state, left.groups),
            "offsets": 0
            if left.offsets is None
            else foreign_state.adopt_offsets(state, left.offsets),
            "levels": 0 if left.levels is None else foreign_state.adopt_levels(state, left.levels),
            "timer": left.timer is not None and foreign_state.adopt_timer(state, left.timer),
        }
        await self._log.durable(await self._log.append_snapshot(state.copy()))
        self._state.become(state)
        self._offsets.recount()
        self._files.topics_changed()
        self._files.groups_changed()
        if any_left(left):
            log.info(
                "state taken over from RocketMQ",
                extra={"event": "state-taken-over", **changed},
            )
        return True

    async def _begin_files(self) -> bool:
        self._files.begin()
        return True

    async def _append_epoch_record(self) -> bool:
        record = EpochRecord(self._flushed(), self._epoch, self._state.start_count + 1)
        self._end = await self._log.append_soon(records.encode(record))
        self._state.apply(record)
        return True


def any_left(left: ForeignTables) -> bool:
    """Return whether RocketMQ wrote any of the files."""
    return any(table is not None for table in left)


async def _nothing() -> bool:
    return True


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await stop.wait()
    except TimeoutError:
        return
