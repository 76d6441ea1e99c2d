"""The replica's own files: written whole, read back, damage reported."""

from __future__ import annotations

import zlib
from pathlib import Path
from random import Random

import pytest

from services.ha.shell.replica_files import (
    CutIntent,
    Identity,
    Promise,
    ReplicaFiles,
    ResyncIntent,
)
from tests.support.for_each import for_each
from tests.support.replica_store import store_of
from tests.support.sim_disk import SimCrash, SimDisk
from tidemark.errors import DamagedFile
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

IDENTITY = Identity("0123456789abcdef" * 2, "c", "g", "n0")
PROMISE = Promise(7, 6, 3)
CUT = CutIntent(4096, (EpochStart(Epoch(1), PhysicalOffset(0)),))
RESYNC = ResyncIntent("f" * 32, 8192)
TABLE = (
    EpochStart(Epoch(1), PhysicalOffset(0)),
    EpochStart(Epoch(4), PhysicalOffset(500)),
)


def files_on(disk: SimDisk) -> ReplicaFiles:
    store = store_of(disk)
    store.open_or_create()
    return ReplicaFiles(store)


@pytest.fixture
def files() -> ReplicaFiles:
    return files_on(SimDisk(1))


def write_all(files: ReplicaFiles) -> None:
    files.write_identity(IDENTITY)
    files.write_promise(PROMISE)
    files.write_confirm(123)
    files.write_intent(CUT)
    files.write_table(TABLE)


def test_a_new_volume_knows_nothing(files: ReplicaFiles) -> None:
    assert files.identity() is None
    assert files.promise() is None
    assert files.confirm() == 0
    assert files.intent() is None
    assert files.table() == ()


def test_what_was_written_is_read_back(files: ReplicaFiles) -> None:
    write_all(files)
    assert files.identity() == IDENTITY
    assert files.promise() == PROMISE
    assert files.confirm() == 123
    assert files.intent() == CUT
    assert files.table() == TABLE
    files.write_intent(RESYNC)
    assert files.intent() == RESYNC
    files.remove_intent()
    files.remove_intent()
    assert files.intent() is None


def test_everything_is_durable_on_return(files: ReplicaFiles) -> None:
    disk = SimDisk(2)
    write_all(files_on(disk))
    after = files_on(disk.power_cut(Random(3)))
    assert after.identity() == IDENTITY
    assert after.promise() == PROMISE
    assert after.confirm() == 123
    assert after.intent() == CUT
    assert after.table() == TABLE


@for_each("seed", range(60))
def test_a_power_cut_leaves_the_old_or_the_new(seed: int) -> None:
    def run(disk: SimDisk) -> int:
        promised = 0
        try:
            files = files_on(disk)
            files.write_table(TABLE[:1])
            for promised in range(1, 6):
                files.write_promise(Promise(promised, 0, 0))
                files.write_table((*TABLE[:1], EpochStart(Epoch(promised + 1), PhysicalOffset(9))))
        except SimCrash:
            promised -= 1
        return promised

    whole = SimDisk(seed)
    run(whole)
    disk = SimDisk(seed)
    disk.crash_at = Random(seed).randrange(20, whole.operations)
    done = run(disk)
    after = files_on(disk.power_cut(Random(seed)))
    promise = after.promise()
    assert promise is None or promise.promised in (done, done + 1)
    assert done <= 0 or promise is not None
    assert len(after.table()) <= 2
    assert done <= 0 or len(after.table()) == 2


@pytest.mark.parametrize("name", ["identity", "promise", "confirm", "intent"])
def test_every_flipped_bit_is_found(name: str) -> None:
    disk = SimDisk(1)
    files = files_on(disk)
    write_all(files)
    path: Path = getattr(files, f"{name}_path")
    size = disk.stat(path)
    assert size is not None
    for bit in range(size.size * 8):
        disk.flip_bit(path, bit)
        with pytest.raises(DamagedFile, match="cluster resync"):
            getattr(files, name)()
        disk.flip_bit(path, bit)
    assert getattr(files, name)() is not None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("promise", b'{"format": 2}'),
        ("promise", b'{"format": 1, "promised": -1, "seen_epoch": 0, "seen_version": 0}'),
        ("promise", b'{"format": 1, "promised": true, "seen_epoch": 0, "seen_version": 0}'),
        ("promise", b"[]"),
        ("promise", b"x"),
        ("identity", b'{"format": 1, "incarnation": "F", "cluster": "", "group": "", "node": ""}'),
        ("identity", b'{"format": 1, "incarnation": 1}'),
        ("intent", b'{"format": 1, "what": "else"}'),
        ("intent", b'{"format": 1, "what": "cut", "point": 1, "table": [[1]]}'),
        ("intent", b'{"format": 1, "what": "cut", "point": 1, "table": [[1, -1]]}'),
        ("intent", b'{"format": 1, "what": "cut", "point": 1}'),
        ("intent", b'{"format": 1, "what": "resync", "incarnation": "", "first_offset": 0}'),
    ],
)
def test_a_sound_checksum_over_nonsense_is_damage_all_the_same(name: str, line: bytes) -> None:
    disk = SimDisk(1)
    files = files_on(disk)
    disk.make_directory(files.promise_path.parent)
    data = line + b"\ncrc32 %08x\n" % zlib.crc32(line)
    file = disk.create(getattr(files, f"{name}_path"), len(data), reserve=False)
    file.pwrite(data, 0)
    with pytest.raises(DamagedFile):
        getattr(files, name)()


def test_a_damaged_table_is_read_from_its_twin_which_is_the_same() -> None:
    disk = SimDisk(1)
    files = files_on(disk)
    files.write_table(TABLE[:1])
    files.write_table(TABLE)
    disk.flip_bit(files.table_path, 40)
    assert files.table() == TABLE
    disk.flip_bit(files.table_twin_path, 41)
    with pytest.raises(DamagedFile, match=r"epochFileCheckpoint\.bak"):
        files.table()


def test_an_identity_can_be_read_by_people() -> None:
    disk = SimDisk(1)
    files = files_on(disk)
    files.write_identity(IDENTITY)
    text = disk.peek(files.identity_path)
    assert text is not None
    assert b'"incarnation": "0123456789abcdef0123456789abcdef"' in text
    assert b'"node": "n0"' in text
