"""Retention over a real log: which files are deleted in which order, refusals, counts, views."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.retention.borders import border
from services.broker.retention.metrics import RetentionMetrics
from shared.metrics.registry import Registry
from tests.support.metrics import exposed, sample
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tests.unit.broker.retention.retained_store import FILE_SIZE, POLICY, RetainedStore
from tidemark.errors import DiskFull, FileNotReady
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset


@pytest.fixture
def made(tmp_path: Path) -> Iterator[RetainedStore]:
    store = RetainedStore(tmp_path / "store")
    yield store
    store.close()


def age(made: RetainedStore, file: int, seconds: float) -> None:
    """Make a log file look as if it was last written this many seconds ago."""
    at = made.clock.wall_ms() / 1000 - seconds
    os.utime(made.small.log_file(file * FILE_SIZE), (at, at))


def fullness(made: RetainedStore, percent: float) -> None:
    """Fill the disk to that level with other data."""
    files = len(list(made.disk.log_dir.iterdir()))
    made.disk.other = int(made.disk.total * percent / 100) - files * FILE_SIZE


# -- what goes -------------------------------------------------------------------------------------


async def test_expired_files_go_oldest_first_and_readers_learn_of_it_before(
    made: RetainedStore,
) -> None:
    made.fill(4)
    for file in range(4):
        age(made, file, 7200 if file < 2 else 0)
    await made.judge()
    assert made.starts == [2, 3]
    assert made.small.positions.get(Slot.MIN) == 2 * FILE_SIZE == made.reader.min_offset
    assert made.rings > 0
    deleted = made.retention.as_dict()["deleted_files"]
    assert deleted == {"age": 2, "size": 0, "disk_pressure": 0, "master": 0}
    await made.judge()
    assert made.starts == [2, 3]


async def test_a_young_file_keeps_the_older_ones_behind_it(made: RetainedStore) -> None:
    made.fill(4)
    for file, seconds in ((0, 7200), (1, 0), (2, 7200)):
        age(made, file, seconds)
    await made.judge()
    assert made.starts == [1, 2, 3]


async def test_at_most_ten_files_go_in_one_run(made: RetainedStore) -> None:
    made.fill(14)
    made.clock.now_s = 10_000_000_000.0
    await made.judge()
    assert made.starts == [10, 11, 12, 13]
    await made.judge()
    assert made.starts == [13]


async def test_the_log_is_no_larger_than_allowed(tmp_path: Path) -> None:
    made = RetainedStore(tmp_path, POLICY._replace(size_max=3 * FILE_SIZE))
    made.fill(6)
    await made.judge()
    assert made.starts == [3, 4, 5]
    assert made.retention.as_dict()["deleted_files"]["size"] == 3
    made.close()


@pytest.mark.parametrize("holder", ["dispatch", "confirm", "snapshot", "no_snapshot"])
async def test_needed_files_are_kept_however_full_the_disk_is(
    made: RetainedStore, holder: str
) -> None:
    made.fill(4)
    fullness(made, 95)
    match holder:
        case "dispatch":
            made.small.positions.publish(Slot.DISPATCHED_DURABLE, FILE_SIZE - 1)
        case "confirm":
            made.small.positions.publish(Slot.FLUSHED, FILE_SIZE - 1)
        case "snapshot":
            made.snapshot_start = FILE_SIZE - 1
        case _:
            made.snapshot_start = None
    await made.judge()
    assert made.starts == [0, 1, 2, 3]
    deletion = made.retention.as_dict()["next_deletion"]
    assert deletion["at_ms"] is None
    assert (
        deletion["kept_by"]
        == {
            "dispatch": "not_dispatched",
            "confirm": "not_confirmed",
            "snapshot": "snapshot",
            "no_snapshot": "no_snapshot",
        }[holder]
    )


async def test_a_full_disk_takes_as_many_files_as_bring_it_below_the_threshold(
    made: RetainedStore,
) -> None:
    made.disk.total = 100 * FILE_SIZE
    made.fill(8)
    fullness(made, 88)
    await made.judge()
    assert made.starts == [3, 4, 5, 6, 7]
    assert made.retention.as_dict()["deleted_files"]["disk_pressure"] == 3


async def test_after_a_full_disks_run_the_next_waits_until_reput_has_let_go(
    made: RetainedStore,
) -> None:
    """Blocks of a file that is still mapped are not free after it was removed."""
    made.disk.total = 100 * FILE_SIZE
    made.fill(8)
    fullness(made, 86)
    await made.judge()
    assert made.starts == [1, 2, 3, 4, 5, 6, 7]
    fullness(made, 86)  # as if nothing had become free
    await made.judge()
    assert len(made.starts) == 7
    made.reput_follows()
    await made.judge()
    assert len(made.starts) == 6
    assert made.let_go == 1
    fullness(made, 86)
    made.clock.now_s += 6.0  # nor is a reput that does not answer waited for
    await made.judge()
    assert len(made.starts) == 5


async def test_a_long_deletion_does_not_keep_the_disk_from_being_looked_at(
    made: RetainedStore,
) -> None:
    made.fill(3)
    age(made, 0, 7200)
    made.delayed.pending = 1
    made.delayed.hold = asyncio.Event()
    stop = asyncio.Event()
    running = asyncio.create_task(made.retention.run(stop))
    await made.delayed.asked.wait()
    fullness(made, 95)
    made.files.made.set()
    for _ in range(900):  # less than the second after which it would look by itself
        if made.files.refusal is not None:
            break
        await asyncio.sleep(0.001)
    assert made.files.refusal is not None
    made.delayed.hold.set()
    stop.set()
    await running
    assert made.starts == [1, 2]


async def test_a_name_that_could_not_be_removed_is_removed_later(
    made: RetainedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made.fill(3)
    age(made, 0, 7200)

    def refuse(path: Path) -> None:
        raise OSError(5, "planted")

    monkeypatch.setattr(made.disk, "unlink", refuse)
    for _ in range(2):
        await made.judge()
    assert made.starts == [0, 1, 2]
    assert made.reader.min_offset == FILE_SIZE, "no reader uses it any more"
    events = [each.__dict__.get("event") for each in caplog.records]
    assert events.count("log-file-stays") == 1
    monkeypatch.undo()
    await made.judge()
    assert made.starts == [1, 2]


# -- sends -----------------------------------------------------------------------------------------


async def test_sends_stop_above_the_warning_level_and_go_on_by_themselves(
    made: RetainedStore,
) -> None:
    made.snapshot_start = None
    fullness(made, 90)
    await made.judge()
    made.files.check_may_send()
    fullness(made, 90.5)
    await made.judge()
    with pytest.raises(DiskFull, match="91 % full") as refused:
        made.files.check_may_send()
    assert (refused.value.used_percent, refused.value.limit) == (91, 90)
    assert str(made.disk.log_dir) in refused.value.detail
    assert [reason.code for reason in made.health.reasons] == ["disk-full"]
    assert made.retention.as_dict()["sends_refused"] is True
    fullness(made, 50)
    await made.judge()
    made.files.check_may_send()
    assert made.health.ready


async def test_no_file_is_made_ahead_that_would_fill_the_disk_beyond_it(
    made: RetainedStore,
) -> None:
    made.disk.total = 100 * FILE_SIZE
    made.fill(2)
    fullness(made, 90)
    files = made.small.appender.files
    await made.files.wait()  # what appending needs at all
    assert (files.ready_ahead, made.files.kept_back) == (1, 0)
    with pytest.raises(DiskFull, match="to 92 %"):
        await made.files.wait()
    assert (files.ready_ahead, made.files.kept_back) == (1, FILE_SIZE)
    files.roll()  # the broker's own records get there
    with pytest.raises(DiskFull, match="none is created"):
        await made.files.wait()
    assert (files.ready_ahead, made.files.kept_back) == (1, FILE_SIZE)
    fullness(made, 50)
    await made.files.wait()
    assert made.files.kept_back == 0


async def test_files_that_are_made_have_the_disk_looked_at_again(made: RetainedStore) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(made.retention.run(stop))
    made.snapshot_start = None
    await asyncio.sleep(0)
    fullness(made, 95)
    await made.files.wait()
    for _ in range(900):  # less than the second after which it would look by itself
        if made.files.refusal is not None:
            break
        await asyncio.sleep(0.001)
    assert made.files.refusal is not None
    stop.set()
    await running


# -- what groups lose ------------------------------------------------------------------------------


async def test_messages_that_a_group_had_not_read_are_counted_when_they_go(
    made: RetainedStore,
) -> None:
    made.fill(5)
    made.groups.committed = {
        "slow": {("orders", 0): 4, ("deleted", 0): 0},
        "fast": {("orders", 0): made.border(4)},
    }
    for file in range(2):
        age(made, file, 7200)
    await made.judge()
    assert made.starts == [2, 3, 4]
    assert made.skipped == {("slow", "orders"): made.border(2) - 4}


async def test_messages_in_a_members_hands_are_lost_only_when_the_queue_changes_hands(
    made: RetainedStore,
) -> None:
    made.fill(4)
    key = ("orders", 0)
    made.groups.committed = {"g": {key: 2}}
    made.groups.holders["g", "orders", 0] = "m1"
    made.groups.handed_out = {"g": {key: 3}}
    age(made, 0, 7200)
    await made.judge()
    lost = made.border(1) - 5
    assert made.skipped == {("g", "orders"): lost}
    made.groups.committed["g"][key] = 4
    await made.judge()
    assert made.skipped == {("g", "orders"): lost}
    made.groups.holders["g", "orders", 0] = "m2"
    await made.judge()
    assert made.skipped == {("g", "orders"): lost + 1}


async def test_a_group_is_warned_of_once_before_its_messages_go(
    made: RetainedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made.fill(3)
    made.groups.committed = {"slow": {("orders", 0): 2}, "fast": {("orders", 0): made.border(2)}}
    age(made, 0, 3600 - 59)
    for _ in range(3):
        await made.judge()
        made.clock.now_s += 0.1
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].__dict__["event"] == "messages-expiring"
    assert (warnings[0].__dict__["group"], warnings[0].__dict__["messages"]) == (
        "slow",
        made.border(1) - 2,
    )
    assert made.retention.expiring("slow") == {("orders", 0): made.border(1) - 2}
    assert made.retention.expiring("fast") == {}
    assert made.retention.expiring_groups == 1
    made.groups.committed["slow"]["orders", 0] = made.border(1)
    made.clock.now_s += 20
    await made.judge()
    assert [each.__dict__.get("event") for each in caplog.records][-1] == "messages-safe"
    assert made.retention.expiring_groups == 0


async def test_messages_hidden_by_a_topics_retention_are_counted_at_once(
    made: RetainedStore,
) -> None:
    made.hiding = {"orders"}
    key = ("orders", 0)
    made.groups.committed = {"g": {key: 3}, "done": {key: 50}, "other": {("bills", 0): 0}}
    made.groups.holders["g", "orders", 0] = "m1"
    made.groups.handed_out = {"g": {key: 4}}
    made.expiry.hidden("orders", 0, 0, 10)
    assert made.skipped == {("g", "orders"): 3}  # 7, 8, 9; the member holds 3 to 6
    made.expiry.hidden("orders", 0, 10, 12)
    assert made.skipped == {("g", "orders"): 5}


async def test_topics_with_their_own_retention_are_checked_without_consumers(
    made: RetainedStore,
) -> None:
    made.groups.committed = {"g": {("orders", 0): 3, ("bills", 7): 0}}
    await made.judge()
    assert made.judged == []
    made.hiding = {"bills"}
    made.clock.now_s += 61
    await made.judge()
    assert made.judged == [("bills", 7)]


async def test_a_border_is_where_a_queue_begins_in_a_shorter_log(made: RetainedStore) -> None:
    made.fill(6)
    store = made.small.store
    for files in range(6):
        at = border(store, ("orders", 0), files * FILE_SIZE)
        assert at == made.border(files)
    assert border(store, ("orders", 0), 1 << 40) == len(made.small.units)
    assert border(store, ("unknown", 3), 0) == 0


def test_a_border_in_a_batch_queue_is_the_first_message_of_a_batch(small: SmallStore) -> None:
    batches = [small.put_batch([b"body"] * count) for count in (3, 1, *[5] * 20)]
    bases = [0, 3, *range(4, 104, 5)]
    for base, unit in zip(bases, batches, strict=True):
        assert border(small.store, ("batches", 0), unit.physical_offset) == base
        assert border(small.store, ("batches", 0), unit.physical_offset + 1) == min(
            (each for each in bases if each > base), default=104
        )
    for start in (0, 460):
        small.queue_file("batches", 0, start).unlink()
    assert border(small.store, ("batches", 0), 0) == bases[20], "the oldest that is left"


# -- delayed messages ------------------------------------------------------------------------------


async def test_delayed_messages_are_carried_on_before_their_file_goes(made: RetainedStore) -> None:
    made.fill(3)
    age(made, 0, 7200)
    made.delayed.pending = 7
    await made.judge()
    assert made.delayed.carried_below == [FILE_SIZE]
    assert made.starts == [1, 2]


@pytest.mark.parametrize("full", [False, True])
async def test_without_room_to_carry_them_on_only_a_full_disk_takes_the_file(
    made: RetainedStore, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made.disk.total = 100 * FILE_SIZE
    made.fill(3)
    age(made, 0, 7200)
    fullness(made, 86 if full else 50)
    made.delayed.pending, made.delayed.error = 7, DiskFull("planted.", "")
    await made.judge()
    assert made.starts == ([1, 2] if full else [0, 1, 2])
    events = [each.__dict__.get("event") for each in caplog.records]
    assert ("delayed-lost" if full else "delayed-not-carried") in events


async def test_a_log_file_that_is_only_late_is_waited_for(made: RetainedStore) -> None:
    made.disk.total = 100 * FILE_SIZE
    made.fill(3)
    fullness(made, 86)
    made.delayed.pending, made.delayed.error = 7, FileNotReady("planted.", "")
    await made.judge()
    assert made.starts == [0, 1, 2]
    made.delayed.error = None
    await made.judge()
    assert made.starts == [1, 2]


# -- what is shown ---------------------------------------------------------------------------------


async def test_the_view_shows_the_next_deletion_and_when_sends_will_stop(
    made: RetainedStore,
) -> None:
    made.fill(3)
    for file in range(3):
        age(made, file, 60)
    fullness(made, 50)
    for _ in range(20):
        await made.judge()
        made.clock.now_s += 5.0
        made.disk.other += 1_000_000
    view = made.retention.as_dict()
    assert view["pressure"] == "none"
    assert view["log_files"] == 3
    assert view["oldest_file"]["age_ms"] == 160_000
    assert view["next_deletion"]["why"] == "age"
    due_in_ms = view["next_deletion"]["at_ms"] - made.clock.wall_ms()
    assert due_in_ms == POLICY.age_ms - 160_000
    assert view["log"]["used_percent"] in (51, 52)
    assert view["forecast"]["growth_bytes_per_s"] == pytest.approx(200_000)
    room = made.disk.total * 0.9 - view["log"]["used_bytes"]
    assert view["forecast"]["full_in_s"] == pytest.approx(room / 200_000, rel=0.01)


async def test_metrics_show_it_and_before_the_store_is_open_nothing(made: RetainedStore) -> None:
    registry = Registry("broker")
    metrics = RetentionMetrics(registry)
    assert sample(registry, "tidemark_log_segments_deleted_total", {"reason": "age"}) == 0
    assert sample(registry, "tidemark_retention_sends_refused") is None
    made.fill(3)
    age(made, 0, 7200)
    await made.judge()
    metrics.show(made.retention, made.reader, lambda: PhysicalOffset(made.small.end))
    shown = exposed(registry)
    assert 'tidemark_log_segments_deleted_total{reason="age"} 1.0\n' in shown
    oldest = made.small.units[made.border(1)][3]
    at_ms = made.reader.store_timestamp(
        PhysicalOffset(oldest.physical_offset), oldest.size, made.small.end
    )
    assert at_ms is not None
    assert sample(registry, "tidemark_log_oldest_message_timestamp_seconds") == (at_ms / 1000)
    assert "\ntidemark_store_full_seconds " not in shown, "not to be foreseen"
    assert "tidemark_retention_sends_refused 0.0\n" in shown
