"""Long polls for routes: an answer is held until its version differs from the caller's.

Step before: ``http_api`` read the query. Step after: ``core.directory`` makes the answer.
"""

from __future__ import annotations

import asyncio

from services.names.core.answers import Answer
from services.names.core.directory import Directory
from services.names.core.table import Changes
from shared.runtime.keyed_waits import KeyedWaits


class RoutePolls:
    """The calls for routes that one instance holds. Belongs to one event loop."""

    def __init__(self, directory: Directory, held_max: int) -> None:
        """held_max: long polls that are held at a time; further ones are answered at once."""
        self._directory = directory
        self._held_max = held_max
        self._waits = KeyedWaits()

    @property
    def held(self) -> int:
        """Number of long polls that are held."""
        return self._waits.count

    async def awaited(self, topic: str | None, after: str, wait_ms: int) -> Answer:
        """Return the answer once its version differs from ``after``, or at the end of the wait.

        Raises UnknownTopic and RouteIncomplete, also during the wait.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1000
        while (answer := self._directory.answer(topic)).route.version == after:
            left_s = until_s - loop.time()
            if left_s <= 0 or self._waits.count >= self._held_max:
                break
            await self._waits.wait(topic, left_s)
        return answer

    def wake(self, changes: Changes) -> None:
        """Let the long polls look at what has changed."""
        if changes.everything:
            self._waits.wake_all()
            return
        if changes.groups:
            self._waits.wake((None,))
        self._waits.wake(changes.topics)

    def release(self) -> None:
        """Answer all long polls, because the service stops."""
        self._held_max = 0
        self._waits.wake_all()
