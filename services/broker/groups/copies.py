"""Appends copies of stored messages: for another try, as dead letters, or redriven.

``nacks`` and ``redrive`` make the copies before this step; after it the copies are in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from services.broker.log.append import Append
from services.broker.log.durability_barrier import DurabilityBarrier
from tidemark.formats.hosts import Host

Stored = Callable[[str, int, int], object]
"""Takes topic, number of messages and bytes of records that were stored."""


class Copies(NamedTuple):
    """Where and how copies are appended."""

    append: Append
    durability: DurabilityBarrier
    store_host: Host
    properties_size_max: int
    """Bytes that a record's properties may take, without the record CRC."""
    on_stored: Stored = lambda *_: None
    """Called with topic, messages and bytes of what is in the log."""
    pick: Callable[[int], int] = random.randrange
    """Returns the number of one of that many queues."""
