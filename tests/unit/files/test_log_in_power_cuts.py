"""The appender on a disk that loses what was not synced; recovery is tested elsewhere."""

from __future__ import annotations

from pathlib import Path
from random import Random

from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.positions import Positions
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.for_each import for_each
from tests.support.runs import runs_of
from tests.support.sim_disk import LOSE_ALL, SimCrash, SimDisk
from tidemark.errors import FileNotReady
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset

FILE_SIZE = 8192
CONFIG = StoreConfig(commit_log_file_size=FILE_SIZE)
HOST = Host(bytes(4), 1)
ROOT = Path("/store")


def run(
    disk: SimDisk, random: Random, pool_size: int = 0, *, warm_up: bool = False
) -> list[tuple[PhysicalOffset, bytes]]:
    """Append, commit and flush until done or the machine is off; return what was on disk by
    then."""
    durable: list[tuple[PhysicalOffset, bytes]] = []
    pending: list[tuple[PhysicalOffset, bytes]] = []
    try:
        store = StoreDir(disk, ROOT, CONFIG)
        store.open_or_create()
        store.mark_running(1)
        appender = CommitLogAppender(
            store,
            Positions.open(disk, store.checkpoint_path),
            pool_size=pool_size,
            warm_up=warm_up,
            background=False,
        )
        appender.start_at(PhysicalOffset(0))
        number = 0
        while number < 40:
            body = bytes([number]) * random.randrange(2000)
            message = Message("T", 0, body, HOST, HOST)
            try:
                offset, _ = appender.append(runs_of([message]), [number], number)
            except FileNotReady:
                appender.prepare_next()
                continue
            number += 1
            pending.append((offset, body))
            if random.random() < 0.2:
                assert appender.commit() == appender.written == appender.appended
            if random.random() < 0.4:
                assert appender.flush() == appender.appended
                durable += pending
                pending = []
        appender.close(clean=True)
        durable += pending
        store.mark_clean()
    except SimCrash:
        pass
    return durable


@for_each("pool_size", [0, 4096, 1 << 16])
@for_each("seed", range(100))
def test_flushed_records_are_read_back_after_a_power_cut(seed: int, pool_size: int) -> None:
    warm_up = seed % 4 == 0
    whole = SimDisk(seed)
    run(whole, Random(seed), pool_size, warm_up=warm_up)
    disk = SimDisk(seed)
    disk.crash_at = Random(seed).randrange(1, whole.operations)
    durable = run(disk, Random(seed), pool_size, warm_up=warm_up)
    after = disk.power_cut(Random(seed), LOSE_ALL if seed % 2 else None)
    store = StoreDir(after, ROOT, CONFIG)
    store.open_or_create()
    reader = CommitLogReader(store)
    for offset, body in durable:
        found = reader.record(offset, PhysicalOffset(1 << 60))
        assert found is not None
        assert bytes(found.body) == body
    # Whatever the disk did, the result is a log that can be continued.
    appender = CommitLogAppender(store, Positions.open(after, store.checkpoint_path))
    end = PhysicalOffset(durable[-1][0] + 4096 if durable else 0)
    appender.start_at(end)
    appender.append(runs_of([Message("T", 0, b"x", HOST, HOST)]), [0], 1)
    appender.close(clean=True)


def test_the_page_and_the_files_are_never_stored_to_without_blocks() -> None:
    disk = SimDisk(1)
    disk.check_reserved = True
    run(disk, Random(1), 4096)
    assert disk.unreserved_stores == []
