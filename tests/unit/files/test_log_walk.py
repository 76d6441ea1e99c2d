"""The walk of recovery finds the same in one pass as by reading record by record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shared.files import log_walk
from shared.files.log_walk import Break, LogFiles, WalkResult
from shared.files.os_disk import OsDisk
from tests.support.for_each import for_each
from tidemark.formats import hosts, properties, record
from tidemark.formats.filenames import offset_name
from tidemark.formats.record import Message

FILE_SIZE = 8192
HERE = hosts.parse("127.0.0.1:10911")
INNER_BATCH = 0x80
SYS_FLAGS = (
    *(0,) * 12,
    record.TRANSACTION_PREPARED,
    record.TRANSACTION_ROLLBACK,
    record.TRANSACTION_COMMIT,
    INNER_BATCH,
)


def write_log(directory: Path, chance: random.Random, files: int = 3) -> list[int]:
    """Some records in some files; returns where they begin."""
    directory.mkdir(parents=True)
    starts: list[int] = []
    odd = chance.random() < 0.7  # else records as a broker writes them, and nothing else
    for number in range(files):
        content = bytearray()
        while True:
            queue_offset = chance.randrange(50)
            named = {"TAGS": "a"} if chance.random() < 0.5 else {}
            sys_flag = chance.choice(SYS_FLAGS) if odd else 0
            if chance.random() < 0.2:
                sys_flag = INNER_BATCH
                count = chance.randrange(1, 9)
                named |= {"INNER_BASE": str(queue_offset), "INNER_NUM": str(count)}
            made = record.encode(
                Message(
                    chance.choice(["orders", "payments"] + ["..", "ü"] * (odd and number == 1)),
                    chance.randrange(3),
                    chance.randbytes(chance.choice([0, 10, 600])),
                    HERE,
                    HERE,
                    properties=properties.encode(named),
                    sys_flag=sys_flag,
                ),
                queue_offset=queue_offset,
                physical_offset=number * FILE_SIZE + len(content),
                store_timestamp_ms=1000 + number * FILE_SIZE + len(content),
                record_crc=not odd or chance.random() < 0.7,
            )
            if len(content) + len(made) + 8 > FILE_SIZE:
                break
            starts.append(number * FILE_SIZE + len(content))
            content += made
        if chance.random() < 0.7 or number < files - 1:
            content += record.encode_blank(FILE_SIZE - len(content))
        content += bytes(FILE_SIZE - len(content))
        (directory / offset_name(number * FILE_SIZE)).write_bytes(content)
    return starts


def damage(directory: Path, chance: random.Random) -> None:
    """Nothing, a flipped bit, or a sector of zeros."""
    path = directory / offset_name(chance.randrange(3) * FILE_SIZE)
    content = bytearray(path.read_bytes())
    at = chance.randrange(FILE_SIZE)
    match chance.randrange(3):
        case 0:
            content[at] ^= 1 << chance.randrange(8)
        case 1:
            at -= at % 512
            content[at : at + 512] = bytes(512)
    path.write_bytes(content)


def walked(directory: Path, start: int, chance: random.Random, borders: list[int]) -> WalkResult:
    unjudged = [tuple(sorted(chance.sample(borders, 2)))] if chance.random() < 0.5 else []
    files = LogFiles(OsDisk(), directory, FILE_SIZE)
    try:
        return log_walk.walk(
            files,
            start,
            unjudged=[(low, high) for low, high in unjudged],
            unproven_from=chance.choice([log_walk.NEVER, 0, *borders]),
            progress=lambda done, total: None,
        )
    finally:
        files.close()


@for_each("seed", range(150))
def test_one_pass_finds_the_same_as_reading_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "commitlog"
    starts = write_log(directory, chance)
    damage(directory, chance)
    borders = [*starts, 3 * FILE_SIZE, *(start + 7 for start in starts[:3])]
    state = chance.getstate()
    found = walked(directory, 0, chance, borders)
    monkeypatch.setattr(log_walk, "_summed", lambda *arguments: None)
    chance.setstate(state)
    assert walked(directory, 0, chance, borders) == found
    assert found.end > 0 or not found.records
    assert (found.found is Break.NO_FILE) == (found.reason == "")
    assert (found.found is Break.ZEROS) == (found.reason == "zeros")
    assert (found.found is Break.RECORD_CRC) == found.reason.startswith("record crc")
    assert (found.found is Break.UNWRITTEN_SECTOR) == found.reason.endswith("never written")


def test_the_end_of_the_walk_has_a_kind(tmp_path: Path) -> None:
    directory = tmp_path / "commitlog"
    write_log(directory, random.Random(0))
    whole = {path: path.read_bytes() for path in directory.iterdir()}
    second = directory / offset_name(FILE_SIZE)
    size = int.from_bytes(whole[second][:4], "big")
    sound = record.encode(
        Message(
            "orders", 0, b"x" * 300, HERE, HERE, properties=properties.encode({"A": "a" * 700})
        ),
        queue_offset=0,
        physical_offset=FILE_SIZE,
        store_timestamp_ms=1,
        record_crc=False,
    )

    def found() -> Break:
        files = LogFiles(OsDisk(), directory, FILE_SIZE)
        try:
            return log_walk.walk(files, 0, unproven_from=0, progress=lambda done, total: None).found
        finally:
            files.close()

    assert found() in (Break.NO_FILE, Break.ZEROS)
    for content, expected in (
        (bytes(FILE_SIZE), Break.ZEROS),
        (b"no record" + whole[second][9:], Break.NO_RECORD),
        (whole[second][: size - 5] + bytes(5) + whole[second][size:], Break.RECORD_CRC),
        (sound[:512] + bytes(512) + sound[1024:], Break.UNWRITTEN_SECTOR),
    ):
        second.write_bytes(content.ljust(FILE_SIZE, b"\0"))
        assert found() is expected
    second.unlink()
    assert found() is Break.MISSING_FILE


def test_only_a_record_across_a_border_is_checked_like_those_before_it(tmp_path: Path) -> None:
    # Records behind a range that RocketMQ wrote must have a record CRC, whatever crosses the
    # range's end: they were once accepted without one for as many records as one read covered.
    directory = tmp_path / "commitlog"
    directory.mkdir()
    content = bytearray()
    starts = []
    for number in range(4):
        starts.append(len(content))
        content += record.encode(
            Message("orders", 0, b"x" * 50, HERE, HERE),
            queue_offset=number,
            physical_offset=len(content),
            store_timestamp_ms=1,
            record_crc=True,
        )
    content[starts[1] + 16] ^= 1  # flag: only the record CRC covers it
    content[starts[3] + 16] ^= 1
    (directory / offset_name(0)).write_bytes(content + bytes(FILE_SIZE - len(content)))
    files = LogFiles(OsDisk(), directory, FILE_SIZE)
    found = log_walk.walk(
        files,
        0,
        unjudged=[(0, starts[1] + 9)],
        unproven_from=log_walk.NEVER,
        progress=lambda done, total: None,
    )
    files.close()
    assert (found.end, found.records) == (starts[3], 3)
    assert "record crc" in found.reason.lower()


def test_blocks_that_were_never_written_are_not_read(tmp_path: Path) -> None:
    # A log file made ahead is a gigabyte of zeros; reading it took seconds of every start.
    directory = tmp_path / "commitlog"
    directory.mkdir()
    reads: list[tuple[int, int]] = []

    class Watched(OsDisk):
        def open(self, path: Path, *, writable: bool):  # type: ignore[no-untyped-def]
            file = super().open(path, writable=writable)
            plain = file.pread

            def pread(size: int, offset: int) -> bytes:
                reads.append((size, offset))
                return plain(size, offset)

            return _Reader(file, pread)

    OsDisk().create(directory / offset_name(0), 1 << 26, reserve=True).close()
    files = LogFiles(Watched(), directory, 1 << 26)
    assert log_walk.last_nonzero(files, 0) is None
    assert reads == []
    with (directory / offset_name(0)).open("r+b") as file:
        file.seek(70_000)
        file.write(b"\1")
    assert log_walk.last_nonzero(files, 0) == 70_000
    assert sum(size for size, _ in reads) <= 1 << 20


class _Reader:
    """An open file whose reads are watched."""

    def __init__(self, file, pread) -> None:  # type: ignore[no-untyped-def]
        self.pread, self.close, self.data_end = pread, file.close, file.data_end
