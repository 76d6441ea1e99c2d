"""A small file system of its own for a test, which needs the right to mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


def _commands(kind: str, image: Path, where: Path, size: int) -> Iterator[list[str]]:
    """Yield the commands that make and mount the file system."""
    if kind == "tmpfs":
        yield ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
        return
    with image.open("wb") as file:
        file.truncate(size)
    yield ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)]
    yield ["mount", "-o", "loop", str(image), str(where)]


@contextmanager
def mounted(kind: str, directory: Path, size: int) -> Iterator[Path]:
    """A file system of a kind (ext4, tmpfs) and size [bytes], mounted below directory.

    Skips the test where that cannot be done, or fails it if nothing may be skipped.
    """
    where, image = directory / "disk", directory / "image"
    where.mkdir()
    for command in _commands(kind, image, where, size):
        try:
            done = subprocess.run(command, capture_output=True, check=False)
            problem = done.stderr.decode() if done.returncode else ""
        except FileNotFoundError:
            problem = f"{command[0]} is not installed"
        if problem:
            if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
                pytest.fail(f"cannot make and mount a small file system: {problem}")
            pytest.skip("needs mkfs.ext4 and the right to mount: run the tests as root")
    # It ends with the pipe, also if this process is killed: a file system that stayed mounted made
    # every later run of pytest fail that tried to remove it.
    unmount = 'read -r _; mount -o remount,rw "$0" 2>/dev/null; umount -l "$0"'
    watch = subprocess.Popen(
        ["sh", "-c", unmount, str(where)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield where
    finally:
        watch.communicate()
        assert watch.returncode == 0, f"{where} is still mounted"
