"""Waits of long polls by what they wait for, so that a change wakes only those that it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class KeyedWaits:
    """Long polls that wait, by key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._events: dict[str | None, asyncio.Event] = {}
        self.count = 0
        """Number of waits in progress."""

    async def wait(self, key: str | None, timeout_s: float) -> bool:
        """Wait until the key is woken; return False at the end of the time.

        The caller checks what it waits for before the call, without an await in between, and again
        after it.
        """
        event = self._events.get(key)
        if event is None:
            event = self._events[key] = asyncio.Event()
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await event.wait()
        except TimeoutError:
            return False
        finally:
            self.count -= 1

    def wake(self, keys: Iterable[str | None]) -> None:
        """Wake the waits for these keys."""
        for key in keys:
            if (event := self._events.pop(key, None)) is not None:
                event.set()

    def wake_all(self) -> None:
        """Wake all waits."""
        self.wake(list(self._events))
