"""``config/topics.json``: written after changes for RocketMQ and people, read after RocketMQ wrote.

A cache: what counts is in the log. A file without our key was written by RocketMQ since, and its
topics are taken over before sends open. A damaged one costs a log line: the log knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.broker.topics import Topics
from shared.files.store_dir import StoreDir
from shared.state.json_cache import JsonCache
from shared.state.records import TopicConfig
from tidemark.clock import Clock
from tidemark.errors import DamagedFile, DiskFull, FileNotReady, ReadOnlyDisk, StoreError
from tidemark.formats.metadata_json import Covered

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Changes within this time are written together; also the pause after a failure."""
EPOCH: Final = 0
"""Of a node alone: it has no epoch table."""


class TopicFile:
    """Keeps the file in step with the topics."""

    def __init__(
        self, store: StoreDir, topics: Topics, clock: Clock, flushed: Callable[[], int]
    ) -> None:
        """flushed: end of the log up to which the topics are known."""
        self._cache = JsonCache(store.disk, store.config_dir)
        self._topics = topics
        self._clock = clock
        self._flushed = flushed
        self._dirty = asyncio.Event()

    def changed(self) -> None:
        """Note that a topic has changed."""
        self._dirty.set()

    async def take_over(self, *, state_known: bool, stop: asyncio.Event) -> None:
        """Take the topics that RocketMQ left, if it wrote last; returns when that is durable.

        On a disk that takes no writes it is tried until it does: sends stay shut so long.
        """
        foreign = await asyncio.to_thread(self._read, state_known)
        if foreign is None:
            return
        while not stop.is_set():
            try:
                changed = await self._topics.take_over(foreign)
            except (DiskFull, ReadOnlyDisk, FileNotReady) as error:
                log.warning(
                    "topics of RocketMQ wait for a disk that takes writes",
                    extra={"event": "take-over-waits", "code": error.code},
                )
                await _pause(stop)
                continue
            log.info(
                "topics taken over from RocketMQ",
                extra={"event": "topics-taken-over", "topics": len(foreign), "changed": changed},
            )
            await self._write()
            return

    async def run(self, stop: asyncio.Event) -> None:
        """Write after changes, until stop; then once more if anything is left to write."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while True:
                await self._dirty.wait()
                if stop.is_set():
                    break
                self._dirty.clear()
                await self._write()
                await _pause(stop)
        finally:
            stopper.cancel()
        await self._write()

    def _read(self, state_known: bool) -> list[TopicConfig] | None:
        try:
            return self._cache.read_foreign_topics(state_known=state_known)
        except DamagedFile as error:
            log.warning(
                "topics.json is damaged; topics are those that the log and the queues know",
                extra={"event": "topic-file-damaged", "code": error.code, "detail": error.detail},
            )
            return None

    async def _write(self) -> None:
        covered = Covered(EPOCH, self._flushed())
        topics = self._topics.list(system=True)
        if not topics:
            return
        try:
            await asyncio.to_thread(
                self._cache.write_topics, topics, covered=covered, now_ms=self._clock.wall_ms()
            )
        except (StoreError, OSError) as error:
            self._dirty.set()
            log.warning(
                "topics.json could not be written; the log has it all",
                extra={"event": "topic-file-not-written", "detail": str(error)},
            )

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._dirty.set()


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await stop.wait()
    except TimeoutError:
        return
