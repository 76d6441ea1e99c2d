"""One change of a name at a time, and of different names at the same time.

A change waits for the disk. Were all changes made one after another, each would wait for a flush of
its own: 5,000 members of new groups joined one by one. Changes of different names share flushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NameLocks:
    """Locks by name; one that is not in use takes no memory. For one loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """While the block runs nobody else has this name; first come, first served."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
