"""With visible_after="written", dispatch is ahead of the flush, but the dispatched mark is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.positions import Positions
from shared.files.recovery import recover
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.runs import runs_of
from tests.support.sim_disk import LOSE_ALL, SimDisk
from tidemark.errors import FlushFailed
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message

ROOT = Path("/store")
CONFIG = StoreConfig(commit_log_file_size=8192, visible_after="written")
HOST = Host(bytes([127, 0, 0, 1]), 10911)
BOOT = (1, 1)


class Written:
    """A log of three files that is dispatched but not flushed."""

    def __init__(self) -> None:
        self.disk = SimDisk(7)
        self.disk.write_back_chance = 0.0
        self.disk.make_directory(ROOT)
        store = StoreDir(self.disk, ROOT, CONFIG)
        store.open_or_create()
        self.positions = Positions.open(self.disk, store.checkpoint_path)
        recovered = recover(store, self.positions, boot_id=BOOT)
        self.appender = CommitLogAppender(store, self.positions)
        self.appender.start_at(recovered.end)
        for number in range(5):
            self.appender.prepare_next()
            message = Message("orders", 0, bytes([number]) * 4000, HOST, HOST)
            self.appender.append(runs_of([message]), [number], 1)
        log = CommitLogReader(store, self.positions)
        self.dispatcher = Dispatcher(store, self.positions, log, boot_id=BOOT)
        self.dispatcher.resume()
        while self.dispatcher.step():
            pass


def test_the_mark_covers_only_records_that_survive_a_power_cut() -> None:
    written = Written()
    assert written.positions.get(Slot.FLUSHED) == 0
    written.dispatcher.sync()
    end = written.positions.get(Slot.DISPATCHED_DURABLE)
    assert end == written.appender.written > 2 * CONFIG.commit_log_file_size
    after = written.disk.power_cut(loss=LOSE_ALL)
    store = StoreDir(after, ROOT, CONFIG)
    store.open_or_create()
    positions = Positions.open(after, store.checkpoint_path)
    assert recover(store, positions, boot_id=(2, 2)).end == end


def test_a_log_that_cannot_be_synced_leaves_the_mark_and_is_not_written_to() -> None:
    written = Written()
    written.disk.failing_sync = lambda path: path.parent.name == "commitlog"
    written.disk.trace = []
    with pytest.raises(FlushFailed, match="commitlog") as failed:
        written.dispatcher.sync()
    assert failed.value.paths == []
    assert written.positions.get(Slot.DISPATCHED_DURABLE) == 0
    assert not [step for step in written.disk.trace if "pwrite /store/commitlog" in step]
