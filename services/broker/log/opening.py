"""What is appended before a node opens for sends: what RocketMQ did, and that there was a start.

1. What RocketMQ left in its JSON files becomes the state, with one snapshot: half of a take-over
   does not count.
2. A range of the log that RocketMQ wrote is recorded, so that it is known even without the
   checkpoint: record CRC properties are not judged there.
3. The start is recorded: generations of groups begin with its number, so that one of before never
   fits.

On a disk that takes no writes it is tried until it does: sends and groups stay shut so long, reads
do not. Before: ``serving`` has replayed the state. After: the gate opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

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

ALONE: Final = 0
"""Epoch in the records of a node alone."""


class AdoptingTopics(Protocol):
    """What takes topics over (``topics.Topics``)."""

    def adopt(self, state: BrokerState, foreign: Iterable[TopicConfig]) -> int:
        """Make a state's topics those; how many that changes."""
        ...


class OpeningLog(Protocol):
    """Where the records go (``state_log.StateLog``)."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append a record, durable on return."""
        ...

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """Append a record, not durable yet."""
        ...

    async def append_snapshot(self, state: BrokerState | None = None) -> PhysicalOffset:
        """Append a snapshot of that state."""
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
        epoch: int = ALONE,
        on_recorded: Callable[[PhysicalOffset], None] | None = None,
    ) -> None:
        """state: as served. foreign: what recovery says that RocketMQ wrote; None: nothing.
        epoch: that this start of a master opens. on_recorded: called in the step in which the
        record of the start is appended, with its end; None: the record is waited for.
        """
        self._epoch = epoch
        self._on_recorded = on_recorded
        self._state = state
        self._log = state_log
        self._files = files
        self._topics = topics
        self._offsets = offsets
        self._flushed = flushed
        self._foreign = foreign
        self._waits_for: str | None = None
        """Code of what the disk answers, while it takes no writes."""

    async def run(self, stop: asyncio.Event) -> bool:
        """Append them and write the JSON files; False if stopped before. Durable on return, but for
        the record of a master's start: the group confirms that later."""
        left = await self._files.read_foreign(state_known=self._state.is_known)
        steps: tuple[Callable[[], Awaitable[bool]], ...] = (
            self._record_range,
            lambda: self._take_over(left),
            self._begin_files,
            # While the files are RocketMQ's, a restart would take them over again and undo what is
            # changed from here on.
            self._files.write_all if any_left(left) else _nothing,
            self._files.opened,
            self._record_start,
        )
        for step in steps:
            while not await self._tried(step):
                await _pause(stop)
                if stop.is_set():
                    return False
        return True

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
        if not any_left(left):
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
        # Also if it changes nothing: files that RocketMQ began have no snapshot.
        await self._log.durable(await self._log.append_snapshot(state.copy()))
        self._state.become(state)
        self._offsets.recount()
        self._files.topics_changed()
        self._files.groups_changed()
        log.info(
            "state taken over from RocketMQ",
            extra={"event": "state-taken-over", **changed},
        )
        return True

    async def _begin_files(self) -> bool:
        self._files.begin()
        return True

    async def _record_start(self) -> bool:
        record = EpochRecord(self._flushed(), self._epoch, self._state.start_count + 1)
        if self._on_recorded is None:
            await self._log.append_state(records.encode(record))
        else:
            self._on_recorded(await self._log.append_soon(records.encode(record)))
        self._state.apply(record)
        return True


def any_left(left: ForeignTables) -> bool:
    """Whether RocketMQ wrote any of the files."""
    return any(table is not None for table in left)


async def _nothing() -> bool:
    return True


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await stop.wait()
    except TimeoutError:
        return
