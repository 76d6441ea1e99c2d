"""How much room the file systems of log, queues and index have: asked in a thread, for scrapes.

A file system that does not answer (one that hangs) holds up nobody: a scrape waits a moment, then
shows what was last known, and after a while nothing. What retention does by is asked elsewhere, by
``retention.fullness``. Before: a scrape. After: ``tidemark_store_{capacity,free}_bytes``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, Space
from shared.files.store_dir import StoreDir
from tidemark.clock import Clock

AGAIN_S: Final = 1.0
WAIT_S: Final = 0.2
"""A scrape waits so long for an answer."""
KNOWN_FOR_S: Final = 60.0
"""What was said last is shown for so long."""


class Volumes:
    """The file systems of one store. For the event loop."""

    def __init__(self, store: StoreDir, clock: Clock) -> None:
        self._disk: Disk = store.disk
        self._paths = {
            "log": store.commit_log_dir,
            "queue": store.consume_queues_dir,
            "index": store.index_dir,
        }
        self._clock = clock
        self._spaces: Mapping[str, Space] = {}
        self._asked_at_s = float("-inf")
        self._known_at_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Ask, if the last answer is old; waits for WAIT_S at most."""
        now_s = self._clock.monotonic()
        if self._asking is None or self._asking.done():
            if now_s - self._asked_at_s < AGAIN_S:
                return
            self._asked_at_s = now_s
            self._asking = asyncio.create_task(self._ask(), name="volumes")
        await asyncio.wait({self._asking}, timeout=WAIT_S)

    def free(self) -> dict[str, int]:
        """Bytes that an ordinary user may still take, by volume; those that are known."""
        return {name: space.available for name, space in self._known().items()}

    def capacity(self) -> dict[str, int]:
        """Bytes that an ordinary user can use in all, by volume; those that are known."""
        return {name: space.used + space.available for name, space in self._known().items()}

    def _known(self) -> Mapping[str, Space]:
        is_known = self._clock.monotonic() - self._known_at_s < KNOWN_FOR_S
        return self._spaces if is_known else {}

    async def _ask(self) -> None:
        self._spaces = await asyncio.to_thread(self._look)
        self._known_at_s = self._clock.monotonic()

    def _look(self) -> dict[str, Space]:
        """Blocks."""
        found = {name: self._space(path) for name, path in self._paths.items()}
        return {name: space for name, space in found.items() if space is not None}

    def _space(self, path: Path) -> Space | None:
        """None if it cannot be asked."""
        try:
            return self._disk.space(path)
        except OSError:
            return None
