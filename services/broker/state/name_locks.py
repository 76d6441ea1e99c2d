"""Locks by name: changes of one name are serialized, changes of different names run concurrently.

A change waits for the disk. If all changes were serialized, each would wait for its own flush, and
5,000 members of new groups would join one after another. Changes of different names share flushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NameLocks:
    """Locks by name; an unused lock takes no memory. For one loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of this name during the block; waiters get it in order of arrival."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
