"""The JSON files in ``config/``: written for RocketMQ and people, read if RocketMQ wrote them.

They are caches; the log is authoritative. Topics and groups are written a second after a change;
offsets and delay progress, which change constantly, every five seconds. All are written once more
at the stop, for a RocketMQ broker that opens the store next. A slave also writes them, from the
state that it follows. A file without our key was written by RocketMQ; its content is taken over
before sends open (``opening``). A damaged file only causes a log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from services.broker.state.wheel_files import WheelFiles
from shared.files.store_dir import StoreDir
from shared.state import json_cache
from shared.state.json_cache import ForeignTables, JsonCache
from shared.state.records import (
    DelayState,
    GroupRecord,
    OffsetsRecord,
    StateRecord,
    TopicConfig,
    TopicRecord,
)
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import DamagedFile, StoreError
from tidemark.formats.metadata_json import Covered
from tidemark.offsets import Queue

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Changes within this time are written together; also the pause after a failure."""
OFFSETS_PAUSE_S: Final = 5.0
"""RocketMQ's interval for consumer offsets."""
WRITE_SHARE: Final = 20
"""Interval between two writes of a file, as a multiple of the time that a write takes."""
GROUPS_AT_ONCE: Final = 500
"""Groups copied without yielding to the event loop."""

T = TypeVar("T")


class ListedTopics(Protocol):
    """Lists the topics (implemented by ``topics.Topics``)."""

    def list(self, *, system: bool = False) -> list[TopicConfig]:
        """Return all topics; system: include RocketMQ's and our own system topics."""
        ...


class MovingOffsets(Protocol):
    """The consumer offsets (implemented by ``groups.offsets.Offsets``)."""

    changes: int

    def now(self) -> Mapping[str, Mapping[Queue, int]]:
        """Return a view of all consumer offsets."""
        ...


class _File:
    """The write schedule of one file."""

    def __init__(self, name: str, pause_s: float, version: Callable[[], object]) -> None:
        self.name = name
        self.pause_s = pause_s
        self.version = version
        self.written: object = None
        """Version of the written content. None at start: a killed node may have left an old file.
        """
        self.due_at = 0.0
        self.failing = False

    def is_due(self, now: float) -> bool:
        """Return whether the content has changed and the interval has passed."""
        return now >= self.due_at and self.version() != self.written


class _Writer(Protocol):
    """One of ``JsonCache``'s writers, with the content to write."""

    def __call__(self, *, covered: Covered, now_ms: int) -> object:
        """Replace the file. Blocks."""
        ...


class _Content(NamedTuple):
    """The content of a file to write."""

    is_any: bool
    """Whether the content is not empty."""
    write: _Writer


class ConfigFiles:
    """Keeps the files up to date with the state."""

    def __init__(
        self,
        store: StoreDir,
        state: BrokerState,
        topics: ListedTopics,
        offsets: MovingOffsets,
        delay_now: Callable[[], DelayState],
        clock: Clock,
        flushed: Callable[[], int],
        epoch: int = 0,
    ) -> None:
        """state: the served state. flushed: returns the end of the log that the state covers.
        epoch: the epoch in which it was written, in a group; a slave gets it by ``followed``.
        """
        self._epoch = epoch
        self._store = store
        self._cache = JsonCache(store.disk, store.config_dir)
        self._wheel = WheelFiles(store.disk, store.root, store.config_dir, clock)
        self._state = state
        self._topics = topics
        self._offsets = offsets
        self._delay_now = delay_now
        self._clock = clock
        self._flushed = flushed
        self._topic_changes = self._group_changes = self._offset_changes = 0
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._begun = False
        self._listed: list[TopicConfig] = []
        """Topics last written to the file of topics."""
        self._files = (
            _File(json_cache.TOPICS, PAUSE_S, lambda: self._topic_changes),
            _File(json_cache.GROUPS, PAUSE_S, lambda: self._group_changes),
            _File(
                json_cache.CONSUMER_OFFSETS,
                OFFSETS_PAUSE_S,
                lambda: offsets.changes + self._offset_changes,
            ),
            _File(json_cache.DELAY_OFFSETS, OFFSETS_PAUSE_S, lambda: dict(delay_now().levels)),
        )

    def topics_changed(self) -> None:
        """Record that a topic has changed."""
        self._topic_changes += 1
        self._wake.set()

    def groups_changed(self) -> None:
        """Record that a group has changed."""
        self._group_changes += 1
        self._wake.set()

    def begin(self) -> None:
        """Allow the files to be replaced, because RocketMQ's content is in the log.

        Nothing is written before this call, not even at a stop. Otherwise: 1. a node starts on a
        store that RocketMQ wrote; 2. the files are written from the log, without RocketMQ's topics;
        3. they are read and have our key, so nothing is taken over, and RocketMQ's topics are lost.
        """
        self._begun = True
        self._wake.set()

    async def begin_following(self, epoch: int) -> None:
        """Do the same as ``begin`` on a slave, but never replace files that RocketMQ wrote.

        They show that RocketMQ had the store, which matters if this node becomes the master."""
        self._epoch = epoch
        try:
            is_foreign = await asyncio.to_thread(lambda: self._cache.is_foreign)
        except DamagedFile:
            is_foreign = False
        if not is_foreign:
            # 1. RocketMQ is started on a slave's store, is refused, and rewrites the files; 2. the
            # slave becomes the master. The mark prevents it from taking over their content.
            await self.opened()
            self.begin()
            # The wheel files date from a time when this node was the master.
            await asyncio.to_thread(self._wheel.withdraw)

    def followed(self, changed: Collection[type[StateRecord]], epoch: int) -> None:
        """Record that records of these kinds arrived from the master of that epoch."""
        self._epoch = epoch
        if TopicRecord in changed:
            self.topics_changed()
        if GroupRecord in changed:
            self.groups_changed()
        if OffsetsRecord in changed or GroupRecord in changed:
            self._offset_changes += 1

    async def read_foreign(self, *, state_known: bool) -> ForeignTables:
        """Return RocketMQ's state if RocketMQ has used the store since Tidemark did.

        state_known: the log contains a state already (``JsonCache.read_foreign_topics``).
        """
        cache = self._cache

        def read() -> ForeignTables:
            tables = ForeignTables(
                _readable(lambda: cache.read_foreign_topics(state_known=state_known)),
                _readable(lambda: cache.read_foreign_groups(state_known=state_known)),
                _readable(lambda: cache.read_foreign_offsets(state_known=state_known)),
                _readable(lambda: cache.read_foreign_levels(state_known=state_known)),
            )
            wrote = any(table is not None for table in tables)
            # A RocketMQ broker that is killed within seconds has written only the timer's files.
            now_ms = self._clock.wall_ms()
            tables = tables._replace(
                timer=_readable(lambda: cache.read_timer(signed=not wrote, now_ms=now_ms))
            )
            if any(table is not None for table in tables) and self._store.is_opened:
                _warn_of_refused_broker()
                return ForeignTables()
            return tables

        return await asyncio.to_thread(read)

    async def run(self, stop: asyncio.Event) -> None:
        """Write changes, from ``begin`` until stop."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                if self._begun:
                    # Repeated, because a service that starts at the same time may replace the mark.
                    await self.opened()
                await self._write_due()
                await _wait(self._wake, OFFSETS_PAUSE_S)
                self._wake.clear()
                await _wait(stop, PAUSE_S)
        finally:
            stopper.cancel()

    async def opened(self) -> bool:
        """Mark the files as ours; return True."""
        await asyncio.to_thread(self._store.mark_opened)
        return True

    async def write_all(self) -> bool:
        """Write all changed files now; return whether no write failed."""
        async with self._writing:
            foreign = await asyncio.to_thread(
                lambda: [file for file in self._files if self._cache.is_replaced(file.name)]
            )
        if foreign:
            _warn_of_refused_broker()
        for file in self._files:
            file.due_at = 0.0
            if file in foreign:
                file.written = None
            if file.name == json_cache.TOPICS and self._topics.list(system=True) != self._listed:
                file.written = None  # the first message makes a system topic visible
        await self._write_due()
        return not any(file.failing for file in self._files)

    async def _write_due(self) -> None:
        if not self._begun:
            return
        async with self._writing:
            for file in self._files:
                started = self._clock.monotonic()
                if file.is_due(started):
                    await self._write(file)
                    took_s = self._clock.monotonic() - started
                    file.due_at = started + max(file.pause_s, WRITE_SHARE * took_s)

    async def _write(self, file: _File) -> None:
        version, now_ms = file.version(), self._clock.wall_ms()
        covered = Covered(self._epoch, self._flushed())
        content = await self._content(file.name)
        cache = self._cache

        def write() -> None:
            # Empty content creates no new file, but it replaces an existing one.
            if content.is_any or cache.exists(file.name):
                content.write(covered=covered, now_ms=now_ms)

        try:
            await asyncio.to_thread(write)
        except (StoreError, OSError) as error:
            if not file.failing:
                log.warning(
                    "a JSON file could not be written; the log has it all",
                    extra={
                        "event": "config-file-not-written",
                        "file": file.name,
                        "detail": str(error),
                    },
                )
            file.failing = True
        else:
            file.written, file.failing = version, False

    async def _content(self, name: str) -> _Content:
        """Return the content of the file as a copy of the served state."""
        cache = self._cache
        match name:
            case json_cache.TOPICS:
                topics = self._listed = self._topics.list(system=True)
                return _Content(
                    bool(topics),
                    partial(cache.write_topics, [*topics, *self._state.deleted.values()]),
                )
            case json_cache.GROUPS:
                groups = list(self._state.groups.values())
                return _Content(bool(groups), partial(cache.write_groups, groups))
            case json_cache.CONSUMER_OFFSETS:
                offsets = await self._offsets_copied()
                return _Content(bool(offsets), partial(cache.write_offsets, offsets))
            case _:
                levels = dict(self._delay_now().levels)
                return _Content(bool(levels), partial(cache.write_levels, levels))

    async def _offsets_copied(self) -> list[tuple[str, Mapping[Queue, int]]]:
        """Copy all groups' offsets; they are consistent for each group, not among groups."""
        copied: list[tuple[str, Mapping[Queue, int]]] = []
        for count, group in enumerate(list(self._offsets.now()), 1):
            pairs = self._offsets.now().get(group)
            if pairs is not None:  # None: the group was deleted meanwhile
                copied.append((group, dict(pairs)))
            if count % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # yield to other work
        return copied

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()


def _warn_of_refused_broker() -> None:
    log.warning(
        "a RocketMQ broker that was started on this store wrote JSON files; they are not taken "
        "over: this node held the store. Stop that broker, or give it a directory of its own",
        extra={"event": "config-files-replaced"},
    )


def _readable(read: Callable[[], T | None]) -> T | None:
    try:
        return read()
    except DamagedFile as error:
        log.warning(
            "a file in config/ is damaged; what counts is in the log and the queues",
            extra={"event": "config-file-damaged", "code": error.code, "detail": error.detail},
        )
        return None


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
