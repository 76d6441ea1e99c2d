"""A process that reads a mapping of a file that was cut ends with a sentence, not without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime.bus_error import Place, bus_error, place_of
from tidemark.errors import DamagedFile, ReadFailed

PROGRAM = """
import asyncio, mmap, os, sys, threading, zlib
from shared.runtime.lifecycle import run_process

path, how = sys.argv[1:]

def read(view):
    match how:
        case "copy":
            bytes(view[8192:8200])
        case "without the interpreter's lock":
            zlib.crc32(view[4096:])
        case "in a thread":
            thread = threading.Thread(target=lambda: bytes(view[8192:]))
            thread.start()
            thread.join()

async def main():
    with open(path, "r+b") as file:
        file.truncate(1 << 16)
        view = memoryview(mmap.mmap(file.fileno(), 1 << 16))
        view[8192] = 1
        file.truncate(100)
    read(view)
    print("went on")

sys.exit(run_process(main))
"""


@pytest.mark.parametrize("how", ["copy", "without the interpreter's lock", "in a thread"])
def test_a_read_of_a_file_that_was_cut_ends_the_process_with_a_sentence(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "with a space"
    path.touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), how],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done
    assert f"tidemark: [damaged-file] {path} was cut to 100 bytes" in done.stderr
    assert "went on" not in done.stdout


MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 131                        /usr/bin/python3
7f0000000000-7f0000010000 rw-s 00008000 08:01 77                         /store/a b/0000
7f0000010000-7f0000020000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
"""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0x7F0000000000, Place(Path("/store/a b/0000"), 0x8000)),
        (0x7F000000FFFF, Place(Path("/store/a b/0000"), 0x17FFF)),
        (0x7F0000010000, None),
        (0x7FFD00000001, None),
        (0, None),
    ],
)
def test_the_file_at_an_address(address: int, expected: Place | None) -> None:
    assert place_of(MAPS, address) == expected


def test_a_byte_that_the_file_has_is_the_disks_fault(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    assert isinstance(bus_error(Place(path, 9)), ReadFailed)
    assert isinstance(bus_error(Place(path, 10)), DamagedFile)
    gone = bus_error(Place(Path(f"{tmp_path / 'gone'} (deleted)"), 9))
    assert isinstance(gone, DamagedFile)
    assert gone.path == tmp_path / "gone"
    assert isinstance(bus_error(None), ReadFailed)
