from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from shared.files import store_dir
from shared.files.disk import FileStat
from shared.files.file_run import FileRun
from shared.files.log_walk import LogFiles
from shared.files.os_disk import OsDisk, OsFile, OsRecordLock
from shared.files.positions import Positions
from shared.files.region_cache import RegionCache
from shared.files.store_dir import LockByte, StoreConfig, StoreDir, config_of
from tests.support.sim_disk import SimDisk
from tests.unit.files.test_os_disk import end, posix_locker
from tidemark.errors import (
    DamagedFile,
    DiskFull,
    GroupStore,
    ReadOnlyDisk,
    StoreFormatUnknown,
    StoreLocked,
    StoreMissing,
    StoreSizesDiffer,
)
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import RUNNING_SIGN
from tidemark.offsets import UNIT_SIZE

DISK = OsDisk()
SMALL = StoreConfig(
    commit_log_file_size=8192, consume_queue_file_size=200, index_slots=20, index_entries=30
)


def store(root: Path, config: StoreConfig = SMALL) -> StoreDir:
    return StoreDir(DISK, root, config)


class ReadOnly(OsDisk):
    """A file system mounted read-only, but for one directory."""

    def __init__(self, writable: Path) -> None:
        self._writable = writable

    def _refuse(self, path: Path) -> None:
        if not path.is_relative_to(self._writable):
            raise ReadOnlyDisk(f"cannot write {path}")

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        self._refuse(path)
        return super().create(path, size, reserve=reserve)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable:
            self._refuse(path)
        return super().open(path, writable=writable)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if not path.is_dir():
            self._refuse(path)
        super().make_directory(path, durable=durable)

    def lock(self, path: Path, *, byte: int) -> OsRecordLock | None:
        self._refuse(path)
        return super().lock(path, byte=byte)


def interleave(
    root: Path, operation: str, one: Callable[[StoreDir], None], other: Callable[[StoreDir], None]
) -> None:
    """Run one. Just before its first operation of this kind on tidemark.json, let another process
    run the other, until that has finished or waits for a lock."""
    stands = Event()

    class Other(OsDisk):
        def lock(self, path: Path, *, byte: int) -> OsRecordLock | None:
            lock = super().lock(path, byte=byte)
            if lock is None:
                stands.set()
            return lock

    def work() -> None:
        try:
            other(StoreDir(Other(), root, SMALL))
        finally:
            stands.set()

    thread = Thread(target=work)

    def meet(called: str, path: Path) -> None:
        if called == operation and path.name.startswith("tidemark.json") and not thread.ident:
            thread.start()
            assert stands.wait(30)

    class One(OsDisk):
        def stat(self, path: Path) -> FileStat | None:
            found = super().stat(path)
            meet("stat", path)
            return found

        def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
            meet("create", path)
            return super().create(path, size, reserve=reserve)

        def rename(self, old: Path, new: Path) -> None:
            meet("rename", old)
            super().rename(old, new)

    one(StoreDir(One(), root, SMALL))
    thread.join(30)
    assert not thread.is_alive()


def make_and_describe(opened: StoreDir) -> None:
    opened.open_or_create()
    opened.describe_delay_levels()


class TestOpening:
    def test_an_empty_directory_becomes_a_store_that_describes_itself(self, tmp_path: Path) -> None:
        made = store(tmp_path / "new")
        made.open_or_create()
        assert sorted(path.name for path in made.root.iterdir()) == [
            "commitlog",
            "config",
            "consumequeue",
            "index",
            "lock",
            "tidemark.json",
        ]
        assert json.loads(made.description_path.read_text()) == {
            "format": 1,
            "commit_log_file_size": 8192,
            "consume_queue_file_size": 200,
            "index_slots": 20,
            "index_entries": 30,
        }
        assert not made.is_foreign
        assert made.was_clean
        store(tmp_path / "new").open_or_create()

    def test_other_sizes_are_refused_and_both_are_named(self, tmp_path: Path) -> None:
        store(tmp_path).open_or_create()
        other = StoreConfig(commit_log_file_size=4096, consume_queue_file_size=200)
        with pytest.raises(StoreSizesDiffer) as differ:
            store(tmp_path, other).open_or_create()
        text = str(differ.value)
        assert "commit_log_file_size is 8192 in the store and 4096 as configured" in text
        assert "index_slots is 20 in the store and 5000000 as configured" in text
        assert "consume_queue_file_size" not in text
        assert differ.value.path == tmp_path / "tidemark.json"

    def test_a_later_format_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tidemark.json").write_text('{"format": 2, "new": "things"}')
        with pytest.raises(
            StoreFormatUnknown, match="store format 2; this version supports only 1"
        ):
            store(tmp_path).open_or_create()

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"format": 1}', '{"format": true}', "\udcff", "7"]
    )
    def test_a_damaged_description_is_named_with_its_remedy(
        self, tmp_path: Path, text: str
    ) -> None:
        path = tmp_path / "tidemark.json"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DamagedFile, match="Remove the file"):
            store(tmp_path).open_or_create()

    def test_a_tool_creates_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(StoreMissing, match="holds no store"):
            store(tmp_path / "none").open_or_create(writable=False)
        (tmp_path / "commitlog").mkdir()
        store(tmp_path).open_or_create(writable=False)
        assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]

    @pytest.mark.parametrize("clean", [True, False])
    def test_it_stays_rocketmqs_for_every_service_until_recovery_is_through(
        self, tmp_path: Path, clean: bool
    ) -> None:
        # The reader that starts first writes tidemark.json and abort; the broker that follows must
        # still recover by RocketMQ's rules.
        make_foreign(tmp_path)
        if not clean:
            (tmp_path / "abort").touch()
        first, second, third = store(tmp_path), store(tmp_path), store(tmp_path)
        first.open_or_create()
        first.mark_running()
        second.open_or_create()
        assert second.is_foreign
        assert second.was_clean is clean
        second.finish_adoption()
        third.open_or_create()
        assert not third.is_foreign
        assert not third.was_clean

    @pytest.mark.parametrize(
        ("config", "named"),
        [
            (StoreConfig(4096, 200, 20, 30), "commit_log_file_size is 8192"),
            (StoreConfig(8192, 220, 20, 30), "consume_queue_file_size is 200"),
            (StoreConfig(8192, 200, 25, 30), "index_file_size is 720"),
        ],
    )
    def test_a_store_of_rocketmq_with_other_sizes_is_refused(
        self, tmp_path: Path, config: StoreConfig, named: str
    ) -> None:
        make_foreign(tmp_path)
        with pytest.raises(StoreSizesDiffer, match=named):
            store(tmp_path, config).open_or_create()
        assert not (tmp_path / "tidemark.json").exists()

    @pytest.mark.parametrize("directory", ["commitlog", "consumequeue", "index"])
    def test_the_file_whose_size_differs_is_named(self, tmp_path: Path, directory: str) -> None:
        # A file that was cut looked like a mistake in the configuration, of no file in particular.
        make_foreign(tmp_path)
        cut = min(path for path in (tmp_path / directory).rglob("*") if path.is_file())
        os.truncate(cut, 60)
        with pytest.raises(StoreSizesDiffer) as differ:
            store(tmp_path).open_or_create()
        assert f"the store's is the size of {cut}. Nothing was changed." in str(differ.value)
        assert "was cut" in differ.value.advice

    def test_a_tool_uses_the_sizes_of_the_store(self, tmp_path: Path) -> None:
        make_foreign(tmp_path)
        found = config_of(DISK, tmp_path, StoreConfig())
        assert (found.commit_log_file_size, found.consume_queue_file_size) == (8192, 200)
        store(tmp_path).open_or_create()
        found = config_of(DISK, tmp_path, StoreConfig())
        assert (found.index_slots, found.index_entries) == (20, 30)

    def test_a_read_only_store_opens_and_has_the_reason(self, tmp_path: Path) -> None:
        make_foreign(tmp_path / "store")
        opened = StoreDir(ReadOnly(tmp_path / "run"), tmp_path / "store", SMALL)
        opened.open_or_create()
        assert isinstance(opened.read_only, ReadOnlyDisk)
        assert not opened.description_path.exists()

    def test_no_store_can_be_made_on_a_read_only_disk(self, tmp_path: Path) -> None:
        with pytest.raises(ReadOnlyDisk):
            StoreDir(ReadOnly(tmp_path / "run"), tmp_path / "none", SMALL).open_or_create()


def make_foreign(root: Path) -> None:
    """Sizes as RocketMQ leaves them, a file it was killed while making included."""
    for path, size in {
        "commitlog/00000000000000000000": 8192,
        "commitlog/00000000000000008192": 0,
        "consumequeue/TopicA/0/00000000000000000000": 200,
        "index/20240101000000000": 720,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
        os.truncate(root / path, size)


class TestQueues:
    def test_only_directories_named_by_integers_are_queues(self, tmp_path: Path) -> None:
        for name in ("TopicB/10", "TopicB/2", "TopicA/0", "TopicA/x", "%RETRY%g/0", "TopicA/-1"):
            (tmp_path / "consumequeue" / name).mkdir(parents=True)
        (tmp_path / "consumequeue" / "stray").touch()
        (tmp_path / "consumequeue" / "TopicA" / "5").touch()
        opened = store(tmp_path)
        assert opened.queues() == [("%RETRY%g", 0), ("TopicA", 0), ("TopicB", 2), ("TopicB", 10)]
        assert opened.queue_directory("TopicB", 10).path == tmp_path / "consumequeue/TopicB/10"

    @pytest.mark.parametrize(
        "name", ["99999999999", "2147483648", "007", "00", "9" * 5000, "\u0663"]
    )
    def test_a_directory_that_no_record_can_belong_to_is_not_a_queue(
        self, tmp_path: Path, name: str
    ) -> None:
        # One `mkdir` of a senseless number made a topic of 99,999,999,999 queues, and the first
        # request for them kept the broker busy until it was killed.
        directory = tmp_path / "consumequeue" / "orders"
        (directory / "7").mkdir(parents=True)
        (directory / name[:200]).mkdir()
        assert store(tmp_path).queues() == [("orders", 7)]

    def test_a_queue_is_a_batch_queue_if_it_has_a_directory_as_such(self, tmp_path: Path) -> None:
        (tmp_path / "batchconsumequeue" / "orders" / "7").mkdir(parents=True)
        (tmp_path / "consumequeue" / "orders" / "8").mkdir(parents=True)
        opened = store(tmp_path)
        assert opened.queues() == [("orders", 7), ("orders", 8)]
        units = opened.config.consume_queue_file_size // UNIT_SIZE
        assert opened.queue_directory("orders", 7) == (
            tmp_path / "batchconsumequeue" / "orders" / "7", 46, units * 46
        )  # fmt: skip
        assert opened.queue_directory("orders", 8).unit_size == UNIT_SIZE

    def test_directories_that_are_not_served_are_named(self, tmp_path: Path) -> None:
        assert store(tmp_path).unsupported() == []
        for name in (
            "consumequeue_ext",
            "compaction/compactionLog",
            "consumequeue/%LMQ%a/0",
        ):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "timerwheel").touch()
        (tmp_path / "timerlog").mkdir()
        opened = store(tmp_path)
        assert opened.unsupported() == [
            "compaction (compacted topics)",
            "consumequeue/%LMQ%a (light message queue)",
        ]
        assert opened.queues() == []


HOLDER = """
import sys
from pathlib import Path
from shared.files.os_disk import OsDisk
from shared.files.store_dir import LockByte, StoreConfig, StoreDir
lock = StoreDir(OsDisk(), Path(sys.argv[1]), StoreConfig()).lock(LockByte(int(sys.argv[2])))
print("held", flush=True)
sys.stdin.read()
"""


def holder(root: Path, role: LockByte) -> subprocess.Popen[str]:
    """Another process, which has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), str(role.value)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


class TestLocks:
    def test_the_lock_file_has_its_text_and_each_role_its_byte(self, tmp_path: Path) -> None:
        opened = store(tmp_path)
        locks = [opened.lock(role) for role in LockByte]
        assert (tmp_path / "lock").read_bytes() == b"lock"
        for role in LockByte:
            with pytest.raises(StoreLocked, match=f"byte {role.value} \\({role.name.lower()}\\)"):
                opened.lock(role)
        for lock in locks:
            lock.release()
        opened.lock(LockByte.APPEND).release()

    def test_a_rocketmq_broker_excludes_the_appender_only(self, tmp_path: Path) -> None:
        opened = store(tmp_path)
        (tmp_path / "lock").write_bytes(b"lock")
        (tmp_path / "abort").write_bytes(b"4711")
        process, got = posix_locker(tmp_path / "lock", 0)
        assert got == "taken"
        with pytest.raises(StoreLocked, match="process 4711") as locked:
            opened.lock(LockByte.APPEND)
        assert locked.value.holder == 4711
        opened.lock(LockByte.REPUT).release()
        end(process)
        opened.lock(LockByte.APPEND).release()

    def test_the_appender_is_visible_among_the_log_files(self, tmp_path: Path) -> None:
        """RocketMQ recovers a store, and removes files, before it takes the lock. It does not load
        a log with a file of another size; a link that leads nowhere it removes, and goes on.
        """
        opened = store(tmp_path)
        sign = opened.commit_log_dir / RUNNING_SIGN
        opened.lock(LockByte.REPUT).release()
        lock = opened.lock(LockByte.APPEND)
        opened.open_or_create()  # the directory is not there before
        assert sign.stat().st_size == len(b"lock")
        assert [entry.name for entry in DISK.list_directory(sign.parent)] == [RUNNING_SIGN]
        lock.release()
        assert not sign.is_symlink()
        process = holder(tmp_path, LockByte.APPEND)
        assert sign.stat().st_size == len(b"lock")
        process.kill()
        end(process)
        assert sign.is_symlink()
        assert not sign.exists(), "the link leads nowhere once the process is gone"
        files = FileRun(
            DISK, sign.parent, 4096, cache=RegionCache(DISK, 1), writable=True, reserve=False
        )
        files.load()
        assert files.starts == []
        assert LogFiles(DISK, sign.parent, 4096).starts == []
        lock = opened.lock(LockByte.APPEND)
        assert sign.exists(), "the link of a killed process is replaced"
        lock.release()

    def test_another_process_is_named_by_the_id_it_published(self, tmp_path: Path) -> None:
        process = holder(tmp_path, LockByte.REPUT)
        with pytest.raises(StoreLocked, match="did not say its id"):
            store(tmp_path).lock(LockByte.REPUT)
        positions = Positions.open(DISK, tmp_path / "checkpoint")
        positions.publish(Slot.REPUT_PID, process.pid)
        positions.close()
        with pytest.raises(StoreLocked, match=f"process {process.pid}\\."):
            store(tmp_path).lock(LockByte.REPUT)
        end(process)
        store(tmp_path).lock(LockByte.REPUT).release()

    def test_a_full_disk_does_not_keep_the_lock_from_being_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_self: OsFile, _data: bytes, _offset: int) -> None:
            raise DiskFull("no room")

        monkeypatch.setattr(OsFile, "pwrite", full)
        store(tmp_path).lock(LockByte.APPEND).release()

    def test_on_a_read_only_disk_run_dir_holds_the_lock(self, tmp_path: Path) -> None:
        opened = StoreDir(
            ReadOnly(tmp_path / "run"), tmp_path / "store", SMALL, run_dir=tmp_path / "run"
        )
        lock = opened.lock(LockByte.BROKER)
        with pytest.raises(StoreLocked):
            opened.lock(LockByte.BROKER)
        lock.release()


class TestMakingUp:
    """A disk that refused writes at the start takes them again."""

    def test_the_stores_own_lock_directories_and_abort_come_before_the_first_write(
        self, tmp_path: Path
    ) -> None:
        make_foreign(tmp_path / "store")
        disk = ReadOnly(tmp_path / "run")
        opened = StoreDir(disk, tmp_path / "store", SMALL, run_dir=tmp_path / "run")
        opened.open_or_create()
        lock, other = opened.lock(LockByte.APPEND), opened.lock(LockByte.BROKER)
        other.release()
        with pytest.raises(ReadOnlyDisk):
            opened.mark_running(5)
        with pytest.raises(ReadOnlyDisk):
            opened.make_up()
        disk._writable = tmp_path  # remounted
        opened.make_up()
        opened.make_up()
        assert opened.read_only is None
        assert opened.description_path.exists()
        assert opened.abort_path.read_bytes() == b"5"
        second = store(tmp_path / "store")
        with pytest.raises(StoreLocked):
            second.lock(LockByte.APPEND)
        second.lock(LockByte.BROKER).release()
        lock.release()
        second.lock(LockByte.APPEND).release()

    def test_a_later_process_does_not_get_a_store_in_use(self, tmp_path: Path) -> None:
        make_foreign(tmp_path / "store")
        disk = ReadOnly(tmp_path / "run")
        opened = StoreDir(disk, tmp_path / "store", SMALL, run_dir=tmp_path / "run")
        opened.open_or_create()
        lock = opened.lock(LockByte.APPEND)
        disk._writable = tmp_path
        taken = store(tmp_path / "store").lock(LockByte.APPEND)
        for _ in range(2):
            with pytest.raises(StoreLocked):
                opened.make_up()
        taken.release()
        lock.release()


class TestGroups:
    def test_a_groups_store_is_not_written_alone(self, tmp_path: Path) -> None:
        grouped = replace(SMALL, visible_after="confirmed")
        opened = store(tmp_path, grouped)
        opened.open_or_create()
        assert not opened.is_grouped
        store(tmp_path).open_or_create()  # no node has used it yet
        opened.ha_dir.mkdir()
        opened.identity_path.write_bytes(b"whatever it says")
        assert opened.is_grouped
        with pytest.raises(GroupStore, match=r"Give it the \[cluster\] settings"):
            store(tmp_path).open_or_create()
        store(tmp_path, grouped).open_or_create()

    def test_tools_read_it_unchanged(self, tmp_path: Path) -> None:
        opened = store(tmp_path)
        opened.open_or_create()
        assert config_of(DISK, tmp_path, SMALL).visible_after == "flushed"
        opened.ha_dir.mkdir()
        opened.identity_path.write_bytes(b"")
        store(tmp_path).open_or_create(writable=False)
        found = config_of(DISK, tmp_path, SMALL)
        assert found.visible_after == "confirmed"
        store(tmp_path, found).open_or_create()

    @pytest.mark.parametrize("operation", ["stat", "create", "rename"])
    @pytest.mark.parametrize("adopts_first", [False, True])
    def test_levels_recorded_while_an_adoption_is_finished_are_kept(
        self, tmp_path: Path, operation: str, *, adopts_first: bool
    ) -> None:
        # Each wrote the file with what it had read before: the levels were lost, or the store was
        # RocketMQ's once more.
        make_foreign(tmp_path)
        store(tmp_path).open_or_create()
        both = (StoreDir.describe_delay_levels, StoreDir.finish_adoption)
        interleave(tmp_path, operation, *(reversed(both) if adopts_first else both))
        content = json.loads((tmp_path / "tidemark.json").read_text())
        assert content["delay_levels"] == [SMALL.delay_levels]
        assert "adopting" not in content

    @pytest.mark.parametrize("operation", ["stat", "create", "rename"])
    def test_levels_recorded_while_another_service_makes_the_store_are_kept(
        self, tmp_path: Path, operation: str
    ) -> None:
        interleave(tmp_path, operation, StoreDir.open_or_create, make_and_describe)
        content = json.loads((tmp_path / "tidemark.json").read_text())
        assert content["delay_levels"] == [SMALL.delay_levels]

    @pytest.fixture
    def hold(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[StoreDir], OsRecordLock]:
        """Return a function that takes the description's lock, as if another process kept it."""
        monkeypatch.setattr(store_dir, "DESCRIBE_TRIES", 3)
        monkeypatch.setattr(store_dir, "DESCRIBE_PAUSE_S", 0.0)

        def take(opened: StoreDir) -> OsRecordLock:
            held = DISK.lock(opened.lock_path, byte=store_dir.DESCRIBE_BYTE)
            assert held is not None
            return held

        return take

    def test_a_process_that_keeps_the_lock_for_ever_does_not_stop_a_start(
        self,
        tmp_path: Path,
        hold: Callable[[StoreDir], OsRecordLock],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        opened = store(tmp_path)
        opened.open_or_create()
        held = hold(opened)
        opened.describe_delay_levels()
        assert "delay_levels" not in json.loads(opened.description_path.read_text())
        assert [one.__dict__["event"] for one in caplog.records] == ["description-left-out"]
        assert "the delay levels" in caplog.text
        held.release()
        opened.describe_delay_levels()
        assert "delay_levels" in json.loads(opened.description_path.read_text())

    def test_an_adoption_that_could_not_be_finished_is_named(
        self,
        tmp_path: Path,
        hold: Callable[[StoreDir], OsRecordLock],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        make_foreign(tmp_path)
        opened = store(tmp_path)
        opened.open_or_create()
        held = hold(opened)
        opened.finish_adoption()
        assert [one.__dict__["event"] for one in caplog.records] == ["description-left-out"]
        assert "the next start takes it over again" in caplog.text
        held.release()
        opened.finish_adoption()
        assert "adopting" not in json.loads(opened.description_path.read_text())

    def test_a_store_is_not_made_without_its_description(
        self, tmp_path: Path, hold: Callable[[StoreDir], OsRecordLock]
    ) -> None:
        """The next start mistook it for a store of RocketMQ."""
        making = store(tmp_path)
        held = hold(making)
        with pytest.raises(StoreLocked, match=r"tidemark\.json was not made"):
            making.open_or_create()
        held.release()
        again = store(tmp_path)
        again.open_or_create()
        assert again.description_path.exists()
        assert not again.is_foreign


class TestAbort:
    def test_it_is_not_recorded_without_a_free_descriptor(self, tmp_path: Path) -> None:
        """The broker repeats it all the time, and ended by it."""
        opened = store(tmp_path)
        opened.open_or_create()
        opened.mark_running(17)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            opened.mark_opened()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert not opened.is_opened
        opened.mark_opened()
        assert opened.is_opened

    def test_it_shows_that_our_broker_opened_the_store_until_another_program_starts(
        self, tmp_path: Path
    ) -> None:
        opened = store(tmp_path)
        opened.open_or_create()
        opened.mark_opened()
        assert not opened.abort_path.exists(), "no process runs"
        opened.mark_running(17)
        assert not opened.is_opened
        opened.mark_opened()
        again = store(tmp_path)
        again.mark_running(18)
        assert (again.is_opened, again.was_clean) == (True, False)
        again.abort_path.write_bytes(b"4711")  # as a RocketMQ broker does once it has the lock
        assert not again.is_opened
        again.mark_clean()
        assert not again.is_opened

    def test_it_holds_the_process_id_until_all_is_clean(self, tmp_path: Path) -> None:
        opened = store(tmp_path)
        opened.open_or_create()
        opened.mark_running()
        assert opened.abort_path.read_bytes() == str(os.getpid()).encode()
        assert opened.was_clean  # as it was found
        assert not store(tmp_path).was_clean
        opened.mark_clean()
        opened.mark_clean()
        assert store(tmp_path).was_clean

    def test_its_name_is_made_durable_once_and_after_every_removal(self, tmp_path: Path) -> None:
        # A node that becomes master had to wait for this sync, twice.
        disk = SimDisk(3)
        disk.make_directory(tmp_path)
        opened = StoreDir(disk, tmp_path, StoreConfig())
        opened.open_or_create()
        disk.trace = []
        opened.mark_running()
        assert [line for line in disk.trace if "sync_directory" in line]
        disk.trace = []
        opened.mark_running()
        assert [line for line in disk.trace if "sync" in line] == []
        disk.unlink(opened.abort_path)
        opened.mark_running()
        assert [line for line in disk.trace if "sync_directory" in line]

    def test_after_a_crash_it_stays_as_it_is(self, tmp_path: Path) -> None:
        opened = store(tmp_path)
        opened.abort_path.write_bytes(b"12345678")
        opened.mark_running(77)
        opened.mark_running(77)
        assert opened.abort_path.read_bytes() == b"12345678"
        assert not opened.was_clean

    @pytest.mark.parametrize("left", [None, b"4711"])
    def test_a_service_that_starts_beside_the_broker_keeps_that_the_store_is_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None
    ) -> None:
        # 1. Reput reads abort. 2. The broker creates it and records that the store is opened.
        # 3. Reput goes on.
        broker, reput = store(tmp_path), store(tmp_path)
        broker.open_or_create()
        if left is not None:
            broker.abort_path.write_bytes(left)
        writes = OsDisk.create

        def create(disk: OsDisk, path: Path, size: int, *, reserve: bool = True) -> OsFile:
            monkeypatch.setattr(OsDisk, "create", writes)
            broker.mark_running(1)
            broker.mark_opened()
            return writes(disk, path, size, reserve=reserve)

        monkeypatch.setattr(OsDisk, "create", create)
        reput.mark_running(2)
        assert broker.is_opened
        assert sorted(tmp_path.glob("abort*")) == [broker.abort_path]

    def test_on_a_full_disk_the_name_alone_marks_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_self: OsFile, _data: bytes, _offset: int) -> None:
            raise DiskFull("no room")

        monkeypatch.setattr(OsFile, "pwrite", full)
        store(tmp_path).mark_running(1)
        assert (tmp_path / "abort").read_bytes() == b""
        assert not store(tmp_path).was_clean
        (tmp_path / "abort").write_bytes(b"123")
        store(tmp_path).mark_running(1)
        assert (tmp_path / "abort").read_bytes() == b"123"

    def test_on_a_read_only_disk_the_error_is_reported(self, tmp_path: Path) -> None:
        opened = StoreDir(ReadOnly(tmp_path / "run"), tmp_path, SMALL)
        with pytest.raises(ReadOnlyDisk):
            opened.mark_running(1)
