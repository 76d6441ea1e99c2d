"""Replica stores for tests: a log that a master wrote, and the store of the slave that copies it.

Files of 4 KiB, so that a few records cross several of them; any disk, simulated or real.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Final

from services.ha.core.setup import Found, Setup
from services.ha.shell.replica_store import ReplicaStore
from shared.cluster.nodes import Node
from shared.cluster.time_rules import LOCAL
from shared.files.disk import Disk
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.sim_disk import SimCrash, SimDisk
from tests.support.small_store import BOOT, SmallStore
from tests.support.still_clock import StillClock
from tidemark.formats.filenames import offset_name

FILE: Final = 4096
MASTER: Final = StoreConfig(
    commit_log_file_size=FILE, consume_queue_file_size=200, index_slots=20, index_entries=30
)
SLAVE: Final = dataclasses.replace(MASTER, visible_after="confirmed")
OTHER_BOOT: Final = (8, 10)
ROOT: Final = Path("/slave")
NODE: Final = Node("n0", "127.0.0.1", 1, "http://n0", "http://n0")
SETUP: Final = Setup(
    cluster="c",
    group="g",
    own=NODE,
    nodes=(NODE,),
    min_in_sync=1,
    times=LOCAL,
    file_size=FILE,
    process="0" * 16,
    boot=BOOT,
)


class MasterLog:
    """The log of a master: records of random sizes over several files, fillers between."""

    def __init__(self, count: int, *, seed: int = 0, body_max: int = 1500) -> None:
        random = Random(seed)
        disk = SimDisk(seed)
        disk.write_back_chance = 0.0
        small = SmallStore(Path("/master"), MASTER, disk=disk)
        self.borders = [0]
        """Every place where a record begins, and the end of each."""
        for _ in range(count):
            unit = small.put(body=random.randbytes(random.randrange(body_max)))
            self.borders += [unit.physical_offset, unit.physical_offset + unit.size]
        small.flush()
        self.end = int(small.end)
        files = [
            disk.peek(Path("/master/commitlog") / offset_name(start))
            for start in range(0, self.end, FILE)
        ]
        self.data = b"".join(file for file in files if file is not None)[: self.end]


def store_of(disk: Disk, root: Path = ROOT) -> StoreDir:
    """The slave's directory."""
    return StoreDir(disk, root, SLAVE)


def open_replica(
    disk: Disk, root: Path = ROOT, *, boot: tuple[int, int] = BOOT
) -> tuple[ReplicaStore, Found]:
    """Open and recover, as ha does at its start. boot: the boot's id, another one after a power
    cut."""
    held = ReplicaStore.open(store_of(disk, root), SETUP, StillClock(1000))
    found = held.recover(boot_id=boot, progress=lambda done, total: None, stopping=lambda: False)
    assert found is not None
    return held, found


def interrupted_start(disk: SimDisk, random: Random, *, operations_max: int) -> SimDisk:
    """The disk after a start that a kill or a power cut ended, or that came to its end before."""
    disk.crash_at = disk.operations + random.randrange(1, operations_max)
    try:
        held, _ = open_replica(disk)
    except SimCrash:
        after = disk.power_cut(random) if random.random() < 0.5 else disk.copy()
    else:
        held.close()
        after = disk.copy()
    after.crash_at = None
    return after


def log_of(disk: Disk, end: int, root: Path = ROOT) -> bytes:
    """The bytes of a store's log up to end; zeros where a file is missing."""
    data = bytearray()
    for start in range(0, end, FILE):
        path = root / "commitlog" / offset_name(start)
        if disk.stat(path) is None:
            data += bytes(FILE)
            continue
        file = disk.open(path, writable=False)
        data += file.pread(FILE, 0)
        file.close()
    return bytes(data[:end])
