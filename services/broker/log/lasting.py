"""What it takes until bytes of the log last: the seam between those who wait and who knows.

Alone that is the disk (``flusher``), in a group the whole in-sync set (``replication.confirmer``).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from services.broker.log.group_commit import NO_DEADLINE
from tidemark.offsets import PhysicalOffset


class Lasting(Protocol):
    """Who is asked to wait."""

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """A future: True once bytes below end last, False if the deadline came first.

        deadline: on the monotonic clock. It raises NotServing if that will not come any more.
        """
        ...
