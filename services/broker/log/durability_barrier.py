"""The interface for waiting until bytes of the log are durable.

On a standalone node the flush to disk decides (``flusher``), in a group the whole in-sync set
(``confirmer``).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from services.broker.log.wait_queue import NO_DEADLINE
from tidemark.offsets import PhysicalOffset


class DurabilityBarrier(Protocol):
    """Waits until a physical offset is durable."""

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """Return a future: True once bytes below end are durable, False if the deadline passed.

        deadline: on the monotonic clock [s]. The future raises NotServing if the bytes can no
        longer become durable because the node stops or loses its role.
        """
        ...

    def poll(self) -> bool:
        """Wake the callers whose bytes are durable now; return whether to call it again soon."""
        ...

    def end_waits(self) -> None:
        """End the waits that only another node could satisfy, because the term is over."""
        ...
