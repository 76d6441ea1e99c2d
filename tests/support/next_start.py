"""The recovery that the next start of a small store would make, in the same boot or another."""

from __future__ import annotations

from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tidemark.formats.queue_unit import Unit

FILE = CONFIG.commit_log_file_size
OTHER_BOOT = (8, 8)
KEY = ("orders", 0)


def again(
    small: SmallStore,
    *,
    boot: tuple[int, int] = BOOT,
    disk: OsDisk | None = None,
    config: StoreConfig = CONFIG,
    clean: bool | None = False,
) -> Recovered:
    """Recover the store as the next start would; clean: whether the last start ended cleanly; None:
    as the store says."""
    store = StoreDir(disk or OsDisk(), small.store.root, config)
    if clean is not None:
        (store.mark_clean if clean else small.store.mark_running)()
        store = StoreDir(disk or OsDisk(), small.store.root, config)
    store.open_or_create()
    positions = Positions.open(
        store.disk, store.checkpoint_path, fallback=store.private_positions_path
    )
    try:
        return recover(store, positions, boot_id=boot)
    finally:
        positions.close()


def fill(small: SmallStore, count: int) -> list[Unit]:
    """Put records of one queue, of which about ten fill a log file."""
    return [small.put(body=b"x" * 300) for _ in range(count)]


def fill_to(small: SmallStore, end: int) -> None:
    """Put such records until the log reaches this physical offset."""
    while small.end < end:
        fill(small, 1)
