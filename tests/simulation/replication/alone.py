"""Stores from before a group: of a node that was alone, with records and without an epoch table."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Final

from tests.simulation.replication.machine import ROOT, STORE, Machine
from tests.support.small_store import SmallStore

ALONE: Final = dataclasses.replace(STORE, visible_after="flushed")
TOPIC: Final = "orders"
BODY_MAX: Final = 900
RECORDS_MAX: Final = 40
"""More than two files of log have room for, now and then."""


def write_alone(machine: Machine, random: Random) -> int:
    """Give an empty disk the store of a node that was alone; the end of its log."""
    store = SmallStore(ROOT, ALONE, disk=machine.disk)
    for serial in range(random.randint(1, RECORDS_MAX)):
        store.put(
            TOPIC, body=f"{machine.name} {serial} ".encode() * random.randint(1, BODY_MAX // 8)
        )
    store.flush()
    end = int(store.end)
    store.close(clean=random.random() < 0.5)
    return end
