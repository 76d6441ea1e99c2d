"""The start of a store with many queues opens each file once, without trusting unread units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.reput.dispatcher import Dispatcher
from services.reput.queue_survey import Found, QueueKey, leading_units, survey_queue, zero_after
from services.reput.resume import QueueMode
from shared.files.commit_log import CommitLogReader
from shared.files.recovery import recover
from shared.files.store_dir import QueueDirectory
from tests.support.sim_disk import SimDisk
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tidemark.formats.queue_unit import Unit, encode
from tidemark.offsets import UNIT_SIZE

QUEUES = 40


@pytest.fixture
def small() -> SmallStore:
    disk = SimDisk(1)
    disk.write_back_chance = 0
    small = SmallStore(Path("/store"), replace(CONFIG, index_enabled=False), disk=disk)
    for number in range(3 * QUEUES):
        small.put("orders", number % QUEUES)
    small.flush()
    dispatcher = dispatcher_of(small)
    while dispatcher.step():
        pass
    dispatcher.sync()
    dispatcher.close()
    return small


def dispatcher_of(small: SmallStore) -> Dispatcher:
    log = CommitLogReader(small.store, small.positions)
    dispatcher = Dispatcher(small.store, small.positions, log, boot_id=BOOT)
    dispatcher.resume()
    return dispatcher


def disk_of(small: SmallStore) -> SimDisk:
    assert isinstance(small.store.disk, SimDisk)
    return small.store.disk


def opened(small: SmallStore) -> list[str]:
    """Return the queue files opened since the trace began, one entry per open."""
    lines = [line.split(" ", 2) for line in disk_of(small).trace or ()]
    return [path for _, what, path in lines if what == "open" and "/consumequeue/" in path]


def test_recovery_opens_each_queue_once(small: SmallStore) -> None:
    disk_of(small).trace = []
    found = recover(small.store, small.positions, boot_id=BOOT)
    assert found.dispatched_trusted
    assert found.next_queue_offsets == {("orders", queue): 3 for queue in range(QUEUES)}
    assert len(opened(small)) == len(set(opened(small))) == QUEUES


def test_a_resume_opens_each_queue_once(small: SmallStore) -> None:
    disk_of(small).trace = []
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.CONTINUE
    assert len(opened(small)) == len(set(opened(small))) == QUEUES
    dispatcher.close()


# -- results of one survey equal those of repeated reads ------------------------------------------

KEY = QueueKey("orders", 0, UNIT_SIZE)
ROW = [Unit(number * 100, 100, 7) for number in range(8)]


DIRECTORY = Path("/store/consumequeue/orders/0")


def queue_of(units: list[Unit]) -> Found:
    """Return the survey of a queue with one file of ten units."""
    disk = SimDisk(1)
    disk.make_directory(DIRECTORY)
    file = disk.create(DIRECTORY / f"{0:020d}", 200, reserve=True)
    file.pwrite(b"".join(map(encode, units)), 0)
    file.close()
    return survey_queue(disk, KEY, QueueDirectory(DIRECTORY, UNIT_SIZE, 200))


@pytest.mark.parametrize(
    "units",
    [
        [],
        ROW,
        [*ROW[:3], Unit(0, 0, 0), *ROW[4:]],
        [*ROW[:3], Unit(0, 0, 0), Unit(0, 0, 0), Unit(900, 100, 1)],
        [*ROW[:3], Unit(50, 100, 7), *ROW[4:]],
        [Unit(0, 0x7FFFFFFF, 0)] * 2 + ROW[2:],
        [Unit(0, 0x7FFFFFFF, 0)] * 2,
        [Unit(0, 0, 0), *ROW[1:]],
    ],
)
def test_a_survey_gives_the_same_results_as_the_files(units: list[Unit]) -> None:
    found = queue_of(units)
    unread = found._replace(units=None)
    for end in range(0, 1100, 50):
        with found.files() as surveyed, unread.files() as read:
            assert surveyed.count(end) == read.count(end)
            assert all(surveyed.unit(at) == read.unit(at) for at in (0, 2, 7))
        assert leading_units(found, end) == leading_units(unread, end)
    for next_offset in range(11):
        surveyed_once, read_again = queue_of(units), queue_of(units)._replace(units=None)
        cleared = zero_after(surveyed_once, next_offset, thorough=True)
        assert cleared == zero_after(read_again, next_offset, thorough=True)
        assert content_of(surveyed_once) == content_of(read_again)


def content_of(found: Found) -> list[tuple[Path, bytes]]:
    assert isinstance(found.disk, SimDisk)
    return list(found.disk.files())
