"""The drills of process groups, in families: each module registers its drills when imported."""

from __future__ import annotations

from collections.abc import Iterable

from drills.families import (
    consumers,
    crashes,
    disks,
    intruders,
    lease_by_hand,
    lease_faults,
    operators,
    partitions,
    pauses,
    planned,
    rejoining,
    steps,
)
from drills.stage import REGISTERED, Drill

FAMILIES = (
    consumers,
    crashes,
    disks,
    intruders,
    lease_by_hand,
    lease_faults,
    operators,
    partitions,
    pauses,
    planned,
    rejoining,
    steps,
)


def all_drills() -> Iterable[Drill]:
    """Return all drills, by number."""
    return sorted(REGISTERED.values(), key=_order)


def _order(found: Drill) -> tuple[int, str]:
    return int(found.number.rstrip("abcd")), found.number
