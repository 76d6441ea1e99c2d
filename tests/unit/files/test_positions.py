from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.files.os_disk import OsDisk, OsFile
from shared.files.positions import PAGE_SIZE, Positions
from tidemark.errors import DiskFull, ReadOnlyDisk, StoreError
from tidemark.formats.checkpoint import REGION_MAGIC, Slot, decode_head

DISK = OsDisk()


class RefusingDisk(OsDisk):
    """A disk that cannot write below one directory."""

    def __init__(self, refused: Path, error: StoreError) -> None:
        self._refused = refused
        self._error = error

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable and path.parent == self._refused:
            raise self._error
        return super().open(path, writable=writable)

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        if path.parent == self._refused:
            raise self._error
        return super().create(path, size, reserve=reserve)


def test_a_missing_page_is_made_of_zeros(tmp_path: Path) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    assert all(page.get(slot) == 0 for slot in Slot)
    assert (tmp_path / "checkpoint").read_bytes() == bytes(PAGE_SIZE)
    page.close()


def test_values_published_on_a_page_that_is_being_made_are_kept(tmp_path: Path) -> None:
    """Its creator wrote zeros over it: values that ha had published at the first start were
    lost."""
    path, others = tmp_path / "checkpoint", list[Positions]()

    class SharedDisk(OsDisk):
        def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
            made = super().create(path, size, reserve=reserve)
            others.append(Positions.open(DISK, path))
            others[0].publish(Slot.FENCED, 1)
            return made

    page = Positions.open(SharedDisk(), path)
    assert page.get(Slot.FENCED) == 1
    for each in (page, *others):
        each.close()


def test_a_published_value_is_visible_to_the_other_process_at_once(tmp_path: Path) -> None:
    writer = Positions.open(DISK, tmp_path / "checkpoint")
    reader = Positions.open(DISK, tmp_path / "checkpoint", writable=False)
    for number, slot in enumerate(Slot):
        writer.publish(slot, (number << 40) + 17)
    for number, slot in enumerate(Slot):
        assert reader.get(slot) == (number << 40) + 17
    with pytest.raises(TypeError):
        reader.publish(Slot.WRITTEN, 1)
    writer.sync()
    writer.close()
    reader.close()


def test_slots_are_little_endian_at_the_places_of_the_format(tmp_path: Path) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    page.publish(Slot.WRITTEN, 0x0102030405060708)
    page.publish(Slot.CONFIRM, 5)
    raw = (tmp_path / "checkpoint").read_bytes()
    assert raw[512:520] == bytes.fromhex("0807060504030201")
    assert raw[2048:2056] == (5).to_bytes(8, "little")
    page.close()


def test_the_head_is_big_endian_and_fields_are_stored_one_by_one(tmp_path: Path) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    page.put_head(physic_timestamp_ms=1_700_000_000_123, confirm_offset=-1)
    page.put_head(logics_timestamp_ms=7)
    assert page.head() == decode_head((tmp_path / "checkpoint").read_bytes())
    assert page.head() == (1_700_000_000_123, 7, 0, 0, -1)
    page.close()


def test_values_survive_reopening(tmp_path: Path) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    page.publish(Slot.FLUSHED, 99)
    page.publish(Slot.MAGIC_AND_FORMAT, REGION_MAGIC)
    page.close()
    page = Positions.open(DISK, tmp_path / "checkpoint")
    assert page.get(Slot.FLUSHED) == 99
    page.close()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        bytes(40),
        bytes(PAGE_SIZE - 1),
        bytes(PAGE_SIZE + 1),
        bytes(544) + b"\xff" * 8 + bytes(PAGE_SIZE - 552),
    ],
    ids=["empty", "head only", "a byte short", "a byte long", "another magic"],
)
def test_a_short_or_damaged_page_is_made_anew(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(damaged)
    page = Positions.open(DISK, tmp_path / "checkpoint")
    page.publish(Slot.REPUT_PID, 3)
    assert page.get(Slot.REPUT_PID) == 3
    assert page.is_current()
    page.close()
    assert (tmp_path / "checkpoint").stat().st_size == PAGE_SIZE


def test_a_page_that_rocketmq_wrote_is_kept(tmp_path: Path) -> None:
    head = bytes(range(40))
    (tmp_path / "checkpoint").write_bytes(head.ljust(PAGE_SIZE, b"\0"))
    page = Positions.open(DISK, tmp_path / "checkpoint")
    assert page.head() == decode_head(head)
    assert page.get(Slot.MAGIC_AND_FORMAT) == 0
    page.close()


def test_a_replaced_page_is_no_longer_current(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    page = Positions.open(DISK, path)
    assert page.is_current()
    path.rename(tmp_path / "kept")  # its inode stays taken
    assert not page.is_current()
    other = Positions.open(DISK, path)
    assert not page.is_current()
    assert other.is_current()
    page.close()
    other.close()


def test_tools_do_not_create_a_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Positions.open(DISK, tmp_path / "checkpoint", writable=False)


@pytest.mark.parametrize("size", [0, 40, PAGE_SIZE - 1])
def test_a_tool_treats_a_short_page_as_missing(tmp_path: Path, size: int) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(size))
    with pytest.raises(FileNotFoundError):
        Positions.open(DISK, tmp_path / "checkpoint", writable=False)
    assert (tmp_path / "checkpoint").stat().st_size == size


def test_a_big_endian_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(StoreError, match="big-endian"):
        Positions.open(DISK, tmp_path / "checkpoint")


class TestStandIn:
    """A disk that refuses writes: the page stands in run_dir instead (docs/durability.md)."""

    def test_it_starts_as_a_copy_and_both_processes_share_it(self, tmp_path: Path) -> None:
        page = Positions.open(DISK, tmp_path / "checkpoint")
        page.publish(Slot.FLUSHED, 1234)
        page.close()
        disk = RefusingDisk(tmp_path, ReadOnlyDisk("read-only"))
        fallback = tmp_path / "run" / "checkpoint"
        broker = Positions.open(disk, tmp_path / "checkpoint", fallback=fallback)
        assert broker.is_private
        assert broker.get(Slot.FLUSHED) == 1234
        broker.publish(Slot.BROKER_STATE, 2)
        reput = Positions.open(disk, tmp_path / "checkpoint", fallback=fallback)
        assert reput.get(Slot.BROKER_STATE) == 2
        assert reput.is_current()
        broker.close()
        reput.close()

    def test_a_stand_in_of_an_earlier_time_is_not_used(self, tmp_path: Path) -> None:
        disk = RefusingDisk(tmp_path, DiskFull("full"))
        fallback = tmp_path / "run" / "checkpoint"
        page = Positions.open(disk, tmp_path / "checkpoint", fallback=fallback)
        page.publish(Slot.FLUSHED, 99)
        page.close()
        page = Positions.open(DISK, tmp_path / "checkpoint")  # the disk took writes again
        page.publish(Slot.FLUSHED, 50)
        page.close()
        page = Positions.open(disk, tmp_path / "checkpoint", fallback=fallback)
        assert page.get(Slot.FLUSHED) == 50
        page.close()

    def test_without_one_the_error_comes_through(self, tmp_path: Path) -> None:
        with pytest.raises(ReadOnlyDisk):
            Positions.open(RefusingDisk(tmp_path, ReadOnlyDisk("ro")), tmp_path / "checkpoint")

    def test_a_full_disk_without_room_for_the_block_falls_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "checkpoint").touch()
        os.truncate(tmp_path / "checkpoint", PAGE_SIZE)  # a hole
        real = os.posix_fallocate

        def full(descriptor: int, offset: int, size: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path / "checkpoint":
                raise OSError(errno.ENOSPC, "full")
            real(descriptor, offset, size)

        monkeypatch.setattr(os, "posix_fallocate", full)
        page = Positions.open(DISK, tmp_path / "checkpoint", fallback=tmp_path / "run" / "page")
        assert page.is_private
        page.close()


READER = """
import sys
from pathlib import Path
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from tidemark.formats.checkpoint import Slot
page = Positions.open(OsDisk(), Path(sys.argv[1]), writable=False)
seen = set()
print("reading", flush=True)
while (value := page.get(Slot.WRITTEN)) != 1:
    seen.add(value)
print(sorted(seen - {0, 0x0101010101010101, 0xFEFEFEFEFEFEFEFE}))
"""


def test_another_process_never_reads_half_a_value(tmp_path: Path) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "checkpoint")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    for _ in range(200_000):
        page.publish(Slot.WRITTEN, 0x0101010101010101)
        page.publish(Slot.WRITTEN, 0xFEFEFEFEFEFEFEFE)
    page.publish(Slot.WRITTEN, 1)
    out, _ = process.communicate(timeout=60)
    assert out.strip() == "[]"
    page.close()


@pytest.mark.parametrize(
    ("started", "resumed", "expected"),
    [
        (7, 7, (7, 3)),
        (8, 7, None),  # it has begun, and has not looked at the queue files yet
        (0, 7, (0, 3)),  # it has ended in order
        (8, 0, (8, 3)),  # of a version that does not say so
    ],
)
def test_whether_the_running_reput_has_rebuilt_the_queues(
    tmp_path: Path, started: int, resumed: int, expected: tuple[int, int] | None
) -> None:
    page = Positions.open(DISK, tmp_path / "checkpoint")
    page.publish(Slot.REPUT_PID, started)
    page.publish(Slot.RESUMED_BY, resumed)
    page.publish(Slot.REPUT_GENERATION, 3)
    assert page.resumed_dispatch() == expected
    page.close()


def test_a_page_over_which_an_older_copy_was_written_is_not_current(tmp_path: Path) -> None:
    """Its inode is the same; the node went on with the old values, and stalled while it was
    ready."""
    path = tmp_path / "checkpoint"
    page = Positions.open(DISK, path)
    other = Positions.open(DISK, path)
    older = path.read_bytes()
    page.claim(Slot.REPUT_PID, 7)
    assert page.is_current()
    with path.open("r+b") as file:
        file.write(older)
    assert not page.is_current()
    assert other.is_current(), "it has claimed nothing"
    page.claim(Slot.REPUT_PID, 0)
    assert page.is_current(), "it has ended in order"
    page.close()
    other.close()
