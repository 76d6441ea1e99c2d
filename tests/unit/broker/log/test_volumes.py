"""Free space of the file systems of log, queues and index, for scrapes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from services.broker.log import volumes as volumes_module
from services.broker.log.volumes import AGAIN_S, KNOWN_FOR_S, Volumes
from shared.files.disk import Space
from shared.files.os_disk import OsDisk
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.still_clock import StillClock


class Disk(OsDisk):
    """Answers what the test says, when it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.spaces: dict[str, Space | OSError] = {
            "commitlog": Space(70, 30),
            "consumequeue": Space(20, 80),
            "index": Space(5, 5),
        }
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def space(self, path: Path) -> Space:
        self.asked += 1
        self.answers.wait(30.0)
        found = self.spaces[path.name]
        if isinstance(found, OSError):
            raise found
        return found


def made(root: Path) -> tuple[Disk, StillClock, Volumes]:
    disk, clock = Disk(), StillClock()
    return disk, clock, Volumes(StoreDir(disk, root, StoreConfig()), clock)


async def test_each_volume_has_a_size_and_room(tmp_path: Path) -> None:
    disk, clock, volumes = made(tmp_path)
    assert (volumes.free(), volumes.capacity()) == ({}, {}), "no scrape has asked yet"
    await volumes.refresh()
    assert volumes.free() == {"log": 30, "queue": 80, "index": 5}
    assert volumes.capacity() == {"log": 100, "queue": 100, "index": 10}
    await volumes.refresh()
    assert disk.asked == 3, "an answer serves for a second"
    clock.now_s += AGAIN_S
    disk.spaces["index"] = OSError("gone")
    await volumes.refresh()
    assert disk.asked == 6
    assert volumes.free() == {"log": 30, "queue": 80}, "what cannot be asked is not shown"


async def test_a_disk_that_hangs_holds_up_no_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clock, volumes = made(tmp_path)
    await volumes.refresh()
    monkeypatch.setattr(volumes_module, "WAIT_S", 0.01)
    disk.answers.clear()
    clock.now_s += AGAIN_S
    await volumes.refresh()
    await volumes.refresh()
    assert disk.asked == 4, "one question at a time"
    assert volumes.free()["log"] == 30
    clock.now_s += KNOWN_FOR_S
    assert volumes.free() == {}, "what was long ago proves nothing"
    monkeypatch.setattr(volumes_module, "WAIT_S", 30.0)
    disk.answers.set()
    await asyncio.wait_for(volumes.refresh(), 30.0)
    assert volumes.free()["log"] == 30
