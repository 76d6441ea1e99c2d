"""A new file is written through, unless it is needed first."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.files.mapped_file_queue import MappedFileQueue, Preallocation
from shared.files.os_disk import OsDisk, OsFile
from shared.files.warm_up import STEP_SIZE, SYNC_SIZE, WarmUp

DISK = OsDisk()
SIZE = 4 * STEP_SIZE


class Watched:
    """Writes and syncs of every file, in order; ``at_write`` is called before each write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int]] = []
        self.at_write: Callable[[], None] = lambda: None
        pwrite, sync = OsFile.pwrite, OsFile.sync

        def watched_pwrite(file: OsFile, data: bytes, offset: int) -> None:
            self.at_write()
            self.steps.append(("write", offset))
            assert not any(data)
            pwrite(file, data, offset)

        def watched_sync(file: OsFile) -> None:
            self.steps.append(("sync", 0))
            sync(file)

        monkeypatch.setattr(OsFile, "pwrite", watched_pwrite)
        monkeypatch.setattr(OsFile, "sync", watched_sync)

    @property
    def written(self) -> list[int]:
        return [offset for what, offset in self.steps if what == "write"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def new_file(path: Path, size: int) -> OsFile:
    return DISK.create(path, size, reserve=True)


@pytest.mark.parametrize("size", [1, STEP_SIZE - 1, STEP_SIZE, STEP_SIZE + 1, 3 * STEP_SIZE + 7])
def test_every_byte_is_written_and_synced_and_the_size_stays(
    tmp_path: Path, watched: Watched, size: int
) -> None:
    file = new_file(tmp_path / "f", size)
    assert WarmUp().run(file, 0)
    file.close()
    assert (tmp_path / "f").read_bytes() == bytes(size)
    assert watched.written == list(range(0, size, STEP_SIZE))
    assert watched.steps[-1] == ("sync", 0)


def test_no_more_than_a_bounded_amount_is_unsynced(tmp_path: Path, watched: Watched) -> None:
    file = new_file(tmp_path / "f", 2 * SYNC_SIZE + STEP_SIZE)
    assert WarmUp().run(file, 0)
    file.close()
    syncs = [number for number, (what, _) in enumerate(watched.steps) if what == "sync"]
    per_sync = SYNC_SIZE // STEP_SIZE
    assert syncs == [per_sync, 2 * per_sync + 1, 2 * per_sync + 3]


def test_it_stops_if_the_file_is_needed_or_the_part_stops(tmp_path: Path, watched: Watched) -> None:
    file = new_file(tmp_path / "f", SIZE)
    warm_up = WarmUp()

    def hurry() -> None:
        if len(watched.written) == 1:
            warm_up.hurry(SIZE)

    watched.at_write = hurry
    assert not warm_up.run(file, SIZE)
    assert watched.written == [0, STEP_SIZE]
    watched.at_write = lambda: None
    assert warm_up.run(file, 2 * SIZE)  # a later one has time
    warm_up.stop()
    assert not warm_up.run(file, 3 * SIZE)
    warm_up.again()
    assert warm_up.run(file, 0)
    file.close()


@pytest.mark.parametrize("end", ["hurry", "stop"])
def test_a_rest_after_a_slow_sync_ends_when_the_file_is_needed_or_nothing_more_is(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    ticks = itertools.count(step=1000)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))  # a sync takes 1000 s
    file = new_file(tmp_path / "f", 2 * SYNC_SIZE)
    warm_up = WarmUp()
    done: list[bool] = []
    worker = threading.Thread(target=lambda: done.append(warm_up.run(file, SIZE)))
    worker.start()
    while ("sync", 0) not in watched.steps:
        os.sched_yield()
    if end == "hurry":
        warm_up.hurry(SIZE)
    else:
        warm_up.stop()
    worker.join(60)
    file.close()
    assert done == [False]
    assert len(watched.written) <= SYNC_SIZE // STEP_SIZE + 1


def queue(directory: Path) -> MappedFileQueue:
    made = MappedFileQueue(
        DISK,
        directory,
        SIZE,
        writable=True,
        preallocation=Preallocation(ahead=2, reserve=True, background=True, warm_up=True),
    )
    made.load()
    return made


def test_an_append_does_not_wait_for_the_zeros(tmp_path: Path, watched: Watched) -> None:
    made = queue(tmp_path)
    made.prepare_next(1)
    made.roll()  # asks the thread for the next two
    started, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(30)

    del watched.steps[:]
    watched.at_write = hold
    assert started.wait(30)
    assert not made.next_ready
    made.not_ready(made.next_start)  # the request of an append that finds no file
    go_on.set()
    made.ensure_next()
    assert made.next_ready
    assert watched.written[:1] == [0]
    assert watched.written.count(0) <= 2  # one step of this file; the next one's, if it began
    made.close()
    made.remove_unused()


def test_closing_ends_a_warm_up_under_way(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = queue(tmp_path)
    made.prepare_next(1)
    started, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(30)

    stop = WarmUp.stop

    def stop_then_go_on(warm_up: WarmUp) -> None:
        stop(warm_up)
        go_on.set()

    monkeypatch.setattr(WarmUp, "stop", stop_then_go_on)
    del watched.steps[:]
    watched.at_write = hold
    made.roll()
    assert started.wait(30)
    made.close()
    assert len(watched.written) < 2 * SIZE // STEP_SIZE
    made.remove_unused()
    assert len(list(tmp_path.iterdir())) == 1
