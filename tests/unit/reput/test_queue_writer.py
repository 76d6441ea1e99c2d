from __future__ import annotations

from pathlib import Path

import pytest

from services.reput.queue_survey import QueueKey, leading_units, survey_queue, zero_after
from services.reput.queue_writer import RESERVE_STEP, QueueWriter
from shared.files.store_dir import QueueDirectory, StoreConfig, StoreDir
from tests.support.sim_disk import SimDisk
from tidemark.errors import DiskFull, QueueGap
from tidemark.formats.plan import QueueRun
from tidemark.formats.queue_unit import PRE_BLANK, Unit, encode, encode_batch
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE, PhysicalOffset, QueueOffset

ROOT = Path("/store")
DIRECTORY = ROOT / "consumequeue" / "orders" / "0"
FILE_SIZE = 200
KEY = QueueKey("orders", 0, UNIT_SIZE)
PLACE = QueueDirectory(DIRECTORY, UNIT_SIZE, FILE_SIZE)
ZERO = bytes(20)


def unit(number: int, *, at: int | None = None) -> bytes:
    return encode(Unit(number * 100 if at is None else at, 100, number))


def run(first: int, count: int, *, topic: str = "orders", queue: int = 0) -> QueueRun:
    units = b"".join(unit(number) for number in range(first, first + count))
    return QueueRun(topic, queue, QueueOffset(first), units, PhysicalOffset(first * 100))


def real(*_: object) -> bool:
    return True


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(1)
    disk.check_reserved = True
    disk.make_directory(ROOT / "consumequeue")
    return disk


def writer_on(disk: SimDisk, *, open_max: int = 8, file_size: int = FILE_SIZE) -> QueueWriter:
    config = StoreConfig(consume_queue_file_size=file_size, queue_files_mapped_max=open_max)
    return QueueWriter(StoreDir(disk, ROOT, config))


def file_bytes(disk: SimDisk, start: int = 0, directory: Path = DIRECTORY) -> bytes:
    return dict(disk.files())[directory / f"{start:020}"]


def test_units_lie_at_their_queue_offsets_and_the_files_are_whole(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 23))
    assert file_bytes(disk) == b"".join(unit(number) for number in range(10))
    assert file_bytes(disk, 200) == b"".join(unit(number) for number in range(10, 20))
    assert file_bytes(disk, 400) == b"".join(map(unit, (20, 21, 22))) + ZERO * 7
    assert writer.totals == (23, 0)


def test_a_queue_that_begins_elsewhere_gets_pre_blank_units_before_its_first(disk: SimDisk) -> None:
    """Golden vector A.7 of the format."""
    writer = writer_on(disk)
    writer.append(run(13, 1))
    assert [path.name for path, _ in disk.files()] == [f"{200:020}"]
    assert file_bytes(disk, 200) == PRE_BLANK * 3 + unit(13) + ZERO * 6
    assert writer.totals == (14, 10)


def test_a_gap_is_an_error_that_names_both_numbers_and_stores_nothing(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 3))
    before = file_bytes(disk)
    with pytest.raises(QueueGap, match="has queue offset 4, but the queue ends at 3") as caught:
        writer.append(run(4, 2))
    assert (caught.value.border, caught.value.queue_offset, caught.value.at) == (3, 4, 400)
    assert file_bytes(disk) == before
    writer.append(run(3, 1))
    assert writer.totals.units == 4


def test_appending_again_changes_nothing(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 15))
    before = list(disk.files())
    writer.append(run(0, 15))
    writer.append(run(5, 10))
    writer.append(run(12, 6))
    assert writer.totals.units == 18
    assert file_bytes(disk) == dict(before)[DIRECTORY / f"{0:020}"]


def test_a_queue_goes_on_after_its_file_was_closed_for_others(disk: SimDisk) -> None:
    writer = writer_on(disk, open_max=2)
    for number in range(25):
        for queue in range(4):
            writer.append(run(number, 1, queue=queue))
    for queue in range(4):
        directory = DIRECTORY.parent / str(queue)
        stored = b"".join(file_bytes(disk, start, directory) for start in (0, 200, 400))
        assert stored == b"".join(map(unit, range(25))) + ZERO * 5
    assert writer.totals == (100, 0)


def test_units_of_another_process_are_compared_and_own_ones_are_not(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 5))
    wrong = disk.open(DIRECTORY / f"{0:020}", writable=True)
    wrong.pwrite(unit(77), 40)
    writer = writer_on(disk)
    writer.rebuild(writer.survey(), log_min=0, keep=1 << 40)
    disk.trace = []
    for first in (0, 4, 8, 12, 16):
        writer.append(run(first, 4))
    assert writer.repaired_count == 1
    reads = [line for line in disk.trace if "pread" in line]
    assert len([line for line in reads if f"{0:020}" in line]) == 3
    assert not [line for line in reads if f"{200:020}" in line]
    assert file_bytes(disk) + file_bytes(disk, 200) == b"".join(map(unit, range(20)))


def test_at_most_so_many_files_are_open_and_every_touched_one_is_remembered(disk: SimDisk) -> None:
    writer = writer_on(disk, open_max=3)
    for queue in range(20):
        writer.append(run(0, 1, queue=queue))
        assert len(writer._open) <= 3
    files, directories = writer.take_touched()
    assert len(files) == 20
    assert {DIRECTORY.parent / str(queue) for queue in range(20)} <= directories
    assert writer.take_touched() == (set(), set())
    writer.append(run(1, 1, queue=0))
    assert writer.take_touched()[0] == {DIRECTORY / f"{0:020}"}


def test_blocks_are_reserved_before_anything_is_stored(disk: SimDisk) -> None:
    big = 20 * 10_000
    writer = writer_on(disk, file_size=big)
    writer.append(run(0, 1))
    facts = disk.stat(DIRECTORY / f"{0:020}")
    assert facts is not None
    assert facts.allocated == RESERVE_STEP
    writer.append(run(1, 2000))
    writer.append(run(9000, 1, queue=1))
    assert disk.unreserved_stores == []


def test_a_file_that_cannot_be_made_is_waited_for_and_nothing_is_skipped(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 8))
    free = disk.free_bytes(ROOT)
    disk.capacity_bytes = (1 << 50) - free
    with pytest.raises(DiskFull):
        writer.append(run(8, 5))
    with pytest.raises(DiskFull):
        writer.append(run(8, 5))
    with pytest.raises(DiskFull):
        writer.append(run(13, 1, queue=1))
    disk.capacity_bytes = None
    writer.append(run(8, 5))
    writer.append(run(13, 1, queue=1))
    assert file_bytes(disk, 200) == b"".join(map(unit, (10, 11, 12))) + ZERO * 7
    assert file_bytes(disk, 200, DIRECTORY.parent / "1") == PRE_BLANK * 3 + unit(13) + ZERO * 6
    assert writer.totals == (13 + 14, 10)
    assert disk.unreserved_stores == []


# -- after a restart ------------------------------------------------------------------------------


def restarted(disk: SimDisk, *, start: int, keep: int, thorough: bool = False) -> QueueWriter:
    writer = writer_on(disk)
    writer.continue_from(writer.survey(), start=start, keep=keep, thorough=thorough)
    return writer


def test_units_above_the_kept_offset_are_zeroed_in_every_file(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 25))
    writer = restarted(disk, start=700, keep=1300)
    assert file_bytes(disk) == b"".join(map(unit, range(10)))
    assert file_bytes(disk, 200) == b"".join(map(unit, range(10, 13))) + ZERO * 7
    assert file_bytes(disk, 400) == ZERO * 10
    assert writer.totals.units == 7
    writer.compare = True
    disk.trace = []
    writer.append(run(7, 6))
    assert not [line for line in disk.trace if "pwrite" in line], "they were there already"
    writer.append(run(13, 12))
    assert file_bytes(disk, 400) == b"".join(map(unit, range(20, 25))) + ZERO * 5


def test_after_a_power_cut_a_hole_does_not_hide_later_units(disk: SimDisk) -> None:
    big = 20 * 20_000
    writer = writer_on(disk, file_size=big)
    writer.append(run(0, 15_000))
    path = DIRECTORY / f"{0:020}"
    hole = disk.open(path, writable=True)
    hole.pwrite(bytes(150_000), 20 * 100)
    again = writer_on(disk, file_size=big)
    again.continue_from(again.survey(), start=5_000, keep=5_000, thorough=True)
    assert file_bytes(disk) == b"".join(map(unit, range(50))) + bytes(big - 1000)


def test_empty_files_that_a_power_cut_left_go_and_other_sizes_are_damage(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 12))
    disk.create(DIRECTORY / f"{400:020}", 0, reserve=False)
    found = survey_queue(disk, KEY, PLACE)
    assert (found.starts, found.has_wrong_size) == ((0, 200), False)
    disk.create(DIRECTORY / f"{400:020}", 60, reserve=False)
    disk.create(DIRECTORY / "notes.txt", 60, reserve=False)
    found = survey_queue(disk, KEY, PLACE)
    assert (found.starts, found.has_wrong_size) == ((0, 200), True)
    assert disk.stat(DIRECTORY / f"{400:020}") is None
    assert disk.stat(DIRECTORY / "notes.txt") is not None


def test_files_behind_a_missing_one_are_no_part_of_the_queue(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 25))
    disk.unlink(DIRECTORY / f"{200:020}")
    found = survey_queue(disk, KEY, PLACE)
    assert (found.starts, found.behind_gap) == ((0,), (400,))
    assert zero_after(found, 10, thorough=True) == FILE_SIZE
    assert file_bytes(disk, 400) == ZERO * 10


@pytest.mark.parametrize(
    "damage",
    [ZERO, unit(4, at=-1), unit(4, at=250), unit(4, at=99_999), PRE_BLANK],
    ids=["zeros", "negative", "falling", "far", "pre-blank"],
)
def test_a_damaged_unit_in_the_middle_is_found_although_the_count_is_right(
    disk: SimDisk, damage: bytes
) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 9))
    assert writer.are_sound(writer.survey(), 900, lambda *_: False)
    disk.open(DIRECTORY / f"{0:020}", writable=True).pwrite(damage, 4 * 20)
    assert not writer.are_sound(writer.survey(), 900, lambda *_: False)


def test_an_adopted_queue_is_believed_up_to_its_last_unit_with_a_record_of_its_own(
    disk: SimDisk,
) -> None:
    writer_on(disk).append(run(0, 9))
    writer = writer_on(disk)
    writer.adopt(writer.survey(), keep=800, is_real=lambda stored: stored.number < 5, is_whole=real)
    assert writer.totals.units == 5
    assert file_bytes(disk) == b"".join(map(unit, range(5))) + ZERO * 5
    writer.append(run(3, 4))
    assert file_bytes(disk) == b"".join(map(unit, range(7))) + ZERO * 3
    files, directories = writer.take_touched()
    assert DIRECTORY / f"{0:020}" in files
    assert {DIRECTORY, DIRECTORY.parent, DIRECTORY.parent.parent} <= directories


def test_an_adopted_queue_whose_topic_was_made_anew_keeps_its_newer_units(disk: SimDisk) -> None:
    """RocketMQ numbers a topic that was deleted and recreated from 0 again.

    The log then has queue offset 0 twice, and the queue points to the later record.
    """
    newer = QueueRun("orders", 0, QueueOffset(0), unit(0, at=5000), PhysicalOffset(5000))
    writer_on(disk).append(newer)
    writer = writer_on(disk)
    writer.adopt(writer.survey(), keep=10_000, is_real=real, is_whole=real)
    writer.append(run(0, 7))
    writer.append(newer)
    assert file_bytes(disk) == unit(0, at=5000) + ZERO * 9
    assert writer.totals.units == 1


def test_a_missing_first_file_of_an_adopted_queue_is_a_gap(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 25))
    disk.unlink(DIRECTORY / f"{0:020}")
    writer = writer_on(disk)
    writer.adopt(writer.survey(), keep=10_000, is_real=real, is_whole=real)
    with pytest.raises(QueueGap, match="has queue offset 0, but the queue begins at 10"):
        writer.append(run(0, 3))


def rebuilt(disk: SimDisk, *, log_min: int = 0, keep: int = 10_000) -> QueueWriter:
    writer = writer_on(disk)
    writer.rebuild(writer.survey(), log_min=log_min, keep=keep)
    return writer


@pytest.mark.parametrize("missing", [0, 200, 400])
def test_a_rebuild_brings_any_missing_file_back(disk: SimDisk, missing: int) -> None:
    writer_on(disk).append(run(0, 25))
    before = sorted(disk.files())
    disk.unlink(DIRECTORY / f"{missing:020}")
    writer = rebuilt(disk)
    for first in range(0, 25, 4):
        writer.append(run(first, min(4, 25 - first)))
    writer.finish_rebuild()
    assert sorted(disk.files()) == before
    assert writer.totals == (25, 0)


def test_a_rebuild_corrects_wrong_units_and_cuts_surplus_ones(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 25))
    before = file_bytes(disk)
    disk.open(DIRECTORY / f"{0:020}", writable=True).pwrite(unit(4, at=450), 4 * 20)
    writer = rebuilt(disk)
    writer.append(run(0, 15))
    writer.finish_rebuild()
    assert file_bytes(disk) == before
    assert file_bytes(disk, 200) == b"".join(map(unit, range(10, 15))) + ZERO * 5
    assert file_bytes(disk, 400) == ZERO * 10


def test_a_rebuild_of_a_shortened_log_keeps_the_numbers_of_expired_messages(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 12))
    writer.append(run(0, 3, queue=1))
    writer = rebuilt(disk, log_min=700)
    writer.append(run(7, 5))
    writer.finish_rebuild()
    assert file_bytes(disk) == b"".join(map(unit, range(10)))
    assert file_bytes(disk, 0, DIRECTORY.parent / "1") == b"".join(map(unit, range(3))) + ZERO * 7
    assert writer.totals == (15, 0)


def test_a_rebuild_fills_lost_expired_units_with_pre_blank_ones(disk: SimDisk) -> None:
    writer_on(disk).append(run(0, 25))
    for start in (0, 200):
        disk.unlink(DIRECTORY / f"{start:020}")
    disk.open(DIRECTORY / f"{400:020}", writable=True).pwrite(bytes(200), 0)
    writer = rebuilt(disk, log_min=1700)
    writer.append(run(17, 8))
    writer.finish_rebuild()
    assert file_bytes(disk, 200) == PRE_BLANK * 7 + b"".join(map(unit, (17, 18, 19)))
    assert file_bytes(disk, 400) == b"".join(map(unit, range(20, 25))) + ZERO * 5
    assert writer.totals == (25, 10)


def test_a_true_gap_stays_one_in_a_rebuild(disk: SimDisk) -> None:
    writer = rebuilt(disk)
    writer.append(run(0, 3))
    with pytest.raises(QueueGap):
        writer.append(run(4, 1))


def test_leading_units_end_at_the_first_that_is_not_what_it_should_be(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(run(13, 10))
    (found,) = writer.survey()
    assert leading_units(found, 10_000) == (23, 2300)
    assert leading_units(found, 2299) == (22, 2200)
    assert leading_units(found, 0) == (13, 0)


# -- batch queues ---------------------------------------------------------------------------------

BATCHES = ROOT / "batchconsumequeue" / "orders" / "0"
BATCH_KEY = QueueKey("orders", 0, BATCH_UNIT_SIZE)


def batches(first: int, *counts: int, at: int | None = None) -> QueueRun:
    """Return a run of batches of that many messages, the first with queue offset first."""
    at = first * 100 if at is None else at
    units, base, end = b"", first, at
    for count in counts:
        units += encode_batch(Unit(end, count * 100, 0), 1, base, count)
        base, end = base + count, end + count * 100
    return QueueRun("orders", 0, QueueOffset(first), units, PhysicalOffset(at), BATCH_UNIT_SIZE)


def batch_bytes(disk: SimDisk, *starts: int) -> bytes:
    return b"".join(file_bytes(disk, start, BATCHES) for start in starts).rstrip(b"\0")


def test_units_of_batches_are_adjacent_whatever_their_queue_offsets(disk: SimDisk) -> None:
    writer = writer_on(disk)
    run = batches(0, *range(1, 13))
    writer.append(run)
    assert file_bytes(disk, 0, BATCHES) == run.units[:460]
    assert file_bytes(disk, 460, BATCHES) == run.units[460:] + bytes(8 * 46)
    assert writer.totals == (12, 0)


def test_a_batch_queue_has_no_pre_blank_units(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(batches(1234, 5, 6))
    assert file_bytes(disk, 0, BATCHES).startswith(batches(1234, 5, 6).units)
    writer.append(batches(1245, 1))
    assert writer.totals == (3, 0)


@pytest.mark.parametrize("again", [False, True])
def test_batches_that_are_stored_are_skipped_and_others_are_gaps(
    disk: SimDisk, again: bool
) -> None:
    writer = writer_on(disk)
    writer.append(batches(10, 3, 4, 5))
    if again:
        writer = writer_on(disk)
        writer.continue_from(writer.survey(), start=2200, keep=2200, thorough=True)
    before = list(disk.files())
    for stored in (batches(10, 3, 4, 5), batches(13, 4), batches(17, 5)):
        writer.append(stored)
    for run, border in ((batches(23, 1), 22), (batches(17, 6), 22), (batches(21, 4), 22)):
        with pytest.raises(QueueGap, match=f"the queue ends at {border}"):
            writer.append(run)
    with pytest.raises(QueueGap, match="has queue offset 9, but the queue begins at 10"):
        writer.append(batches(9, 1))
    assert list(disk.files()) == before
    writer.append(batches(13, 4, 5, 2, 1))
    assert batch_bytes(disk, 0) == batches(10, 3, 4, 5, 2, 1).units.rstrip(b"\0")
    assert writer.totals == (5, 0)


def test_a_topic_may_have_queues_of_both_kinds_that_do_not_depend_on_each_other(
    disk: SimDisk,
) -> None:
    writer = writer_on(disk)
    writer.append(run(0, 3))
    writer.append(batches(3, 4, 2))
    writer.append(run(3, 2))
    assert writer.totals == (7, 0)
    again = writer_on(disk)
    found = again.survey()
    assert [one.key for one in found] == [KEY, BATCH_KEY]
    assert again.count(found, 10_000) == (7, 0)
    again.continue_from(found, start=10_000, keep=10_000, thorough=False)
    again.append(batches(9, 1))
    again.append(run(5, 1))
    assert file_bytes(disk) == b"".join(map(unit, range(6))) + ZERO * 4
    assert batch_bytes(disk, 0) == batches(3, 4, 2, 1).units.rstrip(b"\0")


@pytest.mark.parametrize(
    "wrong",
    [batches(7, 4, at=700), batches(5, 4, at=700), batches(6, 0, at=700), batches(-1, 7, at=700)],
    ids=["gap", "overlap", "no messages", "negative"],
)
def test_leading_batches_end_before_one_that_does_not_continue(
    disk: SimDisk, wrong: QueueRun
) -> None:
    writer = writer_on(disk)
    writer.append(batches(0, 1, 2, 3, 4, 5))
    (found,) = writer.survey()
    assert leading_units(found, 10_000) == (5, 1500)
    assert leading_units(found, 1000) == (4, 1000)
    assert writer.are_sound([found], 1500, lambda _: False)
    disk.open(BATCHES / f"{0:020}", writable=True).pwrite(wrong.units[20:], 3 * 46 + 20)
    (found,) = writer.survey()
    assert leading_units(found, 10_000) == (3, 600)
    assert not writer.are_sound([found], 1500, lambda _: False)


def test_batches_continue_across_files(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(batches(0, *[2] * 25))
    assert leading_units(writer.survey()[0], 10_000) == (25, 5000)
    wrong = batches(21, 1, at=2000).units[20:]
    disk.open(BATCHES / f"{460:020}", writable=True).pwrite(wrong, 20)
    assert leading_units(writer.survey()[0], 10_000) == (10, 2000)


def test_a_batch_queue_without_its_first_file_begins_at_the_next(disk: SimDisk) -> None:
    writer = writer_on(disk)
    writer.append(batches(0, *[2] * 25))
    assert writer.remove_first_file(BATCH_KEY) == 10
    assert writer.totals == (25, 10)
    with pytest.raises(QueueGap, match="has queue offset 18, but the queue begins at 20"):
        writer.append(batches(18, 2))
    before = list(disk.files())
    again = rebuilt(disk, log_min=2000)
    again.append(batches(20, *[2] * 15))
    again.finish_rebuild()
    assert list(disk.files()) == before
    assert (again.totals, again.repaired_count) == ((25, 10), 0)


def test_the_name_of_the_directory_of_all_batch_queues_is_synced(disk: SimDisk) -> None:
    """It is created with the first batch; a power cut lost all batch queues of a new store."""
    writer = writer_on(disk)
    writer.append(batches(0, 1))
    assert writer.take_touched()[1] == {BATCHES, *list(BATCHES.parents)[:3]}
