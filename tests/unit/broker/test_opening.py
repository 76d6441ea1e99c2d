"""The first records of a start, and the JSON files in step with the served state."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.broker import opening as opening_module
from services.broker.groups.offsets import Offsets
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.opening import Opening
from services.broker.state import config_files as config_files_module
from services.broker.state.config_files import ConfigFiles
from services.broker.state.topics import Topics
from shared.files.os_disk import OsDisk
from shared.files.store_dir import StoreConfig, StoreDir
from shared.runtime.clock import SystemClock
from shared.state import records
from shared.state.json_cache import GROUPS_FILE, LEVELS_FILE, OFFSETS_FILE, TOPICS_FILE, JsonCache
from shared.state.records import (
    DelayRecord,
    EpochRecord,
    ForeignRange,
    ForeignRecord,
    GroupConfig,
    GroupRecord,
    NextOffset,
    OffsetsRecord,
    TopicConfig,
    TopicRecord,
)
from shared.state.state import BrokerState
from shared.state.values import TimerMark
from tests.support.node import wait_until
from tidemark.errors import DiskFull
from tidemark.formats import timer_check as formats_timer_check
from tidemark.formats.timer_check import TimerCheck
from tidemark.offsets import PhysicalOffset, QueueOffset


class Log:
    """A log in memory, durable at once; ``full`` while the disk refuses writes."""

    def __init__(self, bodies: Sequence[bytes] = ()) -> None:
        self.bodies = list(bodies)
        self.full = False
        self.refused = asyncio.Event()

    async def append_state(self, body: bytes) -> PhysicalOffset:
        if self.full:
            self.refused.set()
            raise DiskFull("no room. Nothing was stored.")
        self.bodies.append(body)
        return PhysicalOffset(len(self.bodies))

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        return await self.append_state(body)

    async def append_snapshot(self, state: BrokerState | None = None) -> PhysicalOffset:
        assert state is not None
        for body in state.snapshot_records(0, 400, next_offsets=[NextOffset("t", 0, 9)]):
            await self.append_state(body)
        return PhysicalOffset(len(self.bodies))

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        raise AssertionError("nothing is committed before the node is open")

    async def file_made(self) -> None:
        raise AssertionError("there is always a file")

    async def durable(self, end: PhysicalOffset) -> None:
        return


class Start:
    """One start over a log and a directory."""

    def __init__(self, root: Path, log: Log, foreign: ForeignRange | None = None) -> None:
        self.store = StoreDir(OsDisk(), root, StoreConfig())
        self.store.open_or_create()
        self.cache = JsonCache(self.store.disk, self.store.config_dir)
        self.state = BrokerState()
        for body in log.bodies:
            self.state.apply(records.decode(body))
        self.offsets = Offsets(self.state, log, flushed=lambda: 7)
        self.topics = Topics(
            self.state, log, QueueOffsets({("t", 0): QueueOffset(9)}), flushed=lambda: 7
        )
        self.files = ConfigFiles(
            self.store,
            self.state,
            self.topics,
            self.offsets,
            lambda: self.state.delay,
            SystemClock(),
            flushed=lambda: 7,
        )
        self.opening = Opening(
            self.state,
            log,
            self.files,
            self.topics,
            self.offsets,
            flushed=lambda: 7,
            foreign=foreign,
        )
        self.stop = asyncio.Event()

    async def open(self) -> None:
        assert await self.opening.run(self.stop)

    def json(self, name: str, text: str) -> None:
        (self.store.config_dir / name).write_text(text)

    def rocketmq(self) -> Start:
        """Add the files that RocketMQ leaves."""
        for name, text in ROCKETMQS.items():
            self.json(name, text)
        return self

    def names(self) -> list[str]:
        return sorted(path.name for path in self.store.config_dir.iterdir())


ROCKETMQS = {
    "topics.json": '{"topicConfigTable":{"t":{"readQueueNums":4,"writeQueueNums":4}}}',
    "subscriptionGroup.json": '{"subscriptionGroupTable":{"g":{"retryMaxTimes":3}},'
    '"forbiddenTable":{"g":{"t":1}}}',
    "consumerOffset.json": '{"offsetTable":{"t@g":{0:12,1:7},"%RETRY%g@g":{0:3}}}',
    "delayOffset.json": '{"offsetTable":{3:5}}',
}


async def test_a_new_store_gets_a_start_record_and_no_files(tmp_path: Path) -> None:
    log = Log()
    start = Start(tmp_path, log)
    await start.open()
    assert start.state.start_count == 1
    assert await start.files.write_all()
    assert start.names() == []
    again = Start(tmp_path, log)
    await again.open()
    assert again.state.start_count == 2


async def test_rocketmqs_state_is_taken_over_once_with_one_snapshot(tmp_path: Path) -> None:
    log = Log()
    start = Start(tmp_path, log).rocketmq()
    await start.open()
    group = GroupConfig("g", retry_max=3, forbidden={"t": 1})
    replayed = BrokerState()
    for body in log.bodies:
        replayed.apply(records.decode(body))
    for state in (start.state, replayed):
        assert state.topics == {"t": TopicConfig("t", 4, 4)}
        assert state.groups == {"g": group}
        assert state.offsets == {"g": {("t", 0): 12, ("t", 1): 7, ("%RETRY%g", 0): 3}}
        assert state.delay.levels == {3: 5}
    assert replayed.snapshots == 1
    assert replayed.next_queue_offsets == {("t", 0): 9}
    assert start.offsets.get("g", "t", 0) == 12
    # The files are ours now: a restart takes nothing over, whatever has changed since.
    start.offsets.accept("g", {("t", 0): 99})
    written = len(log.bodies)
    log.bodies.append(records.encode(OffsetsRecord(0, {"g": {("t", 0): 99}})))
    again = Start(tmp_path, log)
    await again.open()
    assert len(log.bodies) == written + 2
    assert again.offsets.get("g", "t", 0) == 99


def timer_check(read_to_ms: int, queue_offset: int) -> bytes:
    fields = (read_to_ms, 104, queue_offset, queue_offset, 0, 1_700_000_000_000, 3)
    return struct.pack(">7q", *fields).ljust(4096, b"\0")


async def test_how_far_rocketmqs_timer_has_come_is_taken_over(tmp_path: Path) -> None:
    log = Log()
    start = Start(tmp_path, log).rocketmq()
    (start.store.config_dir / "timercheck").write_bytes(timer_check(5000, 7))
    await start.open()
    mark = start.state.delay.timer
    # RocketMQ has read its wheel up to second 5: what it rounded to second 4 was due at 5000.
    assert mark.passed(5000, 6)
    assert not mark.passed(5001, 6)
    assert not mark.passed(4000, 7)  # not in the wheel yet, so not delivered, however late
    # The file has no key of ours. Where nothing else is RocketMQ's, it is not read.
    (start.store.config_dir / "timercheck").write_bytes(timer_check(9000, 9))
    again = Start(tmp_path, log)
    await again.open()
    assert again.state.delay.timer == mark


async def test_a_timercheck_of_ours_counts_alone_once_rocketmq_has_moved_it(tmp_path: Path) -> None:
    # A broker that is killed within seconds has written no other file.
    log = Log()
    start = Start(tmp_path, log)
    path = start.store.config_dir / "timercheck"
    path.parent.mkdir(exist_ok=True)
    ours = formats_timer_check.encode(TimerCheck(4000, 52, 6, 6), 4321)
    path.write_bytes(ours)
    await start.open()
    assert start.state.delay.timer == TimerMark(), "it says what we knew"
    path.write_bytes(timer_check(5000, 7)[:56] + ours[56:])
    again = Start(tmp_path, log)
    await again.open()
    assert again.state.delay.timer.passed(5000, 6)
    assert not again.state.delay.timer.passed(5001, 6)


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 4096, timer_check(5000, 7)[:55], timer_check(5000, -1)]
)
async def test_an_empty_timercheck_marks_nothing(tmp_path: Path, raw: bytes) -> None:
    start = Start(tmp_path, Log()).rocketmq()
    (start.store.config_dir / "timercheck").write_bytes(raw)
    await start.open()
    assert not start.state.delay.timer.passed(0, 0)


@pytest.mark.parametrize("bit", [36, 40, 55, 62])
async def test_a_timercheck_of_the_far_future_is_damage_and_marks_nothing(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    # By one flipped bit all waiting messages counted as delivered.
    start = Start(tmp_path, Log()).rocketmq()
    read_to_ms = SystemClock().wall_ms() & ~(1 << bit)
    (start.store.config_dir / "timercheck").write_bytes(timer_check(read_to_ms ^ 1 << bit, 7))
    await start.open()
    is_ahead = read_to_ms ^ 1 << bit > SystemClock().wall_ms() + 60_000
    assert start.state.delay.timer.passed(read_to_ms, 6) is not is_ahead
    events = [getattr(each, "event", "") for each in caplog.records]
    assert ("config-file-damaged" in events) is is_ahead


async def test_only_the_file_that_rocketmq_wrote_counts(tmp_path: Path) -> None:
    log = Log()
    first = Start(tmp_path, log).rocketmq()
    await first.open()
    first.json("consumerOffset.json", '{"offsetTable":{"t@g":{0:20}}}')
    first.json("topics.json", '{"topicConfigTable":{"u":{}},"tidemark":{"epoch":0}}')
    second = Start(tmp_path, log)
    await second.open()
    assert second.state.offsets == {"g": {("t", 0): 20}}
    assert second.state.topics.keys() == {"t"}
    table = second.cache.read(TOPICS_FILE)
    assert table is not None
    assert table.topics.keys() == {"t"}


async def test_no_file_is_written_before_it_was_read_for_what_rocketmq_left(tmp_path: Path) -> None:
    # The part that writes began at once, whatever the reading part was doing: now and then the
    # files were ours before they were read, and RocketMQ's topics and groups were lost.
    start = Start(tmp_path, Log()).rocketmq()
    start.files.topics_changed()
    start.files.groups_changed()
    running = asyncio.create_task(start.files.run(start.stop))
    await asyncio.sleep(0)
    assert await start.files.write_all()
    for name, text in ROCKETMQS.items():
        assert (start.store.config_dir / name).read_text() == text
    await start.open()
    assert start.state.topics == {"t": TopicConfig("t", 4, 4)}
    table = start.cache.read(TOPICS_FILE)
    assert table is not None
    assert table.covered is not None, "ours now"
    start.stop.set()
    await running


async def test_a_range_that_rocketmq_wrote_is_recorded_once(tmp_path: Path) -> None:
    log = Log()
    await Start(tmp_path, log, ForeignRange(100, 300)).open()
    again = Start(tmp_path, log, ForeignRange(100, 300))
    await again.open()
    assert again.state.foreign == [ForeignRange(100, 300)]
    kinds = [type(records.decode(body)) for body in log.bodies]
    assert (kinds.count(ForeignRecord), kinds.count(EpochRecord)) == (1, 2)


async def test_a_log_of_rocketmq_gets_a_snapshot_also_if_rocketmq_left_no_file(
    tmp_path: Path,
) -> None:
    # The copy of a slave may begin in files that have none, and it serves no reads before one.
    log = Log()
    start = Start(tmp_path, log, ForeignRange(100, 300))
    await start.open()
    assert Start(tmp_path, log).state.snapshots == 1


async def test_it_waits_for_a_disk_that_takes_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_module, "PAUSE_S", 0.01)
    log = Log()
    log.full = True
    start = Start(tmp_path, log).rocketmq()
    opening = asyncio.create_task(start.opening.run(start.stop))
    await log.refused.wait()
    assert not start.state.groups
    log.full = False
    assert await opening
    assert start.state.groups.keys() == {"g"}
    log.full = True
    stopped = Start(tmp_path, log)
    stopped.stop.set()
    assert not await stopped.opening.run(stopped.stop)


async def test_damaged_files_cost_a_log_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(tmp_path, Log())
    for name in ROCKETMQS:
        start.json(name, "{")
    await start.open()
    damaged = [each for each in caplog.records if "a file in config/ is damaged" in each.message]
    assert len(damaged) == 4


async def test_changes_reach_the_files_and_all_is_there_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_files_module, "PAUSE_S", 0.01)
    start = Start(tmp_path, Log())
    await start.open()
    stop = asyncio.Event()
    running = asyncio.create_task(start.files.run(stop))
    start.state.apply(TopicRecord(0, TopicConfig("t", 2, 2)))
    start.files.topics_changed()
    async with asyncio.timeout(20):
        while start.cache.read(TOPICS_FILE) is None:  # noqa: ASYNC110 - another thread makes the file
            await asyncio.sleep(0.01)
    stop.set()
    await running
    start.state.apply(GroupRecord(0, GroupConfig("g", order=True, start="last")))
    start.files.groups_changed()
    start.offsets.accept("g", {("t", 0): 4})
    start.state.apply(DelayRecord(0, {2: 8}))
    assert await start.files.write_all()
    assert start.names() == sorted(ROCKETMQS)
    groups, offsets, levels = (
        start.cache.read(GROUPS_FILE),
        start.cache.read(OFFSETS_FILE),
        start.cache.read(LEVELS_FILE),
    )
    assert groups is not None
    assert offsets is not None
    assert levels is not None
    assert groups.groups["g"].consume_message_orderly
    assert groups.groups["g"].attributes == {"tidemark.start": "last"}
    assert offsets.offsets == {("t", "g"): {0: 4}}
    assert levels.offsets == {2: 8}
    assert offsets.covered is not None
    version = offsets.version
    await start.files.write_all()
    unchanged = start.cache.read(OFFSETS_FILE)
    assert unchanged is not None
    assert unchanged.version == version


async def test_a_file_that_cannot_be_written_is_named_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(tmp_path, Log())
    await start.open()
    start.offsets.accept("g", {("t", 0): 4})
    (start.store.config_dir / "consumerOffset.json").mkdir()
    (start.store.config_dir / "consumerOffset.json" / "stray").touch()
    assert not await start.files.write_all()
    assert not await start.files.write_all()
    assert len([each for each in caplog.records if "could not be written" in each.message]) == 1
    (start.store.config_dir / "consumerOffset.json" / "stray").unlink()
    (start.store.config_dir / "consumerOffset.json").rmdir()
    assert await start.files.write_all()


async def test_the_record_of_a_masters_start_names_its_epoch_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    log = Log()
    start = Start(tmp_path, log)
    opening = Opening(
        start.state,
        log,
        start.files,
        start.topics,
        start.offsets,
        flushed=lambda: 7,
        foreign=None,
        epoch=5,
    )
    assert await opening.run(start.stop) == len(log.bodies), "the end of the epoch record"
    last_record = records.decode(log.bodies[-1])
    assert isinstance(last_record, EpochRecord)
    assert (last_record.epoch, last_record.start_count) == (5, 1)


async def test_files_of_a_broker_that_was_refused_a_running_store_are_not_taken_over(
    tmp_path: Path,
) -> None:
    """A RocketMQ broker that does not get the lock still rewrites its JSON files when it ends. 1.
    It reads them; 2. a topic is created; 3. it writes what it read; 4. our node is killed. If its
    files were taken over, the topic would be deleted.
    """
    log = Log()
    start = Start(tmp_path, log)
    start.store.mark_running()
    await start.open()
    for name, text in ROCKETMQS.items():
        start.json(name, text)
    written = len(log.bodies)
    again = Start(tmp_path, log)
    again.store.mark_running()
    await again.open()
    assert len(log.bodies) == written + 1, "the record of the start alone"
    assert again.state.groups == {}
    # A broker that does get the lock writes its own abort.
    again.store.abort_path.write_text("4711")
    taken = Start(tmp_path, log)
    taken.store.mark_running()
    await taken.open()
    assert taken.state.groups.keys() == {"g"}


async def test_files_that_a_refused_broker_wrote_on_a_slave_are_not_taken_over_by_the_master(
    tmp_path: Path,
) -> None:
    log = Log()
    slave = Start(tmp_path, log)
    slave.store.mark_running()
    await slave.files.begin_following(3)
    slave.json("subscriptionGroup.json", ROCKETMQS["subscriptionGroup.json"])
    master = Start(tmp_path, log)
    await master.open()
    assert master.state.groups == {}


async def test_the_mark_of_a_store_that_was_opened_outlasts_a_service_that_replaces_it(
    tmp_path: Path,
) -> None:
    start = Start(tmp_path, Log())
    start.store.mark_running()
    await start.open()
    start.store.abort_path.write_text("4711")  # as reput did: it had read the file before
    stop = asyncio.Event()
    running = asyncio.create_task(start.files.run(stop))
    await asyncio.to_thread(wait_until, lambda: start.store.is_opened, "the mark to be made again")
    stop.set()
    await running


async def test_such_files_are_replaced_at_the_stop_so_that_the_next_start_finds_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    start = Start(tmp_path, log)
    start.json("topics.json", ROCKETMQS["topics.json"])
    await start.open()
    assert await start.files.write_all()
    ours = (start.store.config_dir / "topics.json").read_bytes()
    start.json("topics.json", ROCKETMQS["topics.json"])
    assert await start.files.write_all()
    assert [getattr(each, "event", "") for each in caplog.records] == ["config-files-replaced"]
    assert '"tidemark"' in ours.decode()
    assert '"tidemark"' in (start.store.config_dir / "topics.json").read_text()
    start.store.mark_clean()
    again = Start(tmp_path, log)
    written = len(log.bodies)
    await again.open()
    assert len(log.bodies) == written + 1
