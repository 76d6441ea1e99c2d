"""Positions that must not be mixed up: three integers with three meanings.

A *physical offset* is a byte position in the endless commit log. A *queue offset* is the number of
a message inside one (topic, queue), from 0, step 1. An *epoch* counts masters. All three are ≥ 0;
a position that is not known is ``None``, never 0 or −1.
"""

from __future__ import annotations

from typing import Final, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log; file names are physical offsets."""

QueueOffset = NewType("QueueOffset", int)
"""Number of a message inside one (topic, queue)."""

Epoch = NewType("Epoch", int)
"""Number of a master's reign; 0 before the first."""

UNIT_SIZE: Final = 20
"""Bytes of one consume queue unit: queue offset times this = logic offset (store layout 4.1)."""
