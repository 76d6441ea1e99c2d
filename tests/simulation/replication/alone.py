"""Stores of a node that was alone before: with records and without an epoch table."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Final

from tests.simulation.replication.machine import Machine
from tests.simulation.replication.store_view import ROOT, STORE
from tests.support.small_store import SmallStore

ALONE: Final = dataclasses.replace(STORE, visible_after="flushed")
TOPIC: Final = "orders"
BODY_MAX: Final = 900
RECORDS_MAX: Final = 40
"""Sometimes more than two log files."""


def write_alone(machine: Machine, random: Random) -> int:
    """Write the store of a node that was alone to an empty disk; return the end of its log."""
    store = SmallStore(ROOT, ALONE, disk=machine.disk)
    for serial in range(random.randint(1, RECORDS_MAX)):
        store.put(
            TOPIC, body=f"{machine.name} {serial} ".encode() * random.randint(1, BODY_MAX // 8)
        )
    store.flush()
    end = int(store.end)
    store.close(clean=random.random() < 0.5)
    return end
