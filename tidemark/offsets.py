"""Types of positions: three integers with different meanings that must not be mixed up.

A *physical offset* is a byte position in the endless commit log. A *queue offset* is the number of
a message within one (topic, queue), counted from 0. An *epoch* counts masters. All three are ≥ 0;
an unknown position is ``None``, never 0 or −1.
"""

from __future__ import annotations

from typing import Final, NewType, TypeAlias

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log; file names are physical offsets."""

QueueOffset = NewType("QueueOffset", int)
"""Number of a message within one (topic, queue)."""

Epoch = NewType("Epoch", int)
"""Number of a master's term; 0 before the first."""

Queue: TypeAlias = tuple[str, int]
"""(topic, queue number)."""

UNIT_SIZE: Final = 20
"""Bytes of one queue unit: queue offset times this = logic offset (docs/formats.md, 4.1)."""

BATCH_UNIT_SIZE: Final = 46
"""Bytes of one unit of a batch queue, which points to an inner batch (docs/formats.md, 4.12)."""
