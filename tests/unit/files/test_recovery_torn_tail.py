"""Recovery cuts a torn tail behind all durable records: from where, and in what order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.files.os_disk import OsDisk, OsFile
from tests.support.next_start import FILE, KEY, OTHER_BOOT, again, fill
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord, ReadOnlyDisk
from tidemark.formats.checkpoint import Slot


class TestTornTail:
    """Bytes behind the last whole record that were never acked."""

    def tear(self, small: SmallStore, data: bytes) -> int:
        fill(small, 5)
        small.flush()
        small.overwrite(small.end, data)
        return small.end

    def test_it_is_kept_aside_then_zeroed(self, small: SmallStore) -> None:
        end = self.tear(small, b"\x00\x00half a record\x00\x00")
        found = again(small)
        assert found.end == end
        assert found.cut is not None
        assert (found.cut.start, found.cut.end) == (end, end + 15)
        assert found.cut.path.parent == small.store.cut_dir
        assert found.cut.path.read_bytes() == b"\x00\x00half a record"
        assert not any(small.log_file().read_bytes()[end:])
        assert found.next_queue_offsets == {KEY: 5}
        again_found = again(small)
        assert (again_found.end, again_found.cut) == (end, None)

    def test_a_whole_record_behind_the_tear_is_cut_with_it(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        lost, *_ = fill(small, 3)
        small.overwrite(lost.physical_offset + 100, b"y")
        found = again(small, boot=OTHER_BOOT)
        assert found.end == lost.physical_offset
        assert found.cut is not None
        assert found.cut.end == small.end
        assert "body crc" in found.cut.reason

    def test_it_may_reach_into_later_files_which_go(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        lost, *_ = fill(small, 40)
        small.overwrite(lost.physical_offset, bytes(lost.size))
        assert small.end > 2 * FILE
        found = again(small, boot=OTHER_BOOT)
        assert found.end == lost.physical_offset
        assert found.cut is not None
        assert (found.cut.start, found.cut.end) == (lost.physical_offset, small.end)
        assert found.cut.path.stat().st_size == small.end - lost.physical_offset
        assert list(small.log_bytes()) == [small.log_file().name]
        assert again(small, boot=OTHER_BOOT).end == lost.physical_offset

    # The first part was zeroed, and the next start kept the zeros under the same name.
    def test_what_was_kept_survives_a_cut_that_could_not_be_completed(
        self, small: SmallStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(small, 5)
        small.flush()
        lost, *_ = fill(small, 40)
        small.overwrite(lost.physical_offset, bytes(lost.size))
        tail = b"".join(data for _, data in sorted(small.log_bytes().items()))[
            lost.physical_offset : small.end
        ]
        unlink = OsDisk.unlink

        def read_only(disk: OsDisk, path: Path) -> None:
            if path.parent == small.store.commit_log_dir:
                raise ReadOnlyDisk("the disk is read-only", "", path=path)
            unlink(disk, path)

        monkeypatch.setattr(OsDisk, "unlink", read_only)
        again(small, boot=OTHER_BOOT)
        monkeypatch.undo()
        again(small, boot=OTHER_BOOT)
        assert tail in [path.read_bytes() for path in small.store.cut_dir.iterdir()]

    def test_it_may_begin_at_a_files_border(self, small: SmallStore) -> None:
        while small.end < FILE:
            last = small.put(body=b"x" * 300)
            small.flush()
        units = len(small.units)
        small.positions.publish(Slot.FLUSHED, FILE)
        small.overwrite(FILE, bytes(50) + b"z" * (last.size - 50))
        found = again(small, boot=OTHER_BOOT)
        assert found.end == FILE
        assert found.next_queue_offsets == {KEY: units - 1}
        assert not any(small.log_file(FILE).read_bytes())

    def test_a_file_that_lost_its_name_before_the_next_one_cuts_there(
        self, small: SmallStore
    ) -> None:
        small.flush()
        small.appender.close(clean=False)
        for start in (0, 2 * FILE):
            small.log_file(start).write_bytes(bytes(FILE))
        small.log_file(FILE).unlink(missing_ok=True)
        found = again(small)
        assert found.end == 0
        assert small.log_file(0).exists()
        assert not small.log_file(2 * FILE).exists()

    def test_empty_preallocated_files_are_no_damage(self, small: SmallStore) -> None:
        fill(small, 3)
        small.flush()
        small.log_file(FILE).write_bytes(bytes(FILE))
        small.log_file(2 * FILE).write_bytes(b"")
        found = again(small)
        assert (found.end, found.cut) == (small.end, None)
        assert not small.log_file(2 * FILE).exists()

    @settings(
        max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(position=st.integers(0, 3 * FILE - 1), data=st.binary(min_size=1, max_size=900))
    def test_any_bytes_anywhere_are_cut_or_named(
        self, tmp_path_factory: pytest.TempPathFactory, position: int, data: bytes
    ) -> None:
        """flushed → named with nothing changed; not flushed → cut at the record that was hit."""
        small = SmallStore(tmp_path_factory.mktemp("store"))
        try:
            fill(small, 12)
            small.flush()
            flushed = small.end
            fill(small, 12)
            data = data[: FILE - position % FILE]
            small.overwrite(position, data)
            before = small.log_bytes()
            found = named = None
            try:
                found = again(small, boot=OTHER_BOOT)
            except CorruptRecord as corrupt:
                named = corrupt
            if found is None:
                assert named is not None
                assert named.at < flushed
                assert small.log_bytes() == before
                assert not small.store.cut_dir.exists()
                return
            assert found.end >= flushed
            kept = sum(1 for *_, unit in small.units if unit.end <= found.end)
            assert found.next_queue_offsets == {KEY: kept}
            untouched = [unit.end for *_, unit in small.units if unit.end <= position]
            assert found.end >= max(untouched, default=0)
        finally:
            small.close()


class Recording(OsDisk):
    """Notes which names change and are synced, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.calls.append(f"remove {path.name}")

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.calls.append("keep" if new.parent.name == "cut" else f"rename {new.name}")

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.calls.append(f"sync {path.name}/")


def test_the_cut_is_kept_before_it_is_zeroed_and_all_is_synced_before_it_is_published(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 2)
    small.flush()
    small.positions.publish(Slot.FLUSHED, 0)
    units = fill(small, 14)
    small.overwrite(units[3].physical_offset, b"!!!!")
    disk = Recording()
    pwrite, sync = OsFile.pwrite, OsFile.sync

    def noted_pwrite(file: OsFile, data: bytes | bytearray | memoryview, offset: int) -> None:
        disk.calls.append(f"write {file.path.name} {'bytes' if any(data) else 'zeros'}")
        pwrite(file, data, offset)

    def noted_sync(file: OsFile) -> None:
        disk.calls.append(f"sync {file.path.name}")
        sync(file)

    monkeypatch.setattr(OsFile, "pwrite", noted_pwrite)
    monkeypatch.setattr(OsFile, "sync", noted_sync)
    found = again(small, boot=OTHER_BOOT, disk=disk)
    assert found.end == units[3].physical_offset
    first, second, third = (small.log_file(start).name for start in (0, FILE, 2 * FILE))
    calls = disk.calls[disk.calls.index("keep") :]
    expected = [
        "keep",
        "sync cut/",
        "sync commitlog/",
        f"remove {third}",
        "sync commitlog/",
        f"remove {second}",
        "sync commitlog/",
        f"write {first} zeros",
        f"sync {first}",
        f"write {first} bytes",
        f"sync {first}",
        "sync commitlog/",
        "sync checkpoint",
    ]
    assert [call for call in calls if call in expected] == expected
