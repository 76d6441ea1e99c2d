"""Opening a store that is not there yet."""

from __future__ import annotations

from pathlib import Path

from services.broker.config import BrokerConfig
from services.broker.log.open_store import OpenStore
from shared.files.os_disk import OsDisk
from shared.runtime.clock import SystemClock


class Recording(OsDisk):
    """Notes which directories were synced."""

    def __init__(self) -> None:
        self.synced: set[Path] = set()

    def sync_directory(self, path: Path) -> None:
        self.synced.add(path)
        super().sync_directory(path)


def test_the_name_of_a_new_store_is_durable_before_anything_is_acked(tmp_path: Path) -> None:
    """1. A node makes its store directory and acks messages at ``disk``; 2. the power fails; 3. all
    files were synced, and the name of the directory they lie in was not: the store is gone.
    """
    disk = Recording()
    config = BrokerConfig(store_dir=tmp_path / "data" / "store", run_dir=tmp_path / "run")
    OpenStore.open(config, disk, SystemClock()).close()
    assert {tmp_path, tmp_path / "data", tmp_path / "data" / "store"} <= disk.synced
