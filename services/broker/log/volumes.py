"""Capacity and free space of the file systems of log, queues and index, queried in a thread.

A file system that hangs does not block a scrape: the scrape waits up to WAIT_S, then shows the last
known values, and after KNOWN_FOR_S none. Retention queries its own values
(``retention.fullness``). A metrics scrape calls this module; it supplies
``tidemark_store_{capacity,free}_bytes``.
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
"""Longest time that a scrape waits for the file systems."""
KNOWN_FOR_S: Final = 60.0
"""Age up to which the last values are shown."""


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
        """Query the file systems if the last values are old; waits for WAIT_S at most."""
        now_s = self._clock.monotonic()
        if self._asking is None or self._asking.done():
            if now_s - self._asked_at_s < AGAIN_S:
                return
            self._asked_at_s = now_s
            self._asking = asyncio.create_task(self._ask(), name="volumes")
        await asyncio.wait({self._asking}, timeout=WAIT_S)

    def free(self) -> dict[str, int]:
        """Return the bytes free to an unprivileged user, for each volume with a known value."""
        return {name: space.available for name, space in self._known().items()}

    def capacity(self) -> dict[str, int]:
        """Return the used and free bytes together, for each volume with a known value."""
        return {name: space.used + space.available for name, space in self._known().items()}

    def _known(self) -> Mapping[str, Space]:
        is_known = self._clock.monotonic() - self._known_at_s < KNOWN_FOR_S
        return self._spaces if is_known else {}

    async def _ask(self) -> None:
        self._spaces = await asyncio.to_thread(self._query)
        self._known_at_s = self._clock.monotonic()

    def _query(self) -> dict[str, Space]:
        """Query all volumes. Blocks."""
        found = {name: self._space(path) for name, path in self._paths.items()}
        return {name: space for name, space in found.items() if space is not None}

    def _space(self, path: Path) -> Space | None:
        """Return the space of the file system at path; None if the query fails."""
        try:
            return self._disk.space(path)
        except OSError:
            return None
