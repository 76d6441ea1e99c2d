"""The last non-zero byte of a file, wherever chunks and holes end."""

from __future__ import annotations

import os
from pathlib import Path

from shared.files.last_nonzero import last_nonzero_in
from shared.files.os_disk import OsDisk
from tests.support.for_each import for_each

CHUNK = 1 << 20
SIZE = 3 * CHUNK + 5
PLACES = (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 4, 2 * CHUNK + 5, SIZE - 1)


@for_each("place", PLACES)
def test_it_is_found_in_a_file_with_holes_and_in_written_zeros(tmp_path: Path, place: int) -> None:
    sparse, written = tmp_path / "sparse", tmp_path / "written"
    with sparse.open("wb") as made:
        made.truncate(SIZE)
        os.pwrite(made.fileno(), b"\x01", place)
    written.write_bytes(bytes(place) + b"\x01" + bytes(SIZE - place - 1))
    for path in (sparse, written):
        file = OsDisk().open(path, writable=False)
        assert last_nonzero_in(file) == place
        assert last_nonzero_in(file, place) == place
        assert last_nonzero_in(file, place + 1) is None
        file.close()


def test_a_file_of_zeros_has_none(tmp_path: Path) -> None:
    for name, size in (("empty", 0), ("zeros", SIZE)):
        (tmp_path / name).write_bytes(bytes(size))
        file = OsDisk().open(tmp_path / name, writable=False)
        assert last_nonzero_in(file) is None
        file.close()
